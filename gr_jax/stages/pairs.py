"""The stage of training queries and documents as tokens, for everything that is trained by contrast."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from gr_jax import storage, text
from gr_jax.corpus import Dataset
from gr_jax.docids.pseudo_queries import PseudoQueries as MadeQueries
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.encoders import Encoders
from gr_jax.stages.graph import Place, Stage, stage
from gr_jax.stages.pseudo_queries import load_pseudo_queries
from gr_jax.stages.settings import Settings
from gr_jax.stages.vocabulary import load_vocabulary
from gr_jax.training.features import Pair, PairFeatures
from gr_jax.training.token_store import TokenStore, write_token_store


@dataclasses.dataclass(frozen=True)
class HeldOut(Settings):
    """Which questions are kept back from training.

    Attributes:
      share: of the documents with training questions; None keeps none back.
      seed: of the choice.
    """

    share: float | None
    seed: int | None

    @classmethod
    def of(cls, share: float | None, seed: int) -> HeldOut:
        """Where nothing is held out, the seed decides nothing."""
        return cls(share, seed if share else None)


@dataclasses.dataclass(frozen=True)
class TrainingQueries:
    """The queries that are trained on, in the order of their tokens.

    Attributes:
      texts: as they are asked, before any transform.
      sources: "query" or "pseudo" of each.
      documents: positions of the documents that answer each, the one that it is trained towards first; a query of the
        train split with several answers stands here once for each.
      held_out: ids of the train split's queries that are kept back.
      ids: of each query; "" of a pseudo-query.
    """

    texts: Sequence[str]
    sources: Sequence[str]
    documents: Sequence[Sequence[int]]
    held_out: Sequence[str]
    ids: Sequence[str]


def training_queries(dataset: Dataset, made: MadeQueries, held_out: HeldOut) -> TrainingQueries:
    """Queries of the train split and pseudo-queries, less what is held out.

    Args:
      dataset: corpus, queries and judgements.
      made: pseudo-queries of the same corpus.
      held_out: all questions of a share of the documents with training questions are kept back.
    """
    corpus = dataset.corpus
    train: Mapping[str, Mapping[str, int]] = dataset.qrels.get("train", {})
    answers = {
        query_id: [corpus.index_of(doc_id) for doc_id, grade in relevant.items() if grade > 0]
        for query_id, relevant in train.items()
    }
    asked = np.unique([document for found in answers.values() for document in found])
    kept_back: set[int] = set()
    if held_out.share:
        chosen = np.random.default_rng(held_out.seed).choice(asked, int(held_out.share * len(asked)), replace=False)
        kept_back = set(chosen.tolist())
    rows: list[tuple[str, str, list[int], str]] = []
    withheld = []
    for query_id, found in answers.items():
        if not kept_back.isdisjoint(found):
            withheld.append(query_id)
            continue
        question = dataset.queries.text(query_id)
        rows += [(question, "query", [first, *(d for d in found if d != first)], query_id) for first in found]
    rows += [(one, "pseudo", [int(document)], "") for one, document in zip(made.texts, made.documents, strict=True)]
    return TrainingQueries(
        [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows], withheld, [r[3] for r in rows]
    )


def pairs_of(
    corpus: Stage,
    pseudo_queries: Stage,
    vocabulary: Stage,
    encoders: Encoders,
    held_out: HeldOut,
    query_vocabulary: Stage | None = None,
) -> Stage:
    """The stage of the pairs that these encoders read."""
    return pairs(
        corpus, pseudo_queries, vocabulary, query_vocabulary,
        query_length=encoders.query_length, document_length=encoders.document_length,
        query_prefix=encoders.query_prefix, document_prefix=encoders.document_prefix, held_out=held_out,
    )  # fmt: skip


@stage(shared=True)
def pairs(
    place: Place,
    corpus: pathlib.Path,
    pseudo_queries: pathlib.Path,
    vocabulary: pathlib.Path,
    query_vocabulary: pathlib.Path | None,
    *,
    query_length: int,
    document_length: int,
    query_prefix: str,
    document_prefix: str,
    held_out: HeldOut,
) -> None:
    """Tokens of the training queries, with the positions of their documents, and of all documents; who is held out.

    Args:
      vocabulary: of what is read; of documents alone where queries have one of their own.
      query_length, document_length: tokens read of each.
      query_prefix, document_prefix: words put before each.
      held_out: which questions are kept back.
    """
    dataset, asked = load_asked(corpus, pseudo_queries, held_out)
    words = load_vocabulary(vocabulary)
    rewrite = text.get_transform(dataset.transform)
    questions = (
        Pair(query_prefix + rewrite(one), found, source)
        for one, source, found in zip(asked.texts, asked.sources, asked.documents, strict=True)
    )
    texts = (Pair(document_prefix + one, [index], "document") for index, one in enumerate(dataset.document_texts()))
    asked_words = words if query_vocabulary is None else load_vocabulary(query_vocabulary)
    store = write_token_store(place.folder / "queries", questions, PairFeatures(asked_words, query_length))
    write_token_store(place.folder / "documents", texts, PairFeatures(words, document_length))
    storage.write_json(place.folder / "held_out.json", list(asked.held_out))
    place.notes.update({"examples": store.counts(), "held_out": len(asked.held_out)})


def load_pairs(folder: pathlib.Path) -> tuple[TokenStore, TokenStore]:
    """Queries and documents of a finished stage of pairs."""
    return TokenStore.load(folder / "queries"), TokenStore.load(folder / "documents")


def load_held_out(folder: pathlib.Path) -> list[str]:
    """Ids of the questions that a finished stage of pairs kept back."""
    return json.loads((folder / "held_out.json").read_text(encoding="utf-8"))


def load_asked(
    corpus: pathlib.Path, pseudo_queries: pathlib.Path, held_out: HeldOut
) -> tuple[Dataset, TrainingQueries]:
    """The dataset, and the training queries in the order of the tokens of `pairs`."""
    dataset = load_dataset(corpus)
    return dataset, training_queries(dataset, load_pseudo_queries(pseudo_queries), held_out)
