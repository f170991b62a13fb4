"""Batches for a generator of queries: rows of one document and as many of its queries as fit.

A document is read once for all of its queries, which makes a step several times cheaper than rows of one pair each.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int32

from gr_jax.errors import InputError
from gr_jax.systems.doct5query.network import ASKED, MADE


@dataclasses.dataclass(frozen=True)
class DocumentQueries:
    """Documents and queries that lead to them, as tokens.

    Attributes:
      documents: of each document its tokens; 0 is padding.
      asked: of each document the queries that people asked, without EOS.
      made: of each document the queries that rules made of it: they teach to copy, and what questions look like.
      encoded: states of the documents' tokens, of any float type; None leaves them to the network.
    """

    documents: Int32[np.ndarray, "n source"]
    asked: Sequence[Sequence[Sequence[int]]]
    made: Sequence[Sequence[Sequence[int]]]
    encoded: Float[np.ndarray, "n source e"] | None = None

    @property
    def fingerprint(self) -> str:
        """16 hex digits over all tokens."""
        digest = hashlib.sha256(np.ascontiguousarray(self.documents).tobytes())
        digest.update(repr([[list(map(list, row)) for row in kind] for kind in (self.asked, self.made)]).encode())
        return digest.hexdigest()[:16]


class QueryBatches:
    """Batches of so many epochs, or without end; what is in batch n depends on the seed and n alone.

    Every epoch goes once through the documents that have queries; a row takes a document's queries in a new order,
    asked ones first, until it is full.

    Args:
      data: documents and queries.
      batch_size: documents of a batch; the last one of an epoch may be filled up with empty rows.
      targets: tokens of a row's queries, their ends included; no query may be longer.
      eos_id: ends a query.
      seed: of the order.
      epochs: passes; None is without end.

    Raises:
      InputError: no document has a query, a query does not fit a row, or a batch is to hold nothing.
    """

    def __init__(
        self,
        data: DocumentQueries,
        *,
        batch_size: int,
        targets: int,
        eos_id: int,
        seed: int = 0,
        epochs: int | None = None,
    ):
        if batch_size < 1:
            raise InputError("a batch holds documents", "Give batch_size ≥ 1.", value=batch_size)
        _check_queries_fit(data, targets)
        self._data, self._targets, self._eos_id, self._seed, self._epochs = data, targets, eos_id, seed, epochs
        self.batch_size = batch_size
        counts = [len(asked) + len(made) for asked, made in zip(data.asked, data.made, strict=True)]
        self._documents = np.flatnonzero(counts)
        if not len(self._documents):
            raise InputError("there are no queries to learn from", "Give documents with queries.")
        self.settings = {
            "data": data.fingerprint, "batch_size": batch_size, "targets": targets, "eos_id": eos_id,
            "seed": seed, "epochs": epochs,
        }  # fmt: skip

    @property
    def steps_per_epoch(self) -> int:
        """Batches of one pass."""
        return -(-len(self._documents) // self.batch_size)

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of a batch."""
        target = (self.batch_size, self._targets)
        shapes: dict[str, tuple[int, ...]] = {
            f"decoder_{name}": target for name in ("input_tokens", "target_tokens", "loss_weights", "segment_ids")
        }
        shapes["encoder_input_tokens"] = (self.batch_size, self._data.documents.shape[1])
        if self._data.encoded is not None:
            shapes["encoded"] = (self.batch_size, *self._data.encoded.shape[1:])
        return shapes

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return _Iterator(self)

    def batch(self, number: int) -> dict[str, np.ndarray] | None:
        """Batch `number`; None behind the end."""
        epoch, place = divmod(number, self.steps_per_epoch)
        if self._epochs is not None and epoch >= self._epochs:
            return None
        order = self._order(epoch)[place * self.batch_size : (place + 1) * self.batch_size]
        batch = {name: np.zeros(shape, np.int32) for name, shape in self.input_shapes.items() if name != "encoded"}
        batch["decoder_loss_weights"] = batch["decoder_loss_weights"].astype(np.float32)
        batch["encoder_input_tokens"][: len(order)] = self._data.documents[order]
        if self._data.encoded is not None:
            batch["encoded"] = np.zeros(self.input_shapes["encoded"], self._data.encoded.dtype)
            batch["encoded"][: len(order)] = self._data.encoded[order]
        for row, document in enumerate(order.tolist()):
            self._fill(batch, row, document, epoch)
        return batch

    def _order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self._seed, epoch]).permutation(self._documents)

    def _fill(self, batch: dict[str, np.ndarray], row: int, document: int, epoch: int) -> None:
        rng = np.random.default_rng([self._seed, epoch, document])
        at, segment = 0, 0
        for kind, queries in ((ASKED, self._data.asked[document]), (MADE, self._data.made[document])):
            for place in rng.permutation(len(queries)).tolist():
                tokens = [*queries[place], self._eos_id]
                end = at + len(tokens)
                if end > self._targets:
                    continue
                segment += 1
                batch["decoder_input_tokens"][row, at:end] = [kind, *tokens[:-1]]
                batch["decoder_target_tokens"][row, at:end] = tokens
                batch["decoder_loss_weights"][row, at:end] = 1
                batch["decoder_segment_ids"][row, at:end] = segment
                at = end


def _check_queries_fit(data: DocumentQueries, targets: int) -> None:
    """Refuses a query that no row has room for: it would never be learned from, and nobody would know."""
    for kind in (data.asked, data.made):
        for document, queries in enumerate(kind):
            longest = 1 + max(map(len, queries), default=0)
            if longest > targets:
                raise InputError(
                    f"a query of document {document} has {longest} tokens with its end, and a row {targets}",
                    f"Give targets ≥ {longest}, or cut queries shorter.",
                    value=targets,
                )


class _Iterator:
    def __init__(self, batches: QueryBatches):
        self._batches, self._number = batches, 0

    def get_state(self) -> dict[str, Any]:
        return {"number": self._number}

    def set_state(self, state: dict[str, Any]) -> None:
        self._number = int(state["number"])

    def __iter__(self) -> _Iterator:
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        batch = self._batches.batch(self._number)
        if batch is None:
            raise StopIteration
        self._number += 1
        return batch
