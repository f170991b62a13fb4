"""A GPU's decoding steps against what its memory and its arithmetic allow."""

from __future__ import annotations

import functools
import statistics
import time

import jax
import jax.numpy as jnp

from benchmarks.random_decoder import CODES, LEVELS, VOCABULARY, decode, random_docids, random_network
from gr_jax.constraints import Trie
from gr_jax.errors import InputError
from gr_jax.models import GenerativeDecoder
from gr_jax.models.t5 import T5Config

# Device → bytes/s of its memory and bfloat16 operations/s, as its maker states them.
DEVICES = {"H100": (3.35e12, 989e12), "H200": (4.8e12, 989e12), "A100": (2.04e12, 312e12)}
_BASE = T5Config(
    vocab_size=VOCABULARY,
    emb_dim=768,
    num_heads=12,
    num_encoder_layers=1,
    num_decoder_layers=12,
    mlp_dim=3072,
    dtype="bfloat16",
    dropout_rate=0.0,
)
_LENGTH = 32  # tokens of a query


def device_speed() -> tuple[float, float]:
    """Bytes and bfloat16 operations a second of this process' first device.

    Raises:
      InputError: it is none of `DEVICES`.
    """
    kind = jax.devices()[0].device_kind
    names = [name for name in DEVICES if name in kind]
    if not names:
        raise InputError(f"nothing is known of the speed of {kind}", "Add it to DEVICES in benchmarks/roofline.py.")
    return DEVICES[names[0]]


@functools.lru_cache(maxsize=1)
def _setting(config: T5Config) -> tuple[GenerativeDecoder, Trie]:
    docids = random_docids()
    return random_network(config, docids), Trie.from_docids(docids)


def roofline(
    batch: int,
    beams: int,
    normalize: str,
    *,
    config: T5Config = _BASE,
    _speed: tuple[float, float] | None = None,
) -> dict[str, float]:
    """A step of T5-base in bfloat16 on a GPU, against what its memory and its arithmetic allow at the least.

    Args:
      batch, beams: queries, and hypotheses of each.
      normalize: as for beam search.
      config: of the network.
      _speed: bytes and operations a second of another device, for a trial where there is no GPU.
    """
    bandwidth, operations = device_speed() if _speed is None else _speed
    width, layers, hidden = config.emb_dim, config.num_decoder_layers, config.mlp_dim
    decoder, trie = _setting(config)
    tokens = jnp.ones((batch, _LENGTH), jnp.int32)
    encoded = decoder._apply(tokens, method="encode")

    def search():
        return decode(decoder, tokens, encoded, trie, beams=beams, normalize=normalize)

    jax.block_until_ready((search(), search()))
    seconds, searches = [], 5
    for _ in range(5):  # several in a row: how long the host takes to start one is no matter of the device
        start = time.perf_counter()
        jax.block_until_ready([search() for _ in range(searches)])
        seconds.append((time.perf_counter() - start) / searches)
    rows = batch * beams
    weights = layers * (6 * width**2 + 2 * width * hidden)  # of a step: cross-attention's keys are there already
    outputs = (config.vocab_size if normalize == "vocabulary" else CODES) * width
    moved = 4 * (weights + outputs) + layers * 2 * 2 * width * (batch * _LENGTH + rows * LEVELS / 2)
    computed = 2 * rows * (weights + outputs)
    least = max(moved / bandwidth, computed / operations)
    step = statistics.median(seconds) / LEVELS
    return {
        "ms/step": 1e3 * step,
        "roofline ms": 1e3 * least,
        "share of roofline": least / step,
        "times the least": step / least,
        "bound by memory": float(moved / bandwidth > computed / operations),
    }
