"""The FM-index: any run of tokens that stands in a document, and nothing else."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from gr_jax.constraints import (
    fm_index_arrays,
    fm_index_candidates,
    fm_index_files,
    fm_index_filter,
    fm_index_locate,
    ngram_walks,
)
from gr_jax.constraints.base import Candidates, Scores, check_filter
from gr_jax.constraints.fm_index_fields import FMFields
from gr_jax.constraints.fm_index_fields import FMState as FMState
from gr_jax.constraints.fm_index_locate import Occurrences
from gr_jax.constraints.wavelet_matrix import WaveletMatrix
from gr_jax.corpus.documents import Corpus
from gr_jax.docids.pseudo_queries import PseudoQueries
from gr_jax.docids.spans import TokenText, token_text
from gr_jax.errors import InputError
from gr_jax.text.vocabulary import Vocabulary


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FMIndex(FMFields):
    """Allows exactly the n-grams of token text (SEAL, Bevilacqua et al. 2022, section 3.1). Give it to jitted functions
    as an argument: closed over, its arrays would be compiled in as constants.

    Ferragina & Manzini 2000, over the reversed text: suffixes of it in their order are the rows; those that start with
    an n-gram read backwards are side by side, and the symbols before them are the tokens that follow the n-gram.
    A state is such a range of rows, and a token more costs two ranks in each level of a wavelet matrix.

    Every n-gram is a complete identifier, so decoding is open-ended: what has been written when it stops is complete.

    One index holds less than 2³¹ tokens. `ShardedFMIndex` joins several, each of some of the documents.

    Attributes: those of `FMFields`, which has its ranks and counts.
    """

    open_ended = True

    @classmethod
    def from_text(
        cls, text: TokenText, *, eos_id: int | None = None, sample_rate: int = 16, filters: bool = False
    ) -> FMIndex:
        """Builds the index of token text.

        Args:
          text: `gr_jax.docids.spans.token_text` makes it of a corpus.
          eos_id: see the class.
          sample_rate: steps of a walk from a row to its document, at most; 4 / sample_rate bytes a token are kept.
          filters: keep the document of every row, 4 bytes a token, which `restrict` needs.

        Raises:
          InputError: text that is not consistent, or of 2³¹ tokens or more; EOS in the text; the package pydivsufsort
            is not installed.
        """
        text.check()
        if sample_rate < 1:
            raise InputError("sample_rate is a number of tokens, 1 or more", "Give sample_rate ≥ 1.", value=sample_rate)
        if not len(text.tokens):
            raise InputError("there are no tokens to index", "Give at least one.")
        if eos_id is not None and not 0 <= eos_id < text.vocab_size:
            raise InputError("eos_id is outside of the vocabulary", f"Give one below {text.vocab_size}.", value=eos_id)
        if eos_id is not None and (text.tokens == eos_id).any():
            raise InputError("the token that ends n-grams stands in the text", "Choose another.", value=eos_id)
        arrays = fm_index_arrays.build(text, sample_rate, filters)
        fields = {field.name: getattr(arrays, field.name) for field in dataclasses.fields(arrays)}
        return cls(
            **jax.tree.map(jnp.asarray, fields),
            filter=None,
            view_names=text.view_names,
            eos_id=eos_id,
            vocab_size=text.vocab_size,
            num_documents=text.num_documents,
            sample_rate=sample_rate,
            corpus=text.corpus,
            vocabulary=text.vocabulary,
        )

    @classmethod
    def from_corpus(
        cls,
        corpus: Corpus,
        vocabulary: Vocabulary,
        *,
        views: Sequence[str] = ("title", "body"),
        pseudo_queries: PseudoQueries | None = None,
        progress: bool = False,
        **settings: Any,
    ) -> FMIndex:
        """`token_text`, then `from_text`, whose settings may be given too."""
        text = token_text(corpus, vocabulary, views=views, pseudo_queries=pseudo_queries, progress=progress)
        return cls.from_text(text, **settings)

    def save(self, folder: str | os.PathLike) -> None:
        """Writes an artefact of kind "fm_index", without what `restrict` made.

        Raises:
          InputError: `folder` holds something else, or cannot be written.
        """
        fm_index_files.save(folder, self)

    @classmethod
    def load(cls, folder: str | os.PathLike, *, vocabulary: Vocabulary | None = None, verify: bool = True) -> FMIndex:
        """Maps what `save` wrote; on CPU the arrays stay in the files' pages.

        Args:
          folder: the artefact.
          vocabulary: the decoder's; refused unless the text was tokenised with it.
          verify: check the checksums, which reads every byte once.

        Raises:
          InputError: `folder` is no FM-index, or a truncated or altered one, or of another vocabulary.
        """
        arrays, settings = fm_index_files.load(folder, vocabulary, verify)
        # What is mapped stays mapped: on CPU a device array may be the file's own pages.
        fields: dict[str, Any] = jax.device_put(arrays)
        zeros = fields.pop("wavelet_zeros")
        wavelet = WaveletMatrix(fields.pop("wavelet_blocks"), zeros, len(zeros))
        return cls(wavelet=wavelet, filter=None, **{"row_documents": None, **fields, **settings})

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes of what decoding needs ("ngrams"), of what it takes to locate ("samples") and of what filters take."""
        filters = [x for x in (self.row_documents, self.filter) if x is not None]
        samples = [self.marks, self.samples, self.segment_starts, self.segment_documents, self.segment_numbers]
        every = sum(leaf.nbytes for leaf in jax.tree.leaves(self))
        parts = {"samples": sum(x.nbytes for x in samples), "filters": sum(x.nbytes for x in filters)}
        return {"ngrams": every - sum(parts.values()), **parts}

    def initial_state(self, batch: int, view: Any = None) -> FMState:
        """States [batch, 1] of the empty n-gram.

        Args:
          batch: rows.
          view: a name, or int32[batch]: each row's place in `view_names`; that plus the number of views, or "^" and a
            name, for n-grams that start where a segment does, such as whole titles. Default: the first.

        Raises:
          InputError: no such view.
        """
        view = ngram_walks.view_numbers(self.view_names, view, batch)
        anchored, view = view >= len(self.view_names), view % len(self.view_names)
        low = self.view_rows[view]
        high = jnp.where(anchored, self.anchored_rows[view], self.view_rows[view + 1])
        state = FMState(low, high, view, jnp.zeros_like(view), jnp.zeros_like(view, bool))
        return jax.tree.map(lambda x: x[:, None], state)

    def view_number(self, view: str | int) -> int:
        """What `initial_state` takes for a view's name."""
        return ngram_walks.view_number(self.view_names, view)

    def candidates(self, state: FMState, scores: Scores, k: int, steps: range | None = None) -> Candidates:
        """The k best of each state, best first; with EOS, that as the last column.

        Under normalize="constraint" all that may follow is looked at, beam by beam: for an n-gram of many occurrences
        2^(levels + 1) ranks, less than a millisecond.

        Raises:
          InputError: normalize="level", of which n-grams have none.
        """
        return fm_index_candidates.candidates(self, state, scores, k)

    def advance(self, state: FMState, token: Int[Array, ...]) -> FMState:
        inside = (token >= 0) & (token < self.vocab_size)
        symbol = jnp.where(inside, self.symbols[jnp.clip(token, 0, self.vocab_size - 1)], 0)
        after = self.extend(state, symbol)
        if self.eos_id is None:
            return after
        ends = (token == self.eos_id) & self.accepts(state) & ~state.ended
        return jax.tree.map(lambda a, b: jnp.where(ends, a, b), state._replace(ended=ends), after)

    def count(self, state: FMState) -> Int[Array, ...]:
        """Occurrences of each n-gram, in allowed documents; of the empty one, all tokens and one for each segment."""
        return self.occurrences(state.low, state.high)

    def next_counts(self, state: FMState) -> Int[Array, "... vocab"]:
        """How often each token follows: all that can be written next, with counts."""
        return jnp.where(self.symbols > 0, self.symbol_counts(state)[..., self.symbols], 0)

    def allowed(self, state: FMState) -> Bool[Array, "... vocab"]:
        mask = self.next_counts(state) > 0
        if self.eos_id is None:
            return mask
        may_end = (self.accepts(state) & ~state.ended)[..., None]
        return mask | may_end & (jnp.arange(self.vocab_size) == self.eos_id)

    def key(self, state: FMState) -> Int[Array, "... 5"]:
        """Equal n-grams of one view have equal keys, and no others do; those that do not occur are not told apart."""
        return jnp.stack([*state[:4], state.ended.astype(jnp.int32)], axis=-1)

    def walk(self, ngrams: Int[Array, "batch length"], view: Any = None) -> FMState:
        """States [batch, 1] after whole n-grams, padded on the right with −1."""
        return ngram_walks.walk(self, ngrams, view)

    def find(self, ngrams: Sequence[Sequence[int]], view: str | int | None = None) -> FMState:
        """`walk` of lists of tokens, on the host; leaves [batch, 1]. `count` and `locate` take it from there."""
        return ngram_walks.find(self, ngrams, view)

    def rows(self, state: FMState) -> tuple[Int[Array, "... 1"], Int[Array, "... 1"]]:
        """The ranges of `row_documents` in which each n-gram's occurrences are, low and high: one range. A
        `ShardedFMIndex` has one for each part."""
        return state.low[..., None], state.high[..., None]

    def locate(self, state: FMState, limit: int) -> Occurrences:
        """The first `limit` occurrences of each n-gram, by what stands before them; leaves [..., limit]. Those in
        documents that are not allowed are left blank."""
        row = state.low[..., None] + jnp.arange(limit, dtype=jnp.int32)  # --> [..., limit]
        return fm_index_locate.locate(self, row, row < state.high[..., None], state.depth[..., None])

    def documents(self, state: FMState, limit: int) -> tuple[Int[Array, "... limit"], Int[Array, ...]]:
        """The first `limit` documents that have each n-gram, in the order of `locate`, −1 where there are fewer; and
        how many there are, where they are no more than `limit`: `limit` + 1 stands for any larger number.

        Occurrences are read until so many documents are found; `count` says how many occurrences there are.
        """
        return fm_index_locate.documents(self, state, limit)

    def restrict(self, allowed: Bool[Array, "batch docs"]) -> FMIndex:
        """See `Constraint.restrict`: exact, for n-grams of every frequency. States of the restricted index must lead
        with the same batch. Preparing it reads 4 bytes a token for each query, and an eighth of a byte is kept.

        Raises:
          InputError: the index was built without `filters`; another number of columns than documents, or of rows than
            a filter before.
        """
        if self.row_documents is None:
            raise InputError(
                "this FM-index does not keep which document each of its rows belongs to, so it cannot be restricted",
                "Build it with filters=True, or leave documents out after the search.",
            )
        allowed = check_filter(allowed, self.num_documents, None if self.filter is None else self.filter.shape[0])
        chosen = fm_index_filter.make_filter(self.row_documents, allowed, self.filter)
        return dataclasses.replace(self, filter=chosen)
