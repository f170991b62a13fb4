"""Sets of numbers as bits, which count their members below any number: an eighth of the memory of booleans, and no
array of sums beside it."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int, UInt32

WORD = 32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BitSet:
    """A subset of 0 … n − 1, or one of each query.

    Attributes:
      words: uint32[words] or [batch, words]; bit i % 32 of word i // 32 is set where i is a member.
      before: int32, same shape; members in the words before.
    """

    words: UInt32[Array, "*batch words"]
    before: Int[Array, "*batch words"]

    @classmethod
    def of(cls, members: Bool[Array, "*batch n"]) -> BitSet:
        """From booleans; there is always a bit to spare, so that `rank(n)` works."""
        n = members.shape[-1]
        spare = WORD - n % WORD
        padded = jnp.pad(members, [(0, 0)] * (members.ndim - 1) + [(0, spare)])
        words = pack(padded)
        counts = lax.population_count(words).astype(jnp.int32)
        return cls(words, lax.cumsum(counts, axis=counts.ndim - 1) - counts)

    @classmethod
    def of_numpy(cls, members: Bool[np.ndarray, " n"]) -> BitSet:
        """The same on the host."""
        packed = np.packbits(members, bitorder="little")
        words = np.zeros(len(members) // WORD + 1, "<u4")
        words.view(np.uint8)[: len(packed)] = packed
        return cls.of_words(words)

    @classmethod
    def of_words(cls, words: UInt32[np.ndarray, " words"]) -> BitSet:
        """From words on the host, which may be mapped."""
        counts = np.bitwise_count(words).astype(np.int32)
        return cls(jax.device_put(words), jnp.asarray(np.cumsum(counts, dtype=np.int32) - counts))

    def has(self, index: Int[Array, ...]) -> Bool[Array, ...]:
        """Whether numbers are members."""
        word = lookup(self.words, index // WORD)
        return (word >> (index % WORD).astype(jnp.uint32)) & 1 != 0

    def rank(self, index: Int[Array, ...]) -> Int[Array, ...]:
        """How many members are smaller."""
        return self.has_and_rank(index)[1]

    def has_and_rank(self, index: Int[Array, ...]) -> tuple[Bool[Array, ...], Int[Array, ...]]:
        place = index // WORD
        word, bit = lookup(self.words, place), (index % WORD).astype(jnp.uint32)
        below = lax.population_count(word & ((jnp.uint32(1) << bit) - 1)).astype(jnp.int32)
        return (word >> bit) & 1 != 0, lookup(self.before, place) + below

    def select(self, index: Int[Array, ...], n: int) -> Int[Array, ...]:
        """The member that has so many smaller ones, by binary search among 0 … n − 1; n or more where there is none."""
        low, high = jnp.zeros_like(index), jnp.full_like(index, n)
        for _ in range(n.bit_length()):  # the largest number with so many members below it, of those that have them
            middle = low + (high - low + 1) // 2
            enough = self.rank(middle) <= index
            low, high = jnp.where(enough, middle, low), jnp.where(enough, high, middle - 1)
        return low


def pack(members: Bool[Array, "*batch n"]) -> UInt32[Array, "*batch words"]:
    """Booleans as bits, n a multiple of 32: bit i % 32 of word i // 32."""
    bits = members.reshape(*members.shape[:-1], -1, WORD).astype(jnp.uint32)
    return jnp.sum(bits << jnp.arange(WORD, dtype=jnp.uint32), axis=-1, dtype=jnp.uint32)


def lookup(table: Array, index: Int[Array, ...]) -> Array:
    """table[index], or table[b, index[b, …]] for each query b where the table leads with [batch]."""
    if table.ndim == 1:
        return table[index]
    batch = jnp.arange(table.shape[0]).reshape(-1, *([1] * (index.ndim - 1)))
    return table[batch, index]
