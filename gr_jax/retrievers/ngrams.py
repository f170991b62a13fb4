"""Documents from n-grams: each n-gram that was kept speaks for the documents in which it stands.

A plain form of SEAL's scorer (Bevilacqua et al. 2022, section 3.2), without its smoothing, powers and discounts: an
n-gram n weighs max(0, log P(n|q) − log P(n)), where P(n|q) is what the model gives it and P(n) its share of the text.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gr_jax import text
from gr_jax.constraints import Constraint, FMIndex
from gr_jax.errors import InputError
from gr_jax.retrievers.base import Evidence
from gr_jax.retrievers.documents_of import FoundDocument, Searched, Written


class Ngrams(NamedTuple):
    """Every n-gram that the searches of a batch kept, whichever step kept it.

    Attributes:
      tokens: int32[rows, n, max_len]; `lengths` of each count.
      lengths: int32[rows, n], EOS not counted.
      weights: float32[rows, n]; see the module; 0 where there is none, or too frequent a one.
      documents: int32[rows, n, limit]; −1 where there are fewer, or the weight is 0.
    """

    tokens: Int[Array, "rows n max_len"]
    lengths: Int[Array, "rows n"]
    weights: Float[Array, "rows n"]
    documents: Int[Array, "rows n limit"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NgramLookUp:
    """Kept n-grams with their weights and documents.

    Attributes:
      most_occurrences: an n-gram that stands more often in the corpus speaks for no document.
    """

    most_occurrences: int = dataclasses.field(metadata={"static": True})
    history = True

    def __call__(self, searched: Searched) -> Ngrams:
        kept, index = searched.beams.history, searched.unfiltered
        assert kept is not None and isinstance(index, FMIndex)
        sequences = kept.sequences()
        if index.eos_id is None:  # nothing is complete before the end: half of the columns are empty
            going_on = kept.scores.shape[2] - searched.beams.scores.shape[1]
            kept, sequences = jax.tree.map(lambda leaf: leaf[:, :, :going_on], (kept, sequences))
        count = index.count(kept.states)  # --> [rows, steps, n]
        whole = index.view_rows[kept.states.view + 1] - index.view_rows[kept.states.view]
        chance = jnp.log(jnp.maximum(count, 1)) - jnp.log(jnp.maximum(whole, 1))
        weights = jnp.maximum(kept.scores - chance, 0.0)
        speaks = kept.valid & (weights > 0) & (count <= self.most_occurrences)
        weights = jnp.where(speaks, weights, 0.0)
        # What does not speak is read as an n-gram that stands nowhere.
        states = kept.states._replace(high=jnp.where(speaks, kept.states.high, kept.states.low))
        flat = jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0], -1), states)  # --> [rows, steps · n]
        documents, _ = searched.constraint.documents(flat, self.most_occurrences)
        rows, steps, n = kept.scores.shape
        return Ngrams(sequences.reshape(rows, steps * n, steps), flat.depth, weights.reshape(rows, -1), documents)


class NgramAggregation:
    """A document's score is the sum of the weights of its n-grams. Of n-grams that share a token the weightiest alone
    counts, so that a phrase and its parts are not counted several times.

    Args:
      vocabulary: that the text of the index was tokenised with, to read n-grams.
      most_occurrences: see `NgramLookUp`; also how many documents of an n-gram are looked up.
    """

    kind = "ngrams"
    beam_each = False

    def __init__(self, vocabulary: text.Vocabulary, *, most_occurrences: int = 100):
        if not isinstance(most_occurrences, int) or most_occurrences < 1:
            raise InputError("n-grams that stand nowhere find nothing", "Give most_occurrences ≥ 1.")
        self.vocabulary, self.most_occurrences = vocabulary, most_occurrences
        self.look_up = NgramLookUp(most_occurrences)

    def check(self, constraint: Constraint) -> None:
        """See `DocumentsOf.check`."""
        if not isinstance(constraint, FMIndex):
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

    def rank(self, written: Written, k: int, *, explain: bool) -> list[FoundDocument]:
        """See `DocumentsOf.rank`. Evidence is the n-grams that counted, the weightiest first."""
        found: Ngrams = written.looked_up
        ngrams: dict[tuple[int, ...], tuple[float, Any]] = {}
        for view, place in zip(*np.nonzero(found.weights), strict=True):
            tokens = tuple(found.tokens[view, place, : found.lengths[view, place]].tolist())
            weight = float(found.weights[view, place])
            if weight > ngrams.get(tokens, (0.0,))[0]:  # several views may write it
                ngrams[tokens] = weight, found.documents[view, place]
        scores: dict[int, float] = {}
        covered: dict[int, set[int]] = {}
        reasons: dict[int, list[Evidence]] = {}
        for tokens, (weight, documents) in sorted(ngrams.items(), key=lambda item: (-item[1][0], item[0])):
            evidence = Evidence("ngram", self.vocabulary.decode(tokens), weight, tokens) if explain else None
            for document in documents[documents >= 0].tolist():
                before = covered.setdefault(document, set())
                if before.isdisjoint(tokens):
                    before.update(tokens)
                    scores[document] = scores.get(document, 0.0) + weight
                    if evidence is not None:
                        reasons.setdefault(document, []).append(evidence)
        best = sorted(scores, key=lambda document: (-scores[document], document))[:k]
        return [FoundDocument(document, scores[document], tuple(reasons.get(document, ()))) for document in best]

    def settings(self) -> dict[str, Any]:
        """See `DocumentsOf.settings`."""
        return {"most_occurrences": self.most_occurrences}

    def save(self, folder: pathlib.Path) -> None:
        """Writes the vocabulary."""
        self.vocabulary.save(folder / "written_vocabulary")

    @classmethod
    def load(cls, folder: str | os.PathLike, settings: dict[str, Any]) -> NgramAggregation:
        """Reads what `save` wrote."""
        return cls(text.load_vocabulary(pathlib.Path(folder) / "written_vocabulary"), **settings)
