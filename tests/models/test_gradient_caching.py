"""Chunks of which only vectors are remembered, with dropout: what is computed once more must drop out the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.models.gradient_caching import encode_in_chunks

TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 9, (8, 5)))
TABLE = jnp.asarray(np.random.default_rng(1).normal(size=(9, 32)), jnp.float32)


def encode(table, tokens, rng):
    vectors = jnp.tanh(table[tokens].mean(axis=1))
    return vectors if rng is None else vectors * 2.0 * jax.random.bernoulli(rng, 0.5, vectors.shape)


def loss_of(vectors):
    """Of all rows together, so that the gradient of each depends on the others."""
    return jnp.sum(jax.nn.logsumexp(vectors @ vectors.T, axis=1))


@pytest.mark.parametrize("chunks", (4, *(pytest.param(chunks, marks=pytest.mark.slow) for chunks in (1, 2))))
def test_dropout_is_the_same_on_the_way_back(chunks):
    """The gradient is that of the same chunks with the same keys, all of whose activations are remembered."""
    key = jax.random.key(3)

    def cached(table):
        return loss_of(encode_in_chunks(lambda tokens, rng: encode(table, tokens, rng), TOKENS, key, chunks))

    def plain(table):
        keys = [key] if chunks == 1 else [jax.random.fold_in(key, i) for i in range(chunks)]
        parts = [encode(table, TOKENS[i::chunks], own) for i, own in enumerate(keys)]
        return loss_of(jnp.stack(parts, axis=1).reshape(len(TOKENS), -1))

    found, expected = (jax.jit(jax.value_and_grad(f))(TABLE) for f in (cached, plain))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5, atol=1e-5)
    assert np.abs(expected[1]).max() > 0.1


def test_every_chunk_drops_out_its_own():
    rows = np.tile(TOKENS[:1], (4, 1))

    @jax.jit
    def encoded(rng):
        return encode_in_chunks(lambda tokens, rng: encode(TABLE, tokens, rng), rows, rng, 4)

    vectors = np.asarray(encoded(jax.random.key(0)))
    assert len({tuple(row) for row in (vectors == 0).tolist()}) == 4
    still = np.asarray(encoded(None))
    np.testing.assert_allclose(still, np.broadcast_to(still[0], still.shape), rtol=1e-6)


def test_chunks_divide_the_rows():
    for chunks in (0, 3):
        with pytest.raises(InputError, match="8 rows cannot be computed"):
            encode_in_chunks(lambda tokens, rng: TABLE[tokens[:, 0]], TOKENS, None, chunks)
