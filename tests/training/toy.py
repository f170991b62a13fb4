"""A network that compiles in a second and still has what matters: dropout, segments, named axes, T5X's methods."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.linen import partitioning

from gr_jax.training.loop import train
from gr_jax.training.task import Task, TrainSettings
from gr_jax.training.token_store import TokenStore


class ToyNetwork(nn.Module):
    """Target logits from the mean of the example's input embeddings and the last target."""

    inputs: int
    targets: int
    width: int
    dropout: float

    @nn.compact
    def __call__(self, batch, deterministic):
        def table(name, rows):
            init = nn.initializers.normal(1.0)
            return partitioning.param_with_axes(name, init, (rows, self.width), jnp.float32, axes=("vocab", "embed"))

        def kernel(name, shape, axes):
            init = nn.initializers.lecun_normal()
            return partitioning.param_with_axes(name, init, shape, jnp.float32, axes=axes)

        read = table("input_embedding", self.inputs)[batch["encoder_input_tokens"]]  # [B, S, d]
        read = nn.Dropout(self.dropout)(read, deterministic=deterministic)
        written = table("target_embedding", self.targets)[batch["decoder_input_tokens"]]  # [B, T, d]
        source = batch.get("encoder_segment_ids", (batch["encoder_input_tokens"] != 0).astype(jnp.int32))
        target = batch.get("decoder_segment_ids", jnp.ones_like(batch["decoder_input_tokens"]))
        same = ((target[:, :, None] == source[:, None, :]) & (source[:, None, :] != 0)).astype(jnp.float32)
        mean = same @ read / jnp.maximum(same.sum(-1, keepdims=True), 1)  # [B, T, d]
        h = jnp.tanh((mean + written) @ kernel("wi", (self.width, 2 * self.width), ("embed", "mlp")))
        h = partitioning.with_sharding_constraint(h, ("batch", "length", "mlp"))
        h = nn.Dropout(self.dropout)(h, deterministic=deterministic)
        h = h @ kernel("wo", (2 * self.width, self.width), ("mlp", "embed"))
        return h @ kernel("output", (self.width, self.targets), ("embed", "vocab"))


@dataclasses.dataclass(frozen=True)
class ToyModel:
    inputs: int = 64
    targets: int = 32
    width: int = 16
    dropout: float = 0.2

    @property
    def network(self):
        return ToyNetwork(self.inputs, self.targets, self.width, self.dropout)

    def get_initial_variables(self, rng, input_shapes, input_types=None):
        batch = {name: jnp.ones(shape, jnp.int32) for name, shape in input_shapes.items()}
        return self.network.init(rng, batch, deterministic=True)

    def loss_fn(self, params, batch, dropout_rng):
        rngs = None if dropout_rng is None else {"dropout": dropout_rng}
        logits = self.network.apply({"params": params}, batch, deterministic=dropout_rng is None, rngs=rngs)
        log_probs = jax.nn.log_softmax(logits)
        chosen = jnp.take_along_axis(log_probs, batch["decoder_target_tokens"][..., None], axis=-1)[..., 0]
        weights = batch["decoder_loss_weights"]
        right = (logits.argmax(-1) == batch["decoder_target_tokens"]) * weights
        return -(chosen * weights).sum(), {"weight_sum": weights.sum(), "accuracy": right.sum()}


def toy_rows(count=100, *, inputs=64, targets=32, longest=12, seed=0):
    """Examples whose targets follow from their inputs."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        tokens = random.integers(3, inputs, random.integers(1, longest + 1))
        code = [2 + int(tokens.sum()) % (targets - 2), 2 + int(tokens[0]) % (targets - 2)]
        rows.append({"inputs": tokens, "targets": code[: 1 + number % 2], "source": number % 3})
    return rows


def toy_store(count=100, **kwargs) -> TokenStore:
    return TokenStore.from_rows(toy_rows(count, **kwargs))


def learn(model, batches, *, model_dir=None, config=None, progress=False, **arguments):
    """`train`, with the fields of task and settings as arguments."""
    fields = {field.name for field in dataclasses.fields(Task)}
    task = Task(model, batches, **{name: value for name, value in arguments.items() if name in fields})
    settings = TrainSettings(**{name: value for name, value in arguments.items() if name not in fields})
    return train(task, settings, model_dir=model_dir, config=config, progress=progress)
