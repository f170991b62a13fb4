"""Texts to vectors: a text encoder, pooling, and batches shaped so that little is padded and little is compiled."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec
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


class SentenceEncoder:
    """A text encoder with its vocabulary; `encode` gives one vector per text.

    Args:
      module: a `TextEncoder`, or any module with its call and a `config`.
      params: its parameters.
      vocabulary: ids 0 must be padding; its `prefix` and `suffix` are put around every text.
      pooling: "mean" over all tokens, or "cls", the first one. None where the module gives vectors itself, as a
        bi-encoder's `Tower` does; it then says their width as `dimension`.
      normalize: give rows of unit length; with `pooling=None` the module's rows stay as they are.
      prompt: put before every text ("query: ", say); it counts towards `max_length`.
      mesh: devices with an axis "data", over which the rows of every batch are split; None uses one device.
    """

    def __init__(
        self,
        module: Any,
        params: Any,
        vocabulary: Vocabulary,
        pooling: str | None = "mean",
        normalize: bool = True,
        prompt: str = "",
        mesh: Mesh | None = None,
    ):
        if pooling not in (*encoders.POOLINGS, None):
            raise InputError("unknown pooling", f"Choose one of {', '.join(encoders.POOLINGS)}.", value=pooling)
        self._devices = 1 if mesh is None else mesh.shape["data"]
        self._by_row = None if mesh is None else NamedSharding(mesh, PartitionSpec("data"))
        whole = None if mesh is None else NamedSharding(mesh, PartitionSpec())
        self.module, self.params, self.vocabulary = module, jax.device_put(params, whole), vocabulary
        self.pooling, self.normalize, self.prompt = pooling, normalize and pooling is not None, prompt

    @property
    def dimension(self) -> int:
        """Width of the vectors."""
        return self.module.dimension if self.pooling is None else self.module.config.emb_dim

    @functools.cached_property
    def fingerprint(self) -> str:
        """16 hex digits over network, parameters, vocabulary, pooling and prompt."""
        about = [repr(self.module), self.vocabulary.fingerprint, self.pooling, self.normalize, self.prompt]
        return network_fingerprint(about, self.params)

    def encode(
        self,
        texts: Sequence[str],
        *,
        batch_size: int = 64,
        max_length: int = 128,
        progress: bool = False,
        advance: Callable[[int], None] | None = None,
    ) -> Float[np.ndarray, "n d"]:
        """Embeds texts.

        Args:
          texts: any number; empty ones get the vector of the bare prefix and suffix.
          batch_size: texts of 64 tokens in a batch, of each device; shorter ones are batched in larger numbers, longer
            in smaller.
          max_length: tokens kept of each text, prefix and suffix included.
          progress: show a bar.
          advance: told after every batch how many texts were in it.

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
            plan = plan_batches([len(row) for row in rows], batch_size, max_length, self._devices)
            for chosen, length, height in plan:
                tokens = np.zeros((height, length), np.int32)
                for i, j in enumerate(chosen):
                    tokens[i, : len(rows[j])] = rows[j]
                placed = jax.device_put(tokens, self._by_row)
                pending.append((chosen, _embed(self.module, self.pooling, self.normalize, self.params, placed)))
                if len(pending) > 1:  # one batch computes while the next is laid out
                    _collect(pending.pop(0), vectors)
                bar.advance(len(chosen))
                if advance is not None:
                    advance(len(chosen))
            for done in pending:
                _collect(done, vectors)
        return vectors

    def _tokenize(self, texts: Sequence[str], max_length: int) -> list[np.ndarray]:
        prefix, suffix = self.vocabulary.prefix, self.vocabulary.suffix
        kept, rows = max_length - len(prefix) - len(suffix), []
        for start in range(0, len(texts), _TOKENIZED_AT_ONCE):
            chunk = [self.prompt + text for text in texts[start : start + _TOKENIZED_AT_ONCE]]
            for ids in self.vocabulary.encode_batch(chunk):
                rows.append(np.array([*prefix, *ids[:kept], *suffix], np.int32))
        return rows


def network_fingerprint(about: Sequence[Any], params: Any) -> str:
    """16 hex digits over what is said of a network and over its parameters."""
    digest = hashlib.sha256(repr(list(about)).encode())
    for path, value in jax.tree_util.tree_leaves_with_path(params):
        digest.update(f"{jax.tree_util.keystr(path)} {value.shape} {value.dtype}".encode())
        digest.update(np.asarray(value).tobytes())
    return digest.hexdigest()[:16]


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _embed(module: nn.Module, pooling: str | None, normalize: bool, params: Any, tokens: Array) -> Array:
    states: Any = module.apply({"params": params}, tokens, deterministic=True)
    if pooling is None:
        return states
    pooled = encoders.pool(states, tokens, pooling)
    return encoders.unit(pooled) if normalize else pooled


def plan_batches(
    lengths: Sequence[int], batch_size: int, max_length: int, devices: int = 1
) -> list[tuple[np.ndarray, int, int]]:
    """Groups texts of similar length.

    Returns:
      For each batch: the texts in it (indices), the length that they are padded to, and the number of rows, a multiple
      of `devices`. Batches hold about `64 · batch_size` tokens for each device; texts left over at one length move up
      to the next, so that only the last batch is short.
    """
    order = np.argsort(np.asarray(lengths), kind="stable")
    ordered = np.asarray(lengths)[order]
    buckets = [b for b in LENGTHS if b < max_length] + [max_length]
    batches, start = [], 0
    for bucket in buckets:
        height = devices * max(1, batch_size * TYPICAL_LENGTH // bucket)
        end = int(np.searchsorted(ordered, bucket, side="right"))
        while end - start >= height:
            batches.append((order[start : start + height], bucket, height))
            start += height
    if start < len(order):
        # What is left over everywhere: halves of the batch until it fits.
        rest, longest = order[start:], int(ordered[-1])
        bucket = next(b for b in buckets if b >= longest)
        batches.extend(_split_rest(rest, bucket, max(1, batch_size * TYPICAL_LENGTH // bucket), devices))
    return batches


def _split_rest(rest: np.ndarray, bucket: int, most: int, devices: int) -> list[tuple[np.ndarray, int, int]]:
    batches = []
    while len(rest):
        rows = most  # of each device
        while rows > 1 and rows // 2 * devices >= len(rest):
            rows //= 2
        batches.append((rest[: rows * devices], bucket, rows * devices))
        rest = rest[rows * devices :]
    return batches


def _collect(done: tuple[np.ndarray, Array], vectors: np.ndarray) -> None:
    chosen, embedded = done
    vectors[chosen] = np.asarray(embedded)[: len(chosen)]
