"""Settings: every field is in the key, and what cannot work is refused at once."""

import dataclasses
import json
import math

import gin
import pytest

from gr_jax import recipes
from gr_jax.errors import InputError

ALL = [
    recipes.Vectors,
    recipes.Identifiers,
    recipes.PseudoQueries,
    recipes.Network,
    recipes.Training,
    recipes.Decoding,
    recipes.Encoders,
    recipes.Mining,
    recipes.ContrastiveTraining,
    recipes.Search,
    recipes.Lexical,
    recipes.Interaction,
    recipes.Crossing,
    recipes.QueryGenerating,
    recipes.GeneratedQueries,
    recipes.Clusters,
    recipes.Matching,
    recipes.ClusterSearch,
]
# What came later and is left out where it is not set, so that what was made before has the same key. Of a table that
# is set, what it holds is in the key: test_doct5query.py.
LATER = {
    recipes.PseudoQueries: {"generated"},
    recipes.Mining: {"file"},
    recipes.ContrastiveTraining: {"margin_mse", "teacher_kl"},
    recipes.Network: {"pawa_layers"},
    recipes.Training: {"rdrop"},
    recipes.Encoders: {"pretrained_layers"},
    recipes.Clusters: {"sample", "margin"},  # what the algorithm does not read
}


@pytest.mark.parametrize("kind", ALL)
def test_every_field_is_part_of_the_configuration(kind):
    config = kind().as_config()
    names = [field.name for field in dataclasses.fields(kind)]
    assert list(config) == [name for name in names if name not in LATER.get(kind, ())]
    json.dumps(config)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (recipes.ContrastiveTraining, "margin_mse", 0.5),
        (recipes.Network, "pawa_layers", 1),
        (recipes.Training, "rdrop", 0.15),
        (recipes.Encoders, "pretrained_layers", 0),
    ],
)
def test_what_came_later_is_in_the_configuration_where_it_counts(kind, name, value):
    assert kind(**{name: value}).as_config() == {**kind().as_config(), name: value}


def test_losses_from_a_teacher_are_not_negative():
    with pytest.raises(InputError, match="teacher_kl is below 0"):
        recipes.ContrastiveTraining(teacher_kl=-1.0)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (recipes.Vectors, {"passages": "words"}),
        (recipes.ClusterSearch, {"backend": "scann", "codes": "row"}),
        (recipes.ClusterSearch, {"betas": (0.0, math.nan)}),
        (recipes.ClusterSearch, {"betas": (math.inf,)}),
        (recipes.ClusterSearch, {"betas": ()}),
        (recipes.ClusterSearch, {"betas": 0.1}),
        (recipes.ClusterSearch, {"betas": ("a",)}),
        (recipes.ClusterSearch, {"betas": (True,)}),
        (recipes.ClusterSearch, {"chosen": 20}),
        (recipes.ClusterSearch, {"chosen": ()}),
        (recipes.ClusterSearch, {"chosen": (2.5,)}),
        (recipes.ClusterSearch, {"length_penalty": math.nan}),
        (recipes.Clusters, {"budget": 10.5}),
        (recipes.Clusters, {"most_docids": 2.5}),
        (recipes.Clusters, {"branching": 2.5}),
        (recipes.Clusters, {"branching": "30"}),
        (recipes.Clusters, {"branching": ()}),
        (recipes.Clusters, {"branching": [30, 1]}),
        (recipes.Identifiers, {"scheme": "alphabetical"}),
        (recipes.Identifiers, {"tokens": "letters"}),
        (recipes.Network, {"vocabulary": "words"}),
        (recipes.Network, {"outputs": "zero"}),
        (recipes.Network, {"width": 30, "heads": 4}),
        (recipes.Network, {"decoder_layers": 0}),
        (recipes.Training, {"optimizer": "sgd"}),
        (recipes.Training, {"normalize": "constraint"}),
        (recipes.Training, {"schedule": "cosine"}),
        (recipes.Training, {"steps": -1}),
        (recipes.Training, {"steps": 10, "warmup_steps": 10}),
        (recipes.Training, {"batch_size": 0}),
        (recipes.Training, {"rates": {"querry": 1.0}}),
        (recipes.Training, {"rates": {"query": 0.0, "pseudo": 0.0}}),
        (recipes.Training, {"rates": {"query": -1.0, "pseudo": 2.0}}),
        (recipes.Training, {"rates": {}}),
        (recipes.Encoders, {"width": 30, "heads": 4}),
        (recipes.Encoders, {"layers": 0}),
        (recipes.ContrastiveTraining, {"evaluate_every": -1}),
        (recipes.ContrastiveTraining, {"dev_documents": -1}),
        (recipes.QueryGenerating, {"width": 30, "heads": 4}),
        (recipes.QueryGenerating, {"checkpoint_every": -1}),
        (recipes.Decoding, {"normalize": "none"}),
        (recipes.Decoding, {"beams": 0}),
    ],
)
def test_what_cannot_work_is_refused(kind, wrong):
    with pytest.raises(InputError) as caught:
        kind(**wrong)
    assert any(name in str(caught.value) for name in wrong)


def test_gin_sets_them():
    with gin.unlock_config():
        try:
            gin.parse_config(
                "import gr_jax.recipes\nTraining.steps = 7\nTraining.warmup_steps = 2\nTraining.mesh = (4, 2)\n"
            )
            assert recipes.Training().steps == 7 and recipes.Training().mesh == (4, 2)
            assert recipes.Training(steps=9).steps == 9
        finally:
            gin.clear_config()
