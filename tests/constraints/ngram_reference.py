"""What follows n-grams and where they stand, by looking through the segments."""

from __future__ import annotations

from collections import Counter

import numpy as np

from gr_jax.docids.spans import TokenText


class NGrams:
    """All n-grams up to a length of one view, with what follows them and where they stand."""

    def __init__(self, text: TokenText, view: int = 0, longest: int = 6, anchored: bool = False, allowed=None):
        self.following: dict[tuple, Counter] = {}
        self.places: dict[tuple, list] = {}
        for segment, (document, of_view) in enumerate(zip(text.documents, text.views, strict=True)):
            if of_view != view or (allowed is not None and not allowed[document]):
                continue
            tokens = text.tokens[text.offsets[segment] : text.offsets[segment + 1]].tolist()
            for start in range(1 if anchored else len(tokens)):
                for end in range(start, min(len(tokens), start + longest) + 1):
                    ngram = tuple(tokens[start:end])
                    after = self.following.setdefault(ngram, Counter())
                    if end < len(tokens):
                        after[tokens[end]] += 1
                    self.places.setdefault(ngram, []).append((int(document), segment, start))

    def ngrams(self, longest: int) -> list[tuple]:
        return sorted((ngram for ngram in self.places if len(ngram) <= longest), key=lambda ngram: (len(ngram), ngram))


def padded(ngrams: list[tuple], length: int) -> np.ndarray:
    rows = np.full((len(ngrams), length), -1, np.int32)
    for row, ngram in zip(rows, ngrams, strict=True):
        row[: len(ngram)] = ngram
    return rows
