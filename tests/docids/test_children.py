"""What follows each prefix, against a walk over all docids."""

import numpy as np
import pytest

from gr_jax.docids import Docids, children, hierarchical_kmeans

VECTORS = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
SHARED = Docids.build(
    [[2, 7], [2, 8], [2, 8], [3, 7, 9], [4]], vocab_size=10, documents=[0, 1, 2, 3, 0], duplicates="share"
)


@pytest.mark.parametrize(
    "docids",
    [hierarchical_kmeans(VECTORS, branching=3, leaf_capacity=3, tokens=tokens) for tokens in ("position", "node")]
    + [SHARED],
    ids=["position", "node", "shared"],
)
def test_nodes_are_those_of_a_walk(docids):
    vectors = VECTORS[: docids.num_documents]
    expected: dict[tuple, list[int]] = {}
    for row in range(len(docids)):
        path = tuple(docids.sequence(row))
        for depth in range(1, len(path) + 1):
            expected.setdefault(path[:depth], []).extend(docids.documents_of(row).tolist())
    found = children(docids, vectors)
    prefixes = [tuple(int(token) for token in prefix if token) for prefix in found.prefixes]
    assert len(set(prefixes)) == len(prefixes)
    paths = [(*prefixes[parent], int(token)) for parent, token in zip(found.parent, found.token, strict=True)]
    assert sorted(paths) == sorted(expected)
    ends = {tuple(docids.sequence(row)) for row in range(len(docids))}
    for path, mean, end in zip(paths, found.vectors, found.ends, strict=True):
        np.testing.assert_allclose(mean, vectors[expected[path]].mean(axis=0), atol=1e-6)
        assert end == (path in ends)
