"""N-grams that one source is to be asked for, every prefix of theirs once.

N-grams of a ranked list share most of what they begin with: a beam leaves each of its prefixes, and single tokens all
stand behind the empty one. The network reads a prefix once, and says of it how likely each token behind it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

NONE = -1  # behind the last token of an n-gram


class Prefixes:
    """N-grams of one row, as a tree.

    Prefix 0 is the empty one. What is written, a token behind a prefix, has a number, which n-grams that begin alike
    share.

    Args:
      prefixes, ngrams: as many as there is room for.
    """

    def __init__(self, prefixes: int, ngrams: int):
        self._room, self._most_ngrams = prefixes, ngrams
        self._prefix: dict[tuple[int, int], int] = {}  # (prefix, token) → the prefix with the token
        self._written: dict[tuple[int, int], int] = {}  # (prefix, token) → its number
        self._depths = [0]
        self.ngrams: list[list[int]] = []

    def __len__(self) -> int:
        return len(self._depths)

    def add(self, ngram: Sequence[int]) -> bool:
        """Whether there is room for an n-gram; it is kept then, as the last."""
        at, known = 0, 0
        for token in ngram[:-1]:
            behind = self._prefix.get((at, token))
            if behind is None:
                break
            at, known = behind, known + 1
        if len(self) + len(ngram) - 1 - known > self._room or len(self.ngrams) == self._most_ngrams:
            return False
        path, at = [], 0
        for place, token in enumerate(ngram):
            path.append(self._written.setdefault((at, token), len(self._written)))
            if place < len(ngram) - 1:
                at = self._behind(at, token)
        self.ngrams.append(path)
        return True

    def fill(self, features: dict[str, np.ndarray], row: int) -> None:
        """Writes it into a row of features; see `empty`."""
        mask = features["decoder_mask"][row]
        for (parent, token), prefix in self._prefix.items():  # a prefix stands behind those that it begins with
            features["decoder_input_tokens"][row, prefix] = token
            mask[prefix] = mask[parent]
            mask[prefix, prefix] = True
        features["decoder_positions"][row, : len(self)] = self._depths
        for (prefix, token), number in self._written.items():
            features["decoder_target_tokens"][row, number] = token
            features["decoder_target_prefixes"][row, number] = prefix
        for number, path in enumerate(self.ngrams):
            features["ngram_targets"][row, number, : len(path)] = path

    def _behind(self, prefix: int, token: int) -> int:
        found = self._prefix.get((prefix, token))
        if found is None:
            found = self._prefix[prefix, token] = len(self)
            self._depths.append(self._depths[prefix] + 1)
        return found


def empty(rows: int, prefixes: int, ngrams: int, longest: int) -> dict[str, np.ndarray]:
    """Features of rows without n-grams.

    Args:
      rows: how many.
      prefixes, ngrams: of a row.
      longest: tokens of an n-gram.

    Returns:
      decoder_input_tokens, decoder_positions: int32[rows, prefixes], the last token of a prefix, and how many it has;
      decoder_mask: bool[rows, prefixes, prefixes], whether a prefix begins with another;
      decoder_target_tokens, decoder_target_prefixes: int32[rows, prefixes + ngrams], what is written, and behind which
      prefix; ngram_targets: int32[rows, ngrams, longest], of which of these an n-gram is made, then −1.
    """
    targets = prefixes + ngrams  # each leads to a prefix, or ends an n-gram
    mask = np.zeros((rows, prefixes, prefixes), bool)
    mask[:, 0, 0] = True
    return {
        **{f"decoder_{name}": np.zeros((rows, prefixes), np.int32) for name in ("input_tokens", "positions")},
        "decoder_mask": mask,
        **{f"decoder_target_{name}": np.zeros((rows, targets), np.int32) for name in ("tokens", "prefixes")},
        "ngram_targets": np.full((rows, ngrams, longest), NONE, np.int32),
    }


def fewest(trees: Iterable[Prefixes]) -> tuple[int, int]:
    """Prefixes and n-grams that a row needs to hold any of these."""
    of_each = [(len(tree), len(tree.ngrams)) for tree in trees]
    return max(one for one, _ in of_each), max(one for _, one in of_each)
