"""Negatives of all devices beside those of one: `python -m benchmarks.gathered_negatives`.

MiniLM on questions of squad_dev's train split, each with its paragraph and one that BM25 ranks high, 64 queries in a
batch: the loss over all 128 paragraphs and its gradient, on 8 simulated devices that hold 8 queries each and on one
device. In a process of its own, which is told to simulate them. Without dropout, half a minute a row on 2 cores.

"without gathering" is what the same loss would be if every device knew its own paragraphs alone: so far apart that the
row could not hold by accident.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks import harness
from gr_jax.corpus import Dataset, read_beir

DATA, ENCODER = "squad_dev", "minilm"
DEVICES, BATCH, NEGATIVES, CHUNKS = 8, 64, 1, 4
QUERY_LENGTH, DOCUMENT_LENGTH = 32, 64
QUERIES, DEPTH, SEED = 512, 10, 0
CLOSE = 1e-5


def work(batch_size: int, chunks: int) -> dict[str, float]:
    """What the process with simulated devices computes: see `measure`."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    from gr_jax.interop import huggingface
    from gr_jax.models import BiEncoder, BiEncoderConfig, BiEncoderModel
    from gr_jax.stages.pretrained import pretrained_folder
    from gr_jax.training.partitioning import LOGICAL_AXIS_RULES, batch_sharding, make_mesh, on_mesh

    config, params = huggingface.load_bert(pretrained_folder(ENCODER), dropout_rate=0.0)
    module, batch = BiEncoder(BiEncoderConfig(encoder=config)), _batch(batch_size)
    params = {"query": params}

    def mean_loss(model: BiEncoderModel, params: Any, batch: Any) -> jax.Array:
        loss, metrics = model.loss_fn(params, batch)
        return loss / metrics["weight_sum"]

    def on(devices: int, chunks: int) -> tuple[float, list[np.ndarray]]:
        mesh = make_mesh(devices)
        with on_mesh(mesh, LOGICAL_AXIS_RULES):
            placed = jax.device_put(batch, batch_sharding(mesh))
            copied = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
            function = functools.partial(mean_loss, BiEncoderModel(module, chunks=chunks))
            loss, gradient = jax.device_get(jax.jit(jax.value_and_grad(function))(copied, placed))
        return float(loss), jax.tree.leaves(gradient)

    one, all_devices = on(1, 1), on(DEVICES, chunks)
    largest = max(float(np.abs(leaf).max()) for leaf in one[1])
    apart = max(float(np.abs(a - b).max()) for a, b in zip(one[1], all_devices[1], strict=True))
    parts = ({name: np.split(x, DEVICES)[i] for name, x in batch.items()} for i in range(DEVICES))
    loss = jax.jit(functools.partial(mean_loss, BiEncoderModel(module)))
    alone = float(np.mean([loss(params, part) for part in parts]))
    return {
        "devices": jax.device_count(),
        "loss": one[0],
        "loss_difference": abs(all_devices[0] - one[0]) / abs(one[0]),
        "gradient_difference": apart / largest,
        "gradient_difference_absolute": apart,
        "without_gathering": abs(alone - one[0]) / abs(one[0]),
    }


def measure(batch_size: int, chunks: int) -> Mapping[str, float]:
    """Compares devices.

    Returns:
      devices: how many were simulated; loss: mean over queries; loss_difference: share of the loss by which that of
      all devices differs; gradient_difference: the largest difference of two numbers of the gradients, as a share of
      the largest number of the gradient; the same without that division; without_gathering: share of the loss by which
      the mean of the devices' own losses differs.
    """
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
    environment = {
        **os.environ, "PYTHONPATH": _path(), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags.strip()
    }  # fmt: skip
    program = (
        f"import json; from benchmarks.gathered_negatives import work; print(json.dumps(work{batch_size, chunks}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=harness.CHECKOUT, env=environment, stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def _path() -> str:
    return os.pathsep.join(filter(None, (os.fspath(harness.CHECKOUT), os.environ.get("PYTHONPATH"))))


def _batch(size: int) -> dict[str, np.ndarray]:
    """Questions with their paragraphs and hard negatives, as training reads them."""
    from gr_jax.retrievers import BM25
    from gr_jax.stages.pretrained import pretrained_folder
    from gr_jax.text import HuggingFaceVocabulary
    from gr_jax.training.contrastive_batches import ContrastiveBatches
    from gr_jax.training.features import Pair, PairFeatures
    from gr_jax.training.negatives import ranked_negatives
    from gr_jax.training.token_store import TokenStore

    dataset, words = _dataset(), HuggingFaceVocabulary(pretrained_folder(ENCODER) / "tokenizer.json")
    corpus, answers = dataset.corpus, dict(list(dataset.split("train").items())[:QUERIES])
    asked = list(dataset.queries.select(answers).texts)
    relevant = [[corpus.index_of(doc_id) for doc_id in found] for found in answers.values()]

    def store(texts: Any, targets: Any, length: int) -> TokenStore:
        pairs = [Pair(text, target, "query") for text, target in zip(texts, targets, strict=True)]
        return TokenStore.from_rows(PairFeatures(words, length).rows(pairs))

    queries = store(asked, relevant, QUERY_LENGTH)
    documents = store(corpus.contents, ([i] for i in range(len(corpus))), DOCUMENT_LENGTH)
    ranking = BM25(corpus).retrieve(asked, DEPTH).doc_index
    batches = ContrastiveBatches(
        queries,
        documents,
        batch_size=size,
        negatives=ranked_negatives(ranking, queries.targets, NEGATIVES),
        query_lengths=QUERY_LENGTH,
        document_lengths=DOCUMENT_LENGTH,
        seed=SEED,
    )
    return next(iter(batches))


@functools.cache
def _dataset() -> Dataset:
    return read_beir(harness.data_folder(DATA))


def rows(batch_size: int = BATCH) -> list[harness.Row]:
    """The table."""
    return [
        harness.Row(
            name=f"{DEVICES} simulated devices and one, {name}",
            config={
                "data": DATA,
                "queries": QUERIES,
                "depth": DEPTH,
                "encoder": ENCODER,
                "devices": DEVICES,
                "batch_size": batch_size,
                "negatives": NEGATIVES,
                "lengths": [QUERY_LENGTH, DOCUMENT_LENGTH],
                "chunks": chunks,
            },
            measure=functools.partial(measure, batch_size, chunks),
            at_least={"devices": float(DEVICES), "without_gathering": 0.1},
            at_most={
                "loss_difference": CLOSE,
                "gradient_difference": CLOSE,
                "gradient_difference_absolute": CLOSE,
            },
            note=f"MiniLM, {batch_size} queries with a hard negative each",
            corpus=lambda: _dataset().corpus.fingerprint,
            seeds=(SEED,),
        )
        for name, chunks in (("all at once", 1), (f"gradient caching in {CHUNKS} parts", CHUNKS))
    ]


if __name__ == "__main__":
    sys.exit(harness.main("gathered_negatives", rows()))
