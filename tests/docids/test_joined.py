"""Docids of further documents, against dictionaries."""

import collections

import numpy as np
import pytest

from gr_jax.docids import Docids


def build(sequences, documents) -> Docids:
    return Docids.build(sequences, vocab_size=9, eos_id=1, documents=documents, duplicates="share")


def listed(docids: Docids) -> dict[tuple, list[int]]:
    return {
        tuple(docids.tokens[row, : docids.lengths[row]].tolist()): docids.documents_of(row).tolist()
        for row in range(len(docids))
    }


@pytest.mark.parametrize(
    "first, second",
    [
        (([[2], [3]], [0, 1]), ([[4, 5]], [0])),
        (([[2], [2], [3]], [0, 1, 2]), ([[3], [4]], [0, 1])),  # fewer docids than documents
        (([[2], [3], [4, 4]], [0, 0, 1]), ([[2], [5]], [1, 0])),  # more
    ],
)
def test_further_documents_come_behind(first, second):
    docids, more = build(*first), build(*second)
    expected = collections.defaultdict(list)
    for (sequences, documents), shift in ((first, 0), (second, docids.num_documents)):
        for sequence, document in zip(sequences, documents, strict=True):
            expected[tuple(sequence)].append(document + shift)
    joined = docids.joined(more)
    assert listed(joined) == expected
    assert joined.num_documents == len(np.unique(first[1])) + len(np.unique(second[1]))
