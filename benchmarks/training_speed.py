"""How fast the trainer updates a T5, and what share of a GPU's arithmetic that is."""

from __future__ import annotations

import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import model_flops
from benchmarks.model_flops import Lengths
from benchmarks.roofline import device_speed
from gr_jax.models import EncoderDecoder, EncoderDecoderModel
from gr_jax.models.t5 import T5Config
from gr_jax.training import partitioning
from gr_jax.training.optimizers import Schedule, adamw
from gr_jax.training.train_state import Trainer, TrainState

T5_BASE = T5Config(
    emb_dim=768,
    num_heads=12,
    num_encoder_layers=12,
    num_decoder_layers=12,
    mlp_dim=3072,
    logits_via_embedding=True,
    dropout_rate=0.0,
    dtype="bfloat16",
)

NO_LIMIT = np.float32(np.inf)  # no loss is too large


def trainer_of(config: T5Config, lengths: Lengths) -> Trainer:
    """On one device, with AdamW, weight decay and clipping."""
    shapes = {name: value.shape for name, value in batch_of(config, lengths).items()}
    mesh = partitioning.make_mesh(1, devices=jax.devices()[:1])
    optimizer = adamw(Schedule(1e-4, warmup_steps=100, decay="rsqrt"), weight_decay=0.01)
    return Trainer.create(EncoderDecoderModel(EncoderDecoder(config)), optimizer, mesh, shapes)


def batch_of(config: T5Config, lengths: Lengths) -> dict[str, np.ndarray]:
    """Random tokens, no padding."""
    rng = np.random.default_rng(0)

    def tokens(length: int) -> np.ndarray:
        return rng.integers(3, config.vocab_size, (lengths.rows, length)).astype(np.int32)

    targets = tokens(lengths.targets)
    return {
        "encoder_input_tokens": tokens(lengths.inputs),
        "decoder_input_tokens": np.pad(targets[:, :-1], ((0, 0), (1, 0))),
        "decoder_target_tokens": targets,
        "decoder_loss_weights": np.ones(targets.shape, np.float32),
    }


def random_parameters(trainer: Trainer) -> dict[str, np.ndarray]:
    """As large as initial values are, and quicker: those of a T5 take a minute to compile."""
    rng = np.random.default_rng(0)

    def values(path: str, shape: tuple[int, ...]) -> np.ndarray:
        if path.endswith("scale"):
            return np.ones(shape, np.float32)
        return rng.standard_normal(shape, np.float32) / np.float32(max(shape[0], 1) ** 0.5)

    return {path: values(path, leaf.shape) for path, leaf in trainer.shapes.items()}


def compiled_update(trainer: Trainer, state: TrainState, batch: dict[str, jax.Array]) -> Any:
    """The trainer's update, compiled for these arrays: (state, {}, batch, NO_LIMIT) → (state, metrics)."""
    with partitioning.on_mesh(trainer.mesh, trainer.rules):
        return trainer.jitted_update(seed=0).lower(state, {}, batch, NO_LIMIT).compile()


def counted_and_compiled(config: T5Config, lengths: Lengths) -> dict[str, float]:
    """What `model_flops` counts, as a share of what XLA counts of loss and gradient as it compiled them."""
    trainer = trainer_of(config, lengths)
    model, batch = trainer.model, {name: jnp.asarray(x) for name, x in batch_of(config, lengths).items()}
    variables = jax.eval_shape(lambda: model.get_initial_variables(jax.random.key(0), _shapes(batch)))

    def loss(params: Any, batch: Any) -> jax.Array:
        return model.loss_fn(params, batch, None)[0]

    costs: Any = jax.jit(jax.grad(loss)).lower(variables["params"], batch).compile().cost_analysis()
    return {"share of XLA's count": model_flops.of_update(config, lengths) / costs["flops"]}


def measure_updates(
    config: T5Config, lengths: Lengths, *, updates: int = 20, turns: int = 3, _speed: float | None = None
) -> dict[str, float]:
    """Updates of random batches on one GPU, as the training loop makes them: none waits for the host.

    Args:
      config, lengths: of the network and its batches.
      updates: timed together.
      turns: so many times, of which the median counts.
      _speed: operations a second of another device, for a trial where there is no GPU.
    """
    operations = device_speed()[1] if _speed is None else _speed
    trainer = trainer_of(config, lengths)
    learn, _ = trainer.split(trainer.initial_params(0, random_parameters(trainer)))
    state = trainer.initial_state(learn)
    del learn  # donated with the state
    batch = trainer.place_batch(batch_of(config, lengths))
    update = compiled_update(trainer, state, batch)
    memory = update.memory_analysis()
    for _ in range(3):
        state, metrics = update(state, {}, batch, NO_LIMIT)
    jax.block_until_ready(state)
    seconds = []
    for _ in range(turns):
        start = time.perf_counter()
        for _ in range(updates):
            state, metrics = update(state, {}, batch, NO_LIMIT)
        jax.block_until_ready(state)
        seconds.append((time.perf_counter() - start) / updates)
    total, weight = jax.device_get(metrics["loss"])
    second = statistics.median(seconds)
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return {
        "share of peak": model_flops.of_update(config, lengths) / second / operations,
        "tokens/s": lengths.tokens / second,
        "ms/update": 1e3 * second,
        "GiB": (held + memory.temp_size_in_bytes) / 2**30,
        "loss": float(total / weight),
    }


def _shapes(batch: dict[str, jax.Array]) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in batch.items()}
