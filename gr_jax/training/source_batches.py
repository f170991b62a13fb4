"""Batches for a network that copies: rows of one source and as many of its targets as fit.

A source is read once for all of its targets, which makes a step several times cheaper than rows of one pair each: a
document and the queries that lead to it, or a query and n-grams of the documents that it leads to.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float, Int, Int32

from gr_jax.errors import InputError
from gr_jax.training.batches import own_rows


@dataclasses.dataclass(frozen=True)
class SourceTargets:
    """Sources and what is to be written to each, as tokens.

    Attributes:
      sources: 0 is padding.
      kinds: for each kind of target, for each source, its targets, without EOS. The kind's number is the first token
        that the decoder reads.
      encoded: states of the sources' tokens, of any float type; None leaves them to the network.
    """

    sources: Int32[np.ndarray, "n source"]
    kinds: Sequence[Sequence[Sequence[Sequence[int]]]]
    encoded: Float[np.ndarray, "n source e"] | None = None

    @property
    def fingerprint(self) -> str:
        """16 hex digits over all tokens."""
        digest = hashlib.sha256(np.ascontiguousarray(self.sources).tobytes())
        digest.update(repr([[list(map(list, row)) for row in kind] for kind in self.kinds]).encode())
        return digest.hexdigest()[:16]

    def joined(self, other: SourceTargets) -> SourceTargets:
        """These sources and others behind them, without states. Sources are as long in both."""
        kinds = [[*own, *others] for own, others in zip(self.kinds, other.kinds, strict=True)]
        return SourceTargets(np.concatenate([self.sources, other.sources]), kinds)

    def subset(self, places: Sequence[int] | np.ndarray) -> SourceTargets:
        """Some of the sources, without their states."""
        return SourceTargets(self.sources[places], [[kind[place] for place in places] for kind in self.kinds])


class TargetBatches:
    """Batches of so many epochs, or without end; what is in batch n depends on the seed and n alone.

    Every epoch goes once through the sources that have targets; a row takes a source's targets in a new order, those of
    the first kind first, until it is full.

    Args:
      data: sources and targets.
      batch_size: sources of a batch, over all processes; the last one of an epoch may be filled up with empty rows.
      targets: tokens of a row's targets, their ends included; no target may be longer.
      eos_id: ends a target; None: nothing does.
      seed: of the order.
      epochs: passes; None is without end.
      process: (index, count) of this host; None asks JAX.

    Raises:
      InputError: no source has a target, a target does not fit a row, or a batch is to hold nothing or cannot be split
        over the processes.
    """

    def __init__(
        self,
        data: SourceTargets,
        *,
        batch_size: int,
        targets: int,
        eos_id: int | None,
        seed: int = 0,
        epochs: int | None = None,
        process: tuple[int, int] | None = None,
    ):
        if batch_size < 1:
            raise InputError("a batch holds sources", "Give batch_size ≥ 1.", value=batch_size)
        _check_targets_fit(data, targets, eos_id)
        self._data, self._targets, self._eos_id, self._seed, self._epochs = data, targets, eos_id, seed, epochs
        self.batch_size, self._local = batch_size, own_rows(batch_size, process, "sources")
        counts = [sum(map(len, targets)) for targets in zip(*data.kinds, strict=True)]
        self._sources = np.flatnonzero(counts)
        if not len(self._sources):
            raise InputError("there is nothing to learn to write", "Give sources with targets.")
        self.settings = {
            "data": data.fingerprint, "batch_size": batch_size, "targets": targets, "eos_id": eos_id,
            "seed": seed, "epochs": epochs,
        }  # fmt: skip

    @property
    def steps_per_epoch(self) -> int:
        """Batches of one pass."""
        return -(-len(self._sources) // self.batch_size)

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of a batch over all processes."""
        return self._shapes(self.batch_size)

    def _shapes(self, rows: int) -> dict[str, tuple[int, ...]]:
        target = (rows, self._targets)
        shapes: dict[str, tuple[int, ...]] = {
            f"decoder_{name}": target for name in ("input_tokens", "target_tokens", "loss_weights", "segment_ids")
        }
        shapes["encoder_input_tokens"] = (rows, self._data.sources.shape[1])
        if self._data.encoded is not None:
            shapes["encoded"] = (rows, *self._data.encoded.shape[1:])
        return shapes

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return NumberedIterator(self)

    def batch(self, number: int) -> dict[str, np.ndarray] | None:
        """This process's rows of batch `number`; None behind the end."""
        epoch, place = divmod(number, self.steps_per_epoch)
        if self._epochs is not None and epoch >= self._epochs:
            return None
        order = self._order(epoch)[place * self.batch_size : (place + 1) * self.batch_size][self._local]
        shapes = self._shapes(self._local.stop - self._local.start)
        batch = {name: np.zeros(shape, np.int32) for name, shape in shapes.items() if name != "encoded"}
        batch["decoder_loss_weights"] = batch["decoder_loss_weights"].astype(np.float32)
        batch["encoder_input_tokens"][: len(order)] = self._data.sources[order]
        if self._data.encoded is not None:
            batch["encoded"] = np.zeros(shapes["encoded"], self._data.encoded.dtype)
            batch["encoded"][: len(order)] = self._data.encoded[order]
        for row, source in enumerate(order.tolist()):
            self._fill(batch, row, source, epoch)
        return batch

    def drawn(self, batches: int) -> Int[np.ndarray, " m"]:
        """The sources that stand in the first so many batches, in ascending order."""
        return np.sort(self._order(0)[: batches * self.batch_size])  # of a whole epoch or more: all

    def with_states(self, encoded: Float[np.ndarray, "n source e"]) -> TargetBatches:
        """The same batches, with states of the sources' tokens in them."""
        made = copy.copy(self)
        made._data = dataclasses.replace(self._data, encoded=encoded)
        return made

    def _order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self._seed, epoch]).permutation(self._sources)

    def _fill(self, batch: dict[str, np.ndarray], row: int, source: int, epoch: int) -> None:
        rng = np.random.default_rng([self._seed, epoch, source])
        at, segment = 0, 0
        end_of = [] if self._eos_id is None else [self._eos_id]
        for kind, targets in enumerate(self._data.kinds):
            for place in rng.permutation(len(targets[source])).tolist():
                tokens = [*targets[source][place], *end_of]
                end = at + len(tokens)
                if end > self._targets:
                    continue
                segment += 1
                batch["decoder_input_tokens"][row, at:end] = [kind, *tokens[:-1]]
                batch["decoder_target_tokens"][row, at:end] = tokens
                batch["decoder_loss_weights"][row, at:end] = 1
                batch["decoder_segment_ids"][row, at:end] = segment
                at = end


def _check_targets_fit(data: SourceTargets, targets: int, eos_id: int | None) -> None:
    """Refuses a target that no row has room for: it would never be learned from, and nobody would know."""
    for kind in data.kinds:
        for source, every in enumerate(kind):
            longest = (eos_id is not None) + max(map(len, every), default=0)
            if longest > targets:
                raise InputError(
                    f"a target of source {source} has {longest} tokens with its end, and a row {targets}",
                    f"Give targets ≥ {longest}, or cut targets shorter.",
                    value=targets,
                )


class NumberedBatches(Protocol):
    """Batches that are made by their number."""

    def batch(self, number: int) -> dict[str, np.ndarray] | None:
        """Batch `number`; None behind the end."""
        ...


class NumberedIterator:
    """Goes through batches from the first on; its state is the number of the next one."""

    def __init__(self, batches: NumberedBatches):
        self._batches, self._number = batches, 0

    def get_state(self) -> dict[str, Any]:
        return {"number": self._number}

    def set_state(self, state: dict[str, Any]) -> None:
        self._number = int(state["number"])

    def __iter__(self) -> NumberedIterator:
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        batch = self._batches.batch(self._number)
        if batch is None:
            raise StopIteration
        self._number += 1
        return batch
