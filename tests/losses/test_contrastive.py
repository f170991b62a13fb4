import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax import losses
from gr_jax.errors import InputError


def draw(seed, queries, size, documents=12):
    """Scores and positions of a batch: few documents, so that several stand in it more than once; some are padding."""
    random = np.random.default_rng(seed)
    index = random.integers(-1, documents, queries * size).astype(np.int32)
    relevant = random.integers(-1, documents, (queries, 2)).astype(np.int32)
    return random.normal(size=(queries, queries * size)).astype(np.float32) * 3, index, relevant


def plain_weights(index, queries, relevant=None, in_batch=True, positive=1.0, negative=None):
    """The weights by their definition, one at a time."""
    size = len(index) // queries
    weights = np.zeros((queries, len(index)))
    for i in range(queries):
        for j in range(len(index)):
            owner, place = divmod(j, size)
            if owner == i and place == 0:
                weights[i, j] = positive
            elif index[j] < 0 or index[j] == index[i * size] or (relevant is not None and index[j] in relevant[i]):
                weights[i, j] = 0
            elif owner == i:
                weights[i, j] = 1 if negative is None else negative[i, place - 1]
            else:
                weights[i, j] = in_batch
    return weights


# Few shapes: every one is compiled.
@settings(max_examples=30)
@given(
    st.integers(0, 1000), st.sampled_from([1, 3]), st.sampled_from([1, 3]), st.booleans(), st.booleans(), st.booleans()
)
def test_weights_and_loss_are_their_definition(seed, queries, size, in_batch, several, adaptive):
    scores, index, relevant = draw(seed, queries, size)
    negative = np.random.default_rng(seed).random((queries, size - 1)).astype(np.float32) + 0.1
    found = losses.batch_weights(
        jnp.asarray(index),
        queries,
        relevant_index=jnp.asarray(relevant) if several else None,
        in_batch=in_batch,
        positive_weight=0.7 if adaptive else 1.0,
        negative_weights=jnp.asarray(negative) if adaptive else None,
    )
    expected = plain_weights(
        index,
        queries,
        relevant if several else None,
        in_batch,
        0.7 if adaptive else 1.0,
        negative if adaptive else None,
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    positives = losses.positive_columns(queries, queries * size)
    loss, correct = losses.weighted_softmax(jnp.asarray(scores), positives, found)
    for i in range(queries):
        total = sum(w * math.exp(s) for w, s in zip(expected[i], scores[i].astype(float), strict=True))
        assert loss[i] == pytest.approx(math.log(total) - scores[i, i * size], abs=1e-4)
        rivals = [s for j, (w, s) in enumerate(zip(expected[i], scores[i], strict=True)) if w > 0 and j != i * size]
        assert bool(correct[i]) == all(scores[i, i * size] > s for s in rivals)


def test_equal_scores_are_not_correct():
    """Those of an encoder that has collapsed; the first query's positive alone has no rival."""
    index = jnp.array([5, 5, 6, 7, 8, 9])
    weights = losses.batch_weights(index, 3, in_batch=False)
    found = losses.weighted_softmax(jnp.zeros((3, 6)), losses.positive_columns(3, 6), weights)
    assert found.correct.tolist() == [True, False, False]


def test_of_different_documents_it_is_cross_entropy():
    scores = np.random.default_rng(0).normal(size=(4, 12)).astype(np.float32)
    weights = losses.batch_weights(jnp.arange(12), 4)
    loss, _ = losses.weighted_softmax(jnp.asarray(scores), losses.positive_columns(4, 12), weights)
    expected = optax.softmax_cross_entropy_with_integer_labels(scores, np.array([0, 3, 6, 9]))
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_cluster_adaptive_form_of_gdr():
    """L = −log e^{s⁺/τ} + log(α Σ_{N_a ∪ d⁺} e^{s/τ} + Σ_{N_r} e^{s/τ}), with the numbers put in by hand."""
    alpha, tau = 2.0, 0.05
    similarity = np.tanh(np.array([[0.3, 0.2, 0.1, 0.05], [0.0, 0.15, 0.4, 0.35]], np.float32))
    weights = losses.batch_weights(
        jnp.array([7, 8, 9, 10]), 2, positive_weight=alpha, negative_weights=jnp.full((2, 1), alpha)
    )
    found, _ = losses.weighted_softmax(jnp.asarray(similarity / tau), losses.positive_columns(2, 4), weights)
    e = np.exp(similarity.astype(float) / tau)
    first = -math.log(e[0, 0]) + math.log(alpha * (e[0, 0] + e[0, 1]) + e[0, 2] + e[0, 3])
    second = -math.log(e[1, 2]) + math.log(alpha * (e[1, 2] + e[1, 3]) + e[1, 0] + e[1, 1])
    np.testing.assert_allclose(found, [first, second], rtol=1e-5)


def test_rows_of_padding_have_finite_gradients():
    index = jnp.array([3, 4, -1, -1])

    def total(scores):
        weights = losses.batch_weights(index, 2, in_batch=False)
        return jnp.sum(losses.weighted_softmax(scores, losses.positive_columns(2, 4), weights).loss)

    value, gradient = jax.value_and_grad(total)(jnp.zeros((2, 4)))
    assert np.isfinite(value) and np.isfinite(gradient).all()
    np.testing.assert_allclose(gradient, [[-0.5, 0.5, 0, 0], [0, 0, 0, 0]], atol=1e-6)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="equal groups"):
        losses.batch_weights(jnp.arange(7), 3)
    with pytest.raises(InputError, match="negative_weights"):
        losses.batch_weights(jnp.arange(6), 3, negative_weights=jnp.ones((3, 2)))
