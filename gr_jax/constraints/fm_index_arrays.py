"""Building an FM-index' arrays from token text (host, NumPy)."""

from __future__ import annotations

import dataclasses

import numpy as np

from gr_jax.constraints import wavelet_matrix
from gr_jax.constraints.suffix_array import suffix_array
from gr_jax.constraints.wavelet_matrix import WaveletMatrix
from gr_jax.docids.spans import TokenText
from gr_jax.errors import InputError

# Ranges of up to so many rows are read as they are; the rows are padded by as many, so that a read never runs out.
NARROW = 1024
SEPARATOR = 0  # the symbol between segments; tokens are symbols from 1 on


@dataclasses.dataclass(frozen=True)
class FMArrays:
    """The arrays of an `FMIndex`, which describes them."""

    bwt: np.ndarray
    wavelet: WaveletMatrix
    first: np.ndarray
    view_rows: np.ndarray
    anchored_rows: np.ndarray
    symbols: np.ndarray
    tokens: np.ndarray
    marks: np.ndarray
    samples: np.ndarray
    segment_starts: np.ndarray
    segment_documents: np.ndarray
    segment_numbers: np.ndarray
    row_documents: np.ndarray | None


def build(text: TokenText, sample_rate: int, filters: bool) -> FMArrays:
    """The index of each view is an FM-index of its own, of the view's segments reversed: what stands before a suffix of
    that, its Burrows–Wheeler symbol, is the token that follows in the text. All views' rows lie one after the other in
    one sequence; only the tables that lead from a token to its rows are a view's own.
    """
    lengths = np.diff(text.offsets)
    kept = np.flatnonzero(lengths > 0)
    order = kept[np.argsort(text.views[kept], kind="stable")]
    total = int(lengths.sum()) + len(order)
    if total >= 2**31 - NARROW:
        raise InputError(
            "2³¹ tokens or more do not fit one FM-index",
            "Split the documents over several indexes and add up their counts.",
            value=total,
        )
    used = np.zeros(text.vocab_size, bool)
    used[text.tokens] = True
    tokens = np.append(-1, np.flatnonzero(used)).astype(np.int32)  # --> [num_symbols]
    symbols = np.zeros(text.vocab_size, np.int32)
    symbols[tokens[1:]] = np.arange(1, len(tokens))
    kind = np.uint8 if len(tokens) <= 1 << 8 else np.uint16 if len(tokens) <= 1 << 16 else np.uint32
    views = [order[text.views[order] == view] for view in range(len(text.view_names))]
    view_rows = np.cumsum([0] + [int(lengths[segments].sum()) + len(segments) for segments in views])

    bwt = np.zeros(total + NARROW, kind)
    marked = np.zeros(total, bool)
    samples, starts = [], []
    row_documents = np.zeros(total, np.int32) if filters else None
    for view, segments in enumerate(views):
        first_row, end_row = view_rows[view], view_rows[view + 1]
        if not len(segments):
            continue
        stream, segment_starts = _stream(text, segments, symbols.astype(kind))
        backwards = np.ascontiguousarray(stream[::-1])  # it ends in the separator before the first segment
        suffixes = suffix_array(backwards)
        rows = bwt[first_row:end_row]
        np.take(backwards, suffixes - 1, out=rows)  # the first suffix' is the last symbol: a separator
        position = len(stream) - 1 - suffixes  # in the stream, of the last token that has been written
        # A walk goes forward in the text and must find a sample before the segment ends.
        marked[first_row:end_row] = (position % sample_rate == 0) | (rows == SEPARATOR)
        samples.append((position[marked[first_row:end_row]] + first_row).astype(np.int32))
        starts.append(segment_starts + first_row)
        if row_documents is not None:
            # A separator belongs to the segment behind it: what follows it is that segment's first token.
            owner = np.repeat(text.documents[segments], lengths[segments] + 1)
            np.take(owner, position, out=row_documents[first_row:end_row])

    # At least as many levels as symbols need, and one for the empty.
    wavelet, after = wavelet_matrix.build(bwt[:total], max(int(len(tokens) - 1).bit_length(), 1))
    first = np.zeros((len(views), len(tokens)), np.int64)
    before = np.zeros(len(tokens), np.int64)  # occurrences in the views before
    for view in range(len(views)):
        counts = np.bincount(bwt[view_rows[view] : view_rows[view + 1]], minlength=len(tokens))
        smaller = np.cumsum(counts) - counts
        first[view] = view_rows[view] + smaller - before - after[: len(tokens)]
        before += counts
    return FMArrays(
        bwt=bwt,
        wavelet=wavelet,
        first=first.astype(np.int32),
        view_rows=view_rows.astype(np.int32),
        anchored_rows=np.array([start + len(s) for start, s in zip(view_rows, views, strict=False)], np.int32),
        symbols=symbols,
        tokens=tokens,
        marks=wavelet_matrix.pack_bits(marked),
        samples=np.concatenate([np.zeros(0, np.int32), *samples]),
        segment_starts=np.concatenate([np.zeros(0, np.int64), *starts]).astype(np.int32),
        segment_documents=text.documents[order].astype(np.int32),
        segment_numbers=order.astype(np.int32),
        row_documents=row_documents,
    )


def _stream(text: TokenText, segments: np.ndarray, symbols: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The symbols of segments, a separator before each, and where each segment's first token stands."""
    lengths = np.diff(text.offsets)[segments]
    ends = np.cumsum(lengths + 1)
    starts = ends - lengths
    stream = np.full(int(ends[-1]), SEPARATOR, symbols.dtype)
    is_token = np.ones(len(stream), bool)
    is_token[starts - 1] = False
    place = np.repeat(text.offsets[segments] - (starts - np.arange(1, len(starts) + 1)), lengths)
    stream[is_token] = symbols[text.tokens[place + np.arange(len(place))]]
    return stream, starts
