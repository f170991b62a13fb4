"""What an FM-index consists of, and where an n-gram stands in it."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt32

from gr_jax.constraints import fm_index_arrays, fm_index_filter
from gr_jax.constraints.wavelet_matrix import WaveletMatrix


class FMState(NamedTuple):
    """Where an n-gram stands: the rows of its occurrences.

    Attributes:
      low, high: int32[...]; rows low … high − 1, one for each occurrence; none: the n-gram does not occur.
      view: int32[...], whose n-grams are walked.
      depth: int32[...], tokens consumed, without EOS.
      ended: bool[...], EOS was written and nothing may follow.
    """

    low: Int[Array, ...]
    high: Int[Array, ...]
    view: Int[Array, ...]
    depth: Int[Array, ...]
    ended: Bool[Array, ...]


@dataclasses.dataclass(frozen=True)
class FMFields:
    """The arrays and static facts of an `FMIndex`.

    Attributes:
      bwt: uint8, 16 or 32[rows + 1024]; the symbol that follows each row's n-grams; 0: nothing, the segment ends.
      wavelet: the same, to count in.
      first: int32[views, symbols]; row = first[view, symbol] + where `wavelet.follow` leads.
      view_rows: int32[views + 1], rows of each view.
      anchored_rows: int32[views]; rows from view_rows[v] to here stand before the first tokens of segments.
      symbols: int32[vocab]; of each token; 0: it does not occur.
      tokens: int32[symbols]; of each symbol.
      marks, samples: blocks of bits, one for each row, and for each that is set the position of its last token in the
        text of all views, a separator before each segment. Every `sample_rate`-th position and the ends of segments
        have one: to locate a row is to walk on to the next.
      segment_starts, segment_documents, segment_numbers: int32[segments], ascending position of the first token, and
        to which document and which segment of the `TokenText` it belongs.
      row_documents: int32[rows], the document of each row, for `restrict`; None: not kept.
      filter: what `restrict` allows; None: everything.
      view_names: see `TokenText`.
      eos_id: ends an n-gram wherever it stands; None: n-grams are cut where decoding stops.
      vocab_size, num_documents, corpus, vocabulary: of the `TokenText`.
      sample_rate: as given.
    """

    bwt: Int[Array, " padded_rows"]
    wavelet: WaveletMatrix
    first: Int[Array, "views symbols"]
    view_rows: Int[Array, " views_plus_1"]
    anchored_rows: Int[Array, " views"]
    symbols: Int[Array, " vocab"]
    tokens: Int[Array, " symbols"]
    marks: UInt32[Array, "blocks words_and_count"]
    samples: Int[Array, " samples"]
    segment_starts: Int[Array, " segments"]
    segment_documents: Int[Array, " segments"]
    segment_numbers: Int[Array, " segments"]
    row_documents: Int[Array, " rows"] | None
    filter: fm_index_filter.Filter | None
    view_names: tuple[str, ...] = dataclasses.field(metadata={"static": True})
    eos_id: int | None = dataclasses.field(metadata={"static": True})
    vocab_size: int = dataclasses.field(metadata={"static": True})
    num_documents: int = dataclasses.field(metadata={"static": True})
    sample_rate: int = dataclasses.field(metadata={"static": True})
    corpus: str = dataclasses.field(metadata={"static": True}, default="")
    vocabulary: str = dataclasses.field(metadata={"static": True}, default="")

    @property
    def num_rows(self) -> int:
        """Rows, without the padding of `bwt`."""
        return self.bwt.shape[0] - fm_index_arrays.NARROW

    def extend(self, state: FMState, symbol: Int[Array, ...]) -> FMState:
        """States after a symbol each; dead after 0, and where no allowed document has the n-gram."""
        low, high = self.follow(state, symbol)
        live = (symbol > 0) & ~state.ended & (self.occurrences(low, high) > 0)
        low, high = jnp.where(live, low, 0), jnp.where(live, high, 0)
        return FMState(low, high, state.view, state.depth + 1, jnp.zeros_like(live))

    def follow(self, state: FMState, symbol: Int[Array, ...]) -> tuple[Int[Array, ...], Int[Array, ...]]:
        """The rows low … high − 1 of n-grams with a symbol more, whatever a filter says; of symbol 0 those of none."""
        low, high = self.wavelet.follow(symbol, state.low, state.high)
        shift = self.first[state.view, symbol]
        return low + shift, high + shift

    def occurrences(self, low: Int[Array, ...], high: Int[Array, ...]) -> Int[Array, ...]:
        """How many of the rows low … high − 1 are allowed."""
        if self.filter is None:
            return high - low
        before, until = (fm_index_filter.rank(self.filter, jnp.clip(x, 0, self.num_rows)) for x in (low, high))
        return until - before

    def symbol_counts(self, state: FMState) -> Int[Array, "... symbols"]:
        """How often each symbol follows. Of symbol 0, how often nothing follows (without a filter)."""
        low, high = self.wavelet.follow_all(state.low, jnp.where(state.ended, state.low, state.high))
        symbols = self.tokens.shape[0]
        low, high = low[..., :symbols], high[..., :symbols]
        if self.filter is None:
            return high - low
        shift = self.first[state.view]  # --> [..., symbols]
        return self.occurrences(low + shift, high + shift)

    def accepts(self, state: FMState) -> Bool[Array, ...]:
        """Every n-gram is an identifier; the empty one is none."""
        return (state.low < state.high) & (state.depth > 0)
