"""What gin binds besides a recipe's settings is part of its stages' keys."""

import dataclasses

import gin
import pytest

from gr_jax import recipes
from gr_jax.recipes import bindings, contrastive, documents, mining
from gr_jax.recipes.stages import Stage


@pytest.fixture(autouse=True)
def nothing_bound():
    gin.clear_config()
    yield
    gin.clear_config()


def key() -> str:
    corpus = Stage("corpus", {}, (), lambda place: None)
    words = Stage("vocabulary", {}, (), lambda place: None)
    settings = recipes.Encoders(encoder="t5", vocabulary="byte")
    training = recipes.ContrastiveTraining(steps=2)
    return contrastive.model_stage(corpus, words, [], settings, recipes.Mining(), training).key


@pytest.mark.parametrize(
    ("bound", "counts"),
    [
        ("adamw.b2", True),
        ("Schedule.end_factor", True),
        ("ContrastiveBatches.shuffle", True),
        ("T5Config.dropout_rate", True),
        ("BiEncoderModel.chunks", True),
        ("GDRModel.z_loss", False),  # of another network
        ("train.tensorboard", False),  # seen of the training, and not its result
    ],
)
def test_what_is_bound_makes_another_key(bound, counts):
    assert bindings.of_training() == {}
    before = key()
    with gin.unlock_config():
        gin.bind_parameter(bound, 1)
    assert (key() != before) == counts


def test_k_means_inside_other_stages_is_in_their_keys():
    made = [Stage(name, {}, (), lambda place: None) for name in ("corpus", "vectors", "vocabulary", "pseudo", "pairs")]
    corpus, vectors, words, pseudo, pairs = made

    def keys() -> list[str]:
        embedded = dataclasses.replace(vectors, config={"passages": "document"})
        told = recipes.Encoders(), recipes.Mining(shares={"cluster": 1.0}), recipes.ContrastiveTraining(steps=2)
        return [
            documents.docids_stage(corpus, embedded, words, recipes.Identifiers()).key,
            mining.negatives_stage(corpus, pseudo, words, pairs, words, vectors, *told).key,
        ]

    before = keys()
    with gin.unlock_config():
        gin.bind_parameter("kmeans.max_points", 1000)
    assert all(one != other for one, other in zip(keys(), before, strict=True))
