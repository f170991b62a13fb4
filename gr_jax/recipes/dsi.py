"""DSI (Tay et al. 2022, arXiv 2202.06991), from documents to a searchable index."""

from __future__ import annotations

import os
from collections.abc import Callable

import gin

from gr_jax.errors import InputError
from gr_jax.recipes import documents, examples, learning, results
from gr_jax.recipes.running import run_stages
from gr_jax.recipes.settings import Decoding, Identifiers, Network, PseudoQueries, Training, Vectors
from gr_jax.recipes.sources import Source
from gr_jax.recipes.stages import Stage
from gr_jax.retrievers import Searcher


def dsi_stages(
    source: Source,
    *,
    name: str = "DSI",
    vectors: Vectors,
    identifiers: Identifiers,
    pseudo_queries: PseudoQueries,
    network: Network,
    training: Training,
    decoding: Decoding,
) -> list[Stage]:
    """DSI's stages, in order; see `dsi`."""
    if not identifiers.has_levels and "level" in (training.normalize, decoding.normalize):
        raise InputError(
            f"{identifiers.scheme} docids have no levels of tokens to normalise over",
            'Set Training.normalize and Decoding.normalize to "vocabulary".',
            value=(training.normalize, decoding.normalize),
        )
    if identifiers.scheme == "titles" and identifiers.title_tokens >= training.row_targets:
        raise InputError(
            f"titles of {identifiers.title_tokens} tokens and their end do not fit Training.row_targets",
            f"Set Training.row_targets to {identifiers.title_tokens + 1} or more.",
            value=training.row_targets,
        )
    corpus = documents.corpus_stage(source)
    embedded = documents.vectors_stage(corpus, vectors)
    vocabulary = examples.vocabulary_stage(corpus, network)
    docids = documents.docids_stage(corpus, embedded, vocabulary, identifiers)
    made = documents.pseudo_queries_stage(corpus, pseudo_queries)
    rows = examples.examples_stage(corpus, embedded, docids, made, vocabulary, vectors, training)
    model = learning.model_stage(corpus, embedded, docids, vocabulary, rows, network, training, decoding)
    built = learning.index_stage(corpus, docids, vocabulary, model, decoding)
    provenance = {
        "pseudo_queries": pseudo_queries.summary(),
        "normalizer": decoding.normalize,
        "seeds": sorted({identifiers.seed, pseudo_queries.seed, training.seed}),
    }
    judged = results.results_stage(name, corpus, docids, model, built, provenance=provenance)
    naming = [vocabulary, docids, made] if vocabulary in docids.inputs else [docids, made, vocabulary]
    return [corpus, embedded, *naming, rows, model, built, judged]


@gin.configurable(module="gr_jax.recipes")
def dsi(
    source: Source | str | os.PathLike = gin.REQUIRED,
    model_dir: str | os.PathLike = gin.REQUIRED,
    *,
    name: str = "DSI",
    vectors: Vectors | None = None,
    identifiers: Identifiers | None = None,
    pseudo_queries: PseudoQueries | None = None,
    network: Network | None = None,
    training: Training | None = None,
    decoding: Decoding | None = None,
    shared_dir: str | os.PathLike | None = None,
    until: str | None = None,
    say: Callable[[str], None] = print,
) -> Searcher | None:
    """Gives documents docids, trains a network to write them, and builds and measures the index.

    Every finished stage is a folder; calling again skips what is there and unchanged.

    Args:
      source: a BEIR folder's path, or a `Source`.
      model_dir: folder of this run; the index is `model_dir/index`.
      name: of the system, in tables.
      vectors, identifiers, pseudo_queries, network, training, decoding: settings; None takes the defaults (under gin:
        what gin binds).
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
        lambda found: dsi_stages(
            found,
            name=name,
            vectors=vectors or Vectors(),
            identifiers=identifiers or Identifiers(),
            pseudo_queries=pseudo_queries or PseudoQueries(),
            network=network or Network(),
            training=training or Training(),
            decoding=decoding or Decoding(),
        ),
        model_dir,
        shared_dir=shared_dir,
        until=until,
        say=say,
    )
