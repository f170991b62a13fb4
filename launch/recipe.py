r"""Makes a system from your documents, stage by stage: what it trains, its index, its measures and a report.

  gr-jax recipe --gin_file=gin_configs/systems/gdr.gin \
      --gin.CORPUS=\"my_beir_folder\" --gin.MODEL_DIR=\"runs/mine\"

What is finished and unchanged is not made again, and an interrupted command goes on where it was. Files say what
differs from the settings' defaults, later ones over earlier ones, and flags over all of them:

  --gin_file=gin_configs/systems/gdr.gin --gin_file=gin_configs/budgets/small_gdr.gin   a small budget of training
  --gin.Clusters.budget=2000                                                           one setting
  --gin.joint/ContrastiveTraining.steps=40                                             of the field `joint` alone
  --gin.GDR.encoder_training=None                                                      off

Every system, its paper, its files and their commands:

  gr-jax recipe --list
"""

from __future__ import annotations

from absl import flags

from gr_jax import processes

from . import configured, listing, program, show


def main() -> None:
    if flags.FLAGS.list:
        print(listing.listing())
        return
    searcher = configured.run_system()
    if searcher is not None and processes.first():
        show.show_next(searcher, configured.model_dir())


if __name__ == "__main__":
    flags.DEFINE_bool("list", False, "Name every system with its paper, its configuration files and a command.")
    flags.adopt_module_key_flags(configured)
    program.run(main)
