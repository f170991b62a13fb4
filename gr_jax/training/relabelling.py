"""Examples whose targets are looked up in a table, which a hook may make again while training goes on.

So the docids of documents can change during training: examples say which row of the table they write, and the table
says what the tokens of that row are now.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib

import numpy as np
from jaxtyping import Int, Int8, Int64

from gr_jax.errors import InputError
from gr_jax.training.hooks import TableSource
from gr_jax.training.token_store import TokenStore


@dataclasses.dataclass(frozen=True, eq=False)
class Relabelled:
    """A token store with other targets; stands for it wherever batches are made of pairs.

    A target takes as much room in a row of a batch as the table has columns, however many tokens it has at the moment:
    so which examples share a batch and a row does not depend on what is in the table. Where no row of the table ever
    changes its length, it takes what it takes in the first table.

    Attributes:
      store: inputs, and the targets of examples that keep their own.
      labels: of every example its row of the table, −1 where it keeps its own targets.
      tables: a hook; or any other source of tables by step.
      table: which of its tables: int32[labels, length], padded with −1 at the end.
      same_lengths: no row of the table ever has more or fewer tokens than in the first one.

    Raises:
      InputError: labels of other examples, or of rows that the table has not.
    """

    store: TokenStore
    labels: Int[np.ndarray, " rows"]
    tables: TableSource
    table: str = "targets"
    same_lengths: bool = False

    def __post_init__(self):
        if len(self.labels) != len(self.store):
            raise InputError(
                f"labels of {len(self.labels)} examples, and there are {len(self.store)}", "Give every example one."
            )
        first = self.tables.at(0).get(self.table)
        if first is None or first.ndim != 2:
            raise InputError(
                f"the hook {self.tables.name!r} has no table {self.table!r} of targets",
                "Give it one of the shape [labels, length].",
                value=None if first is None else first.shape,
            )
        strange = np.flatnonzero((self.labels < -1) | (self.labels >= len(first)))
        if len(strange):
            raise InputError(
                f"example {strange[0]} has a label that is none of the {len(first)} of the table",
                "Give a row of the table, or −1 where it keeps its own targets.",
                value=int(self.labels[strange[0]]),
            )

    def __len__(self) -> int:
        return len(self.store)

    @property
    def source(self) -> Int8[np.ndarray, " rows"]:
        """Kind of each example."""
        return self.store.source

    @functools.cached_property
    def fingerprint(self) -> str:
        """16 hex digits of store and labels; what is in the table is the hook's."""
        same = "same lengths " if self.same_lengths else ""
        digest = hashlib.sha256(f"{self.store.fingerprint} {self.tables.name} {self.table} {same}".encode())
        digest.update(np.ascontiguousarray(self.labels, np.int64).tobytes())
        return digest.hexdigest()[:16]

    def lengths(self, rows: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, "n 2"]:
        """Lengths of inputs and targets, of targets the most that they may have."""
        lengths = self.store.lengths(rows)
        first = self.tables.at(0)[self.table]
        room = np.sum(first[self.labels[rows]] >= 0, axis=1) if self.same_lengths else first.shape[1]
        lengths[:, 1] = np.where(self.labels[rows] >= 0, room, lengths[:, 1])
        return lengths

    def read(self, row: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of one example as they are in the batch of this step; waits for the table if it must.

        Raises:
          InputError: the table has no tokens for it.
        """
        inputs, targets = self.store.read(row, step)
        label = int(self.labels[row])
        if label >= 0:
            tokens = self.tables.at(step)[self.table][label]
            targets = tokens[tokens >= 0]
            if not len(targets):
                raise InputError(
                    f"the table {self.table!r} of the hook {self.tables.name!r} has no tokens in row {label}, which an "
                    f"example of step {step} writes",
                    "Give every row at least one.",
                )
            if self.same_lengths and len(targets) != (first := int(np.sum(self.tables.at(0)[self.table][label] >= 0))):
                raise InputError(
                    f"the table {self.table!r} of the hook {self.tables.name!r} has {len(targets)} tokens in row "
                    f"{label} at step {step}, and {first} in the first one",
                    "Keep the lengths, or set same_lengths=False.",
                )
        return inputs, targets
