"""Tries that grow, against tries that are built of everything at once."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax.constraints import Trie
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from tests.constraints.test_trie_files import same

VOCAB, EOS = 40, 1


def prefix_free(sequences):
    return [s for s in sequences if not any(s != t and t[: len(s)] == s for t in sequences)]


def build(sequences, eos, documents=None, vocab_size=VOCAB):
    return Docids.build(
        sequences, vocab_size=vocab_size, eos_id=EOS if eos else None, documents=documents, duplicates="share"
    )


def check_grows(batches, eos, vocab_size=VOCAB):
    """batches: lists of token sequences; equal ones only within a batch."""
    trie = Trie.from_docids(build(batches[0], eos, vocab_size=vocab_size))
    for i in range(1, len(batches)):
        trie = trie.add(build(batches[i], eos, vocab_size=vocab_size))
        whole = [s for batch in batches[: i + 1] for s in batch]
        same(trie, Trie.from_docids(build(whole, eos, vocab_size=vocab_size)))


sequence = st.lists(st.integers(2, 5), min_size=1, max_size=5).map(tuple)


@settings(max_examples=150, deadline=None)
@given(st.lists(sequence, min_size=2, max_size=40), st.booleans(), st.integers(1, 39), st.integers(1, 39))
def test_small_corpora(sequences, eos, first, second):
    if not eos:
        sequences = prefix_free(sequences)
    distinct = list(dict.fromkeys(sequences))
    first, second = sorted((first, second))
    parts = [set(distinct[:first]), set(distinct[first:second]), set(distinct[second:])]
    batches = [[s for s in sequences if s in part] for part in parts]
    batches = [batch for batch in batches if batch]
    if len(batches) > 1:
        check_grows(batches, eos)


@pytest.mark.parametrize("length, eos", [(4, False), ((1, 6), True), (8, True)])
def test_larger_corpora(length, eos):
    """Masks, levels without nodes, rests that start deeper."""
    rng = np.random.default_rng(0)
    low, high = (length, length) if isinstance(length, int) else length
    sequences = {tuple(rng.integers(2, VOCAB, rng.integers(low, high + 1)).tolist()) for _ in range(3000)}
    sequences = sorted(sequences)
    rng.shuffle(sequences)
    sequences = [tuple(s) for s in sequences]
    assert Trie.from_docids(build(sequences[:2000], eos)).levels[0].window
    check_grows([sequences[:2000], sequences[2000:2010], sequences[2010:2011], sequences[2011:]], eos)


def test_further_tokens_and_longer_docids():
    check_grows([[(5, 5, 5), (5, 5, 6)], [(5, 5, 5, 7, 8, 9), (5, 5, 6, 2)], [(30,)], [(2, 2), (3, 3)]], True)


def test_numbers_documents_after_those_that_are_there():
    trie = Trie.from_docids(build([(3, 4), (5, 6)], False)).add(build([(5, 5), (2, 2)], False))
    assert trie.num_documents == 4
    assert trie.documents(trie.initial_state(1), 9)[0].tolist() == [[[3, 0, 2, 1, -1, -1, -1, -1, -1]]]


GOOD = build([(2, 3), (4,), (5, 5)], False)


@pytest.mark.parametrize(
    "more, words",
    [
        (build([(9,), (2, 3)], False), r"there already \(got \[2, 3\]\)"),
        (build([(4, 2)], False), "prefix"),
        (build([(2,)], False), "prefix"),
        (build([(7,)], True), "vocabulary or EOS"),
        (build([(7,)], False, vocab_size=41), "vocabulary or EOS"),
        (dataclasses.replace(GOOD, tokens=GOOD.tokens[::-1] * 2, lengths=GOOD.lengths[::-1]), "sorted before"),
    ],
)
def test_refuses(more, words):
    with pytest.raises(InputError, match=words):
        Trie.from_docids(GOOD).add(more)


def test_refuses_to_grow_under_a_filter():
    with pytest.raises(InputError, match="restricted"):
        Trie.from_docids(GOOD).restrict(np.ones((1, 3), bool)).add(build([(9,)], False))
