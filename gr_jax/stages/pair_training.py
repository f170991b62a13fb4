"""What networks share that are trained on pairs of a query and a document and are no bi-encoders: late interaction and
cross-encoders."""

from __future__ import annotations

import pathlib

from gr_jax.errors import InputError
from gr_jax.stages import contrastive
from gr_jax.stages.contrastive import ContrastiveTraining
from gr_jax.stages.encoders import Encoders
from gr_jax.stages.negatives import Mining, first_table, load_negatives
from gr_jax.stages.pairs import load_pairs
from gr_jax.training.contrastive_batches import ContrastiveBatches
from gr_jax.training.token_store import TokenStore


def check_settings(
    system: str, encoders: Encoders, mining: Mining, training: ContrastiveTraining | None, *, frozen: bool = False
) -> None:
    """What these networks would silently do without is refused.

    Args:
      system: as the message names it.
      encoders, mining, training: settings.
      frozen: documents are read once, so that a query can have all of them.

    Raises:
      InputError: negatives that only bi-encoders learn from, or prefixes, which only bi-encoders read.
    """
    if not frozen:
        contrastive.check_drawn(training)
    if mining.refresh_every or "cluster" in mining.shares:
        raise InputError(
            f'{system} learns from negatives of the kinds "file", "model", "bm25" and "random"',
            "Change Mining.shares, and set Mining.refresh_every = None.",
            value=dict(mining.shares),
        )
    if encoders.query_prefix or encoders.document_prefix:
        raise InputError(
            f"{system} reads no prefixes",
            'Set Encoders.query_prefix = "" and Encoders.document_prefix = "".',
            value=encoders.query_prefix or encoders.document_prefix,
        )


def make_batches(
    pairs: pathlib.Path,
    found_negatives: pathlib.Path,
    mining: Mining,
    training: ContrastiveTraining,
    encoders: Encoders,
    documents: TokenStore | None = None,
) -> ContrastiveBatches:
    """What is trained on, of finished stages of pairs and of negatives.

    Args:
      mining, training: settings.
      encoders: as they are while they are trained, `ContrastiveTraining.of`.
      documents: the documents' tokens; None takes those of `pairs`.
    """
    queries, texts = load_pairs(pairs)
    texts = texts if documents is None else documents
    table = first_table(load_negatives(found_negatives, mining), mining, queries, len(texts))
    return contrastive.make_batches(queries, texts, table, training, encoders.query_length, encoders.document_length)
