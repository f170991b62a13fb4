"""SEAL's own aggregation of n-grams into documents, on the n-grams and the index that ours has.

It is read from a checkout of facebookresearch/SEAL that SEAL_CHECKOUT names; of it only `seal/keys.py` is run. Its
FM-index is replaced by tables of what it would answer, made before the clock starts, so that its loops alone are timed.
"""

from __future__ import annotations

import bisect
import importlib.util
import itertools
import os
import pathlib
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gr_jax.constraints import FMIndex, fm_index_locate
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
      index: of the text.
    """

    def __init__(self, text: TokenText, index: FMIndex):
        order = np.argsort(text.documents, kind="stable")
        self._documents: list[list[int]] = [[] for _ in range(text.num_documents)]
        begins = np.zeros(len(text.documents), np.int64)  # of each segment in its document
        for segment in order.tolist():
            tokens = text.tokens[text.offsets[segment] : text.offsets[segment + 1]]
            own = int(text.documents[segment])
            begins[segment] = len(self._documents[own])
            self._documents[own] += (tokens.astype(int) + _SHIFT).tolist()
        for one in self._documents:
            one.append(2)
        self.beginnings = np.concatenate([[0], np.cumsum([len(tokens) for tokens in self._documents])]).tolist()
        self._index, self._begins = index, begins
        self._located: dict[int, int] = {}
        self.ranges: Mapping[tuple[int, ...], tuple[int, int]] = {}
        self._counts = np.bincount(text.tokens, minlength=text.vocab_size)

    def learn(self, ranges: Mapping[tuple[int, ...], tuple[int, int]], most: int) -> None:
        """Rows of the n-grams that it will be asked for; where those of at most `most` rows end is looked up."""
        self.ranges = ranges
        few = [range(low, high) for low, high in ranges.values() if high - low <= most]
        rows = np.unique(np.fromiter(itertools.chain.from_iterable(few), np.int32))
        padded = np.zeros(1 << max(0, len(rows) - 1).bit_length(), np.int32)
        padded[: len(rows)] = rows
        found = jax.device_get(_locate(self._index, padded))
        for row, document, segment, position in zip(rows.tolist(), *(x.tolist() for x in found), strict=False):
            self._located[row] = self.beginnings[document] + int(self._begins[segment]) + position + 1

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
        return self._located[row]

    def get_doc_index(self, position: int) -> int:
        return bisect.bisect_left(self.beginnings, position) - 1

    def get_doc(self, document: int) -> list[int]:
        return self._documents[document]


@jax.jit
def _locate(index: FMIndex, rows: np.ndarray) -> fm_index_locate.Occurrences:
    every = jnp.asarray(rows)
    return fm_index_locate.locate(index, every, jnp.ones_like(every, bool), jnp.ones_like(every))


def arguments(
    index: Index, ngrams: Ngrams, singles: Mapping[int, float], vocab_size: int, settings: NgramScoring
) -> Mapping[str, Any]:
    """What `aggregate_evidence` is called with for one query; the index learns where its n-grams stand."""
    keys = []
    ranges = {}
    for row, length in enumerate(ngrams.lengths.tolist()):
        tokens = tuple((ngrams.tokens[row, :length].astype(int) + _SHIFT).tolist())
        ranges[tokens] = ngrams.low[row].item(), ngrams.high[row].item()
        keys.append((list(tokens), float(ngrams.log_probs[row])))
    index.learn(ranges, settings.most_occurrences)
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
