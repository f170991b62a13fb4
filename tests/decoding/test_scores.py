import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gr_jax.decoding import LogitScores, TableScores
from gr_jax.errors import InputError

VOCAB, D = 23, 6
LEVELS = ((2, 5), (7, 9), (16, 4))
rng = np.random.default_rng(0)
FEATURES = rng.normal(size=(2, 3, D)).astype(np.float32)
TABLE = rng.normal(size=(VOCAB, D)).astype(np.float32)
LOGITS = FEATURES @ TABLE.T


def log_softmax_over(logits, tokens):
    part = logits[..., list(tokens)].astype(np.float64)
    return logits - np.log(np.exp(part).sum(-1, keepdims=True))


def made(kind, normalize, **settings):
    if kind == "logits":
        return LogitScores(jnp.asarray(LOGITS), normalize, **settings)
    return TableScores(jnp.asarray(FEATURES), jnp.asarray(TABLE), normalize, **settings)


KINDS = pytest.mark.parametrize("kind", ["logits", "table"])


@KINDS
@pytest.mark.parametrize("levels", [None, LEVELS])
def test_vocabulary(kind, levels):
    wanted = log_softmax_over(LOGITS, range(VOCAB))
    tokens = rng.integers(0, VOCAB, (2, 3, 4))

    @jax.jit
    def asked():
        scores = made(kind, "vocabulary", levels=levels, level=1)
        return scores.at(tokens), scores.top(5), scores.top(5, below=9)[0]

    own, (best, log_probs), below = jax.tree.map(np.asarray, asked())
    np.testing.assert_allclose(own, np.take_along_axis(wanted, tokens, -1), atol=1e-5)
    np.testing.assert_array_equal(best, np.argsort(-wanted, axis=-1)[..., :5])
    np.testing.assert_allclose(log_probs, -np.sort(-wanted, axis=-1)[..., :5], atol=1e-5)
    assert below.max() < 9


@pytest.mark.parametrize("eos_id", [None, 1])
@KINDS
@pytest.mark.parametrize("level", [2, *(pytest.param(level, marks=pytest.mark.slow) for level in (0, 1))])
def test_level(kind, level, eos_id):
    start, size = LEVELS[level]
    over = [*range(start, start + size), *([] if eos_id is None else [eos_id])]
    wanted = log_softmax_over(LOGITS, over)
    tokens = np.broadcast_to(over, (2, 3, len(over)))

    def at(level):
        return made(kind, "level", levels=LEVELS, level=level, eos_id=eos_id).at(jnp.asarray(tokens))

    for found in jax.jit(lambda traced: (at(level), at(traced)))(jnp.int32(level)):
        np.testing.assert_allclose(found, wanted[..., over], atol=1e-5)


@KINDS
def test_beyond_the_last_level_only_eos_is_left(kind):
    end = np.full((2, 3, 1), 1)

    def at(level):
        return made(kind, "level", levels=LEVELS, level=level, eos_id=1).at(end)

    np.testing.assert_allclose(jax.jit(lambda traced: (at(3), at(traced)))(jnp.int32(3)), 0.0, atol=1e-5)


@pytest.mark.parametrize("levels", [None, LEVELS])
@pytest.mark.parametrize("width", [1, 9])
@KINDS
def test_under_constraint_logits_are_given(kind, levels, width):
    tokens = 7 + rng.integers(0, 9, (2, 3, width))

    @jax.jit
    def asked():
        scores = made(kind, "constraint", levels=levels, level=1)
        return scores.at(tokens), scores.log_normalizer()

    own, total = asked()
    np.testing.assert_allclose(own, np.take_along_axis(LOGITS, tokens, -1), atol=1e-5)
    np.testing.assert_allclose(total, np.log(np.exp(LOGITS).sum(-1)), atol=1e-5)


def test_few_rows_of_a_large_table_are_gathered_and_no_logits_made():
    table = jnp.asarray(rng.normal(size=(50_000, D)), jnp.float32)
    tokens = jnp.asarray(rng.integers(0, 50_000, (2, 3, 4)))
    compute = jax.jit(lambda table, tokens: TableScores(jnp.asarray(FEATURES), table, "constraint").at(tokens))
    np.testing.assert_allclose(
        compute(table, tokens), np.einsum("bkd,bkwd->bkw", FEATURES, np.asarray(table)[tokens]), atol=1e-4
    )
    assert "50000]" not in str(jax.make_jaxpr(compute)(table, tokens)).replace("50000,6]", "")


def test_sums_are_float32_for_a_bfloat16_table():
    @jax.jit
    def asked():
        scores = TableScores(jnp.asarray(FEATURES, jnp.bfloat16), jnp.asarray(TABLE, jnp.bfloat16))
        return scores.at(jnp.zeros((2, 3, 1), jnp.int32))

    found = asked()
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(found)[..., 0], log_softmax_over(LOGITS, range(VOCAB))[..., 0], atol=0.1)


@pytest.mark.parametrize("normalize, words", [("softmax", "unknown normaliser"), ("level", "no blocks")])
def test_refuses(normalize, words):
    for make in (
        lambda: LogitScores(jnp.zeros((1, 3)), normalize),
        lambda: TableScores(jnp.zeros((1, 2)), jnp.zeros((3, 2)), normalize),
    ):
        with pytest.raises(InputError, match=words):
            make()


FLAT = [
    (kind, normalize, levels, level, eos_id, width)
    for kind in ("logits", "table")
    for normalize, levels, level in (
        ("vocabulary", None, 0),
        ("level", LEVELS, 1),
        ("level", LEVELS, 3),
        ("constraint", LEVELS, 1),
        ("constraint", None, 0),
    )
    for eos_id in (None, 1)
    for width in (2, 40)
]
# Of a level and with another end the narrow and the wide one; of the rest one each.
FLAT_DEFAULT = {(normalize, levels, level, 1, 2) for _, normalize, levels, level, _, _ in FLAT}
FLAT_DEFAULT |= {("level", LEVELS, 1, None, 40), ("constraint", LEVELS, 1, 1, 40)}


@pytest.mark.parametrize(
    ("kind", "normalize", "levels", "level", "eos_id", "width"),
    [pytest.param(*one, marks=() if one[1:] in FLAT_DEFAULT else pytest.mark.slow) for one in FLAT],
)
def test_a_flat_list_of_all_states_tokens_scores_as_each_states_own(kind, normalize, levels, level, eos_id, width):
    start, size = LEVELS[level] if level < 3 else (1, 1)
    tokens = start + rng.integers(0, size, (2, 3, width))
    parent, column, rows = rng.integers(0, 3, (2, 7)), rng.integers(0, width, (2, 7)), np.arange(2)[:, None]

    @jax.jit
    def asked():
        scores = made(kind, normalize, levels=levels, level=level, eos_id=eos_id)
        return scores.at(tokens), scores.at_parents(parent, tokens[rows, parent, column])

    own, flat = map(np.asarray, asked())
    if level == 3 and eos_id is None:  # nothing is there to be scored
        assert flat.shape == (2, 7) and own.shape == (2, 3, width)
        return
    np.testing.assert_allclose(flat, own[rows, parent, column], atol=1e-5)
