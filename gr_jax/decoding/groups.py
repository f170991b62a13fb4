"""Diverse beam search: groups of beams that avoid one another's tokens (Vijayakumar et al. 2018, Algorithm 1)."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gr_jax.top_k import top_k


def choose_by_group(
    scores: Float[Array, "batch n"],
    tokens: Int[Array, "batch n"],
    group: Int[Array, "batch n"],
    *,
    groups: int,
    k: int,
    diversity: float | Array,
) -> tuple[Int[Array, "batch groups_times_k"], Float[Array, "batch groups_times_k"]]:
    """Each group's k best extensions, group by group.

    A group ranks by log-probability − diversity × (how often groups before it chose the same token at this step), the
    paper's Hamming diversity. Only the choice knows of it: scores stay log-probabilities of what is written.

    Args:
      scores, tokens: of the extensions.
      group: which group each extends.
      groups, k: how many groups, and how many each chooses.
      diversity: the paper's λ.

    Returns:
      Places of the chosen, and their scores; −inf where a group has fewer than k.
    """
    chosen, kept, counts = [], [], jnp.zeros(scores.shape, jnp.float32)
    for number in range(groups):
        own = jnp.where(group == number, scores, -jnp.inf)
        _, index = top_k(own - diversity * counts, k)
        value = jnp.take_along_axis(own, index, axis=1)  # --> [batch, k]
        token = jnp.where(value > -jnp.inf, jnp.take_along_axis(tokens, index, axis=1), -1)
        counts += jnp.sum(tokens[:, :, None] == token[:, None, :], axis=2)
        chosen.append(index)
        kept.append(value)
    return jnp.concatenate(chosen, axis=1), jnp.concatenate(kept, axis=1)
