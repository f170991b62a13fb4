"""Matrices of token sequences, padded with 0: sorting and checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Int

from gr_jax.errors import InputError


def as_matrix(sequences: Sequence[Sequence[int]] | np.ndarray) -> Int[np.ndarray, "n max_len"]:
    """int32 matrix of token sequences, padded with 0 on the right; at least one column."""
    if isinstance(sequences, np.ndarray) and sequences.ndim == 2:
        if sequences.dtype.kind not in "iu":
            raise InputError("docid tokens must be integers", "Give an integer matrix.", value=sequences.dtype.name)
        if sequences.size and (sequences.max() > np.iinfo(np.int32).max or sequences.min() < np.iinfo(np.int32).min):
            raise InputError("a docid token does not fit 32 bits", "Give tokens of the vocabulary.")
        return sequences.astype(np.int32) if sequences.shape[1] else np.zeros((len(sequences), 1), np.int32)
    lengths = np.fromiter((len(sequence) for sequence in sequences), np.int64, len(sequences))
    matrix = np.zeros((len(sequences), max(1, int(lengths.max(initial=0)))), np.int64)
    flat = np.fromiter((token for sequence in sequences for token in sequence), np.int64, int(lengths.sum()))
    matrix[np.arange(matrix.shape[1]) < lengths[:, None]] = flat
    if (matrix[np.arange(matrix.shape[1]) < lengths[:, None]] == 0).any():
        raise InputError("0 is padding, not a docid token", "Number docid tokens from 1 (T5: from 2, after EOS).")
    return as_matrix(matrix)


def lengths_of(tokens: Int[np.ndarray, "n max_len"]) -> Int[np.ndarray, " n"]:
    """Length of each row up to its last token that is not 0."""
    filled = tokens != 0
    last = tokens.shape[1] - np.argmax(filled[:, ::-1], axis=1)
    return np.where(filled.any(axis=1), last, 0).astype(np.int32)


def sort_order(tokens: Int[np.ndarray, "n max_len"], then: Int[np.ndarray, " n"] | None = None) -> np.ndarray:
    """Order that sorts rows lexicographically (a prefix before its extensions), equal rows by `then`.

    Columns are packed into as few 64-bit keys as their ranges allow: sorting costs a pass for each key.
    """
    bits = [max(1, int(column.max(initial=0)).bit_length()) for column in tokens.T]
    keys: list[np.ndarray] = []
    free = 0
    for column, width in zip(tokens.T, bits, strict=True):
        if width > free:
            keys.append(np.zeros(len(tokens), np.uint64))
            free = 64
        keys[-1] <<= np.uint64(width)
        keys[-1] |= column.astype(np.uint64)
        free -= width
    if then is not None:
        keys.append(then)
    return np.lexsort(keys[::-1])


def compare_neighbours(
    tokens: Int[np.ndarray, "n max_len"],
) -> tuple[Int[np.ndarray, " n_minus_1"], Bool[np.ndarray, " n_minus_1"]]:
    """For each row but the first: how many leading tokens it shares with the row before, and whether it is larger."""
    n, width = tokens.shape
    shared = np.full(max(n - 1, 0), width, np.int32)
    larger = np.zeros(max(n - 1, 0), bool)
    for position in range(width - 1, -1, -1):
        before, here = tokens[:-1, position], tokens[1:, position]
        differ = before != here
        shared[differ] = position
        larger = np.where(differ, here > before, larger)
    return shared, larger


def check_sorted(tokens: Int[np.ndarray, "n max_len"]) -> None:
    """Raises InputError unless rows are distinct and ascending."""
    shared, larger = compare_neighbours(tokens)
    if larger.all():
        return
    row = int(np.argmin(larger)) + 1
    if shared[row - 1] == tokens.shape[1]:
        raise InputError(
            f"docids {row - 1} and {row} are the same",
            "Make them distinct, or build them with Docids.build.",
            value=tokens[row].tolist(),
        )
    raise InputError(
        f"docid {row} is sorted before the one above it",
        "Build docids with Docids.build, which sorts them.",
        value=tokens[row].tolist(),
    )


def check_prefixes(tokens: Int[np.ndarray, "n max_len"], lengths: Int[np.ndarray, " n"], eos_id: int | None) -> None:
    """Raises InputError where a docid is a prefix of another and no EOS would tell them apart. Rows are sorted."""
    if eos_id is not None or len(tokens) < 2:
        return
    shared, _ = compare_neighbours(tokens)
    prefix = shared == lengths[:-1]  # the extensions of a docid directly follow it
    if prefix.any():
        row = int(np.argmax(prefix))
        short, long = (tokens[r, : lengths[r]].tolist() for r in (row, row + 1))
        raise InputError(
            f"docid {short} is a prefix of {long}",
            "Give the docids an eos_id, so that it is written where one ends.",
        )


def check_tokens(
    tokens: Int[np.ndarray, "n max_len"],
    lengths: Int[np.ndarray, " n"],
    vocab_size: int,
    eos_id: int | None,
    levels: Sequence[tuple[int, int]] | None,
    called: Callable[[int], str],
) -> None:
    """Raises InputError for an empty row and for tokens that cannot stand where they stand."""
    if (lengths == 0).any():
        raise InputError(f"the docid of {called(int(np.argmax(lengths == 0)))} is empty", "Give it at least one token.")
    if eos_id is not None and not 0 < eos_id < vocab_size:
        raise InputError("eos_id is outside of the vocabulary", f"Give one in 1 … {vocab_size - 1}.", value=eos_id)
    if levels is not None and len(levels) < tokens.shape[1] and len(levels) < int(lengths.max()):
        raise InputError(
            f"docids of {int(lengths.max())} tokens have {len(levels)} levels", "Give a block for each level."
        )
    for position in range(tokens.shape[1]):
        column = tokens[:, position]
        inside = position < lengths
        start, end = 1, vocab_size
        if levels is not None and position < len(levels):
            start, end = levels[position][0], min(vocab_size, sum(levels[position]))
        wrong = inside & ((column < max(start, 1)) | (column >= end) | (column == (-1 if eos_id is None else eos_id)))
        if not wrong.any():
            continue
        row = int(np.argmax(wrong))
        token = int(column[row])
        if token == eos_id:
            raise InputError(
                f"the docid of {called(row)} contains EOS", "Leave EOS out: decoding adds it.", value=token
            )
        if token == 0:
            raise InputError(f"the docid of {called(row)} contains padding", "0 is padding: number tokens from 1.")
        raise InputError(
            f"token {position} of the docid of {called(row)} is outside of its block",
            f"Tokens at this position are {max(start, 1)} … {end - 1} (vocabulary of {vocab_size}).",
            value=token,
        )


def place_among_equal(values: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """How many equal values come before each."""
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[order], prepend=values.min(initial=0) - 1))
    place = np.empty(len(values), np.int32)
    place[order] = np.arange(len(values)) - np.repeat(starts, np.diff(np.append(starts, len(values))))
    return place


def token_type(vocab_size: int) -> type:
    """The smallest type that holds every token, 16 or 32 bits."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def node_tokens(codes: Int[np.ndarray, "n depth"], first_token: int) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """A token of its own for every node of the tree that these paths make, numbered level after level in their order.

    Args:
      codes: the children that lead to each row; −1 behind the end of shorter paths.
      first_token: of the first node.

    Returns:
      Tokens, 0 behind the end; (start, size) of each level's.
    """
    order = np.lexsort(codes.T[::-1])
    matrix = np.zeros_like(codes)
    levels = []
    changed = np.zeros(len(codes), bool)
    changed[0] = True
    start = first_token
    for level in range(codes.shape[1]):
        column = codes[order, level]
        changed[1:] |= column[1:] != column[:-1]
        inside = column >= 0
        number = np.cumsum(changed & inside) - 1
        matrix[order, level] = np.where(inside, start + number, 0)
        levels.append((start, int(number[-1]) + 1))
        start += levels[-1][1]
    return matrix, levels
