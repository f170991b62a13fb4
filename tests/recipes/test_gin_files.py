"""Gin files of budgets, read after a recipe's."""

import contextlib
import pathlib

import gin
import pytest

import launch.show  # noqa: F401  the files name it
from gr_jax import recipes

gin.add_config_file_search_path(str(pathlib.Path(__file__).parents[2]))
CONTRASTIVE = ["ance", "colbert", "dpr", "dpr_in_batch", "dpr_passages"]


@contextlib.contextmanager
def read(*files: str):
    with gin.unlock_config():
        try:
            gin.parse_config_files_and_bindings(
                [f"gin_configs/{name}.gin" for name in files], ['CORPUS = "mine"', 'MODEL_DIR = "runs/mine"']
            )
            yield
        finally:
            gin.clear_config()


@pytest.mark.parametrize("name", CONTRASTIVE)
def test_a_small_budget_is_the_same_for_every_recipe(name):
    with read(f"recipes/{name}"):
        whole, before = recipes.ContrastiveTraining(), recipes.Mining()
    with read(f"recipes/{name}", "budgets/small_ance" if name == "ance" else "budgets/small"):
        small, mined = recipes.ContrastiveTraining(), recipes.Mining()
        with gin.config_scope("query_side"):
            assert recipes.ContrastiveTraining().steps == 0  # the budget is spent on both sides
    assert (small.steps, small.warmup_steps, small.evaluate_every) == (120, 12, 40) and whole.steps >= 600
    assert small.rates == whole.rates and small.keep_best == whole.keep_best
    assert mined.shares == before.shares
    if name == "ance":  # mined at step s, used from s + refresh_every on
        assert mined.refresh_every % small.evaluate_every == 0 and 2 * mined.refresh_every < small.steps
    else:
        assert mined == before
