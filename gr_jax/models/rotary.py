"""Attention with rotary positions (Su et al. 2021, arXiv 2104.09864), over rows and over a cache of three parts."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from gr_jax.models import layers
from gr_jax.models.attention import MASKED, MultiHeadAttention

# Keys and values, both [batch, length, heads, head_dim].
KeysValues = tuple[Array, Array]


def rotate(
    x: Float[Array, "... length heads head_dim"], positions: Int[Array, "... length"], base: float
) -> Float[Array, "... length heads head_dim"]:
    """Turns pairs (i, i + head_dim / 2) of each vector by its position · base^(−2i / head_dim), in float32. Products of
    two turned vectors depend on the distance of their positions alone."""
    half = x.shape[-1] // 2
    frequency = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions[..., None, None].astype(jnp.float32) * frequency  # --> [..., length, 1, half]
    one, other = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([one * cos - other * sin, other * cos + one * sin], axis=-1).astype(x.dtype)


class RotaryAttention(MultiHeadAttention):
    """Self-attention with rotary positions; T5X's parameter names.

    Attributes:
      rotary_base: of the frequencies.
    """

    rotary_base: float = 10_000.0

    def read(
        self,
        x: Float[Array, "B T d"],
        positions: Int[Array, "#B T"],
        mask: Bool[Array, "#B T T"],
        prompt: KeysValues | None = None,
        *,
        deterministic: bool = True,
    ) -> tuple[Float[Array, "B T d"], KeysValues]:
        """Every position attends to what `mask` says of its own row, and to a prompt that all rows share.

        Args:
          x: states.
          positions: of each, the prompt's included.
          mask: who may see whom in a row.
          prompt: keys and values [1, P, H, D], computed once for all rows and not repeated for them.
          deterministic: without dropout.

        Returns:
          The output, and the row's own keys and values for a cache.
        """
        query, own = self._turned(x, positions)
        logits = [jnp.where(mask[:, None], self._logits("bthd,bshd->bhts", query, own[0]), MASKED)]
        if prompt is not None:
            logits.insert(0, self._logits("bthd,phd->bhtp", query, prompt[0][0]))
        weights = _softmax(logits)
        dropped = [layers.dropout(self, part.astype(self.dtype), self.dropout_rate, deterministic) for part in weights]
        mixed = jnp.einsum("bhts,bshd->bthd", dropped[-1], own[1])
        if prompt is not None:
            mixed += jnp.einsum("bhtp,phd->bthd", dropped[0], prompt[1][0])
        return self.out(mixed), own

    def step(
        self,
        x: Float[Array, "B K d"],
        positions: Int[Array, " B"],
        prompt: KeysValues | None,
        asked: KeysValues,
        is_asked: Bool[Array, "B Q"],
        written: tuple[Float[Array, "B L M H D"], Float[Array, "B L M H D"]],
        ancestors: Int[Array, "B K L"],
        step: int | Int[Array, ""],
    ) -> tuple[Float[Array, "B K d"], KeysValues]:
        """One position of each of K live hypotheses attends to the prompt, its query, its own past and itself.

        Args:
          x: states.
          positions: of this step, the same for all hypotheses of a query.
          prompt: [1, P, H, D], shared by all.
          asked, is_asked: [B, Q, H, D] of each query, shared by its hypotheses, and what of it is no padding.
          written: what hypotheses wrote; step t writes slots `[:, t, :K]` (see `models.attention`).
          ancestors, step: see `MultiHeadAttention.step_self`.

        Returns:
          The output, and `written` with this step.
        """
        query, new = self._turned(x, jnp.broadcast_to(positions[:, None], x.shape[:2]))
        written = tuple(  # type: ignore[assignment]
            jax.lax.dynamic_update_slice(old, part[:, None].astype(old.dtype), (0, step, 0, 0, 0))
            for old, part in zip(written, new, strict=True)
        )
        length = step + 1 if isinstance(step, int) else written[0].shape[1]  # unrolled: what is written alone
        steps = jnp.arange(length)
        own_slot = jnp.arange(x.shape[1])[None, :, None]
        slots = jnp.where(steps == step, own_slot, ancestors[:, :, :length])  # [B, K, L]
        rows = jnp.arange(x.shape[0])[:, None, None]
        keys, values = (part[rows, steps[None, None, :], slots] for part in written)  # [B, K, L, H, D]
        logits = [
            jnp.where(is_asked[:, None, None], self._logits("bkhd,bqhd->bhkq", query, asked[0]), MASKED),
            jnp.where(steps <= step, self._logits("bkhd,bklhd->bhkl", query, keys), MASKED),
        ]
        if prompt is not None:
            logits.insert(0, self._logits("bkhd,phd->bhkp", query, prompt[0][0]))
        weights = [part.astype(self.dtype) for part in _softmax(logits)]
        mixed = jnp.einsum("bhkq,bqhd->bkhd", weights[-2], asked[1])
        mixed += jnp.einsum("bhkl,bklhd->bkhd", weights[-1], values)
        if prompt is not None:
            mixed += jnp.einsum("bhkp,phd->bkhd", weights[0], prompt[1][0])
        return self.out(mixed), written

    def _turned(self, x: Array, positions: Array) -> tuple[Array, KeysValues]:
        turn = functools.partial(rotate, positions=positions, base=self.rotary_base)
        return turn(self.query(x)), (turn(self.key(x)), self.value(x))


def _softmax(logits: Sequence[Array]) -> list[Array]:
    """Softmax over all parts together, given back in parts."""
    ends = [sum(part.shape[-1] for part in logits[: i + 1]) for i in range(len(logits) - 1)]
    return jnp.split(jax.nn.softmax(jnp.concatenate(logits, axis=-1)), ends, axis=-1)
