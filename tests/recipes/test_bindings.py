"""What gin binds besides a recipe's settings is part of its stages' keys."""

import gin
import pytest

from gr_jax import recipes
from gr_jax.recipes import bindings, contrastive
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


@pytest.mark.parametrize("bound", ["adamw.b2", "Schedule.end_factor", "T5Config.dropout_rate", "BiEncoderModel.chunks"])
def test_what_is_bound_makes_another_key(bound):
    assert bindings.of_training() == {}
    before = key()
    with gin.unlock_config():
        gin.bind_parameter(bound, 1)
    assert list(bindings.of_training().values()) == [1] and key() != before
