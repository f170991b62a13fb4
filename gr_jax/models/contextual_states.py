"""What an encoder makes of the first tokens of texts, where they stand: of titles in their documents (CGR, Lee et al.
2022, arXiv 2210.02068, section 3.1)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from gr_jax.errors import InputError
from gr_jax.models.encoder_decoder import EncoderDecoder
from gr_jax.models.text_encoder import TextEncoder


def states_in_context(
    module: TextEncoder,
    params: Any,
    fronts: Sequence[Sequence[int]],
    texts: Sequence[Sequence[int]],
    *,
    length: int,
    prefix: Sequence[int] = (),
    suffix: Sequence[int] = (),
    batch_size: int = 32,
) -> Float[np.ndarray, "tokens d"]:
    """States of the tokens of `fronts`, each read in the row prefix + front + text + suffix.

    Args:
      module, params: the encoder; 0 pads its rows.
      fronts: tokens whose states are wanted, such as a title's.
      texts: the tokens that follow each; cut to the row.
      length: tokens of a row.
      prefix, suffix: what the encoder expects around a text (`Vocabulary.prefix`).
      batch_size: rows encoded at a time.

    Returns:
      float32; those of the first front's tokens, then of the second's, and so on.

    Raises:
      InputError: a front that does not fit the row; another number of texts.
    """
    if len(fronts) != len(texts):
        raise InputError(f"{len(fronts)} fronts for {len(texts)} texts", "Give each text one.")
    longest = max(map(len, fronts), default=0)
    if longest + len(prefix) + len(suffix) > length:
        raise InputError(
            f"{longest} tokens whose states are wanted do not fit a row", "Raise the length.", value=length
        )
    states: list[np.ndarray] = []
    for start in range(0, len(fronts), batch_size):
        rows, own = np.zeros((batch_size, length), np.int32), fronts[start : start + batch_size]
        for row, front, text in zip(rows, own, texts[start : start + batch_size], strict=False):
            room = length - len(prefix) - len(suffix) - len(front)
            read = [*prefix, *front, *text[:room], *suffix]
            row[: len(read)] = read
        found = np.asarray(_encode(module, params, rows), np.float32)[:, len(prefix) :]
        states += [of_row[: len(front)] for of_row, front in zip(found, own, strict=False)]
    return np.concatenate(states) if states else np.zeros((0, module.config.emb_dim), np.float32)


def own_encoder(module: EncoderDecoder, params: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The configuration of a network's encoder, without dropout, and its parameters."""
    config = dataclasses.replace(module.encoder_config, dropout_rate=0.0)
    return config, {name: params[name] for name in ("token_embedder", "encoder")}


@functools.partial(jax.jit, static_argnums=0)
def _encode(module: TextEncoder, params: Any, tokens: Int[Array, "B S"]) -> Float[Array, "B S d"]:
    states: Any = module.apply({"params": params}, tokens)
    return states
