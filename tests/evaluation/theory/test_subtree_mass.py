"""Any distribution over documents is written by the tree of their docids: built, decoded and compared."""

import jax
import numpy as np
import pytest

from gr_jax.constraints import Trie
from gr_jax.decoding import beam_search
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from gr_jax.evaluation.theory import SubtreeMass

VOCABULARY = 9
search = jax.jit(beam_search, static_argnames=("beams", "max_len", "normalize"))


def docids_of(seed: int, eos: bool) -> Docids:
    random = np.random.default_rng(seed)
    paths = {tuple(random.integers(2, VOCABULARY, random.integers(1, 5)).tolist()) for _ in range(14)}
    if not eos:
        paths = {one for one in paths if not any(one != other and other[: len(one)] == one for other in paths)}
    return Docids.build(sorted(paths), vocab_size=VOCABULARY, eos_id=1 if eos else None)


def decoded(docids: Docids, target: np.ndarray, normalize: str) -> np.ndarray:
    """What is written: float [batch, documents]."""
    decoder = SubtreeMass.of(docids)
    beams, steps = len(docids), docids.max_steps
    cache = decoder.start(decoder.log_shares(docids, target), beams, steps)
    found = search(decoder, cache, Trie.from_docids(docids), beams=beams, max_len=steps, normalize=normalize)
    written = np.zeros_like(target)
    for query, (sequences, lengths, scores) in enumerate(
        zip(*map(np.asarray, (found.sequences, found.lengths, found.scores)), strict=True)
    ):
        rows = [docids.row_of([t for t in s[:n].tolist() if t != docids.eos_id]) for s, n in zip(sequences, lengths)]  # noqa: B905
        for row, score in zip(rows, scores, strict=True):
            (document,) = docids.documents_of(row)
            written[query, document] += np.exp(score)
    return written


@pytest.mark.parametrize(("seed", "eos", "normalize"), [(0, True, "vocabulary"), (1, False, "constraint")])
def test_what_is_decoded_is_the_target(seed, eos, normalize):
    docids = docids_of(seed, eos)
    random = np.random.default_rng(seed)
    target = random.dirichlet(np.full(docids.num_documents, 0.4), size=3)
    np.testing.assert_allclose(decoded(docids, target, normalize), target, atol=1e-5)


def test_documents_without_mass_are_not_written():
    docids = docids_of(3, eos=True)
    target = np.zeros((1, docids.num_documents))
    target[0, 2] = 1.0
    np.testing.assert_allclose(decoded(docids, target, "vocabulary"), target, atol=1e-6)


def test_a_worked_example():
    """Two documents under one token: it has the mass of both, and they share it."""
    docids = Docids.build([(2, 2), (2, 3), (3, 2)], vocab_size=4)
    shares = np.exp(SubtreeMass.log_shares(docids, np.array([[0.2, 0.3, 0.5]])))
    tree = np.asarray(SubtreeMass.of(docids).child)
    first, second = tree[0, 2], tree[0, 3]
    assert shares[0, 0, [2, 3]].tolist() == pytest.approx([0.5, 0.5])
    assert shares[0, first, [2, 3]].tolist() == pytest.approx([0.4, 0.6])
    assert shares[0, second, [2, 3]].tolist() == pytest.approx([1.0, 0.0])


def test_a_target_is_a_distribution():
    docids = docids_of(0, eos=True)
    for wrong in (np.zeros((1, docids.num_documents)), np.ones((1, 2)) / 2):
        with pytest.raises(InputError, match="sum 1"):
            SubtreeMass.log_shares(docids, wrong)


def test_it_is_a_pytree():
    assert len(jax.tree.leaves(SubtreeMass.of(docids_of(0, eos=True)))) == 1
