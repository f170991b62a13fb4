import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax.losses import cross_entropy, level_losses, level_mask, symmetric_kl

LEVELS = ((2, 3), (5, 4), (9, 2))
VOCAB = 11


def reference(logits, target, *, support, smoothing=0.0, z=0.0):
    """One token, in float64, from the definition: KL from the smoothed target distribution, plus z-loss."""
    kept = logits[support].astype(np.float64)
    log_z = np.log(np.exp(kept).sum())
    wanted = np.zeros(len(logits))
    if len(support) > 1:
        wanted[support] = smoothing / (len(support) - 1)
    wanted[target] = 1.0 if len(support) == 1 else 1.0 - smoothing
    positive = wanted > 0
    predicted = logits - log_z
    return np.sum(wanted[positive] * (np.log(wanted[positive]) - predicted[positive])) + z * log_z**2


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from((0.0, 0.1, 0.4)),
    st.sampled_from((0.0, 1e-2)),
)
def test_over_the_vocabulary(seed, smoothing, z):
    rng = np.random.default_rng(seed)
    logits, targets = 3 * rng.normal(size=(4, VOCAB)).astype(np.float32), rng.integers(0, VOCAB, 4)
    losses = cross_entropy(logits, targets, label_smoothing=smoothing, z_loss=z)
    everything = np.arange(VOCAB)
    expected = [
        reference(row, target, support=everything, smoothing=smoothing, z=z)
        for row, target in zip(logits, targets, strict=True)
    ]
    np.testing.assert_allclose(losses.loss, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        -losses.log_prob,
        [reference(r, t, support=everything) for r, t in zip(logits, targets, strict=True)],
        rtol=1e-4,
        atol=1e-5,  # a log-probability near 0 is a difference of two larger numbers
    )
    np.testing.assert_array_equal(losses.correct, logits.argmax(1) == targets)


def test_smoothing_is_torchs_up_to_its_constant():
    """torch spreads ε over all tokens, the target too, and keeps the entropy: ε' = ε (V − 1) / V."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    logits, targets = rng.normal(size=(6, VOCAB)).astype(np.float32), rng.integers(0, VOCAB, 6)
    theirs = torch.nn.functional.cross_entropy(
        torch.tensor(logits), torch.tensor(targets), label_smoothing=0.1, reduction="none"
    ).numpy()
    ours = cross_entropy(logits, targets, label_smoothing=0.1 * (VOCAB - 1) / VOCAB).loss
    difference = theirs - np.asarray(ours)
    np.testing.assert_allclose(difference, difference[0], atol=1e-5)


@given(st.integers(0, 2**32 - 1), st.sampled_from((0.0, 0.2)), st.sampled_from((0.0, 1e-2)))
def test_over_levels(seed, smoothing, z):
    """Masked logits, block logits and the definition agree; what is outside of the block does not count."""
    rng = np.random.default_rng(seed)
    features, table = rng.normal(size=(2, 4, 5)).astype(np.float32), rng.normal(size=(VOCAB, 5)).astype(np.float32)
    targets = np.stack([rng.integers(start, start + size, 2) for start, size in LEVELS] + [np.zeros(2, int)], axis=1)
    options = {"label_smoothing": smoothing, "z_loss": z}
    (blocks,), apart = level_losses([features], table, targets, LEVELS, **options)
    assert not apart.any()
    logits = features @ table.T
    masked = cross_entropy(logits, targets, allowed=level_mask(LEVELS, np.arange(4)[None], VOCAB), **options)
    expected = np.zeros((2, 4))
    for row in range(2):
        for level, (start, size) in enumerate(LEVELS):
            support = np.arange(start, start + size)
            expected[row, level] = reference(
                logits[row, level], targets[row, level], support=support, smoothing=smoothing, z=z
            )
    for losses in (blocks, masked):
        np.testing.assert_allclose(losses.loss, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(blocks.log_prob, masked.log_prob, atol=1e-4)
    np.testing.assert_array_equal(blocks.correct, masked.correct)


def test_end_token_competes_in_every_block():
    mask = np.asarray(level_mask(LEVELS, np.arange(5)[None], VOCAB, eos_id=1))[0]
    assert [np.flatnonzero(row).tolist() for row in mask] == [[1, 2, 3, 4], [1, 5, 6, 7, 8], [1, 9, 10], [1], [1]]


def test_gradients_are_finite_where_nothing_is_allowed():
    logits, targets = jnp.ones((2, VOCAB)), jnp.array([3, 0])
    allowed = jnp.zeros((2, VOCAB), bool).at[0, 2:5].set(True)

    def total(x):
        return cross_entropy(x, targets, allowed=allowed, label_smoothing=0.1, z_loss=1e-4).loss.sum()

    gradient = np.asarray(jax.grad(total)(logits))
    assert np.isfinite(gradient).all()
    assert np.abs(gradient[0, 2:5]).max() > 0
    assert not gradient[1].any() and not gradient[0, :2].any()


def test_bfloat16_logits_are_summed_in_float32():
    logits = jnp.zeros((1, 4096), jnp.bfloat16)
    loss = cross_entropy(logits, jnp.array([7])).loss
    assert loss.dtype == jnp.float32
    np.testing.assert_allclose(loss, np.log(4096), rtol=1e-6)


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_symmetric_kl(seed, some):
    rng = np.random.default_rng(seed)
    first, second = 2 * rng.normal(size=(2, 3, VOCAB)).astype(np.float32)
    allowed = np.ones((3, VOCAB), bool)
    if some:
        allowed[:, ::3] = False
    p, q = (np.where(allowed, np.exp(x.astype(np.float64)), 0) for x in (first, second))
    p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(allowed, p * np.log(p / q) + q * np.log(q / p), 0)
    found = symmetric_kl(first, second, allowed=jnp.asarray(allowed) if some else None)
    np.testing.assert_allclose(found, terms.sum(1) / 2, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(symmetric_kl(first, first), 0, atol=1e-6)


@settings(max_examples=3)
@given(st.integers(0, 2**32 - 1), st.sampled_from((0.0, 0.2)), st.integers(1, 2), st.sampled_from((3, 27)))
def test_over_levels_of_packed_rows(seed, smoothing, count, length):
    """Docids of one to three tokens, one behind the other, and padding: all is as with a mask over all logits."""
    rng = np.random.default_rng(seed)
    targets, positions = np.zeros((2, 3, length), np.int32)
    for row in range(3):
        place = 0
        while (place := place + (depth := int(rng.integers(1, 4)))) <= length and rng.random() < 0.95:
            here = slice(place - depth, place)
            targets[row, here] = [rng.integers(start, start + size) for start, size in LEVELS[:depth]]
            positions[row, here] = np.arange(depth)
    passes = [jnp.asarray(rng.normal(size=(3, length, 5)), jnp.float32) for _ in range(count)]
    table, weights = jnp.asarray(rng.normal(size=(VOCAB, 5)), jnp.float32), jnp.asarray(targets > 0, jnp.float32)
    options = {"label_smoothing": smoothing, "z_loss": 1e-2}

    def by_level(passes, table):
        return level_losses(passes, table, targets, LEVELS, positions=positions, **options)

    def masked(passes, table):
        logits, allowed = [features @ table.T for features in passes], level_mask(LEVELS, positions, VOCAB)
        losses = [cross_entropy(one, targets, allowed=allowed, **options) for one in logits]
        return losses, symmetric_kl(*logits, allowed=allowed) if count == 2 else 0 * weights

    def total(of, passes, table):
        losses, apart = of(passes, table)
        return sum((one.loss * weights).sum() for one in losses) + 3 * (apart * weights).sum()

    found, expected = (jax.jit(of)(passes, table) for of in (by_level, masked))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one * weights, other * weights, atol=1e-4)
    gradients = [jax.jit(jax.grad(functools.partial(total, of), (0, 1)))(passes, table) for of in (by_level, masked)]
    for one, other in zip(*map(jax.tree.leaves, gradients), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)
