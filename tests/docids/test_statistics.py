from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from gr_jax.docids import Docids, atomic, describe, statistics


def test_a_small_example():
    sequences = [[2, 4], [2, 5], [3, 4], [3, 4], [6]]
    found = statistics(Docids.build(sequences, vocab_size=8, eos_id=1, duplicates="share", num_documents=6))
    assert (found["docids"], found["documents"], found["documents_without"]) == (4, 6, 1)
    assert found["docids_a_document"] == 1 and found["documents_a_docid"] == 1.25
    assert found["length"] == {"min": 1, "mean": 1.75, "max": 2, "counts": [1, 3]}
    assert found["collisions"] == {"docids": 1, "documents": 2, "most_documents": 2}
    first, second = found["levels"]
    assert (first["nodes"], first["branching_max"], first["branching_mean"]) == (3, 3, 3.0)
    p = np.asarray([2, 2, 1]) / 5
    assert first["entropy_bits"] == pytest.approx(-(p * np.log2(p)).sum()) and first["block_bits"] == 3
    assert first["largest"] == pytest.approx(2 / (5 / 3))
    assert (second["docids"], second["nodes"], second["tokens"]) == (3, 3, 2)
    assert second["branching_mean"] == 1.5 and second["branching_max"] == 2
    assert second["balance"] == pytest.approx(1.5 / np.log2(3)) and second["largest"] == pytest.approx(1.5)


@given(st.lists(st.lists(st.integers(2, 5), min_size=1, max_size=3).map(tuple), min_size=1, max_size=25))
def test_levels_are_what_counting_finds(sequences):
    found = statistics(Docids.build(sequences, vocab_size=6, eos_id=1, levels=[(2, 4)] * 3, duplicates="share"))
    assert found["length"]["counts"] == [
        sum(len(s) == length for s in set(sequences)) for length in range(1, max(map(len, sequences)) + 1)
    ]
    for depth, level in enumerate(found["levels"]):
        reaching = [sequence for sequence in sequences if len(sequence) > depth]
        nodes = Counter(sequence[: depth + 1] for sequence in reaching)
        children = Counter(node[:-1] for node in nodes)
        tokens = Counter(sequence[depth] for sequence in reaching)
        assert (level["docids"], level["nodes"], level["tokens"]) == (len(set(reaching)), len(nodes), len(tokens))
        assert level["branching_mean"] == pytest.approx(np.mean(list(children.values())))
        assert level["branching_max"] == max(children.values())
        assert level["entropy_bits"] == pytest.approx(entropy(list(tokens.values()), base=2), abs=1e-9)
        assert level["block_bits"] == 2
        full = list(nodes.values())
        assert level["largest"] == pytest.approx(max(full) / np.mean(full))
        balance = entropy(full, base=2) / np.log2(len(full)) if len(full) > 1 else 1
        assert level["balance"] == pytest.approx(balance)


def test_the_description_shows_every_level():
    lines = describe(statistics(atomic(1000))).splitlines()
    assert lines[0] == "1,000 docids (atomic) of 1,000 documents"
    assert lines[2] == "length 1 to 1, 1 in the mean: 1,000 × 1"
    assert lines[-1].split() == ["1", "1,000", "1,000", "1,000", "1000", "1,000", "9.97", "of", "9.97", "1.000", "1×"]
