"""Computing in bfloat16, and computing again instead of remembering: the same training, of less memory."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.models import BertConfig, EncoderDecoder, EncoderDecoderModel, T5Config
from gr_jax.models.half_precision import with_precision
from gr_jax.models.remat import POLICIES, recomputing
from gr_jax.training.optimizers import Schedule, adamw
from gr_jax.training.partitioning import make_mesh
from gr_jax.training.train_state import Trainer
from tests.training.toy import ToyModel

T5 = T5Config(
    vocab_size=64, emb_dim=16, num_heads=2, head_dim=8, num_encoder_layers=2, num_decoder_layers=1, mlp_dim=64,
    dropout_rate=0.1,
)  # fmt: skip
BERT = BertConfig(vocab_size=64, emb_dim=16, num_heads=2, num_encoder_layers=2, mlp_dim=64, max_positions=32)
MODELS = {
    "T5": EncoderDecoderModel(EncoderDecoder(T5)),
    "BERT": EncoderDecoderModel(EncoderDecoder(BERT, T5, share_embeddings=False)),
}
RNG = np.random.default_rng(0)
BATCH = {
    "encoder_input_tokens": RNG.integers(1, 64, (16, 32)).astype(np.int32),
    "decoder_input_tokens": RNG.integers(1, 64, (16, 8)).astype(np.int32),
    "decoder_target_tokens": RNG.integers(1, 64, (16, 8)).astype(np.int32),
    "decoder_loss_weights": np.ones((16, 8), np.float32),
}
SHAPES = {name: value.shape for name, value in BATCH.items()}


def parameters(model):
    return jax.jit(lambda: model.get_initial_variables(jax.random.key(0), SHAPES)["params"])()


def loss_of(model):
    return lambda params: model.loss_fn(params, BATCH, jax.random.key(1))[0]


def remembered(model, params):
    """Bytes that gradients need of what the loss computed."""
    kept = jax.tree.leaves(jax.eval_shape(lambda params: jax.vjp(loss_of(model), params)[1], params))
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in kept if hasattr(leaf, "dtype"))


def some(*default):
    """These by default, and all others with --slow."""
    every = [(policy, name) for policy in POLICIES for name in MODELS]
    marked = [pytest.param(*one, marks=() if one in default else pytest.mark.slow) for one in every]
    return pytest.mark.parametrize(("policy", "name"), marked)


@some(("layers", "T5"))
def test_computed_again_it_is_the_same_gradient(name, policy):
    model = MODELS[name]
    params, less = parameters(model), recomputing(model, policy)
    assert jax.tree.structure(parameters(less)) == jax.tree.structure(params)
    expected, found = (jax.jit(jax.value_and_grad(loss_of(one)))(params) for one in (model, less))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), found[1], expected[1])


@some(("layers", "T5"), ("dots", "BERT"))
def test_computed_again_it_needs_less_memory(name, policy):
    model = MODELS[name]
    params = jax.eval_shape(lambda: model.get_initial_variables(jax.random.key(0), SHAPES)["params"])
    less = recomputing(model, policy)
    assert remembered(less, params) <= (0.5 if policy == "layers" else 0.8) * remembered(model, params)


def test_a_model_without_layers_cannot_be_computed_again():
    model = ToyModel()
    params = jax.jit(lambda: model.get_initial_variables(jax.random.key(0), SHAPES)["params"])()
    with pytest.raises(InputError, match="ToyModel has no layers.*'layers'.*Leave remat at None"):
        jax.eval_shape(loss_of(recomputing(model, "layers")), params)


def test_parameters_and_optimiser_stay_float32():
    small = dataclasses.replace(T5, num_encoder_layers=1)
    exact = EncoderDecoderModel(EncoderDecoder(small))
    trainer = Trainer.create(exact, adamw(Schedule(1e-3)), make_mesh(2), SHAPES, precision="bfloat16")
    state, losses = trainer.initial_state(trainer.initial_params(0)), []
    update = trainer.update(seed=0)
    for _ in range(10):
        state, metrics = update(state, {}, trainer.place_batch(BATCH))
        losses.append(float(metrics["loss"][0] / metrics["loss"][1]))
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(state) if leaf.ndim)
    assert losses[-1] < losses[0]
    assert trainer.model.module.encoder_config == dataclasses.replace(small, dtype="bfloat16")
    assert exact.module.encoder_config.dtype == "float32" and with_precision(exact, "float32") is exact
