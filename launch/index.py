r"""Makes a system up to its index, MODEL_DIR/index: the same files, flags and MODEL_DIR as `gr-jax recipe`.

  gr-jax index --gin_file=gin_configs/systems/gdr.gin \
      --gin.CORPUS=\"my_beir_folder\" --gin.MODEL_DIR=\"runs/mine\"
"""

from __future__ import annotations

from absl import flags

from . import configured, program


def main() -> None:
    configured.run_system(until="index")


if __name__ == "__main__":
    flags.adopt_module_key_flags(configured)
    program.run(main)
