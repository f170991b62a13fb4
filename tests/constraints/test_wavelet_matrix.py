import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax.constraints import wavelet_matrix
from gr_jax.constraints.wavelet_matrix import BITS

LENGTHS = (1, BITS - 1, BITS, 3 * BITS)
rank, has = jax.jit(wavelet_matrix.rank), jax.jit(wavelet_matrix.has)
follow = jax.jit(lambda matrix, *arguments: matrix.follow(*arguments))
follow_all = jax.jit(lambda matrix, *arguments: matrix.follow_all(*arguments))


@settings(max_examples=20)
@given(seed=st.integers(0, 2**20), length=st.sampled_from(LENGTHS), density=st.sampled_from([0.0, 0.1, 0.9, 1.0]))
def test_bits_are_counted_before_every_position(seed, length, density):
    bits = np.random.default_rng(seed).random(length) < density
    blocks = wavelet_matrix.pack_bits(bits)
    position = np.minimum(np.arange(max(LENGTHS) + 1), length)
    np.testing.assert_array_equal(rank(blocks, position), np.append(0, np.cumsum(bits))[position])
    inside = np.minimum(position, length - 1)
    np.testing.assert_array_equal(has(blocks, inside), bits[inside])
    both = np.concatenate([np.roll(blocks, 1, axis=0), blocks])
    np.testing.assert_array_equal(rank(both, position, len(blocks)), np.append(0, np.cumsum(bits))[position])


@settings(max_examples=10)
@given(
    seed=st.integers(0, 2**20),
    length=st.sampled_from(LENGTHS),
    shape=st.sampled_from([(1, 2), (3, 6), (9, 300)]),
)
def test_every_symbol_is_counted_in_every_range(seed, length, shape):
    levels, symbols = shape
    rng = np.random.default_rng(seed)
    sequence = rng.integers(0, symbols, length).astype(np.uint16)
    matrix, starts = wavelet_matrix.build(sequence, levels)
    matrix = jax.tree.map(jnp.asarray, matrix)
    low, high = np.sort(rng.integers(0, length + 1, (2, 40)), axis=0).astype(np.int32)
    expected = np.stack([np.bincount(sequence[a:b], minlength=1 << levels) for a, b in zip(low, high, strict=True)])
    first, last = (np.asarray(x) for x in follow_all(matrix, low, high))
    np.testing.assert_array_equal(last - first, expected)
    symbol = rng.integers(0, symbols, 40).astype(np.int32)
    one_first, one_last = (np.asarray(x) for x in follow(matrix, symbol, low, high))
    np.testing.assert_array_equal(one_first, first[np.arange(40), symbol])
    np.testing.assert_array_equal(one_last, last[np.arange(40), symbol])
    # The occurrences of a symbol are side by side, in their order, from `starts` on.
    before = np.array([np.count_nonzero(sequence[:a] == c) for c, a in zip(symbol, low, strict=True)])
    occurs = np.isin(symbol, sequence)
    np.testing.assert_array_equal((one_first - starts[symbol])[occurs], before[occurs])
