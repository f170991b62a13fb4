"""A sequence of small integers that counts, in any part of itself, any of them: the wavelet matrix.

Claude, Navarro & Ordóñez 2015, "The wavelet matrix: an efficient wavelet tree for large alphabets". Level by level,
from the most significant bit on, the sequence is split stably into those whose bit is 0 and those whose bit is 1; all
that is kept are the bits, with counts between them. A symbol's occurrences in positions [low, high) are followed
through the levels by two ranks each.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int, UInt32

# A block of bits is one count and seven words: 32 bytes, which lie in one cache line.
WORDS = 7
BITS = 32 * WORDS


def pack_bits(bits: Bool[np.ndarray, " n"]) -> UInt32[np.ndarray, "blocks words_and_count"]:
    """Blocks for `rank`: each says how many ones stand before it, then its own 224 bits."""
    blocks = len(bits) // BITS + 1  # so that the position after the last is in a block too
    packed = np.zeros(blocks * BITS // 8, np.uint8)
    packed[: (len(bits) + 7) // 8] = np.packbits(bits, bitorder="little")
    words = packed.view("<u4").reshape(blocks, WORDS)
    counts = np.cumsum(np.bitwise_count(words).sum(1, dtype=np.uint32), dtype=np.uint32)
    return np.concatenate([np.append(np.uint32(0), counts[:-1])[:, None], words], axis=1)


def rank(
    blocks: UInt32[Array, "rows words_and_count"], position: Int[Array, ...], first_block: Int[Array, ...] | int = 0
) -> Int[Array, ...]:
    """How many ones stand before a position of the bits whose blocks start at row `first_block`."""
    block, within = position // BITS, position % BITS
    row = blocks[first_block + block]  # --> [..., 8]
    start = 32 * jnp.arange(WORDS, dtype=jnp.int32)
    length = jnp.clip(within[..., None] - start, 0, 32)
    # A shift by all 32 bits is undefined.
    mask = jnp.where(length >= 32, jnp.uint32(0xFFFFFFFF), (jnp.uint32(1) << length.astype(jnp.uint32)) - 1)
    ones = lax.population_count(row[..., 1:] & mask)
    return (row[..., 0] + jnp.sum(ones, axis=-1, dtype=jnp.uint32)).astype(jnp.int32)


def has(
    blocks: UInt32[Array, "rows words_and_count"], position: Int[Array, ...], first_block: Int[Array, ...] | int = 0
) -> Bool[Array, ...]:
    """Whether there is a one at a position of the bits whose blocks start at row `first_block`."""
    block, bit = position // BITS, position % BITS
    word = blocks[first_block + block, 1 + bit // 32]
    return (word >> (bit % 32).astype(jnp.uint32)) & 1 == 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WaveletMatrix:
    """The bits of a sequence of length n < 2³¹ over symbols below 2^levels.

    Attributes:
      blocks: uint32[levels · blocks, 8], see `pack_bits`; the levels one after the other.
      zeros: int32[levels], positions whose bit is 0.
      levels: bits of a symbol; static.
    """

    blocks: UInt32[Array, "rows words_and_count"]
    zeros: Int[Array, " levels"]
    levels: int = dataclasses.field(metadata={"static": True})

    def follow(
        self, symbol: Int[Array, ...], low: Int[Array, ...], high: Int[Array, ...]
    ) -> tuple[Int[Array, ...], Int[Array, ...]]:
        """Where the occurrences of a symbol among positions [low, high) stand when all levels have been passed: there
        they are side by side, so their number is the length of the range that is returned."""
        per_level = self.blocks.shape[0] // self.levels

        def pass_level(level, carry):
            both = jnp.stack(carry)  # --> [2, ...]
            ones = rank(self.blocks, both, level * per_level)
            bit = (symbol >> (self.levels - 1 - level)) & 1
            low, high = jnp.where(bit == 1, self.zeros[level] + ones, both - ones)
            return low, high

        return lax.fori_loop(0, self.levels, pass_level, (low, high))

    def follow_all(
        self, low: Int[Array, ...], high: Int[Array, ...]
    ) -> tuple[Int[Array, "... symbols"], Int[Array, "... symbols"]]:
        """The same for every symbol below 2^levels: 2^(levels + 1) ranks, however many positions there are."""
        per_level = self.blocks.shape[0] // self.levels
        both = jnp.stack([low, high])[..., None]  # --> [2, ..., 1]
        for level in range(self.levels):
            ones = rank(self.blocks, both, level * per_level)
            split = jnp.stack([both - ones, self.zeros[level] + ones], axis=-1)
            both = split.reshape(*both.shape[:-1], 2 * both.shape[-1])  # a symbol's bits from the most significant on
        return both[0], both[1]


def build(symbols: np.ndarray, levels: int) -> tuple[WaveletMatrix, Int[np.ndarray, " symbols"]]:
    """The wavelet matrix (of NumPy arrays) of a sequence, and where each symbol starts after all levels."""
    rows, zeros = [], []
    current = symbols
    for level in range(levels):
        ones = (current >> (levels - 1 - level)) & 1 == 1
        rows.append(pack_bits(ones))
        zeros.append(len(current) - int(np.count_nonzero(ones)))
        current = np.concatenate([current[~ones], current[ones]])
    starts = np.zeros(1 << levels, np.int32)
    changes = np.flatnonzero(np.diff(current)) + 1
    firsts = np.concatenate([[0], changes]) if len(current) else np.zeros(0, np.int64)
    starts[current[firsts]] = firsts
    return WaveletMatrix(np.concatenate(rows), np.array(zeros, np.int32), levels), starts  # type: ignore[arg-type]
