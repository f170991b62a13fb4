"""Rows of n-grams whose prefixes stand in them once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gr_jax.systems.ngram.prefixes import NONE, Prefixes, empty, fewest

NGRAMS = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=5).map(tuple), min_size=1, max_size=20, unique=True)


def read(features: dict[str, np.ndarray], row: int, prefix: int) -> tuple[int, ...]:
    """A prefix, as the network sees it: the tokens that it sees, by their positions."""
    seen = np.flatnonzero(features["decoder_mask"][row, prefix])
    positions = features["decoder_positions"][row, seen]
    assert sorted(positions.tolist()) == list(range(len(seen)))
    return tuple(features["decoder_input_tokens"][row, seen[np.argsort(positions)]].tolist()[1:])


@given(NGRAMS, st.integers(1, 40), st.integers(1, 20))
def test_every_ngram_is_written_behind_its_own_beginnings(ngrams, prefixes, most):
    tree, kept, seen = Prefixes(prefixes, most), [], {()}
    for ngram in ngrams:
        needed = seen | {ngram[:size] for size in range(len(ngram))}
        there = len(needed) <= prefixes and len(kept) < most
        assert tree.add(ngram) == there
        if there:
            kept.append(ngram)
            seen = needed
    assert fewest([Prefixes(1, 1), tree]) == (len(seen), len(kept))
    features = empty(2, prefixes, most, 5)
    tree.fill(features, 1)
    assert {read(features, 1, prefix) for prefix in range(len(tree))} == seen
    for number, ngram in enumerate(kept):
        targets = features["ngram_targets"][1, number]
        assert (targets[len(ngram) :] == NONE).all()
        for place, target in enumerate(targets[: len(ngram)].tolist()):
            assert features["decoder_target_tokens"][1, target] == ngram[place]
            assert read(features, 1, int(features["decoder_target_prefixes"][1, target])) == ngram[:place]
    written = {(ngram[:place], ngram[place]) for ngram in kept for place in range(len(ngram))}
    assert len(set(features["ngram_targets"][1].ravel().tolist()) - {NONE}) == len(written)
    assert (features["ngram_targets"][1, len(kept) :] == NONE).all() and (features["ngram_targets"][0] == NONE).all()
