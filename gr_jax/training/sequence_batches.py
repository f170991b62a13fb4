"""Batches for decoder-only networks: input and target are one sequence, and only the target is learned."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gr_jax.errors import InputError
from gr_jax.training.batches import BatchDataset, batches_of, checked_lengths
from gr_jax.training.examples import Examples, ExampleStore
from gr_jax.training.packing import Plan, RowPlanner, Tokens


def make_sequence_batches(
    stores: ExampleStore | Sequence[ExampleStore],
    *,
    batch_size: int,
    length: int | Sequence[int] = 128,
    prompt: Sequence[int] = (),
    pack: bool = True,
    rates: Mapping[str, float] | None = None,
    seed: int = 0,
    shuffle: bool = True,
    epochs: int | None = None,
    process: tuple[int, int] | None = None,
) -> BatchDataset:
    """Batches of rows of one sequence: a prompt, an example's inputs, its targets.

    Args:
      stores: as for `make_batches`.
      batch_size: rows of a batch, over all processes.
      length: tokens of a row. Without packing it may be several lengths, and rare ones may wait for ever, as in
        `make_batches`.
      prompt: tokens before every example, the same for all; also where the network's start token goes.
      pack, rates, seed, shuffle, epochs, process: see `make_batches`.

    Returns:
      An iterable of dicts of arrays [rows, length]: `tokens` int32; `loss_weights` float32, 1 where the network learns
      to write the token that stands there from those before it in its segment: on targets; `positions` int32, from 0
      in every segment; `segment_ids` int32, from 1, of the example that a token belongs to, 0 for padding. Its
      iterators are like those of `make_batches`.

    Raises:
      InputError: an example is longer than a row, a target has nothing before it that it could be written from, no row
        is left, or the settings contradict each other.
    """
    layout = Sequences(checked_lengths(length, "length"), tuple(int(token) for token in prompt), pack)
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


@dataclasses.dataclass(frozen=True)
class Sequences:
    """Prompt, inputs and targets one after the other.

    Attributes:
      lengths: of a row, ascending; several where rows are not packed.
      prompt: tokens before every example.
      pack: several examples a row.

    Raises:
      InputError: packed rows of several lengths.
    """

    lengths: tuple[int, ...]
    prompt: tuple[int, ...]
    pack: bool

    def __post_init__(self):
        if self.pack and len(self.lengths) > 1:
            raise InputError("packed rows have one length", "Give one, or pack=False.", value=self.lengths)

    @property
    def settings(self) -> dict[str, Any]:
        """What decides batches, JSON."""
        return {"length": list(self.lengths), "prompt": list(self.prompt), "pack": self.pack}

    def planner(self, rows: int) -> RowPlanner:
        """Fills batches of so many rows."""
        return RowPlanner(rows, self.lengths, 0, self.pack)

    def room(self, inputs: int, targets: int) -> tuple[int, int]:
        """What an example of these lengths takes of a row."""
        return len(self.prompt) + inputs + targets, 0

    def check(self, examples: Examples) -> None:
        """Refuses examples that fit into no row, and targets that nothing stands before."""
        row, longest = examples.longest((1, 1))
        if len(self.prompt) + longest > self.lengths[-1]:
            raise InputError(
                f"row {row} of the token store has {longest} tokens, which with the prompt's {len(self.prompt)} do not "
                f"fit into the {self.lengths[-1]} of a row of a batch",
                "Raise length, or tokenise with a smaller maximum length.",
                value=self.lengths[-1],
            )
        if not self.prompt and not examples.every_input():
            raise InputError(
                "an example has no inputs, and there is no prompt: its first target would be written from nothing",
                "Give the network's start token as prompt.",
            )

    def arrange(self, rows: Sequence[Sequence[tuple[Tokens, Tokens]]], plan: Plan) -> dict[str, np.ndarray]:
        """The arrays of a batch."""
        batch = {
            name: np.zeros((len(rows), plan.input_length), np.float32 if name == "loss_weights" else np.int32)
            for name in self.shapes(len(rows))
        }
        for number, row in enumerate(rows):
            start = 0
            for segment, (inputs, targets) in enumerate(row, start=1):
                tokens = np.concatenate([np.array(self.prompt, np.int32), inputs, targets])
                stop = start + len(tokens)
                batch["tokens"][number, start:stop] = tokens
                batch["loss_weights"][number, stop - len(targets) : stop] = 1
                batch["positions"][number, start:stop] = np.arange(len(tokens))
                batch["segment_ids"][number, start:stop] = segment
                start = stop
        return batch

    def shapes(self, rows: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the arrays of the longest batch."""
        return dict.fromkeys(("tokens", "loss_weights", "positions", "segment_ids"), (rows, self.lengths[-1]))
