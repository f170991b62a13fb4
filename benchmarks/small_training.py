"""Small networks that are trained alike on different meshes, in different precisions, and remembering more or less.

    python -m benchmarks.small_training fsdp GDR    a set of rules on 8 simulated devices beside one, as JSON

Processes of their own, since a process has the devices that it began with.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import os
import subprocess
import sys
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import harness
from gr_jax.corpus import read_beir
from gr_jax.errors import InputError
from gr_jax.models import BertConfig, EncoderDecoder, EncoderDecoderModel, T5Config, lsa
from gr_jax.models.half_precision import with_precision
from gr_jax.models.remat import recomputing
from gr_jax.systems.cgr.writer import matrix_held
from gr_jax.systems.gdr.model import GDRModel
from gr_jax.training.optimizers import Schedule, adamw
from gr_jax.training.partitioning import make_mesh
from gr_jax.training.train_state import Trainer

# No vocabulary is divided by two devices, nor any width by eight.
T5 = T5Config(
    vocab_size=509,
    emb_dim=60,
    num_heads=4,
    head_dim=16,
    num_encoder_layers=3,
    num_decoder_layers=2,
    mlp_dim=128,
    dropout_rate=0.0,
)
BERT = BertConfig(vocab_size=511, emb_dim=60, num_heads=4, num_encoder_layers=2, mlp_dim=128, dropout_rate=0.0)
WITH_BERT = EncoderDecoder(BERT, T5, share_embeddings=False, query_residual=True)
LEVELS = ((3, 250), (253, 250))
WRITTEN = 503  # words of CGR's vocabulary
# Of T5 1.1: an activation that lies at the kink of a ReLU has one slope or the other, as rounding would have it.
SMOOTH = dataclasses.replace(T5, mlp_activations=("gelu", "linear"))
SMOOTH_WITH_BERT = EncoderDecoder(BERT, SMOOTH, share_embeddings=False, query_residual=True)
MODELS: dict[str, EncoderDecoderModel] = {
    "T5": EncoderDecoderModel(EncoderDecoder(T5)),
    "BERT": EncoderDecoderModel(WITH_BERT),
    "GDR": GDRModel(WITH_BERT, levels=LEVELS, normalize="level", temperature=0.5),
    "T5 1.1": EncoderDecoderModel(EncoderDecoder(SMOOTH)),
    # Its vocabulary is held, and split as what learns is.
    "CGR": EncoderDecoderModel(
        EncoderDecoder(SMOOTH, dataclasses.replace(SMOOTH, vocab_size=WRITTEN), share_embeddings=False)
    ),
    "GDR with T5 1.1": GDRModel(SMOOTH_WITH_BERT, levels=LEVELS, normalize="level", temperature=0.5),
}
# What is said of those that differ from the sizes of T5 and BERT.
DIFFERENT: Mapping[str, Mapping[str, Any]] = {
    "T5 1.1": {"T5": dataclasses.asdict(SMOOTH)},
    "CGR": {"T5": dataclasses.asdict(SMOOTH), "written": WRITTEN},
    "GDR with T5 1.1": {"T5": dataclasses.asdict(SMOOTH)},
}
MESHES = {"data": (8, 1), "tensor": (2, 4), "fsdp": (4, 2)}
ROWS, LENGTH, PAIRS = 32, 24, 400
_TABLES = ("token_embedder", "logits_dense")


class Pairs(NamedTuple):
    """Inputs [n, LENGTH], the code of each [n, 2], the document of each [n], and documents' vectors [documents, d]."""

    inputs: np.ndarray
    codes: np.ndarray
    documents: np.ndarray
    vectors: np.ndarray


def random_pairs(rng: np.random.Generator) -> Pairs:
    """A few hundred inputs, each with a document of its own, which are learnt by heart."""
    inputs = rng.integers(1, 500, (PAIRS, LENGTH))
    codes = np.stack([rng.integers(start, start + size, PAIRS) for start, size in LEVELS], axis=1)
    return Pairs(inputs, codes, np.arange(PAIRS), rng.normal(size=(PAIRS, BERT.emb_dim)))


def fingerprint() -> str:
    """Of the documents of `questions`."""
    return read_beir(harness.data_folder("squad_dev")).corpus.fingerprint


def questions() -> Pairs:
    """SQuAD's questions of the train split, their words hashed; the code is the number of the page and of the paragraph
    in it, vectors are those of LSA."""
    dataset = read_beir(harness.data_folder("squad_dev"))
    pages: dict[str, int] = {}
    paragraphs: collections.Counter[int] = collections.Counter()
    code_of = {}
    for document in dataset.corpus:
        page = pages.setdefault(document.title, len(pages))
        code_of[document.doc_id] = (LEVELS[0][0] + page, LEVELS[1][0] + paragraphs[page])
        paragraphs[page] += 1
    asked = dataset.split_queries("train")
    inputs = np.zeros((len(asked.ids), LENGTH), np.int64)
    for row, text in enumerate(asked.texts):
        words = [zlib.crc32(word.encode()) % 499 + 1 for word in text.lower().split()[:LENGTH]]
        inputs[row, : len(words)] = words
    judged = dataset.split("train")
    answers = [next(iter(judged[query_id])) for query_id in asked.ids]
    return Pairs(
        inputs,
        np.array([code_of[answer] for answer in answers]),
        np.array([dataset.corpus.index_of(answer) for answer in answers]),
        lsa.latent_semantic_vectors(dataset.document_texts(), dimension=BERT.emb_dim),
    )


def batches(name: str, steps: int, pairs: Pairs | None = None) -> list[dict[str, np.ndarray]]:
    """Rows of pairs, by default of random ones."""
    rng = np.random.default_rng(0)
    pairs = random_pairs(rng) if pairs is None else pairs
    inputs, codes, documents = (array.astype(np.int32) for array in pairs[:3])
    vectors = pairs.vectors.astype(np.float32)
    found = []
    for _ in range(steps):
        rows = rng.integers(0, len(inputs), ROWS)
        batch = {
            "encoder_input_tokens": inputs[rows],
            "decoder_input_tokens": np.pad(codes[rows], ((0, 0), (1, 0)))[:, :-1],
            "decoder_target_tokens": codes[rows],
            "decoder_loss_weights": np.ones((ROWS, 2), np.float32),
        }
        if name.startswith("GDR"):
            others = documents[np.stack([rows, rng.integers(0, len(inputs), ROWS)], axis=1).reshape(-1)]
            batch |= {"document_index": others, "document_vectors": vectors[others]}
        found.append(batch)
    return found


def train(
    name: str, mesh: tuple[int, int], data: list[dict[str, np.ndarray]], **settings: Any
) -> tuple[np.ndarray, Trainer, tuple[Any, Any]]:
    """Losses of all steps, the trainer, and where it ends: its state and what is held."""
    # Adam divides by a gradient's size: where that is nothing but rounding, so is the sign of a step.
    held = matrix_held({}) if name == "CGR" else {}
    optimizer = adamw(Schedule(1e-3, warmup_steps=10), eps=1e-5, weight_decay=0.01, multipliers=held)
    shapes = {key: value.shape for key, value in data[0].items()}
    trainer = Trainer.create(MODELS[name], optimizer, make_mesh(*mesh), shapes, **settings)
    learn, frozen = trainer.split(trainer.initial_params(0))
    state, update, losses = trainer.initial_state(learn), trainer.update(seed=0), []
    for batch in data:
        state, metrics = update(state, frozen, trainer.place_batch(batch))
        losses.append(float(metrics["loss"][0] / metrics["loss"][1]))
    return np.array(losses), trainer, (state, frozen)


def beside_one_device(name: str, sharding: str, steps: int = 20) -> dict[str, float]:
    """A set of rules on its mesh of 8 devices, beside one device."""
    data = batches(name, steps)
    expected, one, (alone, _) = train(name, (1, 1), data)
    losses, trainer, (state, frozen) = train(name, MESHES[sharding], data, sharding=sharding)
    whole, other = jax.device_get((trainer.cut(state.params), one.cut(alone.params)))
    return {
        "loss difference": float(np.abs(losses - expected).max()),
        "parameter difference": max(float(np.abs(whole[path] - x).max()) for path, x in other.items()),
        "largest share": _largest_share(trainer, (state.params, state.opt_state, frozen)),
    }


def _largest_share(trainer: Trainer, arrays: Any) -> float:
    """Of a table and its moments: what a device has at the most, in shares of the padded table."""
    mesh, largest = trainer.mesh.shape, 0.0
    for key, leaf in jax.tree_util.tree_flatten_with_path(arrays)[0]:
        path = next((k.key for k in reversed(key) if getattr(k, "key", None) in trainer.shapes), "")
        if not any(table in path for table in _TABLES):
            continue
        parts = math.prod(mesh[axis] for axis in trainer.shardings[path].spec if axis)
        if parts == 1 and mesh["model"] > 1:
            raise InputError("a table is not split", "Name its axes.", value=path)
        share = math.prod(trainer.padded.get(path, trainer.shapes[path].shape)) / parts
        largest = max(largest, *(shard.data.size / share for shard in leaf.addressable_shards))
    return largest


def on_eight_devices(name: str, sharding: str) -> dict[str, float]:
    """`beside_one_device` in a process that has them."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip(),
    }
    command = [sys.executable, "-m", "benchmarks.small_training", sharding, name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"the process of 8 devices failed: {done.stderr[-2000:]}", "See its message.")
    return json.loads(done.stdout.splitlines()[-1])


def beside_float32(name: str, *, steps: int = 200, **settings: Any) -> dict[str, float]:
    """How far losses of questions are from those of float32 that remembers all, relative to them, in means of twenty
    steps. Pairs that are learnt by heart would not do: where losses go to nothing, any rounding takes them apart."""
    data = batches(name, steps, questions())
    means = [train(name, (1, 1), data, **one)[0].reshape(-1, 20).mean(axis=1) for one in ({}, settings)]
    return {
        "relative difference": float(np.abs(means[1] / means[0] - 1).max()),
        "first loss": float(means[0][0]),
        "last loss": float(means[1][-1]),
    }


def remembered(name: str, policy: str, precision: str = "float32") -> dict[str, float]:
    """Bytes that the loss leaves to its gradients, as a share of those without a policy; parameters are counted."""
    model = with_precision(MODELS[name], precision)
    batch = {key: jnp.asarray(value) for key, value in batches(name, 1)[0].items()}
    shapes = {key: value.shape for key, value in batch.items()}
    params = jax.eval_shape(lambda: model.get_initial_variables(jax.random.key(0), shapes)["params"])

    def kept(model: Any) -> int:
        backward = jax.eval_shape(lambda p: jax.vjp(lambda p: model.loss_fn(p, batch, None)[0], p)[1], params)
        leaves = [leaf for leaf in jax.tree.leaves(backward) if hasattr(leaf, "dtype")]
        return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)

    less, all_ = kept(recomputing(model, policy)), kept(model)
    return {"share of bytes": less / all_, "MiB": less / 2**20}


if __name__ == "__main__":
    print(json.dumps(beside_one_device(sys.argv[2], sys.argv[1])))
