"""Every class of settings: all fields are in the key, and what cannot work is refused at once."""

import dataclasses
import json
import math

import pytest

from gr_jax import systems
from gr_jax.errors import InputError
from gr_jax.stages import keys
from gr_jax.stages.training import Optimization, make_optimizer

ALL = [
    systems.Vectors,
    systems.Identifiers,
    systems.PseudoQueries,
    systems.Network,
    systems.Training,
    systems.Decoding,
    systems.Encoders,
    systems.Mining,
    systems.ContrastiveTraining,
    systems.Search,
    systems.Lexical,
    systems.Interaction,
    systems.Crossing,
    systems.QueryGenerating,
    systems.GeneratedQueries,
    systems.Clusters,
    systems.Matching,
    systems.ClusterSearch,
]
# What came later and is left out where it is not set, so that it makes nothing stale that was made before.
LATER = {
    systems.PseudoQueries: {"generated"},
    systems.ContrastiveTraining: {"margin_mse", "teacher_kl", "in_batch"},
    systems.Network: {"decoder", "pawa_layers", "pawa_width"},
    systems.Training: {"rdrop"},
    systems.Identifiers: {"permuted", "refits", "reserved"},
    systems.Encoders: {"pretrained_layers"},
    systems.Search: {"unread"},
    systems.QueryGenerating: {"decoder", "frozen"},
}
FAULTS = {"not_finite", "spike", "spike_factor"}  # of everything that trains


@pytest.mark.parametrize("kind", ALL)
def test_every_field_is_part_of_the_configuration(kind):
    config = keys.canonical(kind())
    names = {field.name for field in dataclasses.fields(kind)}
    if issubclass(kind, Optimization):  # of speed alone, and what came later
        names -= {"sharding", "remat", "precision"}
    assert set(config) == names - LATER.get(kind, set()) - FAULTS
    json.dumps(config)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (systems.ContrastiveTraining, "margin_mse", 0.5),
        (systems.ContrastiveTraining, "in_batch", False),
        (systems.Network, "pawa_layers", 1),
        (systems.Network, "pawa_width", 8),
        (systems.Training, "rdrop", 0.15),
        (systems.Training, "precision", "bfloat16"),
        (systems.ContrastiveTraining, "precision", "bfloat16"),
        (systems.Encoders, "pretrained_layers", 0),
        (systems.QueryGenerating, "frozen", False),
    ],
)
def test_what_came_later_is_in_the_configuration_where_it_counts(kind, name, value):
    assert keys.canonical(kind(**{name: value})) == {**keys.canonical(kind()), name: value}


@pytest.mark.parametrize("change", [{"sharding": "fsdp"}, {"remat": "layers"}, {"remat": "dots"}])
def test_what_is_of_speed_alone_is_in_no_key(change):
    assert keys.canonical(systems.Training(**change)) == keys.canonical(systems.Training())


def test_losses_from_a_teacher_are_not_negative():
    with pytest.raises(InputError, match="teacher_kl is not above 0"):
        systems.ContrastiveTraining(teacher_kl=-1.0)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (systems.Vectors, {"passages": "words"}),
        (systems.ClusterSearch, {"backend": "scann", "codes": "row"}),
        (systems.ClusterSearch, {"betas": (0.0, math.nan)}),
        (systems.ClusterSearch, {"betas": (math.inf,)}),
        (systems.ClusterSearch, {"betas": ()}),
        (systems.ClusterSearch, {"betas": 0.1}),
        (systems.ClusterSearch, {"betas": ("a",)}),
        (systems.ClusterSearch, {"betas": (True,)}),
        (systems.ClusterSearch, {"chosen": 20}),
        (systems.ClusterSearch, {"chosen": ()}),
        (systems.ClusterSearch, {"chosen": (2.5,)}),
        (systems.ClusterSearch, {"length_penalty": math.nan}),
        (systems.Clusters, {"budget": 10.5}),
        (systems.Clusters, {"most_docids": 2.5}),
        (systems.Clusters, {"branching": 2.5}),
        (systems.Clusters, {"branching": "30"}),
        (systems.Clusters, {"branching": ()}),
        (systems.Clusters, {"branching": [30, 1]}),
        (systems.Identifiers, {"scheme": "alphabetical"}),
        (systems.Identifiers, {"tokens": "letters"}),
        (systems.Network, {"vocabulary": "words"}),
        (systems.Network, {"outputs": "zero"}),
        (systems.Network, {"width": 30, "heads": 4}),
        (systems.Network, {"decoder_layers": 0}),
        (systems.Training, {"optimizer": "sgd"}),
        (systems.Training, {"normalize": "constraint"}),
        (systems.Training, {"schedule": "cosine"}),
        (systems.Training, {"steps": -1}),
        (systems.Training, {"max_input_length": 128, "row_length": 64}),
        (systems.Training, {"batch_size": 10, "microbatches": 4}),
        (systems.Training, {"optimizer": "adafactor", "weight_decay": 0.1}),
        (systems.ContrastiveTraining, {"optimizer": "adafactor"}),
        (systems.QueryGenerating, {"optimizer": "adafactor"}),
        (systems.Network, {"vocabulary": "byte"}),
        (systems.Encoders, {"vocabulary": "byte"}),
        (systems.QueryGenerating, {"vocabulary": "sentencepiece"}),
        (systems.Training, {"batch_size": 0}),
        (systems.Training, {"rates": {"querry": 1.0}}),
        (systems.Training, {"rates": {"query": 0.0, "pseudo": 0.0}}),
        (systems.Training, {"rates": {"query": -1.0, "pseudo": 2.0}}),
        (systems.Training, {"rates": {}}),
        (systems.Encoders, {"width": 30, "heads": 4}),
        (systems.Encoders, {"layers": 0}),
        (systems.ContrastiveTraining, {"evaluate_every": -1}),
        (systems.ContrastiveTraining, {"dev_documents": -1}),
        (systems.QueryGenerating, {"width": 30, "heads": 4}),
        (systems.QueryGenerating, {"checkpoint_every": -1}),
        (systems.Decoding, {"normalize": "none"}),
        (systems.Decoding, {"beams": 0}),
    ],
)
def test_what_cannot_work_is_refused(kind, wrong):
    with pytest.raises(InputError) as caught:
        kind(**wrong)
    assert any(name in str(caught.value) for name in wrong)


def test_any_training_may_warm_up_for_longer_than_it_takes():
    """It warms up for half of its steps then."""
    optimizer = make_optimizer(systems.Training(steps=10, warmup_steps=10))
    assert optimizer.schedule.warmup_steps == 5


def test_a_pretrained_folder_without_a_vocabulary_may_be_one_of_bytes(tmp_path):
    systems.Network(encoder=str(tmp_path), vocabulary="byte")
    (tmp_path / "spiece.model").write_bytes(b"")
    with pytest.raises(InputError, match='Set Network.vocabulary = "pretrained"'):
        systems.Network(encoder=str(tmp_path), vocabulary="byte")


@pytest.mark.parametrize("how", [{"not_finite": "back"}, {"spike": "back"}])
def test_what_makes_things_while_it_trains_does_not_go_back(how):
    ance = systems.Mining(shares={"ance": 1.0}, refresh_every=10)
    contrastive = systems.ContrastiveTraining(steps=100, **how)
    for make in (
        lambda: systems.GDR(mining=ance, training=contrastive),
        lambda: systems.GDR(encoder_mining=ance, encoder_training=contrastive),
        lambda: systems.DSIClusters(encoder_mining=ance, encoder_training=contrastive),
        lambda: systems.DPR(mining=ance, training=contrastive, query_training=None),
        lambda: systems.CGRAsync(
            training=systems.Training(steps=100, rates={"query": 1.0}, normalize="vocabulary", **how)
        ),
    ):
        with pytest.raises(InputError, match='goes "back" where something is wrong'):
            make()
    systems.DPR(training=contrastive, query_training=None)
