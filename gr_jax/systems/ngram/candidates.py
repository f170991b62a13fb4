"""What a writer of n-grams finds for questions: documents, and the n-grams by which each was found."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, Int, Int32, Int64

from gr_jax import progress as progress_lib
from gr_jax import sharing, storage
from gr_jax.errors import InputError
from gr_jax.retrievers.documents_of import Written
from gr_jax.retrievers.generative import GenerativeRetriever
from gr_jax.retrievers.ngrams import NgramAggregation

KIND = "ngram_candidates"
_PART = 64  # questions that a process asks at a time
_COLUMNS = (
    "documents", "scores", "held", "ngram_offsets", "tokens", "lengths", "views", "single", "log_chance", "weights",
    "part_offsets", "parts", "coefficients",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Candidates:
    """Documents of each question, best first, and the n-grams that speak for them.

    Attributes:
      documents: int32[questions, c], −1 where fewer were found.
      scores: float32[questions, c], as they were retrieved.
      held: float32[questions, c], the share of a score that the n-grams hold that were kept; 0 where there is none.
      ngram_offsets: int64[questions + 1]; of question i the n-grams offsets[i]:offsets[i + 1].
      tokens: int32[n-grams, width]; `lengths` of each count.
      lengths: int32[n-grams].
      views: int32[n-grams], the view of the question in which each is written.
      single: bool[n-grams], tokens that count alone.
      log_chance: float32[n-grams], log p(n), how likely each is anywhere.
      weights: float32[n-grams], what each counted for when the documents were retrieved.
      part_offsets: int64[questions · c + 1]; of candidate j of question i the parts at i · c + j.
      parts: int32[parts], n-grams that count in the document, numbered from 0 on in their question.
      coefficients: float32[parts], for which share of its weight each counts.
    """

    documents: Int32[np.ndarray, "questions c"]
    scores: Float32[np.ndarray, "questions c"]
    held: Float32[np.ndarray, "questions c"]
    ngram_offsets: Int64[np.ndarray, " questions_plus_1"]
    tokens: Int32[np.ndarray, "ngrams width"]
    lengths: Int32[np.ndarray, " ngrams"]
    views: Int32[np.ndarray, " ngrams"]
    single: np.ndarray
    log_chance: Float32[np.ndarray, " ngrams"]
    weights: Float32[np.ndarray, " ngrams"]
    part_offsets: Int64[np.ndarray, " candidates_plus_1"]
    parts: Int32[np.ndarray, " parts"]
    coefficients: Float32[np.ndarray, " parts"]

    def __len__(self) -> int:
        return len(self.documents)

    def parts_of(self, question: int, place: int) -> tuple[Int[np.ndarray, " n"], Float32[np.ndarray, " n"]]:
        """The n-grams of a candidate, as rows of `tokens`, and for which share of its weight each counts."""
        candidate = question * self.documents.shape[1] + place
        part = slice(self.part_offsets[candidate], self.part_offsets[candidate + 1])
        return self.ngram_offsets[question] + self.parts[part], self.coefficients[part]

    def save(self, folder: str | os.PathLike, *, corpus: str = "", meta: dict[str, Any] | None = None) -> None:
        """Writes an artefact of kind "ngram_candidates"."""
        with storage.write_folder(folder, KIND, corpus=corpus, meta=meta or {}) as new:
            for name in _COLUMNS:
                np.save(new / f"{name}.npy", getattr(self, name))

    @classmethod
    def load(cls, folder: str | os.PathLike, *, verify: bool = True) -> Candidates:
        """Memory-maps what `save` wrote.

        Raises:
          InputError: `folder` holds no candidates, or altered ones.
        """
        storage.read_folder(folder, KIND, verify=verify)
        folder = pathlib.Path(folder)
        return cls(**{name: storage.load_array(folder / f"{name}.npy", mmap=True) for name in _COLUMNS})


def joined(parts: Sequence[Candidates]) -> Candidates:
    """Candidates of further questions behind those before.

    Raises:
      InputError: there are none, or of different numbers of documents.
    """
    if not parts or len({one.documents.shape[1] for one in parts}) != 1:
        raise InputError("nothing to join, or candidates of different depths", "Find them with one depth.")
    columns: dict[str, np.ndarray] = {}
    for name in _COLUMNS:
        own = [getattr(one, name) for one in parts]
        if name.endswith("_offsets"):
            lengths = np.concatenate([np.diff(one) for one in own])
            columns[name] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        else:
            columns[name] = np.concatenate(own)
    return Candidates(**columns)


def find(
    retriever: GenerativeRetriever, questions: Sequence[str], depth: int, ngrams: int, *, progress: bool = False
) -> Candidates:
    """What a retriever finds for questions.

    Args:
      retriever: one of n-grams.
      questions: texts.
      depth: documents of each.
      ngrams: of a document at most, those that give it the most.
      progress: show a bar.

    Raises:
      InputError: the retriever's documents are not found by n-grams; a depth or number of n-grams below 1.
    """
    aggregation = retriever.documents_of
    if not isinstance(aggregation, NgramAggregation):
        raise InputError(
            "this retriever keeps no n-grams of the documents that it finds",
            "Give one that writes n-grams, such as of seal or minder.",
            value=type(aggregation).__name__,
        )
    if depth < 1 or ngrams < 1:
        raise InputError("a document needs n-grams, and a question documents", "Give 1 or more.", value=(depth, ngrams))

    def find_some(part: int) -> dict[str, np.ndarray]:
        asked = questions[part * _PART : (part + 1) * _PART]
        of_each = {
            question: _of_question(aggregation, written, depth, ngrams)
            for question, written in retriever.written(asked)
        }
        some = joined([of_each[question] for question in range(len(asked))])
        return {name: getattr(some, name) for name in _COLUMNS}

    parts = []
    with progress_lib.bar("Finding documents and their n-grams", len(questions), enabled=progress) as bar:
        for found in sharing.in_parts("candidates", -(-len(questions) // _PART), find_some, "while finding documents"):
            parts.append(Candidates(**found))
            bar.advance(len(parts[-1]))
    return joined(parts)


def _of_question(aggregation: NgramAggregation, written: Written, depth: int, ngrams: int) -> Candidates:
    scorer = aggregation.scorer
    weighted = scorer.weighted(*aggregation.ngrams_of(written))
    documents, scores = scorer.search(weighted, depth)
    weights = list[float]()
    rows: dict[int, int] = {}  # number of an n-gram, or −1 − a single token → its row, as they are first needed
    parts, coefficients, counts = list[int](), list[float](), np.zeros(depth, np.int64)
    held = np.zeros(depth, np.float32)
    for place, document in enumerate(documents.tolist()):
        best = scorer.parts(weighted, document)[:ngrams]
        for number, score, _ in best:
            weight = weighted.singles[-1 - number] if number < 0 else weighted.weights[number]
            if number not in rows:
                rows[number] = len(rows)
                weights.append(weight)
            parts.append(rows[number])
            coefficients.append(score / weight)
        counts[place] = len(best)
        held[place] = sum(score for _, score, _ in best) / max(scores[place], 1e-30)
    width = weighted.ngrams.tokens.shape[1]
    view_of = _views_of_roots(aggregation, written)
    with_singles = [view for view, one in enumerate(aggregation.views) if one.singles]
    if len(with_singles) > 1:
        raise InputError(
            "single tokens of several views count, and nothing says which view a token's score is from",
            "Let those of one view count.",
            value=with_singles,
        )
    alone = with_singles[0] if with_singles else 0
    tokens = np.zeros((len(rows), width), np.int32)
    lengths, views = np.ones(len(rows), np.int32), np.full(len(rows), alone, np.int32)
    occurrences = np.zeros(len(rows))
    for number, row in rows.items():
        if number < 0:
            tokens[row, 0], occurrences[row] = -1 - number, scorer.token_counts[-1 - number]
            continue
        lengths[row] = length = weighted.ngrams.lengths[number]
        tokens[row, :length] = weighted.ngrams.tokens[number, :length]
        occurrences[row], views[row] = weighted.ngrams.counts[number], view_of[int(weighted.ngrams.roots[number])]
    smoothing, padding = scorer.settings.smoothing, depth - len(documents)
    return Candidates(
        documents=np.pad(documents, (0, padding), constant_values=-1).astype(np.int32)[None],
        scores=np.pad(scores, (0, padding)).astype(np.float32)[None],
        held=held[None],
        ngram_offsets=np.array([0, len(rows)], np.int64),
        tokens=tokens,
        lengths=lengths,
        views=views,
        single=np.array([number < 0 for number in rows], bool),
        log_chance=np.log((occurrences + smoothing) / (len(scorer.text.tokens) + smoothing)).astype(np.float32),
        weights=np.array(weights, np.float32),
        part_offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        parts=np.array(parts, np.int32),
        coefficients=np.array(coefficients, np.float32),
    )


def _views_of_roots(aggregation: NgramAggregation, written: Written) -> dict[int, int]:
    """Root of an n-gram in the index → the view of the question that writes such n-grams."""
    texts = np.asarray(written.looked_up.view)  # of each view of the question, the text that it walks
    roots = texts + aggregation.scorer.num_views * np.array([one.whole for one in aggregation.views])
    return {root: view for view, root in enumerate(roots.tolist())}
