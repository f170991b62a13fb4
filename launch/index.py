"""A recipe up to its index, MODEL_DIR/index: the same gin files and MODEL_DIR as `launch.recipe`."""

from __future__ import annotations

from gr_jax import recipes
from launch import program


def main() -> None:
    program.read_gin()
    recipes.run(until="index")


if __name__ == "__main__":
    program.run(main)
