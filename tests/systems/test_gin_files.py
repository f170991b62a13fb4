"""Gin files: each is read, made a system and written back, and says what differs from Python's defaults alone."""

import dataclasses

import gin
import pytest

from gr_jax import systems
from gr_jax.errors import InputError
from gr_jax.systems import configuration
from tests.systems.configured import CHECKOUT, as_bound, parsed, read_back, resolved

FILES = sorted(file.relative_to(CHECKOUT / "gin_configs") for file in CHECKOUT.glob("gin_configs/*/*.gin"))
NAMES = [file.stem for file in FILES if file.parent.name == "systems"]
# What runs what; that it is the system as it is by default, if nothing more is said.
SYSTEMS = {
    "bm25": systems.BM25,
    "dsi": systems.DSI,
    "dpr": systems.DPR,
    "colbert": systems.ColBERT,
    "bm25_cross_encoder": systems.BM25CrossEncoder,
    "bm25_doct5query": systems.BM25DocT5Query,
    "gdr": systems.GDR,
    "nci": systems.NCI,
    "dsi_clusters": systems.DSIClusters,
    "dsi_qg": systems.DSIQG,
    "seal": systems.SEAL,
    "minder": systems.MINDER,
    "ltrgr": systems.LTRGR,
    "dgr": systems.DGR,
    "dgr_dsi": systems.DSIDGR,
    "genre": systems.GENRE,
    "genre_star": systems.GENREStar,
    "cgr": systems.CGR,
    "cgr_async": systems.CGRAsync,
    "cgr_contra": systems.CGRContra,
}
# What an ablation changes of GDR, or of NCI; and the system that a small budget is of, where it is not named after it.
ABLATIONS = {
    "cluster_negatives": {"mining"},
    "bm25_negatives": {"mining"},
    "random_negatives": {"mining"},
    "ance_negatives": {"mining"},
    "no_pseudo_queries": {"training"},
    "spans": {"pseudo_queries"},
    "generated_queries": {"pseudo_queries"},
    "generated_and_spans": {"pseudo_queries"},
    "untuned_documents": {"encoder_training"},
    "input_embeddings": {"encoder_training", "encoders", "matching"},
    "rdrop": {"matching", "training"},
    "second_stage": {"training", "joint"},
    "no_decoder_head": {"network"},
}
SMALL = {"gdr": "small_gdr", "nci": "small_docids", "dsi_clusters": "small_docids"}
OF_NCI = {"untuned_documents": {"encoder_training"}, "input_embeddings": {"encoder_training", "encoders", "start"}}


def changed(before: systems.System, after: systems.System) -> set[str]:
    return {
        field.name for field in dataclasses.fields(before) if getattr(before, field.name) != getattr(after, field.name)
    }


def needs(ablation: str) -> list[str]:
    return ['PseudoQueries.generated = "anywhere"'] if "generated" in ablation else []


@pytest.mark.parametrize("file", FILES, ids=str)
def test_every_file_is_read(file):
    with parsed(str(file.with_suffix(""))):
        assert gin.config_str()


@pytest.mark.parametrize("name", NAMES)
def test_every_system_is_made_and_written_back_equal(name):
    with parsed(f"systems/{name}"):
        made, bound = as_bound(), gin.get_bindings(systems.run.run)
    text = configuration.to_gin(made, bound["source"], bound["model_dir"], "elsewhere")
    assert read_back(text) == made and type(made) in systems.SYSTEMS
    gin.parse_config(text)
    again = gin.get_bindings(systems.run.run)
    gin.clear_config()
    assert (again["source"], again["model_dir"], again["shared_dir"]) == (
        bound["source"],
        bound["model_dir"],
        "elsewhere",
    )


@pytest.mark.parametrize("name", SYSTEMS)
def test_defaults_live_in_python_once(name):
    assert resolved(f"systems/{name}") == SYSTEMS[name]()


def test_every_system_has_a_configuration_of_its_own():
    assert set(SYSTEMS.values()) == set(systems.SYSTEMS) and set(SYSTEMS) <= set(NAMES)


# Files of models and docids are whole, so that one may follow another.
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("dsi_large", "dsi_codes", "dsi_codebook")])
def test_files_of_systems_state_differences(name):
    """Without any one of its lines it would be another system."""
    with parsed(f"systems/{name}"):
        whole = as_bound()
        bound = [(place, parameter) for place, values in gin.config._CONFIG.items() for parameter in values]
        for (scope, selector), parameter in bound:
            if not selector.startswith("gr_jax.") or selector in ("gr_jax.run", "gr_jax.BeirFolder"):
                continue
            values = gin.config._CONFIG[scope, selector]
            value = values.pop(parameter)
            try:
                assert as_bound() != whole, f"{scope}/{selector}.{parameter} is as by default"
            except InputError:
                pass  # nor a system at all
            values[parameter] = value


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("quickstart", "dsi_python_docs")])
def test_data_may_follow_any_system(name):
    with parsed(f"systems/{name}", "data/python_docs"):
        made, source = as_bound(), gin.get_bindings(systems.run.run)["source"]
    assert isinstance(source, systems.PythonDocs) and made == resolved(f"systems/{name}")


@pytest.mark.parametrize("name", ["dsi", "dsi_large", "gdr", "nci", "dsi_clusters"])
def test_models_may_follow_one_another(name):
    small = resolved(f"systems/{name}", "models/tiny")
    assert small.network.encoder == "t5" and small.network.width == 128
    large = resolved(f"systems/{name}", "models/tiny", "models/minilm")
    assert large.network == dataclasses.replace(small.network, **_sizes(SYSTEMS["dsi"]().network))


def _sizes(network) -> dict:
    return {
        name: getattr(network, name)
        for name in ("encoder", "vocabulary", "width", "decoder_layers", "heads", "mlp_width", "dropout")
    }


@pytest.mark.parametrize("name", ["ance", "colbert", "dpr", "dpr_in_batch", "dpr_passages"])
def test_a_small_budget_is_the_same_for_every_system(name):
    budget = "small_ance" if name == "ance" else "small"
    before, after = resolved(f"systems/{name}"), resolved(f"systems/{name}", f"budgets/{budget}")
    small, whole = after.training, before.training
    assert getattr(after, "query_training", None) is None  # the budget is spent on both sides
    assert (small.steps, small.warmup_steps, small.evaluate_every) == (120, 12, 40) and whole.steps >= 600
    assert small.rates == whole.rates and small.keep_best == whole.keep_best
    assert after.mining.shares == before.mining.shares
    if name == "ance":  # mined at step s, used from s + refresh_every on
        assert after.mining.refresh_every % small.evaluate_every == 0 and 2 * after.mining.refresh_every < small.steps
    else:
        assert after.mining == before.mining


@pytest.mark.parametrize("budget", [[], ["small"]], ids=["whole", "small"])
@pytest.mark.parametrize("ablation", ABLATIONS)
def test_an_ablation_changes_what_it_is_about(ablation, budget):
    name = "nci" if ablation == "no_decoder_head" else "gdr"
    files = [f"systems/{name}", *(f"budgets/{SMALL[name]}" for _ in budget)]
    before, after = (resolved(*files, *more, bindings=bound) for more, bound in (
        ((), ()), ((f"ablations/{ablation}",), needs(ablation)),
    ))  # fmt: skip
    assert changed(before, after) == ABLATIONS[ablation]


@pytest.mark.parametrize("name", ["nci", "dsi_clusters"])
@pytest.mark.parametrize("ablation", OF_NCI)
def test_some_ablations_are_of_others_alike(ablation, name):
    before, after = resolved(f"systems/{name}"), resolved(f"systems/{name}", f"ablations/{ablation}")
    assert changed(before, after) == OF_NCI[ablation]


@pytest.mark.parametrize(
    "file", [file for file in FILES if file.parent.name == "ablations"], ids=lambda file: file.stem
)
def test_an_ablations_head_has_its_command(file):
    name = "nci" if file.stem == "no_decoder_head" else "gdr"
    head = (CHECKOUT / "gin_configs" / file).read_text().split("\n\n", 1)[0]
    assert f"--gin_file=gin_configs/systems/{name}.gin --gin_file=gin_configs/ablations/{file.name} " in head
    assert file.stem in ABLATIONS


def test_a_taught_student_is_the_one_that_can_be_had_alone():
    """So that a student that is there already need not be trained again."""
    alone, taught = resolved("systems/dsi_centroids"), resolved("systems/dgr_dsi")
    for field in dataclasses.fields(alone):
        assert field.name == "name" or getattr(taught, field.name) == getattr(alone, field.name)


def test_off_is_none():
    assert resolved("systems/quickstart").encoder_training is None
    assert resolved("systems/ance").query_training is None is resolved("systems/dpr_in_batch").query_training
    large = resolved("systems/dsi_large").training
    assert (large.evaluate_every, large.dev_queries, large.keep_best) == (None, None, None)
    for budget in ([], ["budgets/small_gdr"]):
        assert resolved("systems/gdr", *budget, bindings=["ContrastiveTraining.steps = 40"]).joint is None
    second = resolved("systems/gdr", "budgets/small_gdr", "ablations/second_stage").joint
    assert (second.steps, second.batch_size, second.evaluate_every, second.dev_queries) == (40, 16, 20, 200)


def test_the_published_settings():
    """Yuan et al. 2024 and their code; 58,622 training queries."""
    gdr = resolved("systems/gdr_as_published")
    training, matching = gdr.training, gdr.matching
    assert (matching.similarity, matching.temperature, matching.rdrop) == ("tanh", 0.05, 0.15)
    assert (training.batch_size, training.negatives, training.learning_rate) == (64, 10, 2e-4)
    assert round(training.steps * training.batch_size / 58_622) == 51
    for one in (training, gdr.joint):
        assert {name: one.learning_rate * factor for name, factor in one.multipliers.items()} == {
            "decoder": 1e-4, "decoder_token_embedder": 1e-4, "pawa": 1e-4,
        }  # fmt: skip
        assert (one.warmup_steps, one.weight_decay) == (0, 1e-4)
    assert gdr.encoder_training.weight_decay == 1e-4 and gdr.encoder_training.multipliers == {}
    assert (gdr.network.decoder_layers, gdr.network.pawa_layers, gdr.network.width) == (6, 4, 768)
    assert (gdr.search.beams, gdr.search.length_penalty) == (100, 0.8) and max(gdr.search.betas) == 3.0
    assert gdr.clusters.budget == 5000 and gdr.mining.shares == {"cluster": 1.0}
    assert gdr.encoder_mining.shares == systems.GDR().encoder_mining.shares
