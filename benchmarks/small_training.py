"""Small networks that are trained alike on different meshes, in different precisions, and remembering more or less.

    python -m benchmarks.small_training fsdp GDR    a set of rules on 8 simulated devices beside one, as JSON

Processes of their own, since a process has the devices that it began with.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gr_jax.errors import InputError
from gr_jax.models import BertConfig, EncoderDecoder, EncoderDecoderModel, T5Config
from gr_jax.models.half_precision import with_precision
from gr_jax.models.remat import recomputing
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
MODELS: dict[str, EncoderDecoderModel] = {
    "T5": EncoderDecoderModel(EncoderDecoder(T5)),
    "BERT": EncoderDecoderModel(WITH_BERT),
    "GDR": GDRModel(WITH_BERT, levels=LEVELS, normalize="level", temperature=0.5),
}
MESHES = {"data": (8, 1), "tensor": (2, 4), "fsdp": (4, 2)}
ROWS, LENGTH, PAIRS = 32, 24, 400
_TABLES = ("token_embedder", "logits_dense")


def batches(name: str, steps: int) -> list[dict[str, np.ndarray]]:
    """Rows of a few hundred pairs, which are learnt by heart: random inputs, and a code of two tokens of each."""
    rng = np.random.default_rng(0)
    inputs = rng.integers(1, 500, (PAIRS, LENGTH)).astype(np.int32)
    codes = np.stack([rng.integers(start, start + size, PAIRS) for start, size in LEVELS], axis=1).astype(np.int32)
    vectors = rng.normal(size=(PAIRS, BERT.emb_dim)).astype(np.float32)
    found = []
    for _ in range(steps):
        rows = rng.integers(0, PAIRS, ROWS)
        batch = {
            "encoder_input_tokens": inputs[rows],
            "decoder_input_tokens": np.pad(codes[rows], ((0, 0), (1, 0)))[:, :-1],
            "decoder_target_tokens": codes[rows],
            "decoder_loss_weights": np.ones((ROWS, 2), np.float32),
        }
        if name == "GDR":
            others = np.stack([rows, rng.integers(0, PAIRS, ROWS)], axis=1).reshape(-1)
            batch |= {"document_index": others.astype(np.int32), "document_vectors": vectors[others]}
        found.append(batch)
    return found


def train(name: str, mesh: tuple[int, int], steps: int, **settings: Any) -> tuple[np.ndarray, Trainer, Any]:
    """Losses of all steps, the trainer and its last state."""
    data = batches(name, steps)
    # Adam divides by a gradient's size: where that is nothing but rounding, so is the sign of a step.
    optimizer = adamw(Schedule(1e-3, warmup_steps=10), eps=1e-5, weight_decay=0.01)
    shapes = {key: value.shape for key, value in data[0].items()}
    trainer = Trainer.create(MODELS[name], optimizer, make_mesh(*mesh), shapes, **settings)
    state, update, losses = trainer.initial_state(trainer.initial_params(0)), trainer.update(seed=0), []
    for batch in data:
        state, metrics = update(state, {}, trainer.place_batch(batch))
        losses.append(float(metrics["loss"][0] / metrics["loss"][1]))
    return np.array(losses), trainer, state


def beside_one_device(name: str, sharding: str, steps: int = 20) -> dict[str, float]:
    """A set of rules on its mesh of 8 devices, beside one device."""
    expected, one, alone = train(name, (1, 1), steps)
    losses, trainer, state = train(name, MESHES[sharding], steps, sharding=sharding)
    whole, other = jax.device_get((trainer.cut(state.params), one.cut(alone.params)))
    return {
        "loss difference": float(np.abs(losses - expected).max()),
        "parameter difference": max(float(np.abs(whole[path] - x).max()) for path, x in other.items()),
        "largest share": _largest_share(trainer, state),
    }


def _largest_share(trainer: Trainer, state: Any) -> float:
    """Of a table and its moments: what a device has at the most, in shares of the padded table."""
    mesh, largest = trainer.mesh.shape, 0.0
    for key, leaf in jax.tree_util.tree_flatten_with_path((state.params, state.opt_state))[0]:
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
    """How far losses are from those of float32 that remembers all, relative to them, in means of twenty steps."""
    means = [train(name, (1, 1), steps, **one)[0].reshape(-1, 20).mean(axis=1) for one in ({}, settings)]
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
