"""Batches of queries, their answers and their negatives; all derived from a seed and a place in the data.

As in `gr_jax.training.batches`, a batch is planned for all processes together, and every process reads its own rows.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import grain
import jax
import numpy as np
from jaxtyping import Int, Int32, Int64

from gr_jax.errors import InputError
from gr_jax.training.drawing import NegativeSource, draw_negatives, scramble
from gr_jax.training.negatives import check_documents, first_relevant
from gr_jax.training.order import make_order
from gr_jax.training.padding import lengths_of_texts, pack_evenly, pad_texts
from gr_jax.training.token_store import Ragged, TokenStore

_READ_AHEAD = 256  # places of which the rows are looked up at once
_PATIENCE = 4  # batches of queries with the same answers that may wait
_HASHED = 1 << 22  # tokens that are hashed at once


class ContrastiveBatches(grain.IterDataset):
    """Batches as the losses of bi-encoders and late interaction read them. Can be iterated any number of times.

    Args:
      queries: one row for each training query and answer: `inputs` are the query's tokens, `targets` the positions in
        the corpus of all documents that are relevant for it, the answer of this row first.
      documents: one row for each document of the corpus, `inputs` its tokens.
      batch_size: queries of a batch, over all processes.
      negatives: what to draw negatives from; None draws them from all documents.
      num_negatives: of each query; where the table has fewer for a query, random documents take their place. None
        takes all columns of the table.
      query_lengths, document_lengths: one length, or ascending ones: a batch is padded to the smallest that holds its
        longest row.
      rates: how often queries of each source are drawn, as in `make_batches`.
      seed: of order and draws. Every epoch has others.
      shuffle: False keeps the order of the queries.
      epochs: how often to go through the queries, None for ever. With an end, the last batch is filled up with rows
        without tokens and positions −1.
      process: (index, count) of this host; None asks JAX.
      document_tokens: False leaves the tokens of documents out, for models that read their vectors instead.
      document_positions: yield document_position; None: where tokens are left out.
      every_document: negatives are all other documents of the corpus, dealt out over the queries of a batch; where
        other queries' documents count, each query has all. `negatives` and `num_negatives` are not read.
      packing: (parts, rows): what a model packs queries by. A batch has so many equal parts, a multiple of the
        processes, and the queries of each lie in so many rows. None leaves query_segment_ids out. It does not belong to
        `settings`: a training may go on with another.

    Yields:
      query_tokens int32[B, Lq]; document_tokens int32[B·(1+n), Ld], for each query its answer and then its negatives;
      document_index int32[B·(1+n)], their positions in the corpus, of documents with equal tokens that of the first;
      where they are asked for, document_position int32[B·(1+n)], each one's own position;
      with packing query_segment_ids int32[parts·rows, W], of `gr_jax.models.text_encoder.encode_packed`: n + 1 where
      tokens of query n of the whole batch lie, 0 where nothing does;
      where queries have several relevant documents relevant_index int32[B, R], the others, padded with −1; where the
      table has them teacher_scores float32[B, 1+n] (NaN where the teacher gave none). Within a batch no two queries
      have the same answer, as far as the corpus allows.

    Raises:
      InputError: the parts do not fit together, or a row is longer than the largest length.
    """

    def __init__(
        self,
        queries: TokenStore,
        documents: TokenStore,
        *,
        batch_size: int,
        negatives: NegativeSource | None = None,
        num_negatives: int | None = None,
        query_lengths: int | Sequence[int] = 48,
        document_lengths: int | Sequence[int] = 128,
        rates: Mapping[str, float] | None = None,
        seed: int = 0,
        shuffle: bool = True,
        epochs: int | None = None,
        process: tuple[int, int] | None = None,
        document_tokens: bool = True,
        document_positions: bool | None = None,
        every_document: bool = False,
        packing: tuple[int, int] | None = None,
    ):
        super().__init__()
        index, count = process or (jax.process_index(), jax.process_count())
        if batch_size < 1 or batch_size % count:
            raise InputError(
                f"a batch of {batch_size} queries cannot be split over {count} processes",
                "Take a multiple.",
                value=batch_size,
            )
        if packing is not None and (min(packing) < 1 or packing[0] % count or batch_size % packing[0]):
            raise InputError(
                f"a batch of {batch_size} queries on {count} processes cannot be packed in such parts and rows",
                "Give (parts, rows) of which parts divide the batch and are a multiple of the processes, or None.",
                value=packing,
            )
        if every_document:
            num_negatives = -(-len(documents) // batch_size)  # of each query; some places stay empty
        elif num_negatives is None:
            num_negatives = 0 if negatives is None else negatives.width
        if num_negatives < 0:
            raise InputError("the number of negatives is negative", "Give 0 or more.", value=num_negatives)
        if negatives is not None and len(negatives) != len(queries):
            raise InputError(
                f"negatives of {len(negatives)} queries, and there are {len(queries)}",
                "Make them for the queries of this token store.",
            )
        self.queries, self.documents, self.negatives = queries, documents, negatives
        self.batch_size, self.num_negatives, self.seed = batch_size, num_negatives, seed
        self.document_tokens, self.every_document = document_tokens, every_document
        self.packing = packing
        self.document_positions = not document_tokens if document_positions is None else document_positions
        self.lengths = {
            "query": lengths_of_texts("query", query_lengths, queries.inputs),
            "document": lengths_of_texts("document", document_lengths, documents.inputs),
        }
        self.positive = first_relevant(queries.targets)
        check_documents(queries.targets, len(documents))
        self.equal = first_equal(documents.inputs)
        self.others = max(int(queries.targets.lengths.max(initial=1)) - 1, 0)  # R
        self.order = make_order(queries.source, rates=rates, seed=seed, shuffle=shuffle, epochs=epochs)
        self.local = range(index * batch_size // count, (index + 1) * batch_size // count)
        self.settings = {
            "queries": queries.fingerprint,
            "documents": documents.fingerprint,
            "negatives": None if negatives is None else negatives.settings,
            "num_negatives": num_negatives,
            "batch_size": batch_size,
            "lengths": {side: list(lengths) for side, lengths in self.lengths.items()},
            "rates": None if rates is None else {name: float(rate) for name, rate in sorted(rates.items())},
            "seed": seed,
            "shuffle": shuffle,
            "epochs": epochs,
            **({"every_document": True} if every_document else {}),
        }

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the longest batch over all processes, as T5X's `get_initial_variables` wants them."""
        rows = self.batch_size * (1 + self.num_negatives)
        return {
            "query_tokens": (self.batch_size, self.lengths["query"][-1]),
            **({"document_tokens": (rows, self.lengths["document"][-1])} if self.document_tokens else {}),
            **({"document_position": (rows,)} if self.document_positions else {}),
            "document_index": (rows,),
        }

    def __iter__(self) -> grain.DatasetIterator:
        return _ContrastiveIterator(self)

    def rows_of(self, start: int, stop: int) -> Int64[np.ndarray, " rows"]:
        """Rows of the queries that the batches `start`, …, `stop` − 1 hold, ascending: of all others no negatives are
        needed by then."""
        iterator = _ContrastiveIterator(self)
        found = [row for step in range(stop) for row in iterator.skip() if step >= start]
        return np.unique(np.array(found, np.int64))

    def batch(self, step: int, places: Sequence[int], rows: Sequence[int]) -> dict[str, np.ndarray]:
        """This process's part of the batch of these rows of the queries; −1 is an empty row.

        Args:
          step: number of the batch, which decides the table of negatives.
          places: of the rows in the order, which decide what is drawn.
          rows: of all processes.
        """
        row = np.asarray(rows, np.int64)
        real = row >= 0
        row = np.maximum(row, 0)  # of empty rows; what is read there is overwritten below
        table = None if self.negatives is None or self.every_document else self.negatives.at(step)
        if self.every_document:
            negatives = self._every_other(self.positive[row[real]])
            columns = np.full(negatives.shape, -1, np.int64)
        else:
            negatives, columns = draw_negatives(
                table,
                row,
                np.asarray(places, np.int64),
                self.num_negatives,
                relevant=self.queries.targets,
                num_documents=len(self.documents),
                seed=self.seed,
            )  # [B, n]
        documents = np.concatenate([self.positive[row, None], negatives], axis=1)  # [B, 1+n]
        documents[~real, : 1 if self.every_document else None] = -1  # what is dealt out is others' negative too
        columns[~real] = -1
        batch = {
            "query_tokens": self._pad("query", self.queries, np.where(real, row, -1)[:, None]),
            "document_index": np.where(documents >= 0, self.equal[documents], -1).astype(np.int32),
        }
        if self.document_tokens:
            batch["document_tokens"] = self._pad("document", self.documents, documents)
        if self.document_positions:
            batch["document_position"] = documents.astype(np.int32)
        if self.others:
            batch["relevant_index"] = self._relevant(row, real)
        if table is not None and table.teacher_scores is not None:
            known = np.concatenate([real[:, None], columns >= 0], axis=1)
            picked = table.teacher_scores[row[:, None], np.pad(columns + 1, ((0, 0), (1, 0)))]
            batch["teacher_scores"] = np.where(known, picked, np.nan).astype(np.float32)
        own = {name: array[self.local.start : self.local.stop] for name, array in batch.items()}
        for name in {"document_tokens", "document_position", "document_index"} & own.keys():
            own[name] = own[name].reshape(-1, *own[name].shape[2:])  # [B, 1+n, …] → [B·(1+n), …]
        own["query_tokens"] = own["query_tokens"][:, 0]
        if self.packing is not None:
            found = pack_evenly(np.where(real, self.queries.lengths(row)[:, 0], 0), *self.packing)
            share = slice(*(place * len(found) // len(row) for place in (self.local.start, self.local.stop)))
            own["query_segment_ids"] = found[share].reshape(-1, found.shape[-1])
        return own

    def _every_other(self, positives: Int[np.ndarray, " some"]) -> Int32[np.ndarray, "B n"]:
        """All documents but these, dealt out over the queries; −1 behind the last."""
        dealt = np.full(self.batch_size * self.num_negatives, -1, np.int32)
        others = np.setdiff1d(np.arange(len(self.documents), dtype=np.int32), positives)
        dealt[: len(others)] = others
        return dealt.reshape(self.batch_size, self.num_negatives)

    def _pad(self, side: str, texts: TokenStore, numbers: Int[np.ndarray, "B k"]) -> Int32[np.ndarray, "B k length"]:
        return pad_texts(texts.inputs, numbers, self.lengths[side], self.local)

    def _relevant(self, row: Int64[np.ndarray, " B"], real: np.ndarray) -> Int32[np.ndarray, "B R"]:
        result = np.full((len(row), self.others), -1, np.int32)
        for i in np.flatnonzero(real).tolist():
            others = self.equal[self.queries.targets[int(row[i])][1:]]
            result[i, : len(others)] = others
        return result


class _ContrastiveIterator(grain.DatasetIterator):
    """Reads the order and fills batches with queries of different answers.

    Its state: `step`, batches so far; `position`, the next place in the order that was not looked at; `held`, places
    that were looked at and wait for a later batch.
    """

    def __init__(self, batches: ContrastiveBatches):
        super().__init__()
        self._batches = batches
        self._rows: dict[int, int] = {}
        self._step, self._position, self._held = 0, 0, []  # type: int, int, list[int]

    def get_state(self) -> dict[str, Any]:
        return {"step": self._step, "position": self._position, "held": list(self._held)}

    def set_state(self, state: dict[str, Any]) -> None:
        self._step, self._position = int(state["step"]), int(state["position"])
        self._held = [int(place) for place in state["held"]]
        self._rows = {}

    def __next__(self) -> dict[str, np.ndarray]:
        size = self._batches.batch_size
        plan = self._plan(size, self._position)
        places = plan[0]
        if not places:
            raise StopIteration
        rows = [self._rows[place] for place in places]
        empty = [-1] * (size - len(places))
        batch = self._batches.batch(self._step, [*places, *empty], [*rows, *empty])
        self._advance(*plan)  # only now: where a table of negatives is missing, the batch is not lost
        return batch

    def skip(self) -> list[int]:
        """Passes over a batch; its rows of the queries, none at the end."""
        plan = self._plan(self._batches.batch_size, self._position)
        rows = [self._rows[place] for place in plan[0]]
        self._advance(*plan)
        return rows

    def _advance(self, places: list[int], held: list[int], position: int) -> None:
        for place in places:
            del self._rows[place]
        self._step, self._position, self._held = self._step + 1, position, held

    def _plan(self, size: int, position: int) -> tuple[list[int], list[int], int]:
        """(places of this batch, places that wait, next position)."""
        waiting = collections.deque(self._held)
        chosen: list[int] = []
        passed: list[int] = []  # their answers are in the batch already
        answers: set[int] = set()
        while len(chosen) < size:
            if waiting:
                place = waiting.popleft()
            elif position < len(self._batches.order) and len(passed) < _PATIENCE * size:
                place, position = position, position + 1
            else:
                break
            answer = self._answer(place)
            if answer in answers:
                passed.append(place)
            else:
                chosen.append(place)
                answers.add(answer)
        missing = size - len(chosen)  # above 0 where the corpus, or the rest of the epoch, has no more answers
        return [*chosen, *passed[:missing]], [*passed[missing:], *waiting], position

    def _answer(self, place: int) -> int:
        if place not in self._rows:
            stop = min(place + _READ_AHEAD, len(self._batches.order))
            places = [p for p in range(place, stop) if p not in self._rows]
            rows = self._batches.order.rows(np.array(places, np.int64))
            self._rows.update(zip(places, rows.tolist(), strict=True))
        return int(self._batches.equal[self._batches.positive[self._rows[place]]])


def first_equal(texts: Ragged) -> Int32[np.ndarray, " rows"]:
    """For every row the first one that has the same tokens, by a hash of 64 bits."""
    hashes = np.zeros(len(texts), np.uint64)
    start = 0
    while start < len(texts):
        stop = int(np.searchsorted(texts.offsets, texts.offsets[start] + _HASHED, side="right")) - 1
        stop = min(max(stop, start + 1), len(texts))
        offsets = texts.offsets[start : stop + 1] - texts.offsets[start]
        tokens = np.asarray(texts.tokens[texts.offsets[start] : texts.offsets[stop]], np.int64)
        lengths = np.diff(offsets)
        within = np.arange(len(tokens)) - np.repeat(offsets[:-1], lengths)
        sums = np.concatenate([[np.uint64(0)], np.cumsum(scramble(tokens * (1 << 20) + within, 0), dtype=np.uint64)])
        hashes[start:stop] = sums[offsets[1:]] - sums[offsets[:-1]] + lengths.astype(np.uint64)
        start = stop
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    return first[inverse].astype(np.int32)
