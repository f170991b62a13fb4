"""Runs a recipe, stage by stage: `python -m launch.recipe --gin_file=gin_configs/recipes/dsi.gin --gin.MODEL_DIR=…`."""

from __future__ import annotations

from gr_jax import recipes
from launch import program, show


def main() -> None:
    program.read_gin()
    searcher = recipes.run()
    if searcher is not None:
        show.show_next(searcher)


if __name__ == "__main__":
    program.run(main)
