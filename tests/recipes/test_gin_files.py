"""Gin files: what GDR's and NCI's recipes say, and budgets and ablations, read after a recipe's."""

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
        assert 2 * mined.refresh_every < small.steps
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


@pytest.mark.parametrize("name", ["gdr", "nci"])
def test_the_gin_file_says_what_is_done_where_nobody_says_otherwise(name):
    recipe, defaults = {
        "gdr": (recipes.gdr, gin_settings.DEFAULTS),
        "nci": (recipes.nci, gin_settings.NCI_DEFAULTS),
    }[name]
    told = gin_settings.told(f"gin_configs/systems/{name}.gin", recipe=recipe)
    assert told == gin_settings.comparable(defaults)


def test_the_published_settings():
    """Yuan et al. 2024 and their code; 58,622 training queries."""
    told = gin_settings.told("gin_configs/recipes/gdr_as_published.gin")
    training, network, search = told["training"], told["network"], told["search"]
    assert told["matching"] | {"similarity": "tanh", "temperature": 0.05, "rdrop": 0.15} == told["matching"]
    assert (training["batch_size"], training["negatives"], training["learning_rate"]) == (64, 10, 2e-4)
    assert round(training["steps"] * training["batch_size"] / 58_622) == 51
    assert {name: 2e-4 * factor for name, factor in training["multipliers"].items()} == {
        "decoder": 1e-4, "decoder_token_embedder": 1e-4, "pawa": 1e-4,
    }  # fmt: skip
    assert (network["decoder_layers"], network["pawa_layers"], network["width"]) == (6, 4, 768)
    assert (search["beams"], search["length_penalty"]) == (100, 0.8) and max(search["betas"]) == 3.0
    assert told["clusters"]["budget"] == 5000 and told["mined"]["shares"] == {"cluster": 1.0}


@pytest.mark.parametrize("name", ["gdr", "gdr_passages", "gdr_as_published", "nci", "quickstart"])
def test_gin_files_name_what_there_is(name):
    told = gin_settings.told(f"gin_configs/recipes/{name}.gin", recipe=recipes.nci if name == "nci" else recipes.gdr)
    assert told["encoders"]["shared"] and told["encoder_training"]["steps"] == {
        "quickstart": 0, "gdr_as_published": 20000,
    }.get(name, 300)  # fmt: skip
