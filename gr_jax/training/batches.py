"""Batches from token stores: shuffled, mixed, packed or bucketed, sharded; all derived from a seed and a position.

What goes into a batch is planned from lengths alone, for the batch of all processes together, and every process then
reads only its own rows. So the content of batch n depends neither on how many processes there are nor on where training
was interrupted, and the place in the data is a few integers. What comes out is a grain dataset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import grain
import jax
import numpy as np

from gr_jax.errors import InputError
from gr_jax.training.examples import Examples, ExampleStore
from gr_jax.training.order import Order, make_order
from gr_jax.training.packing import Pairs, Plan, RowPlanner, Tokens

DEFAULT_LENGTHS: Mapping[str, int] = {"inputs": 64, "targets": 8}
_READ_AHEAD = 256  # examples whose lengths are looked up at once


class Layout(Protocol):
    """How examples lie in the rows of a batch: `Pairs` or `Sequences`."""

    @property
    def pack(self) -> bool: ...
    @property
    def settings(self) -> dict[str, Any]: ...
    def planner(self, rows: int) -> RowPlanner: ...
    def room(self, inputs: int, targets: int) -> tuple[int, int]: ...
    def check(self, examples: Examples) -> None: ...
    def arrange(self, rows: Sequence[Sequence[tuple[Tokens, Tokens]]], plan: Plan) -> dict[str, np.ndarray]: ...
    def shapes(self, rows: int) -> dict[str, tuple[int, ...]]: ...


def make_batches(
    stores: ExampleStore | Sequence[ExampleStore],
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
      stores: one or several token stores, taken together; `Relabelled` where targets change during training.
      batch_size: rows of a batch, over all processes.
      lengths: {"inputs": tokens of a row, "targets": tokens of a row}. Without packing each may be several lengths:
        then every batch holds examples of about one input length and has the shape of that bucket. An example waits
        until its bucket fills a batch: of a rare length it may not be trained on before an endless training stops.
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
    if set(lengths) != {"inputs", "targets"}:
        raise InputError(
            "lengths must give 'inputs' and 'targets' one length, or ascending ones",
            'Give for example {"inputs": 64, "targets": 8}.',
            value=dict(lengths),
        )
    inputs, targets = (checked_lengths(lengths[name], f"lengths[{name!r}]") for name in ("inputs", "targets"))
    layout = Pairs(inputs, targets, pack)
    return batches_of(
        layout,
        stores,
        batch_size=batch_size,
        rates=rates,
        seed=seed,
        shuffle=shuffle,
        epochs=epochs,
        process=process,
    )


def batches_of(
    layout: Layout,
    stores: ExampleStore | Sequence[ExampleStore],
    *,
    batch_size: int,
    rates: Mapping[str, float] | None,
    seed: int,
    shuffle: bool,
    epochs: int | None,
    process: tuple[int, int] | None,
) -> BatchDataset:
    """Batches of any layout; the other arguments are those of `make_batches`."""
    examples = Examples.of(list(stores) if isinstance(stores, Sequence) else [stores])
    local = own_rows(batch_size, process)
    layout.check(examples)
    settings = {
        "stores": [store.fingerprint for store in examples.stores],
        "batch_size": batch_size,
        **layout.settings,
        "rates": None if rates is None else {name: float(rate) for name, rate in sorted(rates.items())},
        "seed": seed,
        "shuffle": shuffle,
        "epochs": epochs,
    }
    order = make_order(examples.source(), rates=rates, seed=seed, shuffle=shuffle, epochs=epochs)
    return BatchDataset(order, examples, layout, batch_size, local, settings)


class BatchDataset(grain.IterDataset):
    """What `make_batches` returns: can be iterated any number of times, each time from the beginning.

    Attributes:
      settings: all that decides the batches, JSON; a checkpoint keeps it, so that a run that is resumed with other
        data is noticed.
      rows: rows of a batch on this process.
      batch_size: rows of a batch over all processes.
    """

    def __init__(
        self, order: Order, examples: Examples, layout: Layout, batch_size: int, local: slice, settings: dict[str, Any]
    ):
        super().__init__()
        self._order, self._examples, self._layout, self._local = order, examples, layout, local
        self.batch_size, self.settings, self.rows = batch_size, settings, local.stop - local.start

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the longest batch over all processes, as T5X's `get_initial_variables` wants them."""
        return self._layout.shapes(self.batch_size)

    def __iter__(self) -> grain.DatasetIterator:
        planner = self._layout.planner(self.batch_size)
        return _BatchIterator(self._order, self._examples, self._layout, planner, self._local)


class _BatchIterator(grain.DatasetIterator):
    """Reads the order, lets the planner fill batches, reads the tokens of this process's rows.

    Its state: `step`, batches so far; `position`, the next place in the order that was not looked at; `held`, places
    that were looked at and belong to a later batch.
    """

    def __init__(self, order: Order, examples: Examples, layout: Layout, planner: RowPlanner, local: slice):
        super().__init__()
        self._order, self._examples, self._layout, self._planner, self._local = order, examples, layout, planner, local
        self._ahead: dict[int, tuple[int, int, int]] = {}
        self._step, self._position, self._held = 0, 0, []  # type: int, int, list[int]

    def get_state(self) -> dict[str, Any]:
        return {"step": self._step, "position": self._position, "held": list(self._held)}

    def set_state(self, state: dict[str, Any]) -> None:
        self._step, self._position = int(state["step"]), int(state["position"])
        self._held = [int(place) for place in state["held"]]
        self._ahead = {}

    def __next__(self) -> dict[str, np.ndarray]:
        plan = self._plan()
        if plan is None:
            raise StopIteration
        rows = plan.rows[self._local]
        read = [[self._examples.read(self._ahead[place][0], self._step) for place in row] for row in rows]
        for row in plan.rows:
            for place in row:
                del self._ahead[place]
        self._step += 1
        return self._layout.arrange(read, plan)

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
                self._ahead[p] = (row, *self._layout.room(inputs, targets))
        return self._ahead[place][1:]


def own_rows(rows: int, process: tuple[int, int] | None, what: str = "rows") -> slice:
    """Which of a batch's rows this process makes: a block of them, in the order of the processes.

    Args:
      rows: of a batch, over all processes.
      process: (index, count) of this host; None asks JAX.
      what: the error calls the rows so.

    Raises:
      InputError: they cannot be split.
    """
    index, count = process or (jax.process_index(), jax.process_count())
    if rows % count:
        raise InputError(
            f"a batch of {rows} {what} cannot be split over {count} processes", "Take a multiple.", value=rows
        )
    return slice(index * rows // count, (index + 1) * rows // count)


def checked_lengths(lengths: int | Sequence[int], name: str) -> tuple[int, ...]:
    """One length or several, ascending.

    Raises:
      InputError: naming the argument: they make no sense.
    """
    values = (lengths,) if isinstance(lengths, int) else tuple(lengths)
    if not values or sorted(set(values)) != list(values) or values[0] < 1:
        raise InputError(f"{name} must be one length, or ascending ones", "Give 64, or (32, 64).", value=lengths)
    return values
