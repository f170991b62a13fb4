"""Which examples share a batch and a row, and how their tokens lie in it.

Short pairs waste most of a padded row: a question and its docid take 16 + 6 tokens of 64 + 8. Packing puts several
pairs into one row, and attention keeps them apart by segment ids (as in T5). It is the largest lever on training speed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32

from gr_jax.errors import InputError
from gr_jax.training.examples import Examples

Tokens = Int32[np.ndarray, " n"]


@dataclasses.dataclass(frozen=True)
class Plan:
    """One batch: for every row the places of its examples, and the lengths of a row."""

    rows: list[list[int]]
    input_length: int
    target_length: int


class RowPlanner:
    """Fills batches example by example, knowing only their lengths.

    Packed: first fit over all rows of the batch. An example that fits into no row any more waits for the next batch;
    once as many wait as half the rows, the batch is complete. Waiting examples are the long ones, and the next batch
    begins with them, which is when long ones are easiest to place.

    Not packed: one example per row; the first bucket that is full makes the batch.

    Attributes:
      rows: rows of a batch.
      pack: several examples per row.
      held: places that were added and are in no batch yet.
    """

    def __init__(self, rows: int, input_lengths: Sequence[int], target_length: int, pack: bool):
        self.rows, self.pack = rows, pack
        self._input_lengths, self._target_length = tuple(input_lengths), target_length
        self._patience = max(4, rows // 2)
        self.start()

    def start(self) -> None:
        """Forgets everything; whoever calls it adds what was held again."""
        self.held: list[int] = []
        self._free = np.tile(np.array([[self._input_lengths[-1]], [self._target_length]]), self.rows)  # [2, rows]
        self._packed: list[list[int]] = [[] for _ in range(self.rows)]
        self._buckets: list[list[int]] = [[] for _ in self._input_lengths]

    def add(self, place: int, inputs: int, targets: int) -> Plan | None:
        """Adds one example; returns the batch if that made it complete."""
        if not self.pack:
            bucket = int(np.searchsorted(self._input_lengths, inputs))
            self._buckets[bucket].append(place)
            self.held.append(place)
            return self._take(bucket) if len(self._buckets[bucket]) == self.rows else None
        fits = (self._free[0] >= inputs) & (self._free[1] >= targets)
        row = int(fits.argmax())
        if fits[row]:
            self._packed[row].append(place)
            self._free[0, row] -= inputs
            self._free[1, row] -= targets
        else:
            self.held.append(place)
        return self._take_packed() if len(self.held) >= self._patience else None

    def close(self) -> Plan | None:
        """The batch that is left when no example comes any more, None if there is none."""
        if self.pack:
            return self._take_packed() if any(self._packed) else None
        bucket = max(range(len(self._buckets)), key=lambda number: len(self._buckets[number]))
        return self._take(bucket) if self._buckets[bucket] else None

    def _take(self, bucket: int) -> Plan:
        rows = [[place] for place in self._buckets[bucket]]
        rows += [[] for _ in range(self.rows - len(rows))]
        return Plan(rows, self._input_lengths[bucket], self._target_length)

    def _take_packed(self) -> Plan:
        return Plan(self._packed, self._input_lengths[-1], self._target_length)


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Inputs for an encoder, targets for a decoder.

    Attributes:
      inputs: lengths of a row of inputs, ascending; several where rows are not packed.
      targets: the length of a row of targets, in a tuple.
      pack: several examples a row.

    Raises:
      InputError: more lengths than there may be.
    """

    inputs: tuple[int, ...]
    targets: tuple[int, ...]
    pack: bool

    def __post_init__(self):
        lengths = {"inputs": self.inputs, "targets": self.targets}
        if self.pack and max(len(self.inputs), len(self.targets)) > 1:
            raise InputError("packed rows have one length", "Give one length each, or pack=False.", value=lengths)
        if len(self.targets) > 1:
            raise InputError("targets have one length", "Give buckets for inputs only.", value=lengths)

    @property
    def settings(self) -> dict[str, Any]:
        """What decides batches, JSON."""
        return {"lengths": {"inputs": list(self.inputs), "targets": list(self.targets)}, "pack": self.pack}

    def planner(self, rows: int) -> RowPlanner:
        """Fills batches of so many rows."""
        return RowPlanner(rows, self.inputs, self.targets[0], self.pack)

    def room(self, inputs: int, targets: int) -> tuple[int, int]:
        """What an example of these lengths takes of a row."""
        return inputs, targets

    def check(self, examples: Examples) -> None:
        """Refuses examples that fit into no row."""
        examples.check_lengths(self.inputs[-1], self.targets[0])

    def arrange(self, rows: Sequence[Sequence[tuple[Tokens, Tokens]]], plan: Plan) -> dict[str, np.ndarray]:
        """The arrays of a batch."""
        return arrange(rows, plan.input_length, plan.target_length, packed=self.pack)

    def shapes(self, rows: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the arrays of the longest batch."""
        encoder, decoder = (rows, self.inputs[-1]), (rows, self.targets[0])
        shapes: dict[str, tuple[int, ...]] = {"encoder_input_tokens": encoder}
        shapes |= {f"decoder_{name}": decoder for name in ("input_tokens", "target_tokens", "loss_weights")}
        if self.pack:
            for name in ("segment_ids", "positions"):
                shapes |= {f"encoder_{name}": encoder, f"decoder_{name}": decoder}
        return shapes


def arrange(
    rows: Sequence[Sequence[tuple[np.ndarray, np.ndarray]]], input_length: int, target_length: int, *, packed: bool
) -> dict[str, np.ndarray]:
    """Lays (inputs, targets) pairs into rows.

    Decoder inputs are the targets shifted right by one inside each segment, beginning with 0 as in T5. Segments count
    from 1; 0 is padding. Weights are 1 on targets.

    Returns:
      The arrays `gr_jax.training.batches.make_batches` describes.
    """
    encoder, decoder = (len(rows), input_length), (len(rows), target_length)
    batch = {
        "encoder_input_tokens": np.zeros(encoder, np.int32),
        "decoder_input_tokens": np.zeros(decoder, np.int32),
        "decoder_target_tokens": np.zeros(decoder, np.int32),
        "decoder_loss_weights": np.zeros(decoder, np.float32),
    }
    if packed:
        for side, shape in (("encoder", encoder), ("decoder", decoder)):
            batch[f"{side}_segment_ids"] = np.zeros(shape, np.int32)
            batch[f"{side}_positions"] = np.zeros(shape, np.int32)
    for number, row in enumerate(rows):
        read, written = 0, 0
        for segment, (inputs, targets) in enumerate(row, start=1):
            source = (number, slice(read, read + len(inputs)))
            target = (number, slice(written, written + len(targets)))
            batch["encoder_input_tokens"][source] = inputs
            batch["decoder_target_tokens"][target] = targets
            # As in T5X, a row of its own goes on with its last token, where the weight is 0; a segment must not.
            shifted = targets[: len(targets) - packed][: target_length - written - 1]
            batch["decoder_input_tokens"][number, written + 1 : written + 1 + len(shifted)] = shifted
            batch["decoder_loss_weights"][target] = 1
            if packed:
                batch["encoder_segment_ids"][source] = segment
                batch["encoder_positions"][source] = np.arange(len(inputs))
                batch["decoder_segment_ids"][target] = segment
                batch["decoder_positions"][target] = np.arange(len(targets))
            read, written = read + len(inputs), written + len(targets)
    return batch


def count_examples(batch: Mapping[str, np.ndarray]) -> int:
    """How many pairs (of contrastive batches and lists: queries) a batch holds; empty rows do not count."""
    for name in ("decoder_segment_ids", "segment_ids"):
        if name in batch:
            return int(batch[name].max(axis=1).sum())
    if "decoder_loss_weights" not in batch:
        first = next(iter(batch.values()))  # tokens, one row for each query
        return int((first.reshape(len(first), -1) != 0).any(axis=1).sum())
    return int((batch["decoder_loss_weights"].max(axis=1) > 0).sum())
