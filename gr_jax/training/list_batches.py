"""Batches of queries and lists of graded candidates; all derived from a seed and a place in the data."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import grain
import jax
import numpy as np

from gr_jax.errors import InputError
from gr_jax.training.candidate_lists import ListSource
from gr_jax.training.drawing import NegativeSource, draw_columns, draw_negatives
from gr_jax.training.order import make_order
from gr_jax.training.padding import lengths_of_texts, pad_texts
from gr_jax.training.token_store import TokenStore


class ListBatches(grain.IterDataset):
    """Batches as ranking losses read them. Can be iterated any number of times.

    Args:
      queries: one row for each query: `inputs` are its tokens, `targets` the positions in the corpus of the documents
        that are relevant for it, which are none of its negatives; there may be none.
      lists: candidates of every query.
      batch_size: queries of a batch, over all processes.
      candidates: of each query; None takes all columns of the lists.
      sampled: so many of a query's list at random, anew in every epoch, in the order of the list; False: its first.
      documents: one row for each document of the corpus, `inputs` its tokens; None yields positions alone, for models
        that score identifiers.
      num_documents: of the corpus; None: of `documents`. Needed where there are negatives.
      negatives: what to draw negatives from; None draws them from all documents.
      num_negatives: of each query, beside its candidates; neither relevant nor among these.
      query_lengths, document_lengths: one length, or ascending ones: a batch is padded to the smallest that holds its
        longest row.
      rates, seed, shuffle, epochs, process: see `ContrastiveBatches`. With an end, the last batch is filled up with
        rows without tokens and candidates.

    Yields:
      query_tokens int32[B, Lq]; candidate_index int32[B, c], positions in the corpus, −1 where a list is shorter;
      grades int32[B, c]; teacher_scores float32[B, c], NaN where the teacher gave none; valid bool[B, c], whether there
      is a candidate; with negatives negative_index int32[B, n]; with documents document_tokens int32[B·(c+n), Ld], of
      each query's candidates and then of its negatives.

    Raises:
      InputError: the parts do not fit together, or a row is longer than the largest length.
    """

    def __init__(
        self,
        queries: TokenStore,
        lists: ListSource,
        *,
        batch_size: int,
        candidates: int | None = None,
        sampled: bool = False,
        documents: TokenStore | None = None,
        num_documents: int | None = None,
        negatives: NegativeSource | None = None,
        num_negatives: int = 0,
        query_lengths: int | Sequence[int] = 48,
        document_lengths: int | Sequence[int] = 128,
        rates: Mapping[str, float] | None = None,
        seed: int = 0,
        shuffle: bool = True,
        epochs: int | None = None,
        process: tuple[int, int] | None = None,
    ):
        super().__init__()
        index, count = process or (jax.process_index(), jax.process_count())
        candidates = lists.width if candidates is None else candidates
        if batch_size < 1 or batch_size % count:
            raise InputError(
                f"a batch of {batch_size} queries cannot be split over {count} processes",
                "Take a multiple.",
                value=batch_size,
            )
        for name, table in (("candidates", lists), ("negatives", negatives)):
            if table is not None and len(table) != len(queries):
                raise InputError(
                    f"{name} of {len(table)} queries, and there are {len(queries)}",
                    "Make them for the queries of this token store.",
                )
        if not 1 <= candidates <= lists.width:
            raise InputError(
                f"a query has {lists.width} candidates at most", f"Draw 1 to {lists.width}.", value=candidates
            )
        size = len(documents) if documents is not None and num_documents is None else num_documents
        if num_negatives < 0 or num_negatives and size is None or num_negatives == 0 and negatives is not None:
            raise InputError(
                "negatives are so many of the documents of a corpus",
                "Give num_negatives, and num_documents or documents; or no negatives.",
                value=num_negatives,
            )
        if documents is not None and size != len(documents):
            raise InputError(f"{len(documents)} documents, where there are {size}", "Give one corpus.", value=size)
        _check_documents(lists, size)
        self.queries, self.lists, self.documents, self.negatives = queries, lists, documents, negatives
        self.batch_size, self.candidates, self.sampled, self.seed = batch_size, candidates, sampled, seed
        self.num_negatives, self.num_documents = num_negatives, size
        self.lengths = {"query": lengths_of_texts("query", query_lengths, queries.inputs)}
        if documents is not None:
            self.lengths["document"] = lengths_of_texts("document", document_lengths, documents.inputs)
        self.order = make_order(queries.source, rates=rates, seed=seed, shuffle=shuffle, epochs=epochs)
        self.local = range(index * batch_size // count, (index + 1) * batch_size // count)
        self.settings = {
            "queries": queries.fingerprint,
            "lists": lists.settings,
            "documents": None if documents is None else documents.fingerprint,
            "negatives": None if negatives is None else negatives.settings,
            "numbers": [batch_size, candidates, num_negatives, size],
            "sampled": sampled,
            "lengths": {side: list(lengths) for side, lengths in self.lengths.items()},
            "rates": None if rates is None else {name: float(rate) for name, rate in sorted(rates.items())},
            "seed": seed,
            "shuffle": shuffle,
            "epochs": epochs,
        }

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the longest batch over all processes, as T5X's `get_initial_variables` wants them."""
        lists, drawn = (self.batch_size, self.candidates), (self.batch_size, self.num_negatives)
        shapes: dict[str, tuple[int, ...]] = {"query_tokens": (self.batch_size, self.lengths["query"][-1])}
        shapes |= dict.fromkeys(("candidate_index", "grades", "teacher_scores", "valid"), lists)
        if self.num_negatives:
            shapes["negative_index"] = drawn
        if self.documents is not None:
            shapes["document_tokens"] = (self.batch_size * (lists[1] + drawn[1]), self.lengths["document"][-1])
        return shapes

    def __iter__(self) -> grain.DatasetIterator:
        return _ListIterator(self)

    def batch(self, step: int) -> dict[str, np.ndarray] | None:
        """This process's part of batch number `step`; None behind the end."""
        start = step * self.batch_size
        stop = min(start + self.batch_size, len(self.order))
        if start >= stop:
            return None
        places = np.full(self.batch_size, -1, np.int64)
        places[: stop - start] = np.arange(start, stop)
        real = places >= 0
        row = np.zeros(self.batch_size, np.int64)
        row[real] = self.order.rows(places[real])
        table = self.lists.at(step)
        pool = np.where(real[:, None], np.asarray(table.documents[row]), -1)
        if self.sampled:
            columns = draw_columns(pool, places, self.candidates, seed=self.seed)
        else:
            columns = np.broadcast_to(np.arange(self.candidates), (len(row), self.candidates))
        index = np.take_along_axis(pool, columns, axis=1)  # [B, c]
        valid = index >= 0
        scores = np.full(index.shape, np.nan, np.float32)
        if table.teacher_scores is not None:
            scores = np.where(valid, table.teacher_scores[row[:, None], columns], np.nan).astype(np.float32)
        batch = {
            "query_tokens": self._pad("query", self.queries, np.where(real, row, -1)[:, None]),
            "candidate_index": index.astype(np.int32),
            "grades": np.where(valid, table.grades[row[:, None], columns], 0).astype(np.int32),
            "teacher_scores": scores,
            "valid": valid,
        }
        texts = index
        if self.num_negatives:
            assert self.num_documents is not None
            batch["negative_index"], _ = draw_negatives(
                None if self.negatives is None else self.negatives.at(step),
                row,
                places,
                self.num_negatives,
                relevant=self.queries.targets,
                num_documents=self.num_documents,
                seed=self.seed + 1,  # not the candidates' draw: their columns would be drawn alike
                taken=index,
            )
            batch["negative_index"][~real] = -1
            texts = np.concatenate([index, batch["negative_index"]], axis=1)
        if self.documents is not None:
            batch["document_tokens"] = self._pad("document", self.documents, texts)
        own = {name: array[self.local.start : self.local.stop] for name, array in batch.items()}
        own["query_tokens"] = own["query_tokens"][:, 0]
        if self.documents is not None:
            own["document_tokens"] = own["document_tokens"].reshape(-1, own["document_tokens"].shape[2])
        return own

    def _pad(self, side: str, texts: TokenStore, numbers: np.ndarray) -> np.ndarray:
        return pad_texts(texts.inputs, numbers, self.lengths[side], self.local)


class _ListIterator(grain.DatasetIterator):
    """Its state: `step`, batches so far."""

    def __init__(self, batches: ListBatches):
        super().__init__()
        self._batches, self._step = batches, 0

    def get_state(self) -> dict[str, Any]:
        return {"step": self._step}

    def set_state(self, state: dict[str, Any]) -> None:
        self._step = int(state["step"])

    def __next__(self) -> dict[str, np.ndarray]:
        batch = self._batches.batch(self._step)
        if batch is None:
            raise StopIteration
        self._step += 1
        return batch


def _check_documents(lists: ListSource, num_documents: int | None) -> None:
    """Refuses lists of another corpus."""
    documents = np.asarray(lists.at(0).documents)
    strange = np.flatnonzero(((documents < -1) | (documents >= (num_documents or sys.maxsize))).any(axis=1))
    if len(strange):
        raise InputError(
            f"a candidate of query {strange[0]} is none of the {num_documents} documents",
            "Make lists and documents from the same corpus.",
            value=documents[strange[0]].tolist(),
        )
