"""Batches from token stores: shuffled, mixed, packed or bucketed, sharded; all derived from a seed and a position.

What goes into a batch is planned from lengths alone, for the batch of all processes together, and every process then
reads only its own rows. So the content of batch n depends neither on how many processes there are nor on where training
was interrupted, and the place in the data is a few integers. What comes out is a grain dataset.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import grain
import jax
import numpy as np
from jaxtyping import Int8, Int64

from gr_jax.errors import InputError
from gr_jax.training.order import Order, make_order
from gr_jax.training.packing import Plan, RowPlanner, arrange
from gr_jax.training.token_store import TokenStore

DEFAULT_LENGTHS: Mapping[str, int] = {"inputs": 64, "targets": 8}
_READ_AHEAD = 256  # examples whose lengths are looked up at once


def make_batches(
    stores: TokenStore | Sequence[TokenStore],
    *,
    batch_size: int,
    lengths: Mapping[str, int | Sequence[int]] = DEFAULT_LENGTHS,
    pack: bool = True,
    rates: Mapping[str, float] | None = None,
    seed: int = 0,
    shuffle: bool = True,
    epochs: int | None = None,
    process: tuple[int, int] | None = None,
) -> BatchDataset:
    """Batches with T5X's keys.

    Args:
      stores: one or several token stores, taken together.
      batch_size: rows of a batch, over all processes.
      lengths: {"inputs": tokens of a row, "targets": tokens of a row}. Without packing each may be several lengths:
        then every batch holds examples of about one input length and has the shape of that bucket.
      pack: put several short pairs into one row, told apart by segment ids. False: one pair per row.
      rates: how often each source is drawn ({"query": 1, "document": 1, "pseudo": 3}); sources that are not named are
        left out, named ones that have no rows are passed over. None draws every row once per epoch.
      seed: of the order. Every epoch has another.
      shuffle: False keeps the order of the stores.
      epochs: how often to go through the data, None for ever. With an end, the last batches are filled up with empty
        rows of loss weight 0. Not together with `rates`.
      process: (index, count) of this host; None asks JAX.

    Returns:
      An iterable of dicts: encoder_input_tokens, decoder_input_tokens, decoder_target_tokens int32[rows, length],
      decoder_loss_weights float32[rows, length]; when packed also encoder_segment_ids, encoder_positions,
      decoder_segment_ids, decoder_positions int32[rows, length]. Its iterators are grain's: `get_state()` is JSON,
      `set_state(state)` goes on exactly there.

    Raises:
      InputError: an example is longer than a row, no row is left, or the settings contradict each other.
    """
    examples = Examples.of([stores] if isinstance(stores, TokenStore) else list(stores))
    inputs, targets = (_as_lengths(lengths, name) for name in ("inputs", "targets"))
    if pack and max(len(inputs), len(targets)) > 1:
        raise InputError("packed rows have one length", "Give one length each, or pack=False.", value=dict(lengths))
    if len(targets) > 1:
        raise InputError("targets have one length", "Give buckets for inputs only.", value=dict(lengths))
    index, count = process or (jax.process_index(), jax.process_count())
    if batch_size % count:
        raise InputError(
            f"a batch of {batch_size} rows cannot be split over {count} processes", "Take a multiple.", value=batch_size
        )
    examples.check_lengths(inputs[-1], targets[-1])
    settings = {
        "stores": [store.fingerprint for store in examples.stores],
        "batch_size": batch_size,
        "lengths": {"inputs": list(inputs), "targets": list(targets)},
        "pack": pack,
        "rates": None if rates is None else {name: float(rate) for name, rate in sorted(rates.items())},
        "seed": seed,
        "shuffle": shuffle,
        "epochs": epochs,
    }
    order = make_order(examples.source(), rates=rates, seed=seed, shuffle=shuffle, epochs=epochs)
    local = slice(index * batch_size // count, (index + 1) * batch_size // count)
    return BatchDataset(order, examples, batch_size, inputs, targets[0], pack, local, settings)


@dataclasses.dataclass(frozen=True)
class Examples:
    """Several stores as one sequence of rows.

    Attributes:
      stores: the stores.
      starts: row at which each begins, and the number of all rows.
    """

    stores: tuple[TokenStore, ...]
    starts: Int64[np.ndarray, " stores_plus_one"]

    @classmethod
    def of(cls, stores: Sequence[TokenStore]) -> Examples:
        return cls(tuple(stores), np.cumsum([0, *map(len, stores)], dtype=np.int64))

    def source(self) -> Int8[np.ndarray, " rows"]:
        """The kind of every row."""
        return np.concatenate([np.zeros(0, np.int8), *(store.source for store in self.stores)])

    def read(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of one row."""
        store = int(np.searchsorted(self.starts, row, side="right")) - 1
        local = row - self.starts[store]
        return self.stores[store].inputs[local], self.stores[store].targets[local]

    def lengths(self, rows: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, "n 2"]:
        """Lengths of inputs and targets; reads offsets only."""
        result = np.zeros((len(rows), 2), np.int64)
        owner = np.searchsorted(self.starts, rows, side="right") - 1
        for number, store in enumerate(self.stores):
            here = owner == number
            local = rows[here] - self.starts[number]
            for column, ragged in enumerate((store.inputs, store.targets)):
                result[here, column] = ragged.offsets[local + 1] - ragged.offsets[local]
        return result

    def check_lengths(self, inputs: int, targets: int) -> None:
        """Refuses examples that fit into no row: cutting them here would drop a suffix or half a docid."""
        for store in self.stores:
            for name, ragged, limit in (("inputs", store.inputs, inputs), ("targets", store.targets, targets)):
                longest = int(ragged.lengths.max(initial=0))
                if longest > limit:
                    row = int(ragged.lengths.argmax())
                    raise InputError(
                        f"row {row} of the token store has {longest} tokens of {name!r}, a row of a batch only {limit}",
                        f"Raise lengths[{name!r}], or tokenise with a smaller maximum length.",
                        value=limit,
                    )


class BatchDataset(grain.IterDataset):
    """What `make_batches` returns: can be iterated any number of times, each time from the beginning.

    Attributes:
      settings: all that decides the batches, JSON; a checkpoint keeps it, so that a run that is resumed with other
        data is noticed.
      rows: rows of a batch on this process.
      batch_size: rows of a batch over all processes.
    """

    def __init__(self, order, examples, batch_size, input_lengths, target_length, pack, local, settings):
        super().__init__()
        self._order, self._examples, self._pack, self._local = order, examples, pack, local
        self._input_lengths, self._target_length = input_lengths, target_length
        self.batch_size, self.settings, self.rows = batch_size, settings, local.stop - local.start

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the longest batch over all processes, as T5X's `get_initial_variables` wants them."""
        encoder, decoder = (self.batch_size, self._input_lengths[-1]), (self.batch_size, self._target_length)
        shapes: dict[str, tuple[int, ...]] = {"encoder_input_tokens": encoder}
        shapes |= {f"decoder_{name}": decoder for name in ("input_tokens", "target_tokens", "loss_weights")}
        if self._pack:
            for name in ("segment_ids", "positions"):
                shapes |= {f"encoder_{name}": encoder, f"decoder_{name}": decoder}
        return shapes

    def __iter__(self) -> grain.DatasetIterator:
        planner = RowPlanner(self.batch_size, self._input_lengths, self._target_length, self._pack)
        return _BatchIterator(self._order, self._examples, planner, self._local)


class _BatchIterator(grain.DatasetIterator):
    """Reads the order, lets the planner fill batches, reads the tokens of this process's rows.

    Its state: `position`, the next place in the order that was not looked at, and `held`, places that were looked at
    and belong to a later batch.
    """

    def __init__(self, order: Order, examples: Examples, planner: RowPlanner, local: slice):
        super().__init__()
        self._order, self._examples, self._planner, self._local = order, examples, planner, local
        self._ahead: dict[int, tuple[int, int, int]] = {}
        self._position, self._held = 0, []  # type: int, list[int]

    def get_state(self) -> dict[str, Any]:
        return {"position": self._position, "held": list(self._held)}

    def set_state(self, state: dict[str, Any]) -> None:
        self._position, self._held = int(state["position"]), [int(place) for place in state["held"]]
        self._ahead = {}

    def __next__(self) -> dict[str, np.ndarray]:
        plan = self._plan()
        if plan is None:
            raise StopIteration
        rows = plan.rows[self._local]
        read = [[self._examples.read(self._ahead[place][0]) for place in row] for row in rows]
        for row in plan.rows:
            for place in row:
                del self._ahead[place]
        return arrange(read, plan.input_length, plan.target_length, packed=self._planner.pack)

    def _plan(self) -> Plan | None:
        """Adds examples until a batch is full; what did not fit stays held for the next ones, in order."""
        self._planner.start()
        for place in self._held:
            plan = self._planner.add(place, *self._lengths(place))
            if plan is not None:  # cannot take anything more; the rest of what is held stays so
                return self._finish(plan)
        while self._position < len(self._order):
            place, self._position = self._position, self._position + 1
            plan = self._planner.add(place, *self._lengths(place))
            if plan is not None:
                return self._finish(plan)
        plan = self._planner.close()
        return None if plan is None else self._finish(plan)

    def _finish(self, plan: Plan) -> Plan:
        used = {place for row in plan.rows for place in row}
        seen = sorted({*self._held, *self._planner.held})
        self._held = [place for place in seen if place not in used]
        return plan

    def _lengths(self, place: int) -> tuple[int, int]:
        if place not in self._ahead:
            stop = min(place + _READ_AHEAD, len(self._order)) if place + 1 >= self._position else place + 1
            places = [p for p in range(place, stop) if p not in self._ahead]
            rows = self._order.rows(np.array(places, np.int64))
            lengths = self._examples.lengths(rows)
            for p, row, (inputs, targets) in zip(places, rows.tolist(), lengths.tolist(), strict=True):
                self._ahead[p] = (row, inputs, targets)
        return self._ahead[place][1:]


def _as_lengths(lengths: Mapping[str, int | Sequence[int]], name: str) -> tuple[int, ...]:
    value = lengths.get(name) if set(lengths) == {"inputs", "targets"} else None
    values = (value,) if isinstance(value, int) else tuple(value or ())
    if not values or sorted(set(values)) != list(values) or values[0] < 1:
        raise InputError(
            "lengths must give 'inputs' and 'targets' one length, or ascending ones",
            'Give for example {"inputs": 64, "targets": 8}.',
            value=dict(lengths),
        )
    return values
