"""Constrained decoding in T5X: a constraint as the `decode_fn` of T5X's own models.

T5X lets a model's decoding be replaced (`DecodeFnCallable`), but its search has no place for a constraint. This runs
beam search around T5X's `tokens_to_logits`. Nothing of T5X is imported: only what it calls and is called with counts
(`t5x/models.py`, `t5x/decoding.py`).

    model = t5x.models.EncoderDecoderModel(module, vocabulary, vocabulary, optimizer, decode_fn=decode_fn(trie))
    decodes, aux = model.predict_batch_with_aux(params, batch, num_decodes=10, return_all_decodes=True)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from gr_jax.constraints.base import Constraint
from gr_jax.decoding.beam_search import beam_search
from gr_jax.decoding.scores import LogitScores
from gr_jax.errors import InputError

# The score of a row that holds no docid, as T5X marks them: low and finite.
NOTHING = -1.0e7

# Entries of T5X's cache that all rows share, by name.
SHARED = ("cache_index", "cached_bias", "position_embedder_index")


class DecodingState(NamedTuple):
    """What T5X's `tokens_to_logits` is called with; field for field `t5x.decoding.DecodingState`.

    Attributes:
      cur_index: scalar, tokens consumed before.
      sequences: int32[batch · beam, max_len + 1], the start token first.
      cur_token: int32[batch · beam, 1].
      cache: Flax's, leaves [batch · beam, ...], or [layers, batch · beam, ...] where layers are scanned.
    """

    cur_index: Int[Array, ""]
    sequences: Int[Array, "flat max_len_plus_1"]
    cur_token: Int[Array, "flat 1"]
    cache: Any


@dataclasses.dataclass(frozen=True)
class T5XDecoder:
    """T5X's flat single-step function as a `Decoder`.

    T5X's networks read the keys and values of their own row, so the rows of the cache are put where the hypotheses
    went: row k of a query becomes the row of hypothesis k's parent. It always computes all rows, since the query's
    encoding, which T5X has bound to the function, has that many.

    Attributes:
      tokens_to_logits: (DecodingState) → logits [batch · beam, vocab], cache.
      beams: rows for each query.
      cache_offset: 1 where layers are scanned and so lead the cache's shapes, else 0.
      levels, eos_id: for normalize="level"; see `LogitScores`.
    """

    tokens_to_logits: Callable[[DecodingState], tuple[Array, Any]]
    beams: int
    cache_offset: int = 0
    levels: Sequence[tuple[int, int]] | None = None
    eos_id: int | None = None
    start_token = 0  # T5X's

    def init_cache(self, cache: Any, batch: int, max_len: int) -> dict:
        """The decoder's cache from T5X's, of which every row is one query's and empty yet."""
        cache = _map_rows(lambda leaf: jnp.repeat(leaf, self.beams, axis=self.cache_offset), cache)
        # One column for the start token, which stays 0.
        return {"sequences": jnp.zeros((batch * self.beams, max_len + 1), jnp.int32), "t5x": cache}

    def step(
        self,
        tokens: Int[Array, "batch beam"],
        step: int | Array,
        ancestors: Int[Array, "batch beam max_len"],
        cache: dict,
    ) -> tuple[Float[Array, "batch beam vocab"], dict]:
        batch, beam = tokens.shape
        spare = ((0, 0), (0, self.beams - beam))
        parent = jnp.pad(ancestors[:, :, jnp.maximum(step - 1, 0)], spare)  # --> [batch, beams]
        parent = jnp.where(jnp.asarray(step) == 0, jnp.arange(self.beams), parent)
        row = (jnp.arange(batch)[:, None] * self.beams + parent).reshape(-1)  # --> [batch · beams]
        flat = jnp.pad(tokens, spare).reshape(-1, 1).astype(jnp.int32)
        index = jnp.asarray(step, jnp.int32)
        sequences = lax.dynamic_update_slice_in_dim(cache["sequences"][row], flat, index, axis=1)
        rows = _map_rows(lambda leaf: jnp.take(leaf, row, axis=self.cache_offset), cache["t5x"])
        logits, rows = self.tokens_to_logits(DecodingState(index, sequences, flat, rows))
        logits = logits.reshape(batch, self.beams, -1)[:, :beam]
        return logits, {"sequences": sequences, "t5x": rows}

    def scores(self, features: Float[Array, "batch beam vocab"], level: int | Array, normalize: str) -> LogitScores:
        return LogitScores(features, normalize, levels=self.levels, level=level, eos_id=self.eos_id)


@dataclasses.dataclass(frozen=True)
class ConstrainedDecoding:
    """T5X's `DecodeFnCallable`; see `decode_fn`."""

    constraint: Constraint
    normalize: str
    levels: tuple[tuple[int, int], ...] | None
    search: dict[str, Any]

    def __call__(
        self,
        *,
        inputs: Int[Array, "batch max_len"],
        cache: Mapping[str, Any],
        tokens_to_logits: Callable,
        eos_id: int,
        num_decodes: int,
        decode_rng: Array | None = None,
        cache_offset: int = 0,
        constraint: Constraint | None = None,
        **others: Any,
    ) -> tuple[Int[Array, "batch num_decodes max_len"], Float[Array, "batch num_decodes"]]:
        """Args, as T5X gives them:
          inputs: zeros. A query that brings a prompt gets no docid: a constraint starts at the beginning.
          cache: empty, one row for each query.
          tokens_to_logits: see `T5XDecoder`.
          eos_id: of the output vocabulary.
          num_decodes: beams.
          decode_rng: not used.
          cache_offset: see `T5XDecoder`.
          constraint: in place of the one given to `decode_fn`; in `decoder_params` it is an argument of the compiled
            function, whose arrays are then not compiled in, and which serves other filters without compiling again.

        Returns:
          Docids, their EOS included where decoding ends in it, then 0, and their log-probabilities; best last. Rows
          for which there is no docid are blank and score −1e7.
        """
        del decode_rng  # beam search draws nothing
        if others:
            raise InputError(
                f"decoding parameters that constrained beam search does not have: {', '.join(sorted(others))}",
                "Give settings of beam_search to decode_fn.",
            )
        constraint = self.constraint if constraint is None else constraint
        batch, max_len = inputs.shape
        own_eos = getattr(constraint, "eos_id", None)
        if own_eos is not None and own_eos != eos_id:
            raise InputError(
                f"docids end in token {own_eos}, T5X's output vocabulary in {eos_id}",
                "Make the docids with the EOS of the output vocabulary.",
                value=own_eos,
            )
        steps = getattr(constraint, "max_steps", max_len)
        if steps > max_len:
            raise InputError(
                f"docids of up to {steps} tokens do not fit targets of {max_len}",
                "Raise the task's target length (TASK_FEATURE_LENGTHS).",
            )
        decoder = T5XDecoder(tokens_to_logits, num_decodes, cache_offset, self.levels, own_eos)
        found = beam_search(
            decoder,
            decoder.init_cache(cache, batch, steps),
            constraint,
            beams=num_decodes,
            max_len=steps,
            normalize=self.normalize,
            batch=batch,
            **self.search,
        )
        valid = found.valid & ~jnp.any(inputs != 0, axis=1)[:, None]
        sequences = jnp.pad(found.sequences, ((0, 0), (0, 0), (0, max_len - steps)))
        sequences = jnp.where(valid[:, :, None], sequences, 0)
        scores = jnp.where(valid, found.scores, NOTHING)
        return jnp.flip(sequences, axis=1), jnp.flip(scores, axis=1)  # T5X has the best last


def decode_fn(
    constraint: Constraint,
    *,
    normalize: str = "vocabulary",
    levels: Sequence[tuple[int, int]] | None = None,
    **search: Any,
) -> ConstrainedDecoding:
    """Constrained beam search as T5X's `decode_fn`: exact as `beam_search` is, never a sequence outside of the
    constraint, never one twice, and a flag (score −1e7) where there are fewer docids than beams. With
    length_penalty=0, the default, scores are log-probabilities, which T5X's α = 0.6 would distort.

    Args:
      constraint: what may be written, made for T5X's output vocabulary.
      normalize, levels: "vocabulary", "level" (needs the docids' levels), "constraint" or "none"; see `beam_search`.
      **search: other settings of `beam_search`: length_penalty, processors, unroll, …

    Raises:
      InputError: backoff, for whose hypotheses T5X has no rows.
    """
    if search.get("backoff") is not None:
        raise InputError(
            "T5X's cache has num_decodes rows a query, none for backoff", "Ask T5X for more decodes instead."
        )
    return ConstrainedDecoding(
        constraint, normalize, None if levels is None else tuple((start, size) for start, size in levels), search
    )


def _map_rows(function: Callable[[Array], Array], cache: Any) -> Any:
    """Maps over the leaves of a T5X cache that have rows."""

    def apply(path, leaf):
        name = getattr(path[-1], "key", None) if path else None
        return leaf if name in SHARED else function(leaf)

    return jax.tree_util.tree_map_with_path(apply, cache)
