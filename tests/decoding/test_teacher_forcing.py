import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gr_jax.constraints import Everything, Trie
from gr_jax.decoding import score_docids
from gr_jax.decoding.teacher_forcing import prefix_scores
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from tests.decoding.flat_trie import FlatTrie
from tests.decoding.table_decoder import Reference, TableDecoder

score = jax.jit(score_docids, static_argnames="normalize")
LEVELS = ((2, 4), (6, 4), (10, 4))


def make(eos):
    rng = np.random.default_rng(0)
    offsets = np.asarray([2, 6, 10])
    sequences = {tuple((rng.integers(0, 4, length) + offsets[:length]).tolist()) for length in (3, 3, 3, 2, 2, 1) * 3}
    if not eos:
        sequences = {s for s in sequences if not any(s != t and t[: len(s)] == s for t in sequences)}
    docids = Docids.build(sorted(sequences), vocab_size=16, eos_id=1 if eos else None, levels=LEVELS)
    targets = [docids.target(row) for row in range(len(docids))]
    matrix = np.zeros((len(targets), docids.max_steps), np.int32)
    for row, target in enumerate(targets):
        matrix[row, : len(target)] = target
    decoder = TableDecoder.random(1, 16, docids.max_steps, levels=LEVELS, eos_id=docids.eos_id)
    return docids, targets, matrix, decoder


@pytest.mark.parametrize(
    "normalize, flat, eos",
    [
        ("vocabulary", False, True),
        ("level", False, True),
        ("constraint", False, False),
        ("constraint", True, True),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (("vocabulary", False, False), ("level", False, False), ("constraint", False, True))
        ),
    ],
)
def test_scores_of_whole_docids(normalize, flat, eos):
    docids, targets, matrix, decoder = make(eos)
    queries = np.random.default_rng(2).normal(size=(3, 8))
    n, steps = matrix.shape
    scores = score(
        decoder,
        decoder.init_cache(queries, n, steps),
        np.broadcast_to(matrix, (3, n, steps)),
        np.broadcast_to([len(target) for target in targets], (3, n)),
        normalize=normalize,
        constraint=FlatTrie(Trie.from_docids(docids)) if flat else Trie.from_docids(docids),
    )
    for query in range(3):
        reference = Reference(decoder, queries[query], normalize, targets)
        np.testing.assert_allclose(scores[query], [reference.score(target) for target in targets], atol=1e-4)
    if normalize == "constraint":  # a distribution over docids
        np.testing.assert_allclose(np.exp(scores).sum(1), 1.0, rtol=1e-4)


def test_what_the_constraint_does_not_allow_is_impossible():
    docids, _, _, decoder = make(True)
    sequences = jnp.asarray([[[2, 13, 1, 0], [15, 1, 0, 0]]])
    scores = score(
        decoder,
        decoder.init_cache(np.zeros((1, 8)), 2, 4),
        sequences,
        jnp.asarray([[3, 2]]),
        normalize="constraint",
        constraint=Trie.from_docids(docids),
    )
    assert np.isneginf(scores).all()


def test_everything_is_normalised_over_the_vocabulary():
    _, _, matrix, decoder = make(True)
    sequences = matrix[None]
    lengths = np.full(sequences.shape[:2], 2)
    settings = (decoder, decoder.init_cache(np.zeros((1, 8)), *matrix.shape), sequences, lengths)
    np.testing.assert_allclose(
        score(*settings, normalize="constraint", constraint=Everything(16, 1)), score(*settings), atol=1e-5
    )


def test_refuses():
    settings = (None, None, jnp.zeros((1, 1, 1), jnp.int32), jnp.ones((1, 1), jnp.int32))
    with pytest.raises(InputError, match="no constraint"):
        score_docids(*settings, normalize="constraint")
    with pytest.raises(InputError, match="unknown normaliser"):
        score_docids(*settings, normalize="softmax")


@pytest.mark.parametrize("slots", [3, *(pytest.param(slots, marks=pytest.mark.slow) for slots in (2, 50))])
def test_every_wanted_prefix_is_scored(slots):
    _, _, matrix, decoder = make(True)
    rng = np.random.default_rng(3)
    queries = rng.normal(size=(2, 8))
    n, steps = matrix.shape
    sequences = np.broadcast_to(matrix, (2, n, steps))
    lengths = rng.integers(0, steps + 1, (2, n)).astype(np.int32)
    compute, cache = jax.jit(prefix_scores, static_argnames="slots"), decoder.init_cache(queries, slots, steps)
    found = np.asarray(compute(decoder, cache, sequences, lengths, slots=slots))
    assert found.shape == (2, n, steps) and len(np.unique(lengths)) == steps + 1
    short = np.minimum(lengths, 1)
    short[1] = 0  # nothing of the second query
    first = compute(decoder, cache, sequences, short, slots=slots)
    np.testing.assert_allclose(
        first, np.where(np.arange(steps) < short[..., None], found, -np.inf), rtol=1e-5, atol=1e-5
    )
    assert np.isneginf(compute(decoder, cache, sequences, np.zeros_like(lengths), slots=slots)).all()
    assert prefix_scores(decoder, None, sequences[:, :0], np.zeros((2, 0), np.int32), slots).shape == (2, 0, steps)
    cache = decoder.init_cache(queries, n, steps)
    for length in range(1, steps + 1):
        whole = score(decoder, cache, sequences, np.full((2, n), length))
        expected = np.where(lengths >= length, whole, -np.inf)
        np.testing.assert_allclose(found[:, :, length - 1], expected, rtol=1e-5, atol=1e-5)
