"""Losses of a title's tokens against sums over pairs, on one device and on eight."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gr_jax.errors import InputError
from gr_jax.losses import TITLE_LOSSES, title_token_losses

VOCABULARY = 40


def drawn(seed, rows=8, most=5):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, VOCABULARY, (rows, most))
    tokens[np.arange(most) >= rng.integers(0, most + 1, rows)[:, None]] = 0
    return (3 * rng.normal(size=(rows, VOCABULARY))).astype(np.float32), tokens


def slow(logits, tokens, name):
    """The sum over pairs of one query after the other, and their number."""
    sums, counts = [], []
    exp = np.exp(logits.astype(np.float64))
    for row, title in enumerate(tokens):
        own = [token for token in title.tolist() if token]
        total = 0.0
        for token in own:
            if name == "in_batch":
                there = {other for row in tokens.tolist() for other in row if other} - set(own)
                total -= np.log(exp[row, token] / (exp[row, token] + sum(exp[row, other] for other in there)))
            else:
                positives = set(own) if name == "all_positives" else {token}
                total -= np.log(sum(exp[row, one] for one in positives) / exp[row, 1:].sum())
        sums.append(total)
        counts.append(len(own))
    return np.array(sums), np.array(counts)


@pytest.mark.parametrize("name", TITLE_LOSSES)
def test_sums_over_pairs(name):
    for seed in range(20):
        logits, tokens = drawn(seed)
        sums, counts = title_token_losses(logits, tokens, name)
        expected, pairs = slow(logits, tokens, name)
        np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(counts, pairs)


@pytest.mark.parametrize("name", TITLE_LOSSES)
def test_gradients_are_finite_and_those_of_small_steps(name):
    logits, tokens = drawn(3, rows=3)
    tokens[0] = 0

    def loss(x):
        return jnp.sum(title_token_losses(x, tokens, name)[0])

    gradient = np.asarray(jax.grad(loss)(logits))
    assert np.isfinite(gradient).all() and not gradient[0].any()
    step, direction = 1e-2, np.random.default_rng(0).normal(size=logits.shape).astype(np.float32)
    slope = (loss(logits + step * direction) - loss(logits - step * direction)) / (2 * step)
    np.testing.assert_allclose(np.sum(gradient * direction), slope, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("name", TITLE_LOSSES)
def test_eight_devices_are_as_one(name):
    """Rows over two of them, the vocabulary over four."""
    logits, tokens = drawn(5)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
    sharded = jax.device_put(logits, NamedSharding(mesh, PartitionSpec("data", "model")))
    rows = jax.device_put(tokens, NamedSharding(mesh, PartitionSpec("data")))

    def loss(x, tokens):
        return jnp.sum(title_token_losses(x, tokens, name)[0])

    value, gradient = jax.jit(jax.value_and_grad(loss))(sharded, rows)
    expected, slope = jax.value_and_grad(loss)(logits, tokens)
    assert len(gradient.sharding.device_set) == 8
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, slope, atol=1e-5)


def test_a_loss_that_is_not_there():
    with pytest.raises(InputError, match="all_positives, one_positive, in_batch"):
        title_token_losses(*drawn(0), "every")
