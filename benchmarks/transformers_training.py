"""Updates of a T5-small beside those of `transformers`: the same weights, batches, optimiser and threads, on CPU."""

from __future__ import annotations

import gzip
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks import harness
from benchmarks.training_speed import NO_LIMIT, compiled_update
from gr_jax.interop import huggingface
from gr_jax.models import EncoderDecoder, EncoderDecoderModel
from gr_jax.models.t5 import T5Config
from gr_jax.training import make_batches
from gr_jax.training.optimizers import adamw
from gr_jax.training.packing import count_examples
from gr_jax.training.partitioning import make_mesh
from gr_jax.training.token_store import TokenStore
from gr_jax.training.train_state import Trainer, unflatten

CONFIG = T5Config(logits_via_embedding=True, dropout_rate=0.0)
ROWS, LEVELS, RATE = 128, 6, 1e-4  # questions of a batch: those of the papers of T5 and DSI
PACKED = {"inputs": 128, "targets": 60}  # of a row that several questions share


def question_lengths() -> list[int]:
    """Words and signs of SQuAD's questions, and the token that ends them."""
    with gzip.open(harness.data_folder("squad_dev") / "queries.jsonl.gz", "rt", encoding="utf-8") as file:
        return [len(re.findall(r"\w+|[^\w\s]", json.loads(line)["text"])) + 1 for line in file][:2000]


def examples(config: T5Config, lengths: list[int]) -> list[dict[str, Any]]:
    """Random tokens of these lengths, and docids."""
    rng = np.random.default_rng(0)
    return [
        {
            "inputs": rng.integers(3, config.vocab_size, length),
            "targets": rng.integers(3, config.vocab_size, LEVELS),
            "source": 0,
        }
        for length in lengths
    ]


def beside_transformers(
    *, packed: bool, config: T5Config = CONFIG, rows: int = ROWS, turns: int = 5, _lengths: list[int] | None = None
) -> dict[str, float]:
    """Questions a second of both; they take turns, and "times faster" is the median of the ratios of turns.

    Args:
      packed: ours has several questions a row; theirs has one, padded to the longest of its batch.
      config, rows: of the network and the batches.
      turns: so many batches of each.
      _lengths: instead of the real ones, for a trial on any machine.
    """
    if _lengths is None:
        harness.two_threads("several_hosts")
    known = examples(config, question_lengths() if _lengths is None else _lengths)
    plain = padded(known[:rows])
    if packed:
        store = TokenStore.from_rows(known)
        full = rows * float(store.inputs.lengths.mean()) / PACKED["inputs"]  # about as many questions
        batch = next(iter(make_batches(store, batch_size=max(round(full), 1), lengths=PACKED, pack=True)))
    else:
        batch = plain
    shapes = {name: value.shape for name, value in batch.items()}
    mesh = make_mesh(1, devices=jax.devices()[:1])
    trainer = Trainer.create(EncoderDecoderModel(EncoderDecoder(config)), adamw(RATE), mesh, shapes)
    first = jax.tree.map(np.array, trainer.initial_params(0))  # copies: training reuses what it is given
    state, placed = trainer.initial_state(trainer.initial_params(0)), trainer.place_batch(batch)
    update = compiled_update(trainer, state, placed)  # before the peer is there
    theirs = peer(config, first, plain)

    losses, ratios, speeds = [], [], []
    for turn in range(turns + 2):
        start = time.perf_counter()
        state, metrics = update(state, {}, placed, NO_LIMIT)
        jax.block_until_ready(state)
        ours = count_examples(batch) / (time.perf_counter() - start)
        seconds, loss = theirs()
        losses.append(abs(float(metrics["loss"][0] / metrics["loss"][1]) - loss))
        if turn >= 2:  # warm
            ratios.append(ours * seconds / rows)
            speeds.append(ours)
    found = {"times faster": statistics.median(ratios), "questions/s": statistics.median(speeds)}
    return found if packed else {**found, "loss difference": max(losses)}


def padded(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """One example a row, as long as the longest."""
    longest = max(len(row["inputs"]) for row in rows)
    inputs = np.stack([np.pad(row["inputs"], (0, longest - len(row["inputs"]))) for row in rows]).astype(np.int32)
    targets = np.stack([row["targets"] for row in rows]).astype(np.int32)
    return {
        "encoder_input_tokens": inputs,
        "decoder_input_tokens": np.pad(targets, ((0, 0), (1, 0)))[:, :-1],
        "decoder_target_tokens": targets,
        "decoder_loss_weights": np.ones(targets.shape, np.float32),
    }


def peer(config: T5Config, params: dict[str, Any], batch: dict[str, np.ndarray]) -> Callable[[], tuple[float, float]]:
    """An update of `transformers` with AdamW and clipping: gives its seconds and the loss before it."""
    import torch
    from transformers import T5ForConditionalGeneration

    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as folder:
        huggingface.save_t5(folder, config, unflatten(params))
        model = T5ForConditionalGeneration.from_pretrained(folder).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    inputs = torch.from_numpy(batch["encoder_input_tokens"].astype(np.int64))
    labels = torch.from_numpy(batch["decoder_target_tokens"].astype(np.int64))

    def update() -> tuple[float, float]:
        start = time.perf_counter()
        loss = model(input_ids=inputs, attention_mask=(inputs != 0).long(), labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start, float(loss.detach())

    return update
