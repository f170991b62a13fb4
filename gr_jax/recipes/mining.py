"""The stages before contrastive training: queries and documents as tokens, and wrong documents for every query."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int, Int32

from gr_jax import clustering, dense, progress, retrievers, storage, text
from gr_jax.corpus import Dataset
from gr_jax.docids import memberships
from gr_jax.docids.pseudo_queries import PseudoQueries as MadeQueries
from gr_jax.errors import InputError
from gr_jax.recipes import bindings, clusters, documents, encoders, examples
from gr_jax.recipes.dense_settings import NEGATIVES, ContrastiveTraining, Encoders, Lexical, Mining
from gr_jax.recipes.stages import Stage, Workplace
from gr_jax.retrievers.dense import DenseRetriever
from gr_jax.retrievers.dense_encoder import DenseEncoder
from gr_jax.training import negatives as tables
from gr_jax.training.features import Pair, PairFeatures
from gr_jax.training.negative_files import negatives_from_file
from gr_jax.training.negatives import Negatives
from gr_jax.training.shared_answers import share_answers
from gr_jax.training.token_store import Ragged, TokenStore, write_token_store

_AT_ONCE = 4096
DOCUMENTS_A_CLUSTER = 20


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


def training_queries(dataset: Dataset, made: MadeQueries, held_out: float, seed: int) -> TrainingQueries:
    """Queries of the train split and pseudo-queries, less what is held out.

    Args:
      dataset: corpus, queries and judgements.
      made: pseudo-queries of the same corpus.
      held_out: share of the documents with training questions all of whose questions are kept back.
      seed: of the choice.
    """
    corpus = dataset.corpus
    train: Mapping[str, Mapping[str, int]] = dataset.qrels.get("train", {})
    answers = {
        query_id: [corpus.index_of(doc_id) for doc_id, grade in relevant.items() if grade > 0]
        for query_id, relevant in train.items()
    }
    asked = np.unique([document for found in answers.values() for document in found])
    kept_back = set(np.random.default_rng(seed).choice(asked, int(held_out * len(asked)), replace=False).tolist())
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


def check_refreshing(mined: Mining, training: ContrastiveTraining) -> None:
    """Raises InputError for negatives that would be mined again too late to be used."""
    if mined.refresh_every and 0 < training.steps <= 2 * mined.refresh_every:
        raise InputError(
            f"{training.steps} steps end before negatives that were mined again are used, which is from step "
            f"{2 * mined.refresh_every} on",
            "Set Mining.refresh_every below half of ContrastiveTraining.steps.",
            value=mined.refresh_every,
        )


def examples_stage(
    corpus: Stage,
    made_queries: Stage,
    vocabulary: Stage,
    settings: Encoders,
    training: ContrastiveTraining,
    query_vocabulary: Stage | None = None,
) -> Stage:
    """Tokens of the training queries, with the positions of their documents, and of all documents; who is held out.

    Args:
      corpus, made_queries: their stages.
      vocabulary: of what is read; of documents alone where queries have one of their own.
      settings, training: settings.
      query_vocabulary: of queries.
    """
    asking = vocabulary if query_vocabulary is None else query_vocabulary

    def make(place: Workplace) -> None:
        dataset, asked = load_asked(place, training)
        words = examples.load_vocabulary(place.inputs["vocabulary"])
        rewrite = text.get_transform(dataset.transform)
        questions = (
            Pair(settings.query_prefix + rewrite(one), found, source)
            for one, source, found in zip(asked.texts, asked.sources, asked.documents, strict=True)
        )
        texts = (
            Pair(settings.document_prefix + one, [index], "document")
            for index, one in enumerate(dataset.document_texts())
        )
        asked_words = examples.load_vocabulary(place.inputs[asking.name])
        store = write_token_store(place.folder / "queries", questions, PairFeatures(asked_words, settings.query_length))
        write_token_store(place.folder / "documents", texts, PairFeatures(words, settings.document_length))
        storage.write_json(place.folder / "held_out.json", list(asked.held_out))
        place.meta.update({"examples": store.counts(), "held_out": len(asked.held_out)})

    config = {
        "lengths": [settings.query_length, settings.document_length],
        "prefixes": [settings.query_prefix, settings.document_prefix],
        "held_out": training.held_out,
        "seed": training.seed if training.held_out else None,
    }
    inputs = list({stage.key: stage for stage in (corpus, made_queries, vocabulary, asking)}.values())
    return Stage("pairs", config, tuple(inputs), make, shared=True)


def load_pairs(folder: pathlib.Path) -> tuple[TokenStore, TokenStore]:
    """Queries and documents of a finished stage of pairs."""
    return TokenStore.load(folder / "queries"), TokenStore.load(folder / "documents")


def bm25_stage(corpus: Stage, settings: Lexical) -> Stage:
    """BM25 of the documents, saved: negatives are mined with it, and results stand beside it."""

    def make(place: Workplace) -> None:
        dataset = documents.load_dataset(place.inputs["corpus"])
        bm25 = retrievers.BM25(dataset.corpus, transform=dataset.transform, progress=True, **settings.as_config())
        bm25.save(place.folder / "bm25")
        place.meta.update({"documents": bm25.num_documents})

    return Stage("bm25", settings.as_config(), (corpus,), make, shared=True)


def load_bm25(folder: pathlib.Path, dataset: Dataset) -> retrievers.BM25:
    """The BM25 of a finished stage."""
    return retrievers.BM25.load(folder / "bm25", dataset.corpus)


def negatives_stage(
    corpus: Stage,
    made_queries: Stage,
    vocabulary: Stage,
    pairs: Stage,
    bm25: Stage,
    vectors: Stage | None,
    settings: Encoders,
    mining: Mining,
    training: ContrastiveTraining,
    *,
    encoder: Stage | None = None,
    shared: bool = False,
) -> Stage:
    """A folder of `Negatives` for every kind that is known before training; rows are the rows of `pairs`' queries.

    Args:
      corpus, made_queries, vocabulary, pairs, bm25: their stages.
      vectors: a stage of vectors, which are clustered for the kind "cluster", or of clusters.
      settings, mining, training: settings.
      encoder: a stage of a trained encoder, which mines the kind "model"; None: `settings`' before training.
      shared: queries that are read alike have one another's answers.
    """
    own = "model" in mining.mined_before and encoder is None  # mined by what training starts from
    inputs = [corpus, made_queries, pairs]
    inputs += [bm25] * ("bm25" in mining.mined_before)
    inputs += [vectors] if vectors is not None else []
    inputs += [vocabulary] * own
    if encoder is not None and "model" in mining.mined_before:
        inputs.append(encoder)

    def make(place: Workplace) -> None:
        dataset, asked = load_asked(place, training)
        queries, _ = load_pairs(place.inputs["pairs"])
        queries = share_answers(queries) if shared else queries
        for kind in mining.mined_before:
            if kind == "file":
                table = negatives_from_file(
                    mining.file,
                    asked.ids,
                    queries.targets,
                    mining.kept,
                    find_document=dataset.corpus.find,
                    known_queries=frozenset(dataset.queries.ids),
                )
            elif kind == "bm25":
                bm25 = load_bm25(place.inputs["bm25"], dataset)
                table = mine(bm25, asked.texts, queries.targets, mining, "BM25's")
            elif kind == "model":
                if encoder is not None:
                    network = DenseEncoder.load(place.inputs[encoder.name] / "encoder")
                else:
                    words = examples.load_vocabulary(place.inputs["vocabulary"])
                    config, pretrained = encoders.make_encoders(settings, words.size)
                    params = encoders.initial_parameters(config, pretrained, training.seed)
                    network = encoders.text_encoder(settings, config, params, words, dataset.transform)
                table = mine_with(network, dataset, asked.texts, queries.targets, mining)
            elif kind == "cluster":
                if "clusters" in place.inputs:
                    cluster_of = memberships(clusters.load_clusters(place.inputs["clusters"]))
                else:
                    cluster_of = _clusters(documents.load_vectors(place.inputs["vectors"]), mining)
                table = tables.cluster_negatives(cluster_of, queries.targets, mining.kept, seed=mining.seed)
            else:
                table = tables.random_negatives(queries.targets, len(dataset.corpus), mining.kept, seed=mining.seed)
            table.save(place.folder / kind)
            place.meta[kind] = float(np.mean(np.sum(table.documents >= 0, axis=1)))

    config: dict[str, Any] = {name: getattr(mining, name) for name in ("kept", "skip", "seed", "clusters")}
    config["kinds"] = list(mining.mined_before)
    if shared:
        config["answers"] = "shared"
    if mining.file:
        config["file"] = mining.as_config()["file"]
    if "cluster" in mining.mined_before and (vectors is None or vectors.name != "clusters"):
        config |= bindings.of(clustering.kmeans)
    if own:
        config |= {"encoders": settings.as_config() | documents.encoder_config(settings.encoder), "init": training.seed}
    return Stage("negatives", config, tuple(inputs), make, shared=True)


def load_negatives(folder: pathlib.Path, mining: Mining) -> dict[str, Negatives]:
    """kind → table of a finished stage of negatives, in the order in which they fill up one another."""
    return {kind: Negatives.load(folder / kind) for kind in mining.mined_before}


def mixed(found: Mapping[str, Negatives], mining: Mining) -> Negatives | None:
    """One table of several kinds, in the order in which they fill up one another; None where there is no kind."""
    found = {kind: found[kind] for kind in NEGATIVES if kind in found}
    if list(found) == ["file"]:
        return found["file"]  # as it is: with a teacher's scores, which a mixture has not
    shares = {kind: mining.shares[kind] for kind in found}
    if not any(shares.values()):
        shares = dict.fromkeys(shares, 1.0)
    return tables.mix(found, shares, mining.kept) if found else None


def first_table(known: Mapping[str, Negatives], mining: Mining, queries: TokenStore, num_documents: int) -> Negatives:
    """What a training begins with: the kinds that are known mixed, random ones where there are none.

    Args:
      known: what `load_negatives` gives.
      mining: settings.
      queries: of the training.
      num_documents: of the corpus.
    """
    table = mixed(known, mining)
    if table is not None:
        return table
    return tables.random_negatives(queries.targets, num_documents, mining.kept, seed=mining.seed)


def mine(
    retriever: retrievers.Retriever,
    texts: Sequence[str],
    relevant: Ragged,
    mining: Mining,
    whose: str,
    rows: Int[np.ndarray, " some"] | None = None,
) -> Negatives:
    """Of each query the best documents that do not answer it, in the retriever's order; none of queries that are not
    among `rows`, where these are given."""
    depth = mining.skip + mining.kept + int(relevant.lengths.max(initial=0))
    ranking = np.full((len(texts), depth), -1, np.int32)
    rows = np.arange(len(texts)) if rows is None else rows
    with progress.bar(f"Mining {whose} negatives", len(rows)) as bar:
        for start in range(0, len(rows), _AT_ONCE):
            chunk = rows[start : start + _AT_ONCE]
            ranking[chunk] = retriever.retrieve([texts[row] for row in chunk.tolist()], depth).doc_index
            bar.advance(len(chunk))
    return tables.ranked_negatives(ranking, relevant, mining.kept, skip=mining.skip)


def mine_with(
    encoder: Any,
    dataset: Dataset,
    texts: Sequence[str],
    relevant: Ragged,
    mining: Mining,
    rows: Int[np.ndarray, " some"] | None = None,
) -> Negatives:
    """The same by an encoder: ANCE's negatives, where it is the one that is being trained."""
    vectors = encoder.encode(dataset.corpus.contents, "document")
    retriever = DenseRetriever(encoder, dense.make_searcher("exact", vectors))
    return mine(retriever, texts, relevant, mining, "the model's", rows)


def load_asked(place: Workplace, training: ContrastiveTraining) -> tuple[Dataset, TrainingQueries]:
    """The dataset of a stage's inputs, and the training queries in the order of the tokens of `pairs`."""
    dataset = documents.load_dataset(place.inputs["corpus"])
    made = MadeQueries.load(place.inputs["pseudo_queries"] / "pseudo_queries")
    return dataset, training_queries(dataset, made, training.held_out, training.seed)


def _clusters(vectors: np.ndarray, mining: Mining) -> Int32[np.ndarray, " documents"]:
    count = mining.clusters or max(1, len(vectors) // DOCUMENTS_A_CLUSTER)
    return clustering.kmeans(np.asarray(vectors), count, seed=mining.seed).assignments
