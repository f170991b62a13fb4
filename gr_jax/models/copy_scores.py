"""Next-token scores of a network that copies; see `copy_network`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gr_jax.errors import InputError
from gr_jax.models.attention import MASKED
from gr_jax.models.copy_network import CopyFeatures
from gr_jax.top_k import top_k


class CopyScores:
    """Next-token scores over a vocabulary of which every source can reach a few thousand tokens: those words that
    are the network's own and those that it can copy. Scores are computed of these alone; as wide as the vocabulary is
    one table of numbers for each source, which says where the score of a token is.

    Args:
      logits: of its own words, [batch, beam, words].
      features: see `CopyFeatures`.
      words: the token that each of them is.
      word_of: the word that each token of the vocabulary is; −1 where it is none.
      normalize: "vocabulary", "constraint" or "none".
    """

    def __init__(
        self,
        logits: Float[Array, "batch beam words"],
        features: CopyFeatures,
        words: Int[Array, " words"],
        word_of: Int[Array, " vocab"],
        normalize: str,
    ):
        if normalize == "level":
            raise InputError("what is copied has no levels of tokens", 'Use normalize="vocabulary".', value=normalize)
        self.normalize, self.vocab_size = normalize, word_of.shape[0]
        batch, num_words = logits.shape[0], words.shape[0]
        source, copy = features.source, features.copy
        first = jnp.argmax(source[:, :, None] == source[:, None, :], axis=-1)  # place where a token stands first
        own = word_of[source]
        slots = jnp.where(own >= 0, own, num_words + first)  # --> [batch, source]
        rows = jnp.arange(batch)[:, None]
        # What each slot stands for, and the slot of each token; places that repeat a token or copy a word stay empty.
        self._tokens = jnp.concatenate([jnp.broadcast_to(words, (batch, num_words)), source], axis=1)
        table = jnp.broadcast_to(word_of, (batch, self.vocab_size)).at[rows, source].set(slots)
        self._slots = jnp.where(jnp.arange(self.vocab_size) == 0, -1, table)  # padding is never written
        self._total = jnp.logaddexp(jax.nn.logsumexp(logits, axis=-1), jax.nn.logsumexp(copy, axis=-1))
        self._values = _add_copies(logits, copy, first, own)  # --> [batch, beam, words + source]
        if normalize == "vocabulary":
            self._values -= self._total[..., None]

    def at(self, tokens: Int[Array, "batch beam width"]) -> Float[Array, "batch beam width"]:
        rows = jnp.arange(tokens.shape[0])[:, None, None]
        slots = self._slots[rows, tokens]
        return jnp.where(slots >= 0, jnp.take_along_axis(self._values, jnp.maximum(slots, 0), axis=-1), -jnp.inf)

    def at_parents(self, parent: Int[Array, "batch n"], tokens: Int[Array, "batch n"]) -> Float[Array, "batch n"]:
        rows = jnp.arange(tokens.shape[0])[:, None]
        slots = self._slots[rows, tokens]
        return jnp.where(slots >= 0, self._values[rows, parent, jnp.maximum(slots, 0)], -jnp.inf)

    def top(self, n: int, below: int | None = None) -> tuple[Int[Array, "batch beam n"], Float[Array, "batch beam n"]]:
        values = self._values
        if below is not None:
            values = jnp.where((self._tokens < below)[:, None, :], values, -jnp.inf)
        scores, slots = top_k(values, min(n, values.shape[-1]))
        tokens = self._tokens[jnp.arange(len(slots))[:, None, None], slots]
        short = ((0, 0), (0, 0), (0, n - tokens.shape[-1]))  # more may be asked for than a source can reach
        return jnp.pad(tokens, short), jnp.pad(scores, short, constant_values=-jnp.inf)

    def log_normalizer(self) -> Float[Array, "batch beam"]:
        return self._total


def _add_copies(
    logits: Float[Array, "batch beam words"],
    copy: Float[Array, "batch beam source"],
    first: Int[Array, "batch source"],
    own: Int[Array, "batch source"],
) -> Float[Array, "batch beam slots"]:
    """Of every slot the logarithm of the sum of what is in it: a word's logit, and of each place that has its token the
    logit of copying it. −inf where there is nothing, or only masked places.

    Sums of places are measured by the largest of them: by the largest of all, unlikely tokens would be 0, and then
    impossible. Words that no place has are as they are.

    Args:
      logits, copy: of words and places.
      first: where the token of a place stands first.
      own: which word it is; −1: none.
    """
    batch, beam, length = copy.shape
    rows, beams = jnp.arange(batch)[:, None, None], jnp.arange(beam)[:, None]
    at = rows, beams, first[:, None]
    largest = jnp.full_like(copy, -jnp.inf).at[at].max(copy)
    mass = jnp.zeros_like(copy).at[at].add(jnp.exp(copy - largest[at]))
    copied = jnp.where(largest > MASKED / 2, jnp.log(mass) + largest, -jnp.inf)
    place, num_words = jnp.arange(length), logits.shape[-1]
    joins = (own >= 0) & (first == place)
    word = jnp.take_along_axis(logits, jnp.maximum(own, 0)[:, None], axis=-1)
    copied = jnp.logaddexp(jnp.where(joins[:, None], word, -jnp.inf), copied)
    every = jnp.concatenate([logits, jnp.full_like(copy, -jnp.inf)], axis=-1)
    return every.at[rows, beams, jnp.where(joins, own, num_words + place)[:, None]].set(copied)


def word_numbers(words: Array | np.ndarray, vocab_size: int) -> Int[Array, " vocab"]:
    """The number of the word that each token is; −1 where it is none."""
    return jnp.full(vocab_size, -1, jnp.int32).at[words].set(jnp.arange(len(words), dtype=jnp.int32))
