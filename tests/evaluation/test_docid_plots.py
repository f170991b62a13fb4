"""The picture of the tree against counting prefixes."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from gr_jax.docids import Docids, atomic
from gr_jax.errors import InputError
from gr_jax.evaluation import docid_plots, plots

sequences = st.lists(st.lists(st.integers(2, 5), min_size=1, max_size=3).map(tuple), min_size=1, max_size=25)


@given(sequences, st.integers(0, 2))
def test_nodes_are_prefixes_with_their_documents(given_sequences, level):
    docids = Docids.build(given_sequences, vocab_size=6, eos_id=1, duplicates="share")
    if level >= docids.tokens.shape[1]:
        return
    nodes = docid_plots.nodes_of_level(docids, level)
    counts = Counter(sequence[: level + 1] for sequence in given_sequences if len(sequence) > level)
    ordered = sorted(counts)
    assert nodes.token.tolist() == [prefix[-1] for prefix in ordered]
    assert (nodes.end - nodes.start).tolist() == [counts[prefix] for prefix in ordered]
    before = [sum(sequence < prefix for sequence in given_sequences) for prefix in ordered]
    assert nodes.start.tolist() == before
    for prefix, bits in zip(ordered, nodes.bits, strict=True):
        following = Counter(s[level + 1 : level + 2] for s in given_sequences if s[: level + 1] == prefix)
        assert bits == pytest.approx(entropy(list(following.values()), base=2), abs=1e-9)


def boxes(figure):
    """left, right and row of every box."""
    return [
        (path.vertices[:, 0].min(), path.vertices[:, 0].max(), int(path.vertices[:, 1].min()))
        for collection in figure.axes[0].collections
        for path in collection.get_paths()
    ]


def test_boxes_are_as_wide_as_their_documents():
    docids = Docids.build([[2, 4], [2, 5], [2, 6], [3, 4]], vocab_size=8)
    found = sorted(boxes(docid_plots.docid_tree(docids)), key=lambda box: (box[2], box[0]))
    np.testing.assert_allclose(
        found, [(0, 0.75, 0), (0.75, 1, 0), (0, 0.25, 1), (0.25, 0.5, 1), (0.5, 0.75, 1), (0.75, 1, 1)]
    )
    assert len({*boxes(docid_plots.docid_tree(docids, levels=1))}) == 2


def test_very_many_narrow_nodes_stay_a_small_picture():
    figure = docid_plots.docid_tree(atomic(50_000))
    found = boxes(figure)
    assert len(found) < 1500
    assert sum(right - left for left, right, _ in found) == pytest.approx(1)
    assert figure.axes[0].get_title(loc="left") == "50,000 docids (atomic) of 50,000 documents"
    assert plots.to_png(figure)[:4] == b"\x89PNG" and b"<svg" in plots.to_svg(figure)


def test_no_level():
    with pytest.raises(InputError, match="levels"):
        docid_plots.docid_tree(atomic(3), levels=0)
