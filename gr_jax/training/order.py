"""The order in which examples are seen: a function from a place to a row, so that training can go on from any place.

Every source has its own stream, shuffled anew every epoch; at given rates the streams are interleaved evenly.
"""

from __future__ import annotations

import dataclasses
import sys
import zlib
from collections.abc import Mapping

import numpy as np
from jaxtyping import Int8, Int64

from gr_jax.errors import InputError
from gr_jax.training.example_sources import BUILT_IN, source_names, source_number

_CYCLE = 10_000  # places after which the interleaving repeats: rates are kept to 1e-4
_LISTED = 1 << 22  # streams up to this many rows are shuffled by a list, longer ones by arithmetic


class Stream:
    """Rows of one source, epoch after epoch.

    Args:
      rows: the rows.
      key: what decides the shuffling besides the epoch; None keeps the order.
    """

    def __init__(self, rows: Int64[np.ndarray, " n"], key: tuple[int, ...] | None):
        self._rows, self._key = rows, key
        self._lists: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def at(self, places: Int64[np.ndarray, " m"]) -> Int64[np.ndarray, " m"]:
        """The rows at these places, counted over all epochs."""
        epochs, within = np.divmod(places, len(self))
        if self._key is None:
            return self._rows[within]
        shuffled = np.empty_like(within)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            shuffled[here] = self._shuffle(within[here], epoch)
        return self._rows[shuffled]

    def _shuffle(self, places: Int64[np.ndarray, " m"], epoch: int) -> Int64[np.ndarray, " m"]:
        assert self._key is not None
        random = np.random.default_rng([*self._key, epoch])
        if len(self) > _LISTED:
            return permute(places, len(self), random.integers(0, 2**64, 6, np.uint64))
        if epoch not in self._lists:
            if len(self._lists) > 1:  # reading ahead crosses from one epoch to the next, no further
                self._lists.clear()
            self._lists[epoch] = random.permutation(len(self))
        return self._lists[epoch][places]


@dataclasses.dataclass(frozen=True)
class Order:
    """Streams, interleaved.

    Attributes:
      streams: the sources.
      cycle: the stream at each place of a cycle.
      rank: how many places of the same stream are before it in the cycle.
      length: places in all.
    """

    streams: tuple[Stream, ...]
    cycle: Int8[np.ndarray, " cycle"]
    rank: Int64[np.ndarray, " cycle"]
    length: int

    def __len__(self) -> int:
        return self.length

    def rows(self, places: Int64[np.ndarray, " m"]) -> Int64[np.ndarray, " m"]:
        """The rows at these places."""
        turns, within = np.divmod(places, len(self.cycle))
        streams, rows = self.cycle[within], np.empty_like(places)
        for number, stream in enumerate(self.streams):
            here = streams == number
            if here.any():
                in_stream = turns[here] * np.count_nonzero(self.cycle == number) + self.rank[within[here]]
                rows[here] = stream.at(in_stream)
        return rows


def make_order(
    source: Int8[np.ndarray, " rows"],
    *,
    rates: Mapping[str, float] | None,
    seed: int,
    shuffle: bool,
    epochs: int | None,
) -> Order:
    """The order of `gr_jax.training.batches.make_batches`, whose arguments these are.

    Raises:
      InputError: no row is left, or the rates make no sense.
    """
    if not len(source):
        raise InputError("there is not a single training pair", "Give a token store that has rows.")
    if rates is None:
        stream = Stream(np.arange(len(source)), (seed, len(BUILT_IN)) if shuffle else None)
        length = sys.maxsize if epochs is None else epochs * len(source)
        return Order((stream,), np.zeros(1, np.int8), np.zeros(1, np.int64), length)
    if epochs is not None:
        raise InputError(
            "sources that are mixed at rates have no common end", "Give rates or epochs, not both.", value=epochs
        )
    streams, weights = [], []
    names = source_names()
    # Those that are registered come in the order of their names, whatever that of their registration.
    for name in (*BUILT_IN, *sorted(set(names) - set(BUILT_IN))):
        number = source_number(name)
        rate = rates.get(name, 0)
        rows = np.flatnonzero(source == number)
        if not 0 <= rate < float("inf") or not set(rates) <= set(names):
            raise InputError(
                "not a rate of a source", f"Give {', '.join(names)} rates of 0 or more.", value=dict(rates)
            )
        if rate > 0 and len(rows):
            streams.append(Stream(rows, (seed, _seed_of(name)) if shuffle else None))
            weights.append(float(rate))
    if not streams:
        raise InputError("no row has a source with a rate above 0", "Give such a source a rate.", value=dict(rates))
    cycle, rank = interleave(np.array(weights))
    return Order(tuple(streams), cycle, rank, sys.maxsize)


def _seed_of(source: str) -> int:
    """A number of a kind of examples that is the same in every process."""
    return BUILT_IN.index(source) if source in BUILT_IN else zlib.crc32(source.encode()) + len(BUILT_IN) + 1


def interleave(weights: np.ndarray, length: int = _CYCLE) -> tuple[Int8[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """A cycle in which stream i has a share of `weights[i]`, spread evenly.

    Returns:
      The stream at each place, and how many places of it are before.
    """
    shares = weights / weights.sum()
    counts = np.maximum(1, np.round(shares * length)).astype(np.int64)
    stream = np.repeat(np.arange(len(counts), dtype=np.int8), counts)
    rank = np.concatenate([np.arange(count) for count in counts])
    due = (rank + 0.5) / counts[stream]  # when the n-th of a stream is due, as a share of the cycle
    order = np.lexsort((stream, due))
    return stream[order], rank[order]


def permute(places: Int64[np.ndarray, " m"], size: int, keys: np.ndarray) -> Int64[np.ndarray, " m"]:
    """A pseudo-random permutation of 0 … size − 1 that needs no memory: a Feistel network with cycle walking.

    The network permutes a square somewhat larger than `size`; what lands outside goes through it again.

    Args:
      places: where to look.
      size: of the permutation.
      keys: uint64, one per round.
    """
    half = max(1, -(-(size - 1).bit_length() // 2))
    mask = np.uint64((1 << half) - 1)
    result = places.astype(np.uint64)
    outside = np.ones(len(result), bool)
    while outside.any():
        left, right = result[outside] >> np.uint64(half), result[outside] & mask
        for key in keys:
            mixed = (right + key) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
            left, right = right, left ^ ((mixed >> np.uint64(32)) & mask)
        result[outside] = (left << np.uint64(half)) | right
        outside = result >= size
    return result.astype(np.int64)
