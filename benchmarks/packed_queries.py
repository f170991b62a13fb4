"""Updates that read queries alone, with queries packed and padded: `python -m benchmarks.packed_queries`.

MiniLM without dropout on training questions, 32 in a batch, where documents are vectors that stay: the loss and its
gradient. The peer is the same update with every question padded to `Encoders.query_length`, or, in steps, to the
longest of its batch. Both sides take turns on the same batches, and all is compiled before. About two minutes a row on
two cores.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from benchmarks import harness, turns
from gr_jax.corpus import read_beir
from gr_jax.interop import huggingface
from gr_jax.models import BiEncoderConfig
from gr_jax.stages import contrastive
from gr_jax.stages.contrastive import ContrastiveTraining
from gr_jax.stages.encoders import Encoders
from gr_jax.stages.pretrained import pretrained_folder
from gr_jax.text import HuggingFaceVocabulary
from gr_jax.training.features import Pair, PairFeatures
from gr_jax.training.negatives import random_negatives
from gr_jax.training.token_store import TokenStore
from gr_jax.training.vector_batches import VectorBatches

DATASETS, ENCODER = ("nq_boolq_dev", "squad_dev"), "minilm"
QUERIES, BATCHES, BATCH, SEED = 2048, 12, 32, 0
LENGTH = Encoders().query_length
# What each question is padded to, and how much faster packing has to be.
PEERS = {"padded to the most": ((LENGTH,), 2.0), "padded to the longest": ((16, 24, 32, 40, LENGTH), 1.2)}
CLOSE = 1e-4


def measure(data: str, lengths: tuple[int, ...]) -> Mapping[str, float]:
    """Compares an update with packed questions and one with padded ones.

    Args:
      data: of the questions.
      lengths: the peer pads to the first of these that holds its batch.

    Returns:
      times faster, updates a second, those of the peer; the share of positions that hold a token, and the same of the
      peer; loss difference, the largest, as a share of the loss.
    """
    queries, documents = _stores(data)
    training = ContrastiveTraining(batch_size=BATCH, negatives=1, rates={"query": 1.0}, seed=SEED, mesh=(1, 1))
    table = random_negatives(queries.targets, len(documents), 1)
    sides = (
        contrastive.make_query_batches(queries, documents, table, training, LENGTH),
        contrastive.make_batches(queries, documents, table, training, lengths, 1, document_tokens=False),
    )
    config, params = huggingface.load_bert(pretrained_folder(ENCODER), dropout_rate=0.0)
    model = contrastive.bi_encoder_model(BiEncoderConfig(encoder=config), training)
    vectors = np.random.default_rng(SEED).standard_normal((len(documents), config.emb_dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    made = [_first(VectorBatches(batches, vectors)) for batches in sides]
    update = jax.jit(jax.value_and_grad(lambda params, batch: model.loss_fn(params, batch)[0]))

    def timed(batch: Any) -> tuple[float, float]:
        started = time.perf_counter()
        loss, _ = jax.block_until_ready(update({"query": params}, batch))
        return time.perf_counter() - started, float(loss)

    for batch in (*made[0], *made[1]):  # every width is compiled before
        timed(batch)
    taken, apart = [], []
    for ours, theirs in zip(*made, strict=True):
        (seconds, loss), (peer_seconds, peer_loss) = timed(ours), timed(theirs)
        taken.append((seconds, peer_seconds))
        apart.append(abs(loss - peer_loss) / abs(peer_loss))
    tokens = sum(np.count_nonzero(batch["query_tokens"]) for batch in made[1])
    return {
        **turns.speeds(taken, 1),
        "filled": tokens / sum(batch["query_segment_ids"].size for batch in made[0]),
        "peer's filled": tokens / sum(batch["query_tokens"].size for batch in made[1]),
        "loss difference": float(np.max(apart)),
    }


def _first(batches: VectorBatches) -> list[dict[str, np.ndarray]]:
    found = iter(batches)
    return [next(found) for _ in range(BATCHES)]


@functools.cache
def _stores(data: str) -> tuple[TokenStore, TokenStore]:
    """Questions with the documents that answer them, and documents, of which nothing is read."""
    dataset, words = (
        read_beir(harness.data_folder(data)),
        HuggingFaceVocabulary(pretrained_folder(ENCODER) / "tokenizer.json"),
    )
    answers = dict(list(dataset.split("train").items())[:QUERIES])
    asked = dataset.queries.select(answers).texts
    relevant = [[dataset.corpus.index_of(doc_id) for doc_id in found] for found in answers.values()]
    pairs = [Pair(text, target, "query") for text, target in zip(asked, relevant, strict=True)]
    unread = ({"inputs": [1 + place], "targets": [place]} for place in range(len(dataset.corpus)))
    return TokenStore.from_rows(PairFeatures(words, LENGTH).rows(pairs)), TokenStore.from_rows(unread)


def rows() -> list[harness.Row]:
    """The table."""
    return [
        harness.Row(
            name=f"{data}, {peer}",
            config={"queries": QUERIES, "batches": BATCHES, "batch_size": BATCH, "lengths": list(lengths)},
            measure=functools.partial(measure, data, lengths),
            at_least={"times faster": faster},
            at_most={"loss difference": CLOSE},
            note="MiniLM, the loss and its gradient",
            corpus=functools.partial(_fingerprint, data),
            seeds=(SEED,),
            speed=True,
        )
        for data in DATASETS
        for peer, (lengths, faster) in PEERS.items()
    ]


def _fingerprint(data: str) -> str:
    return read_beir(harness.data_folder(data)).corpus.fingerprint


if __name__ == "__main__":
    sys.exit(harness.main("packed_queries", rows()))
