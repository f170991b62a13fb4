"""Scores of the next token: from logits, or from features and an output table."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gr_jax.constraints.base import Constraint, Scores
from gr_jax.decoding.decoder import LOGITS, NORMALIZERS
from gr_jax.errors import InputError
from gr_jax.top_k import top_k

Block = tuple[int | Array, int]  # where a position's tokens start in the vocabulary, and how many there are


def block_of(levels: Sequence[tuple[int, int]] | None, level: int | Array) -> tuple[Block, Array | None] | None:
    """The block of a position, and how many of its tokens are real where `level` is traced (else None: all)."""
    if levels is None:
        return None
    if isinstance(level, int):
        return (levels[level] if level < len(levels) else (0, 0)), None
    starts = jnp.asarray([start for start, _ in levels] + [0], jnp.int32)
    sizes = jnp.asarray([size for _, size in levels] + [0], jnp.int32)
    level = jnp.minimum(level, len(levels))
    return (starts[level], max(size for _, size in levels)), sizes[level]


def check_vocabulary(constraint: Constraint, scores: Scores) -> None:
    """Compares what a constraint may write with what a network scores, where both say how many tokens they have.
    Gathers clip what is out of range, so without it the scores of other tokens would be taken.

    Raises:
      InputError: the network scores fewer tokens.
    """
    tokens, scored = getattr(constraint, "vocab_size", None), getattr(scores, "vocab_size", None)
    if tokens is not None and scored is not None and tokens > scored:
        raise InputError(
            f"a constraint over {tokens} tokens, and a network that scores {scored}",
            "Use the docids of this network's vocabulary.",
            value=tokens,
        )


def _of_parents(values: Array, parent: Int[Array, "batch n"], *places: Int[Array, "batch n"]) -> Array:
    """values[b, parent[b, i], places[b, i]] of values [batch, beam, …]."""
    return values[(jnp.arange(len(parent))[:, None], parent, *places)]


def _check(normalize: str, levels: object) -> None:
    if normalize not in NORMALIZERS:
        raise InputError("unknown normaliser", f"Use one of {', '.join(NORMALIZERS)}.", value=normalize)
    if normalize == "level" and levels is None:
        raise InputError(
            "these docids have no blocks of tokens per level to normalise over",
            'Use position-aware docids, or normalize="vocabulary".',
        )


class LogitScores:
    """Scores from logits over the whole vocabulary.

    Args:
      logits: [..., vocab].
      normalize: "vocabulary", "level", "constraint" or "none".
      levels: each position's (start, size), needed for "level".
      level: position of the token.
      eos_id: normalised together with a level's block, where docids end in it.
    """

    def __init__(
        self,
        logits: Float[Array, "... vocab"],
        normalize: str = "vocabulary",
        *,
        levels: Sequence[tuple[int, int]] | None = None,
        level: int | Array = 0,
        eos_id: int | None = None,
    ):
        _check(normalize, levels)
        self.normalize = normalize
        self._logits = logits.astype(jnp.float32)
        self._levels, self._level, self._eos_id = levels, level, eos_id

    @property
    def vocab_size(self) -> int:
        return self._logits.shape[-1]

    @functools.cached_property
    def _log_normalizer(self) -> Float[Array, ...]:
        if self.normalize != "level":
            return jax.nn.logsumexp(self._logits, axis=-1)
        block = block_of(self._levels, self._level)
        assert block is not None
        (start, size), real = block
        end = start + (size if real is None else real)
        tokens = jnp.arange(self._logits.shape[-1])
        inside = (tokens >= start) & (tokens < end)
        if self._eos_id is not None:
            inside |= tokens == self._eos_id
        return jax.nn.logsumexp(self._logits, axis=-1, where=inside)

    def log_normalizer(self) -> Float[Array, ...]:
        return self._log_normalizer

    def at(self, tokens: Int[Array, "... width"]) -> Float[Array, "... width"]:
        logits = jnp.take_along_axis(self._logits, tokens, axis=-1)
        return logits if self.normalize in LOGITS else logits - self.log_normalizer()[..., None]

    def at_parents(self, parent: Int[Array, "batch n"], tokens: Int[Array, "batch n"]) -> Float[Array, "batch n"]:
        logits = _of_parents(self._logits, parent, tokens)
        return logits if self.normalize in LOGITS else logits - _of_parents(self.log_normalizer(), parent)

    def between(self, start: int, size: int) -> Float[Array, "... size"]:
        """Log-probabilities of the tokens start … start + size − 1 of the vocabulary: what `at` gives, sliced."""
        logits = self._logits[..., start : start + size]
        return logits if self.normalize in LOGITS else logits - self.log_normalizer()[..., None]

    def top(self, n: int, below: int | None = None) -> tuple[Int[Array, "... n"], Float[Array, "... n"]]:
        logits, tokens = top_k(self._logits[..., :below], n)
        return tokens, logits if self.normalize in LOGITS else logits - self.log_normalizer()[..., None]


class TableScores:
    """Scores from features and an output table: logits = features · tableᵀ, of as few rows as are asked for.

    Under "vocabulary" all logits are computed once. Under "level" only those of the position's block are. Under
    "constraint" and "none" those of the block where the position has one; else all, or only those of the candidates,
    whichever moves less.

    Args:
      features: [..., d].
      table: [vocab, d].
      normalize, levels, level, eos_id: as for `LogitScores`.
    """

    def __init__(
        self,
        features: Float[Array, "... d"],
        table: Float[Array, "vocab d"],
        normalize: str = "vocabulary",
        *,
        levels: Sequence[tuple[int, int]] | None = None,
        level: int | Array = 0,
        eos_id: int | None = None,
    ):
        _check(normalize, levels)
        self.normalize = normalize
        self._features, self._table, self._eos_id = features, table, eos_id
        self._block = block_of(levels, level) if normalize != "vocabulary" else None

    @property
    def vocab_size(self) -> int:
        return self._table.shape[0]

    def _product(self, rows: Float[Array, "n d"]) -> Float[Array, "... n"]:
        return jnp.einsum("...d,nd->...n", self._features, rows, preferred_element_type=jnp.float32)

    @functools.cached_property
    def _logits(self) -> Float[Array, "... vocab"]:
        return self._product(self._table)

    @functools.cached_property
    def _block_logits(self) -> Float[Array, "... size"]:
        """Logits of the block; tokens beyond the vocabulary or the level's real size are −inf."""
        assert self._block is not None
        (start, size), real = self._block
        tokens = start + jnp.arange(size)
        if real is None and isinstance(start, int) and start + size <= self._table.shape[0]:
            return self._product(self._table[start : start + size])
        rows = self._table[jnp.clip(tokens, 0, self._table.shape[0] - 1)]
        inside = tokens < self._table.shape[0]
        if real is not None:
            inside &= jnp.arange(size) < real
        return jnp.where(inside, self._product(rows), -jnp.inf)

    @functools.cached_property
    def _eos_logit(self) -> Float[Array, ...]:
        return self._product(self._table[self._eos_id][None])[..., 0]

    @functools.cached_property
    def _log_normalizer(self) -> Float[Array, ...]:
        if self.normalize != "level":
            return jax.nn.logsumexp(self._logits, axis=-1)
        logits = self._block_logits
        if self._eos_id is not None:
            logits = jnp.concatenate([logits, self._eos_logit[..., None]], axis=-1)
        return jax.nn.logsumexp(logits, axis=-1)

    def log_normalizer(self) -> Float[Array, ...]:
        return self._log_normalizer

    def at(self, tokens: Int[Array, "... width"]) -> Float[Array, "... width"]:
        logits = self._logits_at(tokens)
        return logits if self.normalize in LOGITS else logits - self.log_normalizer()[..., None]

    def at_parents(self, parent: Int[Array, "batch n"], tokens: Int[Array, "batch n"]) -> Float[Array, "batch n"]:
        logits = self._logits_at(tokens, parent)
        return logits if self.normalize in LOGITS else logits - _of_parents(self.log_normalizer(), parent)

    def _logits_at(self, tokens: Array, parent: Array | None = None) -> Array:
        """Logits of tokens [..., width] of each state, or of flat lists [batch, n] of states named by `parent`."""

        def take(logits: Array, places: Array) -> Array:
            if parent is None:
                return jnp.take_along_axis(logits, places, axis=-1)
            return _of_parents(logits, parent, places)

        if tokens.shape[-1] == 0:
            return jnp.zeros(tokens.shape, jnp.float32)
        if self._block is not None:
            (start, size), _ = self._block
            eos = None
            if self._eos_id is not None:
                eos = self._eos_logit[..., None] if parent is None else _of_parents(self._eos_logit, parent)
            if size == 0:  # beyond the last level there is nothing but EOS
                return jnp.broadcast_to(-jnp.inf if eos is None else eos, tokens.shape)
            logits = take(self._block_logits, jnp.clip(tokens - start, 0, size - 1))
            return logits if eos is None else jnp.where(tokens == self._eos_id, eos, logits)
        states = math.prod(self._features.shape[:-1])
        if self.normalize == "vocabulary" or not self._gathering_is_cheaper(tokens.size, states):
            return take(self._logits, tokens)
        rows = self._table[tokens]  # --> [..., width, d]
        if parent is not None:
            features = _of_parents(self._features, parent)  # --> [batch, n, d]
            return jnp.einsum("bnd,bnd->bn", features, rows, preferred_element_type=jnp.float32)
        return jnp.einsum("...d,...wd->...w", self._features, rows, preferred_element_type=jnp.float32)

    def _gathering_is_cheaper(self, tokens: int, states: int) -> bool:
        """In units of one table row read, written and read again: gathering moves a row for each token of each state;
        all logits read the table once and then compute, which is about 60 times cheaper an element than moving it."""
        vocab = self._table.shape[0]
        return tokens < vocab / 3 + states * vocab / 60

    def between(self, start: int, size: int) -> Float[Array, "... size"]:
        """Log-probabilities of the tokens start … start + size − 1 of the vocabulary: what `at` gives, sliced."""
        logits, first = None, start
        if self._block is not None:
            (block_start, block_size), real = self._block
            if real is None and isinstance(block_start, int):
                if block_start <= start and start + size <= block_start + block_size:
                    logits, first = self._block_logits, start - block_start
        elif self.normalize == "vocabulary":
            logits = self._logits
        if logits is None:
            return self.at(jnp.broadcast_to(start + jnp.arange(size), (*self._features.shape[:-1], size)))
        logits = logits[..., first : first + size]
        return logits if self.normalize in LOGITS else logits - self.log_normalizer()[..., None]

    def top(self, n: int, below: int | None = None) -> tuple[Int[Array, "... n"], Float[Array, "... n"]]:
        logits, tokens = top_k(self._logits[..., :below], n)
        return tokens, logits if self.normalize in LOGITS else logits - self.log_normalizer()[..., None]
