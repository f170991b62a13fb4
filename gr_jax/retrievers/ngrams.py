"""Documents from n-grams: each that was kept speaks for the documents in which it stands (SEAL, Bevilacqua et al. 2022;
MINDER, Li et al. 2023). How they are weighed and added up stands in `ngram_scorer`."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from gr_jax import storage, text
from gr_jax.constraints import Constraint, NgramIndex, fm_index_shards
from gr_jax.corpus.documents import Corpus
from gr_jax.decoding.teacher_forcing import prefix_scores
from gr_jax.docids.spans import TokenText, token_text
from gr_jax.errors import InputError, InputWarning
from gr_jax.retrievers import ngram_scorer
from gr_jax.retrievers.base import Evidence
from gr_jax.retrievers.documents_of import FoundDocument, Searched, Written
from gr_jax.retrievers.ngram_scorer import Ngrams, NgramScorer, NgramScoring
from gr_jax.text.word_starts import word_starts


@dataclasses.dataclass(frozen=True)
class NgramView:
    """What becomes of what one view of a query wrote.

    Attributes:
      whole: only what is a whole segment counts, such as a title. The view walks "^" and a name.
      tokens: n-grams of more do not count.
      shift, most: log-probabilities become min(log p + shift, most), for MINDER's pseudo-queries; None leaves them.
      own_words: n-grams of the query's own text, of up to so many words, join; 0: none do.
      own_from, own_to: tokens at the front and at the end of what is read that are not the query's own text: special
        tokens and the prompt's.
      singles: so many of the likeliest first tokens count where no n-gram covers them; 0: none do.
    """

    whole: bool = False
    tokens: int = 10
    shift: float | None = None
    most: float | None = None
    own_words: int = 3
    own_from: int = 0
    own_to: int = 0
    singles: int = 5000


class Found(NamedTuple):
    """What a batch of searches found. Rows are views of queries.

    Attributes:
      tokens: int32[rows, n, max_len]; `lengths` of each count; 0 tokens: there is none.
      lengths: int32[rows, n].
      log_probs: float32[rows, n], over the vocabulary.
      low, high: int32[rows, n, parts], rows of the index, a range in each of its parts; where a filter leaves documents
        out, of the whole index.
      view: int32[rows], the index' view that each walked.
      first_tokens: int32[rows, m].
      first_log_probs: float32[rows, m], −inf where there are fewer.
    """

    tokens: Int[Array, "rows n max_len"]
    lengths: Int[Array, "rows n"]
    log_probs: Float[Array, "rows n"]
    low: Int[Array, "rows n parts"]
    high: Int[Array, "rows n parts"]
    view: Int[Array, " rows"]
    first_tokens: Int[Array, "rows m"]
    first_log_probs: Float[Array, "rows m"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NgramLookUp:
    """Kept n-grams, n-grams of the query itself, and the likeliest first tokens.

    Attributes:
      starts: bool[vocab], the tokens that begin a word.
      views: of each query, in order.
    """

    starts: Bool[Array, " vocab"]
    views: tuple[NgramView, ...] = dataclasses.field(metadata={"static": True})
    history = True

    def __call__(self, searched: Searched) -> Found:
        history = searched.beams.history
        assert history is not None
        view = history.states.view[:, 0, 0]
        parts = [self._written(searched)]
        if any(view.own_words for view in self.views):
            parts.append(self._own(searched, view))
        tokens, lengths, log_probs, low, high = (jnp.concatenate(part, axis=1) for part in zip(*parts, strict=True))
        return Found(tokens, lengths, log_probs, low, high, view, *self._first(searched))

    def _written(self, searched: Searched) -> tuple[Array, ...]:
        kept, index = searched.beams.history, searched.unfiltered
        assert kept is not None and isinstance(index, NgramIndex)
        sequences = kept.sequences()
        if index.eos_id is None:  # nothing is complete before the end: half of the columns are empty
            going_on = kept.scores.shape[2] - searched.beams.scores.shape[1]
            kept, sequences = jax.tree.map(lambda leaf: leaf[:, :, :going_on], (kept, sequences))
        rows, steps, n = kept.scores.shape
        most = jnp.tile(jnp.asarray([view.tokens for view in self.views]), rows // len(self.views))[:, None, None]
        lengths = jnp.where(kept.valid & (kept.states.depth <= most), kept.states.depth, 0)
        low, high = index.rows(kept.states)
        flat = (x.reshape(rows, steps * n, *x.shape[3:]) for x in (lengths, kept.scores, low, high))
        return sequences.reshape(rows, steps * n, steps), *flat

    def _own(self, searched: Searched, view: Int[Array, " rows"]) -> tuple[Array, ...]:
        """Runs of the query's words that the index has: their log-probabilities, by teacher forcing. Rows of views in
        which none join are left out of the work, and have none."""
        rows, views = len(searched.tokens), len(self.views)
        joining = [number for number, one in enumerate(self.views) if one.own_words]
        if len(joining) == views:
            return self._own_of(searched, view, self.views)
        chosen = (np.arange(0, rows, views)[:, None] + np.array(joining)).ravel()
        # What all queries share leads with 1.
        cache = jax.tree.map(lambda leaf: leaf[chosen] if leaf.shape[:1] == (rows,) else leaf, searched.cache)
        some = searched._replace(tokens=searched.tokens[chosen], lengths=searched.lengths[chosen], cache=cache)
        found = self._own_of(some, view[chosen], tuple(self.views[number] for number in joining))
        return tuple(jnp.zeros((rows, *part.shape[1:]), part.dtype).at[chosen].set(part) for part in found)

    def _own_of(self, searched: Searched, view: Int[Array, " rows"], views: tuple[NgramView, ...]) -> tuple[Array, ...]:
        """The same of some rows, and of their views."""
        index, source = searched.unfiltered, searched.tokens
        assert isinstance(index, NgramIndex)
        rows, length = source.shape
        width = searched.beams.sequences.shape[2]
        inside, first, words = self._own_tokens(source, searched.lengths, views)
        place = jnp.arange(length)[:, None] + jnp.arange(width)  # --> [length, width]
        padded = jnp.pad(source, ((0, 0), (0, width)))
        runs = padded[:, place]  # --> [rows, length, width]
        # A run goes on while it is inside, and ends where the next token begins a word or is not the query's.
        goes_on = jnp.cumprod(jnp.pad(inside, ((0, 0), (0, width)))[:, place], axis=-1).astype(bool)
        begins = jnp.pad(first, ((0, 0), (0, width + 1)))
        ends = begins[:, place + 1] | ~jnp.pad(inside, ((0, 0), (0, width + 1)))[:, place + 1]
        count = jnp.cumsum(begins[:, place], axis=-1)
        valid = goes_on & ends & first[:, :, None] & (count <= words[:, None, None])
        state: Any = index.initial_state(rows, view)
        state = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (rows, length, *leaf.shape[2:])), state)
        ranges = []
        for step in range(width):
            state = index.advance(state, runs[:, :, step])
            ranges.append(index.rows(state))
        low, high = (jnp.stack(one, axis=2) for one in zip(*ranges, strict=True))
        depths = jnp.broadcast_to(jnp.arange(1, width + 1), valid.shape)
        most = jnp.tile(jnp.asarray([view.tokens for view in views]), rows // len(views))[:, None, None]
        lengths = jnp.where(valid & (depths <= most) & (high > low).any(axis=-1), depths, 0)
        slots = searched.beams.scores.shape[1]
        log_probs = prefix_scores(searched.decoder, searched.cache, runs, lengths.max(axis=-1), slots)
        tokens = jnp.where(jnp.arange(width) < depths[..., None], runs[:, :, None, :], 0)
        every = length * width
        flat = (x.reshape(rows, every, *x.shape[3:]) for x in (lengths, log_probs, low, high))
        return tokens.reshape(rows, every, width), *flat

    def _own_tokens(
        self, source: Int[Array, "rows length"], lengths: Int[Array, " rows"], views: tuple[NgramView, ...]
    ) -> tuple[Array, Array, Array]:
        """Which tokens are the query's own, which of them begin words, and how many words a row may join."""
        rows, length = source.shape
        own_from, own_to, words = (
            jnp.tile(jnp.asarray([getattr(view, name) for view in views]), rows // len(views))
            for name in ("own_from", "own_to", "own_words")
        )
        end = lengths - own_to
        at = jnp.arange(length)
        inside = (at >= own_from[:, None]) & (at < end[:, None])
        return inside, inside & self.starts[source], words

    def _first(self, searched: Searched) -> tuple[Array, Array]:
        """The likeliest first tokens, which the search itself does not keep."""
        assert isinstance(searched.unfiltered, NgramIndex)
        vocab_size = searched.unfiltered.vocab_size
        most = min(max(1, *(view.singles for view in self.views)), vocab_size)
        rows, _, width = searched.beams.sequences.shape
        start = jnp.full((rows, 1), searched.decoder.start_token, jnp.int32)
        features, _ = searched.decoder.step(start, 0, jnp.zeros((rows, 1, width), jnp.int32), searched.cache)
        tokens, log_probs = searched.decoder.scores(features, 0, "vocabulary").top(most, below=vocab_size)
        few = jnp.tile(jnp.asarray([view.singles for view in self.views]), rows // len(self.views))
        counts = jnp.arange(tokens.shape[-1]) < few[:, None]
        return tokens[:, 0], jnp.where(counts, log_probs[:, 0], -jnp.inf)


class NgramAggregation:
    """A document's score is that of its n-grams; see `NgramScorer`.

    Args:
      vocabulary: that the text of the index was tokenised with, to read n-grams.
      token_text: the text of the index.
      row_documents: of the index' rows; see `FMIndex`, which has them where it was built with `filters`, and
        `ShardedFMIndex`.
      views: what becomes of what each view of a query wrote, in the views' order.
      scoring: the scorer's settings.
    """

    kind = "ngrams"
    beam_each = False

    def __init__(
        self,
        vocabulary: text.Vocabulary,
        token_text: TokenText,
        row_documents: Int[np.ndarray, " rows"],
        *,
        views: Sequence[NgramView] = (NgramView(),),
        scoring: NgramScoring | None = None,
    ):
        self.vocabulary, self.views = vocabulary, tuple(views)
        self.scorer = NgramScorer(token_text, row_documents, scoring)
        self.look_up = NgramLookUp(jnp.asarray(word_starts(vocabulary)), self.views)

    def check(self, constraint: Constraint) -> None:
        """See `DocumentsOf.check`."""
        if not isinstance(constraint, NgramIndex):
            raise InputError(
                "n-grams are counted in an FM-index, and this is another constraint",
                "Give an FMIndex, or another documents_of.",
                value=type(constraint).__name__,
            )
        if constraint.vocabulary not in ("", self.vocabulary.fingerprint):
            raise InputError(
                "an FM-index of text that was tokenised with another vocabulary",
                "Give the vocabulary of its text.",
                value=constraint.vocabulary,
            )
        given = self.scorer.text
        if constraint.view_names != given.view_names or constraint.num_documents != given.num_documents:
            raise InputError(
                f"an FM-index of {constraint.num_documents} documents in the views {constraint.view_names}, "
                f"and text of {given.num_documents} in {given.view_names}",
                "Give the text that the index was built from.",
            )
        if constraint.corpus != given.corpus:
            raise InputError(
                f"an FM-index of the corpus {constraint.corpus}, and text of {given.corpus}",
                "Give the text that the index was built from.",
            )

    def most_tokens(self, walked: Int[np.ndarray, " views"]) -> int:
        """How long n-grams are at most that can count: of views that want whole segments, as long as one is.

        Args:
          walked: of each view of a query, which of the index' automata it walks; see `FMIndex.initial_state`.

        Raises:
          InputError: another number of views than n-grams are made of.
        """
        if len(walked) != len(self.views):
            raise InputError(
                f"queries have {len(walked)} views, and n-grams are made of {len(self.views)}",
                "Give the aggregation a view for each.",
            )
        lengths, of = np.diff(self.scorer.text.offsets), np.asarray(self.scorer.text.views)
        longest = [1]
        for view, number in zip(self.views, walked.tolist(), strict=True):
            own = lengths[(of == number % self.scorer.num_views) & (lengths <= view.tokens)]
            longest.append(int(own.max(initial=1)) if view.whole else view.tokens)
        return max(longest)

    def rank(
        self, written: Written, k: int, *, explain: bool, allowed: Bool[np.ndarray, " documents"] | None = None
    ) -> list[FoundDocument]:
        """See `DocumentsOf.rank`. Evidence is what counted, the weightiest first."""
        weighted = self.scorer.weighted(*self.ngrams_of(written))
        if not len(weighted.weights):
            warnings.warn(
                "No n-gram of the documents is likelier after this query than anywhere, so nothing was found: ask with "
                "words that the documents use.",
                InputWarning,
                stacklevel=2,
            )
        documents, scores = self.scorer.search(weighted, k, allowed)
        found = []
        for document, score in zip(documents.tolist(), scores.tolist(), strict=True):
            evidence = self._evidence(weighted, document) if explain else ()
            found.append(FoundDocument(document, score, evidence))
        return found

    def ngrams_of(self, written: Written) -> tuple[Ngrams, Int[np.ndarray, " m"], Float[np.ndarray, " m"]]:
        """What was found for one query: n-grams, and the likeliest first tokens with their log-probabilities."""
        found: Found = written.looked_up
        log_probs, roots = np.array(found.log_probs, np.float64), np.empty(found.lengths.shape, np.int32)
        for row, view in enumerate(self.views):
            if view.shift is not None:
                log_probs[row] += view.shift
            if view.most is not None:
                log_probs[row] = np.minimum(log_probs[row], view.most)
            roots[row] = found.view[row] + (self.scorer.num_views if view.whole else 0)
        chosen = np.asarray(found.lengths) > 0
        counts = np.sum(np.asarray(found.high) - np.asarray(found.low), axis=-1)  # over the parts of the index
        columns = (found.tokens, found.lengths, roots, log_probs, found.low, found.high, counts)
        tokens, first = np.asarray(found.first_tokens), np.asarray(found.first_log_probs)
        valid = np.isfinite(first)
        return Ngrams(*(np.asarray(x)[chosen] for x in columns)), tokens[valid], first[valid]

    def _evidence(self, weighted: ngram_scorer.Weighted, document: int) -> tuple[Evidence, ...]:
        names = self.scorer.text.view_names
        found = []
        for one in self.scorer.explain(weighted, document):
            view = "" if one.view is None or len(names) == 1 else names[one.view]
            found.append(Evidence("ngram", self.vocabulary.decode(one.tokens), one.score, one.tokens, view=view))
        return tuple(found)

    def updated(
        self, constraint: NgramIndex, add: Corpus | None, remove: Sequence[int]
    ) -> tuple[NgramIndex, NgramAggregation]:
        """The index and this with documents added and removed. All counts are those of an index that is built anew, and
        of the index only what has to be is built: see `fm_index_shards.updated`. Added documents have no queries that
        were made from them.

        Raises:
          InputError: no text is left.
        """
        before = self.scorer.text
        said = before.without(remove) if len(remove) else before
        if add is not None:
            views = [name for name in said.view_names if "pseudo_query" not in name.split("+")]
            said = said.joined(token_text(add, self.vocabulary, views=views))
        index = fm_index_shards.updated(
            constraint, said, np.intersect1d(np.asarray(remove, np.int64), before.documents)
        )
        rows = np.asarray(index.row_documents)
        made = NgramAggregation(self.vocabulary, said, rows, views=self.views, scoring=self.scorer.settings)
        return index, made

    def settings(self) -> dict[str, Any]:
        """See `DocumentsOf.settings`."""
        views = [dataclasses.asdict(view) for view in self.views]
        return {"views": views, "scoring": dataclasses.asdict(self.scorer.settings)}

    def save(self, folder: pathlib.Path) -> None:
        """Writes the vocabulary, the text and the documents of rows."""
        self.vocabulary.save(folder / "written_vocabulary")
        self.scorer.text.save(folder / "token_text")
        np.save(folder / "row_documents.npy", self.scorer.row_documents)

    @classmethod
    def load(cls, folder: str | os.PathLike, settings: dict[str, Any]) -> NgramAggregation:
        """Reads what `save` wrote."""
        folder = pathlib.Path(folder)
        return cls(
            text.load_vocabulary(folder / "written_vocabulary"),
            TokenText.load(folder / "token_text", verify=False),
            storage.load_array(folder / "row_documents.npy", mmap=True),
            views=[NgramView(**view) for view in settings["views"]],
            scoring=NgramScoring(**settings["scoring"]),
        )
