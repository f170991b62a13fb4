"""Documents that join and leave an FM-index, of which only what has to be is built."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from gr_jax.constraints.fm_index import FMIndex
from gr_jax.constraints.sharded_fm_index import NgramIndex, ShardedFMIndex
from gr_jax.docids.spans import TokenText

MOST_PARTS = 4  # every step of a search walks each part
LARGEST_SHARE = 0.25  # of the first part: when the others together have so much text, one index of all is built


class _Piece(NamedTuple):
    """Documents first … last − 1, of so many tokens; `kept` is their index, None where it has to be built."""

    first: int
    last: int
    tokens: int
    kept: FMIndex | None


def updated(index: NgramIndex, text: TokenText, lost: Int[np.ndarray, " n"]) -> NgramIndex:
    """The index of a text that has changed since it was built: it allows and counts what an index built anew does.

    Documents behind those of the index get a part of their own. Parts that lose text are built again. When parts are
    more than 4, all but the first become one. When these together reach a quarter of the first, or the first is built
    again anyway, all become one.

    Args:
      index: of the text as it was.
      text: as it is; documents have the same numbers, and further ones follow.
      lost: documents of the index whose text is there no more.

    Returns:
      An `FMIndex` where one part is left, with filters.

    Raises:
      InputError: no text is left; as `FMIndex.from_text`.
    """
    pieces = _pieces(index, text, lost)
    added = sum(piece.tokens for piece in pieces[1:])
    if pieces[0].kept is None or added >= LARGEST_SHARE * pieces[0].tokens:
        pieces = [_joined(pieces)]
    elif len(pieces) > MOST_PARTS:
        pieces = [pieces[0], _joined(pieces[1:])]
    parts = [_index_of(piece, index, text) for piece in pieces]
    return parts[0] if len(parts) == 1 else ShardedFMIndex(tuple(parts))


def _pieces(index: NgramIndex, text: TokenText, lost: Int[np.ndarray, " n"]) -> list[_Piece]:
    """The parts as they are, and one of what is added; none without text, where there is any."""
    parts: tuple[FMIndex | None, ...] = index.parts if isinstance(index, ShardedFMIndex) else (index,)
    ends = np.cumsum([0, *(part.num_documents for part in parts if part is not None)]).tolist()
    if text.num_documents > ends[-1]:
        parts, ends = (*parts, None), [*ends, text.num_documents]
    of_segment = np.searchsorted(ends, np.asarray(text.documents), side="right") - 1
    tokens = np.bincount(of_segment, np.diff(text.offsets), len(parts)).astype(int).tolist()
    pieces: list[_Piece] = []
    for part, own, first, last in zip(parts, tokens, ends, ends[1:], strict=False):
        kept = part
        if part is None or part.row_documents is None or ((lost >= first) & (lost < last)).any():
            kept = None
        piece = _Piece(first, last, own, kept)
        if pieces and not (own and pieces[-1].tokens):
            piece = _joined([pieces.pop(), piece])
        pieces.append(piece)
    return pieces


def _joined(pieces: list[_Piece]) -> _Piece:
    """One piece of several; documents without text behind an index join it as they are."""
    tokens = sum(piece.tokens for piece in pieces)
    kept = pieces[0].kept if tokens == pieces[0].tokens else None
    return _Piece(pieces[0].first, pieces[-1].last, tokens, kept)


def _index_of(piece: _Piece, index: NgramIndex, text: TokenText) -> FMIndex:
    if piece.kept is not None:
        corpus = text.corpus if piece.last - piece.first == text.num_documents else ""
        return dataclasses.replace(piece.kept, num_documents=piece.last - piece.first, corpus=corpus)
    own = text.between(piece.first, piece.last)
    return FMIndex.from_text(own, eos_id=index.eos_id, sample_rate=index.sample_rate, filters=True)
