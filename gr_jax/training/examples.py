"""Several token stores as one sequence of examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from jaxtyping import Int8, Int64

from gr_jax.errors import InputError

_AT_ONCE = 1 << 20  # rows whose lengths are looked at together


class ExampleStore(Protocol):
    """Examples that batches are made of: a `TokenStore`, or one that is `Relabelled`."""

    @property
    def source(self) -> Int8[np.ndarray, " rows"]: ...
    @property
    def fingerprint(self) -> str: ...
    def __len__(self) -> int: ...
    def lengths(self, rows: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, "n 2"]: ...
    def read(self, row: int, step: int) -> tuple[np.ndarray, np.ndarray]: ...


@dataclasses.dataclass(frozen=True)
class Examples:
    """Several stores as one sequence of rows.

    Attributes:
      stores: the stores.
      starts: row at which each begins, and the number of all rows.
    """

    stores: tuple[ExampleStore, ...]
    starts: Int64[np.ndarray, " stores_plus_one"]

    @classmethod
    def of(cls, stores: Sequence[ExampleStore]) -> Examples:
        return cls(tuple(stores), np.cumsum([0, *map(len, stores)], dtype=np.int64))

    def source(self) -> Int8[np.ndarray, " rows"]:
        """The kind of every row."""
        return np.concatenate([np.zeros(0, np.int8), *(store.source for store in self.stores)])

    def read(self, row: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of one row in the batch of this step."""
        store = int(np.searchsorted(self.starts, row, side="right")) - 1
        return self.stores[store].read(int(row - self.starts[store]), step)

    def lengths(self, rows: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, "n 2"]:
        """Lengths of inputs and targets; reads no tokens."""
        result = np.zeros((len(rows), 2), np.int64)
        owner = np.searchsorted(self.starts, rows, side="right") - 1
        for number, store in enumerate(self.stores):
            here = owner == number
            result[here] = store.lengths(rows[here] - self.starts[number])
        return result

    def check_lengths(self, inputs: int, targets: int) -> None:
        """Refuses examples that fit into no row: cutting them here would drop a suffix or half a docid."""
        for column, (name, limit) in enumerate((("inputs", inputs), ("targets", targets))):
            row, longest = self.longest([int(n == column) for n in range(2)])
            if longest > limit:
                raise InputError(
                    f"row {row} of the token store has {longest} tokens of {name!r}, a row of a batch only {limit}",
                    f"Raise lengths[{name!r}], or tokenise with a smaller maximum length.",
                    value=limit,
                )

    def every_input(self) -> bool:
        """Whether every example has inputs."""
        return all(lengths[:, 0].all() for _, lengths in self._lengths())

    def longest(self, weights: Sequence[int]) -> tuple[int, int]:
        """(row within its store, length) of the longest example; −1 where there is none.

        Args:
          weights: how much inputs and targets count.
        """
        found = (-1, 0)
        for start, lengths in self._lengths():
            weighed = lengths @ np.array(weights)
            if weighed.max() > found[1]:
                found = start + int(weighed.argmax()), int(weighed.max())
        return found

    def _lengths(self) -> Iterator[tuple[int, Int64[np.ndarray, "n 2"]]]:
        """(first row within its store, lengths) of all rows, many at once."""
        for store in self.stores:
            for start in range(0, len(store), _AT_ONCE):
                yield start, store.lengths(np.arange(start, min(start + _AT_ONCE, len(store))))
