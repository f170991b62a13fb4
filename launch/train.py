r"""Makes everything of a system that trains: the same files, flags and MODEL_DIR as `gr-jax recipe`.

  gr-jax train --gin_file=gin_configs/systems/gdr.gin \
      --gin.CORPUS=\"my_beir_folder\" --gin.MODEL_DIR=\"runs/mine\"

`gr-jax index` goes on from there, and `gr-jax recipe` after it.
"""

from __future__ import annotations

from absl import flags

from gr_jax.systems import base

from . import configured, program


def main() -> None:
    configured.run_system(until=base.TRAINED)


if __name__ == "__main__":
    flags.adopt_module_key_flags(configured)
    program.run(main)
