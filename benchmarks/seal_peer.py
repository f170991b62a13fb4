"""SEAL's own aggregation of n-grams into documents, on the n-grams and the index that ours has.

It is read from a checkout of facebookresearch/SEAL that SEAL_CHECKOUT names; of it only `seal/keys.py` is run. Its
FM-index is replaced by tables of what it would answer, made before the clock starts, so that its loops alone are timed.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gr_jax.docids.spans import TokenText
from gr_jax.errors import InputError
from gr_jax.retrievers.ngram_scorer import Ngrams, NgramScoring

_SHIFT = 10  # its tokens below are special, and ours are not


def load() -> Callable[..., Any]:
    """`aggregate_evidence`.

    Raises:
      InputError: SEAL_CHECKOUT names no checkout.
    """
    file = pathlib.Path(os.environ.get("SEAL_CHECKOUT", "")) / "seal" / "keys.py"
    if not file.is_file():
        raise InputError(
            "SEAL is not there", "Clone facebookresearch/SEAL and name the folder as SEAL_CHECKOUT.", file=file
        )
    for name, content in (("seal", {"FMIndex": object}), ("more_itertools", {"chunked": None})):
        sys.modules.setdefault(name, types.ModuleType(name)).__dict__.update(content)
    spec = importlib.util.spec_from_file_location("seal_keys", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.aggregate_evidence


class Index:
    """What SEAL asks of its FM-index, from tables.

    Args:
      text: of the documents, one view.
      row_documents, row_ends: of the rows of our index: the document, and the position behind the n-gram's last token.
    """

    def __init__(self, text: TokenText, row_documents: np.ndarray, row_ends: np.ndarray):
        order = np.argsort(text.documents, kind="stable")
        self._documents: list[list[int]] = [[] for _ in range(text.num_documents)]
        for segment in order.tolist():
            tokens = text.tokens[text.offsets[segment] : text.offsets[segment + 1]]
            self._documents[int(text.documents[segment])] += (tokens.astype(int) + _SHIFT).tolist()
        for own in self._documents:
            own.append(2)
        self.beginnings = np.concatenate([[0], np.cumsum([len(tokens) for tokens in self._documents])]).tolist()
        self._owner, self._ends = row_documents, row_ends
        self._of_end: dict[int, int] = {}
        self.ranges: Mapping[tuple[int, ...], tuple[int, int]] = {}
        self._counts = np.bincount(text.tokens, minlength=text.vocab_size)

    def __len__(self) -> int:
        return self.beginnings[-1]

    def get_count(self, ngram: Sequence[int]) -> int:
        found = self.ranges.get(tuple(ngram))
        if found is None:
            return int(self._counts[ngram[0] - _SHIFT]) if len(ngram) == 1 and ngram[0] >= _SHIFT else 0
        return found[1] - found[0]

    def get_range(self, ngram: Sequence[int]) -> tuple[int, int]:
        return self.ranges[tuple(ngram)]

    def locate(self, row: int) -> int:
        end = int(self._ends[row])
        self._of_end[end] = int(self._owner[row])
        return end

    def get_doc_index(self, position: int) -> int:
        return self._of_end[position]

    def get_doc(self, document: int) -> list[int]:
        return self._documents[document]


def arguments(
    index: Index, ngrams: Ngrams, singles: Mapping[int, float], vocab_size: int, settings: NgramScoring
) -> Mapping[str, Any]:
    """What `aggregate_evidence` is called with for one query; the index learns where its n-grams stand."""
    keys = []
    ranges = {}
    for row, length in enumerate(ngrams.lengths.tolist()):
        tokens = tuple((ngrams.tokens[row, :length].astype(int) + _SHIFT).tolist())
        ranges[tokens] = int(ngrams.low[row]), int(ngrams.high[row])
        keys.append((list(tokens), float(ngrams.log_probs[row])))
    index.ranges = ranges
    scores = [float("-inf")] * (vocab_size + _SHIFT)
    for token, log_prob in singles.items():
        scores[token + _SHIFT] = log_prob
    return {
        "ngrams_and_scores": keys,
        "unigram_scores": scores,
        "index": index,
        "max_occurrences_1": settings.most_occurrences,
        "n_docs_complete_score": settings.most_documents,
        "alpha": settings.alpha,
        "beta": settings.beta,
        "smoothing": settings.smoothing,
        "use_top_k_unigrams": 5000,
    }
