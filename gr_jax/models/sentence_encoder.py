"""Texts to vectors: a text encoder, pooling, and batches shaped so that little is padded and little is compiled."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from gr_jax import progress as progress_bars
from gr_jax.errors import InputError
from gr_jax.models import text_encoder as encoders

if TYPE_CHECKING:
    from gr_jax.text import Vocabulary

# Lengths that texts are padded to. Few, because each is compiled; dense where short texts are common.
LENGTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
# `batch_size` counts texts of this many tokens. Per token, a CPU is fastest at 2,000 to 4,000 tokens at a time: more no
# longer fit its caches.
TYPICAL_LENGTH = 64
_TOKENIZED_AT_ONCE = 4096
POOLINGS = ("mean", "cls")


class SentenceEncoder:
    """A text encoder with its vocabulary; `encode` gives one vector per text.

    Args:
      module: a `TextEncoder`, or any module with its call.
      params: its parameters.
      vocabulary: ids 0 must be padding; its `prefix` and `suffix` are put around every text.
      pooling: "mean" over all tokens, or "cls", the first one.
      normalize: give rows of unit length.
    """

    def __init__(
        self,
        module: encoders.TextEncoder,
        params: Any,
        vocabulary: Vocabulary,
        pooling: str = "mean",
        normalize: bool = True,
    ):
        if pooling not in POOLINGS:
            raise InputError("unknown pooling", f"Choose one of {', '.join(POOLINGS)}.", value=pooling)
        self.module, self.params, self.vocabulary = module, jax.device_put(params), vocabulary
        self.pooling, self.normalize = pooling, normalize

    @property
    def dimension(self) -> int:
        """Width of the vectors."""
        return self.module.config.emb_dim

    def encode(
        self, texts: Sequence[str], *, batch_size: int = 64, max_length: int = 128, progress: bool = False
    ) -> Float[np.ndarray, "n d"]:
        """Embeds texts.

        Args:
          texts: any number; empty ones get the vector of the bare prefix and suffix.
          batch_size: texts of 64 tokens in a batch; shorter ones are batched in larger numbers, longer in smaller.
          max_length: tokens kept of each text, prefix and suffix included.
          progress: show a bar.

        Returns:
          float32, one row per text, in their order. Rows do not depend on what else is encoded (but for rounding).
        """
        limit = getattr(self.module.config, "max_positions", max_length)
        if batch_size < 1:
            raise InputError("a batch needs at least one row", "Give batch_size ≥ 1.", value=batch_size)
        if not 2 <= max_length <= limit:
            raise InputError(f"max_length must lie between 2 and {limit}", "Change it.", value=max_length)
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        rows = self._tokenize(texts, max_length)
        pending: list[tuple[np.ndarray, Array]] = []
        with progress_bars.bar("Embedding texts", len(rows), enabled=progress) as bar:
            for chosen, length, height in plan_batches([len(row) for row in rows], batch_size, max_length):
                tokens = np.zeros((height, length), np.int32)
                for i, j in enumerate(chosen):
                    tokens[i, : len(rows[j])] = rows[j]
                pending.append((chosen, _embed(self.module, self.pooling, self.normalize, self.params, tokens)))
                if len(pending) > 1:  # one batch computes while the next is laid out
                    _collect(pending.pop(0), vectors)
                bar.advance(len(chosen))
            for done in pending:
                _collect(done, vectors)
        return vectors

    def _tokenize(self, texts: Sequence[str], max_length: int) -> list[np.ndarray]:
        prefix, suffix = self.vocabulary.prefix, self.vocabulary.suffix
        kept, rows = max_length - len(prefix) - len(suffix), []
        for start in range(0, len(texts), _TOKENIZED_AT_ONCE):
            for ids in self.vocabulary.encode_batch(list(texts[start : start + _TOKENIZED_AT_ONCE])):
                rows.append(np.array([*prefix, *ids[:kept], *suffix], np.int32))
        return rows


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _embed(module: nn.Module, pooling: str, normalize: bool, params: Any, tokens: Array) -> Array:
    states: Any = module.apply({"params": params}, tokens, deterministic=True)
    pooled = encoders.mean_pool(states, tokens) if pooling == "mean" else states[:, 0].astype(jnp.float32)
    return encoders.unit(pooled) if normalize else pooled


def plan_batches(lengths: Sequence[int], batch_size: int, max_length: int) -> list[tuple[np.ndarray, int, int]]:
    """Groups texts of similar length.

    Returns:
      For each batch: the texts in it (indices), the length that they are padded to, and the number of rows. Batches
      hold about `64 · batch_size` tokens; texts left over at one length move up to the next, so that only the
      last batch is short.
    """
    order = np.argsort(np.asarray(lengths), kind="stable")
    ordered = np.asarray(lengths)[order]
    buckets = [b for b in LENGTHS if b < max_length] + [max_length]
    batches, start = [], 0
    for bucket in buckets:
        height = max(1, batch_size * TYPICAL_LENGTH // bucket)
        end = int(np.searchsorted(ordered, bucket, side="right"))
        while end - start >= height:
            batches.append((order[start : start + height], bucket, height))
            start += height
    if start < len(order):
        # What is left over everywhere: halves of the batch until it fits.
        rest, longest = order[start:], int(ordered[-1])
        bucket = next(b for b in buckets if b >= longest)
        batches.extend(_split_rest(rest, bucket, max(1, batch_size * TYPICAL_LENGTH // bucket)))
    return batches


def _split_rest(rest: np.ndarray, bucket: int, height: int) -> list[tuple[np.ndarray, int, int]]:
    batches = []
    while len(rest):
        size = height
        while size // 2 >= len(rest):
            size //= 2
        batches.append((rest[:size], bucket, size))
        rest = rest[size:]
    return batches


def _collect(done: tuple[np.ndarray, Array], vectors: np.ndarray) -> None:
    chosen, embedded = done
    vectors[chosen] = np.asarray(embedded)[: len(chosen)]
