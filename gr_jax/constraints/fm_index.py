"""The FM-index: any run of tokens that stands in a document, and nothing else."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, UInt32

from gr_jax.constraints import fm_index_arrays, fm_index_candidates, wavelet_matrix
from gr_jax.constraints.base import Candidates, Scores
from gr_jax.constraints.wavelet_matrix import WaveletMatrix
from gr_jax.docids.spans import TokenText
from gr_jax.errors import InputError


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


class Occurrences(NamedTuple):
    """Where n-grams stand; −1 where there is none.

    Attributes:
      document: int32[...].
      segment: int32[...], of the `TokenText`.
      position: int32[...], of the n-gram's first token in the segment.
    """

    document: Int[Array, ...]
    segment: Int[Array, ...]
    position: Int[Array, ...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FMIndex:
    """Allows exactly the n-grams of token text (SEAL, Bevilacqua et al. 2022, section 3.1). Give it to jitted functions
    as an argument: closed over, its arrays would be compiled in as constants.

    Ferragina & Manzini 2000, over the reversed text: suffixes of it in their order are the rows; those that start with
    an n-gram read backwards are side by side, and the symbols before them are the tokens that follow the n-gram.
    A state is such a range of rows, and a token more costs two ranks in each level of a wavelet matrix.

    Every n-gram is a complete identifier, so decoding is open-ended: what has been written when it stops is complete.

    One index holds less than 2³¹ tokens. Larger corpora are split by document: counts of the parts add up, and what may
    follow is what may follow in any of them.

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
      view_names: see `TokenText`.
      eos_id: ends an n-gram wherever it stands; None: n-grams are cut where decoding stops.
      vocab_size, num_documents, sample_rate: as given.
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
    view_names: tuple[str, ...] = dataclasses.field(metadata={"static": True})
    eos_id: int | None = dataclasses.field(metadata={"static": True})
    vocab_size: int = dataclasses.field(metadata={"static": True})
    num_documents: int = dataclasses.field(metadata={"static": True})
    sample_rate: int = dataclasses.field(metadata={"static": True})
    open_ended = True

    @classmethod
    def from_text(cls, text: TokenText, *, eos_id: int | None = None, sample_rate: int = 16) -> FMIndex:
        """Builds the index of token text.

        Args:
          text: see `gr_jax.docids.spans`.
          eos_id: see the class.
          sample_rate: steps of a walk from a row to its document, at most; 4 / sample_rate bytes a token are kept.

        Raises:
          InputError: text that is not consistent, or of 2³¹ tokens or more; EOS in the text; the package pydivsufsort
            is not installed.
        """
        text.check()
        if sample_rate < 1:
            raise InputError("a sample at every so many tokens", "Give sample_rate ≥ 1.", value=sample_rate)
        if not len(text.tokens):
            raise InputError("an index of no tokens", "Give at least one.")
        arrays = fm_index_arrays.build(text, sample_rate)
        if eos_id is not None and not 0 <= eos_id < text.vocab_size:
            raise InputError("eos_id is outside of the vocabulary", f"Give one below {text.vocab_size}.", value=eos_id)
        if eos_id is not None and arrays.symbols[eos_id]:
            raise InputError("the token that ends n-grams stands in the text", "Choose another.", value=eos_id)
        fields = {field.name: getattr(arrays, field.name) for field in dataclasses.fields(arrays)}
        return cls(
            **jax.tree.map(jnp.asarray, fields),
            view_names=text.view_names,
            eos_id=eos_id,
            vocab_size=text.vocab_size,
            num_documents=text.num_documents,
            sample_rate=sample_rate,
        )

    def initial_state(self, batch: int, view: Any = None) -> FMState:
        """States [batch, 1] of the empty n-gram.

        Args:
          batch: rows.
          view: a name, or int32[batch]: each row's place in `view_names`; that plus the number of views, or "^" and a
            name, for n-grams that start where a segment does, such as whole titles. Default: the first.

        Raises:
          InputError: no such view.
        """
        view = jnp.full(batch, self.view_number(view or 0) if isinstance(view, str | None) else view, jnp.int32)
        anchored, view = view >= len(self.view_names), view % len(self.view_names)
        low = self.view_rows[view]
        high = jnp.where(anchored, self.anchored_rows[view], self.view_rows[view + 1])
        state = FMState(low, high, view, jnp.zeros_like(view), jnp.zeros_like(view, bool))
        return jax.tree.map(lambda x: x[:, None], state)

    def view_number(self, name: str | int) -> int:
        """What `initial_state` takes for a view's name."""
        if isinstance(name, int):
            return name
        plain = name.removeprefix("^")
        if plain not in self.view_names:
            raise InputError("the index has no such view", f"Choose among {', '.join(self.view_names)}.", value=name)
        return self.view_names.index(plain) + len(self.view_names) * name.startswith("^")

    def candidates(self, state: FMState, scores: Scores, k: int, steps: range | None = None) -> Candidates:
        """The k best of each state, best first; with EOS, that as the last column."""
        return fm_index_candidates.candidates(self, state, scores, k)

    def advance(self, state: FMState, token: Int[Array, ...]) -> FMState:
        inside = (token >= 0) & (token < self.vocab_size)
        symbol = jnp.where(inside, self.symbols[jnp.clip(token, 0, self.vocab_size - 1)], 0)
        after = self.extend(state, symbol)
        if self.eos_id is None:
            return after
        ends = (token == self.eos_id) & self.accepts(state) & ~state.ended
        return jax.tree.map(lambda a, b: jnp.where(ends, a, b), state._replace(ended=ends), after)

    def extend(self, state: FMState, symbol: Int[Array, ...]) -> FMState:
        """States after a symbol each; dead after 0."""
        low, high = self.wavelet.follow(symbol, state.low, state.high)
        shift = self.first[state.view, symbol]
        live = (low < high) & (symbol > 0) & ~state.ended
        low, high = jnp.where(live, low + shift, 0), jnp.where(live, high + shift, 0)
        return FMState(low, high, state.view, state.depth + 1, jnp.zeros_like(live))

    def count(self, state: FMState) -> Int[Array, ...]:
        """Occurrences of each n-gram; of the empty one, all tokens and one for each segment."""
        return state.high - state.low

    def next_counts(self, state: FMState) -> Int[Array, "... vocab"]:
        """How often each token follows."""
        counts = self.symbol_counts(state)
        return jnp.where(self.symbols > 0, counts[..., self.symbols], 0)

    def symbol_counts(self, state: FMState) -> Int[Array, "... levels_symbols"]:
        """The same by symbol; 0: how often nothing follows."""
        return self.wavelet.counts(state.low, jnp.where(state.ended, state.low, state.high))

    def allowed(self, state: FMState) -> Bool[Array, "... vocab"]:
        mask = self.next_counts(state) > 0
        if self.eos_id is None:
            return mask
        may_end = (self.accepts(state) & ~state.ended)[..., None]
        return mask | may_end & (jnp.arange(self.vocab_size) == self.eos_id)

    def accepts(self, state: FMState) -> Bool[Array, ...]:
        """Every n-gram is an identifier; the empty one is none."""
        return (state.low < state.high) & (state.depth > 0)

    def key(self, state: FMState) -> Int[Array, "... 5"]:
        """Equal n-grams of one view have equal keys, and no others do, but that all that do not occur have the same."""
        return jnp.stack([*state[:4], state.ended.astype(jnp.int32)], axis=-1)

    def walk(self, ngrams: Int[Array, "batch length"], view: Any = None) -> FMState:
        """States [batch, 1] after whole n-grams, padded on the right with −1."""

        def write(state, token):
            after = self.advance(state, token[:, None])
            return jax.tree.map(lambda a, b: jnp.where(token[:, None] < 0, a, b), state, after), None

        return lax.scan(write, self.initial_state(ngrams.shape[0], view), ngrams.T)[0]

    def locate(self, state: FMState, limit: int) -> Occurrences:
        """The first `limit` occurrences of each n-gram, by what stands before them; leaves [..., limit]."""
        row = state.low[..., None] + jnp.arange(limit, dtype=jnp.int32)  # --> [..., limit]
        return self.locate_rows(row, row < state.high[..., None], state.depth[..., None])

    def locate_rows(self, row: Int[Array, ...], valid: Bool[Array, ...], depth: Int[Array, ...]) -> Occurrences:
        """Documents and places of rows of n-grams of `depth` tokens; −1 where not valid."""
        rows = self.bwt.shape[0] - fm_index_arrays.NARROW
        row = jnp.where(valid, row, 0)
        view = jnp.searchsorted(self.view_rows, row, side="right").astype(jnp.int32) - 1

        def is_marked(row):
            block, bit = row // wavelet_matrix.BITS, row % wavelet_matrix.BITS
            return (self.marks[block, 1 + bit // 32] >> (bit % 32).astype(jnp.uint32)) & 1 == 1

        def on(carry):
            row, steps, found = carry
            symbol = self.bwt[row].astype(jnp.int32)
            after = self.wavelet.follow(symbol, row, row)[0] + self.first[view, symbol]
            row = jnp.where(found, row, jnp.clip(after, 0, rows - 1))
            return row, steps + ~found, found | is_marked(row)

        start = row, jnp.zeros_like(row), is_marked(row) | ~valid
        row, steps, _ = lax.while_loop(lambda carry: ~jnp.all(carry[2]), on, start)
        sample = jnp.clip(wavelet_matrix.rank(self.marks, row), 0, self.samples.shape[0] - 1)
        last = self.samples[sample] - steps  # position of the n-gram's last token
        segment = jnp.searchsorted(self.segment_starts, last, side="right").astype(jnp.int32) - 1
        segment = jnp.clip(segment, 0, self.segment_starts.shape[0] - 1)
        position = last - self.segment_starts[segment] - depth + 1
        found = self.segment_documents[segment], self.segment_numbers[segment], position
        return Occurrences(*(jnp.where(valid, x, -1) for x in found))
