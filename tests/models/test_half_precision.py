"""Products and softmax of bfloat16: near those of float32, and nothing of float32 is multiplied or remembered."""

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from gr_jax.models import EncoderDecoder, EncoderDecoderModel, half_precision
from gr_jax.models.pawa import logits_of
from gr_jax.models.t5 import T5Config

RNG = np.random.default_rng(0)
# Contractions as attention and output tables have them, and the shapes of both operands.
CONTRACTIONS = {
    "bthd,bshd->bhts": ((2, 5, 3, 4), (2, 6, 3, 4)),
    "bkhd,bklhd->bkhl": ((2, 5, 3, 4), (2, 5, 6, 3, 4)),
    "nf,vf->nv": ((5, 4), (7, 4)),
}


def values(shape, dtype="bfloat16"):
    return jnp.asarray(RNG.standard_normal(shape), jnp.bfloat16).astype(dtype)  # the same numbers in either type


def with_gradients(function, *arrays):
    @jax.jit
    def both(*arrays):
        found, back = jax.vjp(function, *arrays)
        return found, back(jnp.cos(jnp.arange(found.size, dtype=jnp.float32)).reshape(found.shape).astype(found.dtype))

    return both(*arrays)


@pytest.mark.parametrize("contraction", CONTRACTIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_and_their_gradients(contraction, dtype):
    a, b = (values(shape) for shape in CONTRACTIONS[contraction])
    found, gradients = with_gradients(
        lambda a, b: half_precision.product(contraction, a, b), a.astype(dtype), b.astype(dtype)
    )
    exact, exact_gradients = with_gradients(
        lambda a, b: jnp.einsum(contraction, a, b), a.astype("float32"), b.astype("float32")
    )
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, exact, atol=1e-5)
    for one, other in zip(gradients, exact_gradients, strict=True):
        assert one.dtype == dtype
        np.testing.assert_allclose(one.astype("float32"), other, atol=1e-5 if dtype == "float32" else 0.06)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_softmax_and_its_gradient(dtype):
    logits = 3 * values((2, 3, 7), "float32")
    found, (gradient,) = with_gradients(lambda x: half_precision.softmax(x, dtype), logits)
    exact, (exact_gradient,) = with_gradients(jax.nn.softmax, logits)
    assert found.dtype == dtype and gradient.dtype == jnp.float32
    tolerance = 0.0 if dtype == "float32" else 0.01
    np.testing.assert_allclose(found.astype("float32"), exact, atol=tolerance)
    np.testing.assert_allclose(gradient, exact_gradient, atol=tolerance)


def test_logits_of_bfloat16_features():
    features, table = values((2, 3, 8)), values((9, 8), "float32")
    found = logits_of(features, table)
    assert found.dtype == jnp.float32 and found.shape == (2, 3, 9)
    np.testing.assert_allclose(found, features.astype("float32") @ table.T, atol=1e-5)


def test_an_update_in_bfloat16_multiplies_nothing_in_float32():
    config = T5Config(
        vocab_size=64, emb_dim=16, num_heads=2, head_dim=8, num_encoder_layers=1, num_decoder_layers=1, mlp_dim=32,
        logits_via_embedding=True, dropout_rate=0.0, dtype="bfloat16",
    )  # fmt: skip
    model = EncoderDecoderModel(EncoderDecoder(config))
    tokens = jnp.ones((2, 6), jnp.int32)
    batch = {"encoder_input_tokens": tokens, "decoder_input_tokens": tokens, "decoder_target_tokens": tokens}
    params = model.get_initial_variables(jax.random.key(0), {name: x.shape for name, x in batch.items()})["params"]
    program = jax.make_jaxpr(jax.grad(lambda params: model.loss_fn(params, batch)[0]))(params)
    types = [operand.aval.dtype.name for product in _products(program.jaxpr) for operand in product.invars]
    assert len(types) > 60 and set(types) == {"bfloat16"}


def _products(jaxpr):
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation
        for part in jax.extend.core.jaxprs_in_params(equation.params):
            yield from _products(part)
