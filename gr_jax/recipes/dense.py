"""Dense retrieval from documents to a searchable index: DPR (Karpukhin et al. 2020) and ANCE (Xiong et al. 2021)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

import gin

from gr_jax.recipes import contrastive, dense_index, documents, examples, mining, pair_training, query_side
from gr_jax.recipes.dense_settings import ContrastiveTraining, Encoders, Lexical, Mining, Search
from gr_jax.recipes.running import run_stages
from gr_jax.recipes.settings import PseudoQueries, Vectors
from gr_jax.recipes.sources import Source
from gr_jax.recipes.stages import Stage
from gr_jax.retrievers import Searcher


def dpr_stages(
    source: Source,
    *,
    name: str = "DPR",
    encoders: Encoders,
    pseudo_queries: PseudoQueries,
    mined: Mining,
    training: ContrastiveTraining,
    search: Search,
    lexical: Lexical,
    vectors: Vectors,
    query_training: ContrastiveTraining,
) -> list[Stage]:
    """The stages of `dpr`, in order."""
    mining.check_refreshing(mined, training)
    corpus = documents.corpus_stage(source)
    vocabulary = examples.vocabulary_stage(corpus, encoders)
    bm25 = mining.bm25_stage(corpus, lexical)
    learning: list[Stage] = []  # what only training reads
    if training.steps or query_training.steps:
        made = documents.pseudo_queries_stage(corpus, pseudo_queries)
        taught = training.taught(encoders)
        pairs = mining.examples_stage(corpus, made, vocabulary, taught, training)
        embedded = documents.vectors_stage(corpus, vectors) if "cluster" in mined.shares else None
        wrong = mining.negatives_stage(corpus, made, vocabulary, pairs, bm25, embedded, taught, mined, training)
        learning = [made, pairs, *([embedded] if embedded is not None else []), wrong]
    model = contrastive.model_stage(corpus, vocabulary, learning if training.steps else [], encoders, mined, training)
    encoded = dense_index.embeddings_stage(corpus, model, search)
    last, after = model, [encoded]
    if query_training.steps:
        # Trained against whole documents, so that it is the same training whatever the index has vectors of.
        whole = dense_index.embeddings_stage(corpus, model, dataclasses.replace(search, most_sentences=0))
        last = query_side.query_stage(corpus, model, whole, learning, encoders, mined, training, query_training)
        encoded = dataclasses.replace(encoded, name="passage_embeddings") if search.most_sentences else whole
        after = [whole, last, *([encoded] if encoded is not whole else [])]
    built = dense_index.index_stage(corpus, last, encoded, search)
    hybrid = dense_index.hybrid_stage(corpus, bm25, built) if search.hybrid else None
    provenance = pair_training.provenance(pseudo_queries, mined, training if training.steps else query_training)
    trainings = {name: model} if last is model else {name: model, f"{name}, queries alone": last}
    judged = dense_index.results_stage(name, corpus, bm25, built, trainings, hybrid, provenance=provenance)
    own = [model, *after, built, *([hybrid] if hybrid else []), judged]
    return [corpus, vocabulary, bm25, *learning, *own]


@gin.configurable(module="gr_jax.recipes")
def dpr(
    source: Source | str | os.PathLike = gin.REQUIRED,
    model_dir: str | os.PathLike = gin.REQUIRED,
    *,
    name: str = "DPR",
    encoders: Encoders | None = None,
    pseudo_queries: PseudoQueries | None = None,
    mined: Mining | None = None,
    training: ContrastiveTraining | None = None,
    search: Search | None = None,
    lexical: Lexical | None = None,
    vectors: Vectors | None = None,
    query_training: ContrastiveTraining | None = None,
    shared_dir: str | os.PathLike | None = None,
    until: str | None = None,
    say: Callable[[str], None] = print,
) -> Searcher | None:
    """Trains encoders of queries and documents by contrast, encodes the documents, builds and measures the index.

    With `Mining.refresh_every` this is ANCE: negatives are mined again by the model while it trains.

    Args:
      source: a BEIR folder's path, or a `Source`.
      model_dir: folder of this run; the index is `model_dir/index`.
      name: of the system, in tables.
      encoders, pseudo_queries, mined, training, search, lexical, vectors: settings; None takes the defaults (under gin:
        what gin binds). `vectors` counts for negatives of the kind "cluster" only.
      query_training: a second training, of the side of queries alone, against the vectors that the first leaves; of 0
        steps by default. In the gin files its settings are bound in the scope `query_side`.
      shared_dir: where stages that runs share are kept; by default `shared` beside `model_dir`.
      until: the last stage to make; None makes all.
      say: receives a line per stage.

    Returns:
      A searcher over the index; None where `until` ends before it.

    Raises:
      InputError: bad documents or settings, named with what would be right.
    """
    return run_stages(
        source,
        lambda found: dpr_stages(
            found,
            name=name,
            encoders=encoders or Encoders(),
            pseudo_queries=pseudo_queries or PseudoQueries(),
            mined=mined or Mining(),
            training=training or ContrastiveTraining(),
            search=search or Search(),
            lexical=lexical or Lexical(),
            vectors=vectors or Vectors(),
            query_training=query_training or ContrastiveTraining(steps=0),
        ),
        model_dir,
        shared_dir=shared_dir,
        until=until,
        say=say,
    )
