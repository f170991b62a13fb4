"""Gin files of budgets and ablations, read after a recipe's."""

import contextlib
import pathlib

import gin
import pytest

import launch.show  # noqa: F401  the files name it
from gr_jax import recipes
from tests.recipes import gin_settings

CHECKOUT = pathlib.Path(__file__).parents[2]
gin.add_config_file_search_path(str(CHECKOUT))
# What an ablation changes of `recipes.gdr`, or of `recipes.nci`.
ABLATIONS = {
    "cluster_negatives": {"mined"},
    "bm25_negatives": {"mined"},
    "random_negatives": {"mined"},
    "ance_negatives": {"mined"},
    "no_pseudo_queries": {"training"},
    "spans": {"pseudo_queries"},
    "generated_queries": {"pseudo_queries"},
    "generated_and_spans": {"pseudo_queries"},
    "untuned_documents": {"encoder_training"},
    "input_embeddings": {"encoder_training", "encoders", "matching"},
    "rdrop": {"matching", "training"},
    "second_stage": {"training", "joint"},
    "decoder_head": {"network", "clusters"},
}
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


@pytest.mark.parametrize("file", sorted((CHECKOUT / "gin_configs" / "ablations").glob("*.gin")), ids=lambda f: f.stem)
def test_an_ablation_changes_what_it_is_about(file):
    name = "nci" if file.stem == "decoder_head" else "gdr"
    whole = f"gin_configs/recipes/{name}.gin"
    before, after = (
        gin_settings.told(*files, recipe=getattr(recipes, name))
        for files in ((whole,), (whole, f"gin_configs/ablations/{file.name}"))
    )
    assert {argument for argument in after if after[argument] != before[argument]} == ABLATIONS[file.stem]
    head = file.read_text().split("\n\n", 1)[0]
    assert f"--gin_file={whole} --gin_file=gin_configs/ablations/{file.name} " in head
