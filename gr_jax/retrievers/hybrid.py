"""Several retrievers' answers as one: a weighted sum of their scores, each brought to one scale first."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int

from gr_jax import evaluation, storage
from gr_jax.errors import InputError
from gr_jax.retrievers.base import Evidence, Ranking, Retriever, check_question, ranking_to_run, updatable
from gr_jax.retrievers.lexical import BM25

if TYPE_CHECKING:
    from gr_jax.corpus import Corpus

KIND = "hybrid"
NORMALIZATIONS = ("min-max", "z")
# Documents that each part contributes; more changes little, for what stands so low in both lists does not rise far.
DEPTH = 200
WEIGHTS = tuple(round(0.05 * step, 2) for step in range(21))


class HybridRetriever:
    """The weighted sum of several retrievers' normalised scores.

    Each part gives its `depth` best documents. Their scores become 0 to 1 ("min-max") or z-scores ("z"), query by
    query; a document that a part did not name gets the lowest of that part's normalised scores there, for all that is
    known of it is that it would have come later.

    Args:
      parts: name → retriever, over the same documents.
      weights: of each part, 0 or more, not all 0.
      normalize: "min-max" or "z".
      depth: documents taken from each part; raised to k where more are asked for.

    Raises:
      InputError: the settings do not fit together, or the parts are of different corpora.
    """

    reads_corpus = True

    def __init__(
        self,
        parts: Mapping[str, Retriever],
        weights: Sequence[float],
        *,
        normalize: str = "min-max",
        depth: int = DEPTH,
    ):
        if len(weights) != len(parts) or min(weights, default=-1.0) < 0 or not np.isfinite(weights).all():
            raise InputError("each part needs a weight of 0 or more", "Give as many as parts.", value=list(weights))
        if not any(weights):
            raise InputError("no part has a weight above 0", "Give at least one such weight.", value=list(weights))
        if normalize not in NORMALIZATIONS:
            raise InputError("no such normalisation", f"Choose one of {', '.join(NORMALIZATIONS)}.", value=normalize)
        if depth < 1:
            raise InputError("each part gives at least one document", "Set depth to 1 or more.", value=depth)
        sizes = {name: _size(part) for name, part in parts.items()}
        if len(set(sizes.values())) != 1:
            raise InputError("the parts answer from different corpora", "Use parts of one corpus.", value=sizes)
        self.parts, self.weights = dict(parts), tuple(float(weight) for weight in weights)
        self.normalize, self.depth = normalize, depth
        self.num_documents = next(iter(sizes.values()))

    def retrieve(
        self,
        queries: Sequence[str],
        k: int,
        *,
        allowed: Bool[np.ndarray, " documents"] | Bool[np.ndarray, "batch documents"] | None = None,
        explain: bool = False,
    ) -> Ranking:
        """See `Retriever.retrieve`. `explain` names what each part contributed, and the part's own reasons.

        Exact with respect to `allowed`: every part ranks the allowed documents only.
        """
        check_question(queries, k, self.num_documents)
        depth = max(self.depth, k)
        rankings = [part.retrieve(queries, depth, allowed=allowed, explain=explain) for part in self.parts.values()]
        fused, shares = fuse(rankings, self.weights, k, normalize=self.normalize)

        def docid_of(query: int, rank: int) -> str:
            """Of the first part that generated one."""
            document = fused.doc_index[query, rank]
            for ranking in rankings:
                own = np.flatnonzero(ranking.doc_index[query] == document)
                if ranking.docid_of is not None and own.size and (docid := ranking.docid_of(query, int(own[0]))):
                    return docid
            return ""

        if not explain:
            return dataclasses.replace(fused, docid_of=docid_of)
        evidence = []
        for row, documents in enumerate(fused.doc_index.tolist()):
            reasons = [_Reasons(ranking, row) for ranking in rankings]
            evidence.append(
                tuple(
                    tuple(
                        reason
                        for number, name in enumerate(self.parts)
                        for reason in (
                            Evidence("part", name, float(shares[number][row, rank])),
                            *reasons[number].of(document),
                        )
                    )
                    for rank, document in enumerate(documents)
                    if document >= 0
                )
            )
        return Ranking(fused.doc_index, fused.score, tuple(evidence), docid_of)

    def score(self, queries: Sequence[str], candidates: Int[np.ndarray, "batch c"]) -> Float[np.ndarray, "batch c"]:
        """The weighted sum for given documents: where a part's `depth` best have one not, it gets the lowest of that
        part's normalised scores, as in `retrieve`. −inf where there is none (−1)."""
        check_question(queries, 1, self.num_documents)
        rankings = [part.retrieve(queries, self.depth) for part in self.parts.values()]
        scores = np.zeros(np.shape(candidates))
        for row, wanted in enumerate(np.asarray(candidates).tolist()):
            for part, weight in zip(rankings, self.weights, strict=True):
                found = part.doc_index[row] >= 0
                values, floor = normalized(part.score[row, found], self.normalize)
                own = dict(zip(part.doc_index[row, found].tolist(), values.tolist(), strict=True))
                scores[row] += weight * np.array([own.get(document, floor) for document in wanted])
        return np.where(np.asarray(candidates) >= 0, scores, -np.inf).astype(np.float32)

    @property
    def updatable(self) -> bool:
        """Whether every part can take and leave documents."""
        return all(updatable(part) for part in self.parts.values())

    def update(self, add: Corpus | None = None, remove: Sequence[int] = ()) -> HybridRetriever:
        """Adds and removes documents in every part; see `DenseRetriever.update`.

        Raises:
          InputError: a part cannot, or refuses one of them; none is changed then. Of several parts beside BM25 those
            before the one that refuses are.
        """
        fixed = [name for name, part in self.parts.items() if not updatable(part)]
        if fixed:
            raise InputError("a part cannot take or leave documents", "Make the index anew.", value=fixed)
        # BM25 takes what others refuse, such as a document without a title.
        for part in sorted(self.parts.values(), key=lambda part: isinstance(part, BM25)):
            changing: Any = part
            changing.update(add=add, remove=remove)
        self.num_documents = _size(next(iter(self.parts.values())))
        return self

    def save(self, path: str | os.PathLike, *, corpus: str) -> None:
        """Writes the parts and how they are combined; the corpus itself is not in it."""
        meta = {
            "parts": list(self.parts), "weights": list(self.weights), "normalize": self.normalize, "depth": self.depth
        }  # fmt: skip
        with storage.write_folder(path, KIND, corpus=corpus, meta=meta) as folder:
            for number, part in enumerate(self.parts.values()):
                saved: Any = part
                saved.save(folder / f"part_{number}", corpus=corpus)

    @classmethod
    def load(cls, path: str | os.PathLike, corpus: Corpus | None = None, *, verify: bool = True) -> HybridRetriever:
        """Reads what `save` wrote.

        Args:
          path: the folder.
          corpus: the documents, for parts that read them.
          verify: check the checksums.

        Raises:
          InputError: not such a folder, or altered.
        """
        from gr_jax.retrievers import index

        path = pathlib.Path(path)
        meta = storage.read_folder(path, KIND, verify=verify).meta
        storage.check_counts(path, meta, "depth")
        parts = {
            name: index.load_retriever(path / f"part_{number}", corpus, verify=False)
            for number, name in enumerate(meta["parts"])
        }
        return cls(parts, meta["weights"], normalize=meta["normalize"], depth=meta["depth"])


class _Reasons:
    """A part's evidence on one query, by document."""

    def __init__(self, ranking: Ranking, row: int):
        evidence = ranking.evidence[row] if ranking.evidence else ()
        found = [document for document in ranking.doc_index[row].tolist() if document >= 0]
        self._of = dict(zip(found, evidence, strict=False))

    def of(self, document: int) -> tuple[Evidence, ...]:
        return self._of.get(document, ())


def fuse(
    rankings: Sequence[Ranking], weights: Sequence[float], k: int, *, normalize: str = "min-max"
) -> tuple[Ranking, list[Float[np.ndarray, "batch k"]]]:
    """The k best documents by the weighted sum of normalised scores.

    Args:
      rankings: one of each part, over the same queries.
      weights: of the parts.
      k: documents a query.
      normalize: "min-max" or "z".

    Returns:
      The ranking, best first, ties by the lower document; and each part's contribution to its scores, 0 where empty.
    """
    return _weigh(_align_all(rankings, normalize), weights, k)


def _align_all(rankings: Sequence[Ranking], normalize: str) -> list[tuple[np.ndarray, np.ndarray]]:
    rows = range(len(rankings[0]))
    return [_align([(part.doc_index[row], part.score[row]) for part in rankings], normalize) for row in rows]


def _align(
    found: Sequence[tuple[np.ndarray, np.ndarray]], normalize: str
) -> tuple[Int[np.ndarray, " union"], Float[np.ndarray, "parts union"]]:
    """One query's documents that any part named, ascending, and every part's normalised scores of all of them."""
    named = [documents[documents >= 0] for documents, _ in found]
    union = np.unique(np.concatenate(named))
    table = np.zeros((len(found), len(union)))
    for number, (documents, scores) in enumerate(found):
        values, floor = normalized(scores[documents >= 0], normalize)
        table[number] = floor
        table[number, np.searchsorted(union, named[number])] = values
    return union, table


def _weigh(
    aligned: Sequence[tuple[np.ndarray, np.ndarray]], weights: Sequence[float], k: int
) -> tuple[Ranking, list[Float[np.ndarray, "batch k"]]]:
    """What `fuse` returns, of aligned scores."""
    batch = len(aligned)
    doc_index = np.full((batch, k), -1, np.int32)
    score = np.full((batch, k), -np.inf, np.float32)
    shares = [np.zeros((batch, k), np.float32) for _ in weights]
    for row, (union, table) in enumerate(aligned):
        parts = np.asarray(weights)[:, None] * table
        total = parts.sum(axis=0)
        best = np.argsort(-total, kind="stable")[:k]
        doc_index[row, : len(best)], score[row, : len(best)] = union[best], total[best]
        for share, part in zip(shares, parts, strict=True):
            share[row, : len(best)] = part[best]
    return Ranking(doc_index, score), shares


def normalized(scores: Float[np.ndarray, " n"], how: str) -> tuple[Float[np.ndarray, " n"], float]:
    """One query's scores on a scale that does not depend on who gave them, and what a document gets that has none.

    Where all scores are equal there is no scale: their documents stay ahead of those that were not found by 1.
    """
    values = scores.astype(np.float64)
    spread = float(values.max() - values.min() if how == "min-max" else values.std()) if len(values) else 0.0
    if spread <= 0:
        return (np.ones_like(values), 0.0) if how == "min-max" else (np.zeros_like(values), -1.0)
    values = (values - (values.min() if how == "min-max" else values.mean())) / spread
    return values, float(values.min())


@dataclasses.dataclass(frozen=True)
class WeightChoice:
    """What `choose_weight` found.

    Attributes:
      weights: of the two parts; they sum to 1.
      normalize: the normalisation.
      curve: every point that was measured: {"normalize", "weight" (of the second part), measure: value}.
    """

    weights: tuple[float, float]
    normalize: str
    curve: tuple[Mapping[str, Any], ...]

    def retriever(self, parts: Mapping[str, Retriever]) -> HybridRetriever:
        """The two parts, combined so."""
        return HybridRetriever(parts, self.weights, normalize=self.normalize)

    def as_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {**dataclasses.asdict(self), "weights": list(self.weights), "curve": [dict(p) for p in self.curve]}


def choose_weight(
    first: Ranking,
    second: Ranking,
    query_ids: Sequence[str],
    corpus: Corpus,
    qrels: Mapping[str, Mapping[str, int]],
    *,
    measure: str = "RR@10",
    weights: Sequence[float] = WEIGHTS,
    normalizations: Sequence[str] = NORMALIZATIONS,
    k: int = 10,
) -> WeightChoice:
    """Chooses normalisation and weight of two parts on queries whose answers are known: those of a dev split.

    Args:
      first, second: the parts' rankings of the same queries, as deep as the hybrid will read them.
      query_ids: of the queries, in the rankings' order.
      corpus: the documents.
      qrels: which of them answer the queries.
      measure: what is to be highest, as ir_measures spells it.
      weights: of the second part, to try; the first gets the rest to 1.
      normalizations: to try.
      k: depth of the fused ranking; at least the measure's.

    Returns:
      The best point and the whole curve. Of equal values the one nearest to the middle is taken, then the first.

    Raises:
      InputError: a weight outside 0 to 1, an unknown normalisation or measure.
    """
    if not weights or min(weights) < 0 or max(weights) > 1:
        raise InputError("weights of the second part lie between 0 and 1", "Give such numbers.", value=list(weights))
    (name,) = evaluation.parse_measures(measure)
    curve: list[dict[str, Any]] = []
    for normalize in normalizations:
        if normalize not in NORMALIZATIONS:
            raise InputError("no such normalisation", f"Choose one of {', '.join(NORMALIZATIONS)}.", value=normalize)
        aligned = _align_all((first, second), normalize)
        for weight in weights:
            fused, _ = _weigh(aligned, (1.0 - weight, weight), k)
            value = evaluation.evaluate(ranking_to_run(fused, query_ids, corpus), qrels, name)[name]
            curve.append({"normalize": normalize, "weight": float(weight), name: value})
    best = max(curve, key=lambda point: (point[name], -abs(point["weight"] - 0.5)))
    return WeightChoice((1.0 - best["weight"], best["weight"]), best["normalize"], tuple(curve))


def _size(part: Any) -> int:
    return int(part.num_documents)
