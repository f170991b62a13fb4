"""A GPU's decoding steps against what its memory and its arithmetic allow."""

from __future__ import annotations

import statistics
import time

import jax
import jax.numpy as jnp

from benchmarks.random_decoder import CODES, LEVELS, VOCABULARY, decode, random_docids, random_network
from gr_jax.constraints import Trie
from gr_jax.errors import InputError
from gr_jax.models.t5 import T5Config

# Device → bytes/s of its memory and bfloat16 operations/s, as its maker states them.
DEVICES = {"H100": (3.35e12, 989e12), "H200": (4.8e12, 989e12), "A100": (2.04e12, 312e12)}


def roofline(batch: int, beams: int, normalize: str) -> dict[str, float]:
    """A step of T5-base in bfloat16 on a GPU, against what its memory and its arithmetic allow at the least."""
    kind = jax.devices()[0].device_kind
    names = [name for name in DEVICES if name in kind]
    if not names:
        raise InputError(f"nothing is known of the speed of {kind}", "Add it to DEVICES in benchmarks/roofline.py.")
    bandwidth, operations = DEVICES[names[0]]
    width, layers, hidden, length = 768, 12, 3072, 32
    sizes = {"emb_dim": width, "num_heads": 12, "num_encoder_layers": 1, "num_decoder_layers": layers}
    config = T5Config(vocab_size=VOCABULARY, mlp_dim=hidden, dtype="bfloat16", dropout_rate=0.0, **sizes)  # type: ignore[arg-type]
    docids = random_docids()
    decoder, trie = random_network(config, docids), Trie.from_docids(docids)
    tokens = jnp.ones((batch, length), jnp.int32)
    encoded = decoder._apply(tokens, method="encode")
    seconds = []
    for _ in range(12):
        start = time.perf_counter()
        jax.block_until_ready(decode(decoder, tokens, encoded, trie, beams=beams, normalize=normalize))
        seconds.append(time.perf_counter() - start)
    rows = batch * beams
    weights = layers * (6 * width**2 + 2 * width * hidden)  # of a step: cross-attention's keys are there already
    outputs = (VOCABULARY if normalize == "vocabulary" else CODES) * width
    moved = 4 * (weights + outputs) + layers * 2 * 2 * width * (batch * length + rows * LEVELS / 2)
    computed = 2 * rows * (weights + outputs)
    least = max(moved / bandwidth, computed / operations)
    step = statistics.median(seconds[2:]) / LEVELS
    return {
        "ms/step": 1e3 * step,
        "roofline ms": 1e3 * least,
        "share of roofline": least / step,
        "bound by memory": float(moved / bandwidth > computed / operations),
    }
