"""Starting a decoder from the vectors that its docids were made of.

The largest single effect on quality at small budgets: tokens then begin where the documents under them lie, instead of
anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from gr_jax.errors import InputError


def initialise_docid_tables(
    params: Mapping[str, Any],
    vectors: Float[np.ndarray, "tokens v"],
    temperature: float = 0.05,
    *,
    inputs: bool = True,
    outputs: bool = True,
) -> dict:
    """Sets the decoder's input embeddings and output rows of docid tokens.

    Output rows become vectors / temperature: with unit features (`query_residual`), logits are then cosines divided by
    the temperature. Input embeddings get the vectors' directions, at the size that the table's random rows have, since
    next to rows √d times longer the residual stream would hardly notice them; where the decoder is narrower than
    the vectors, they are projected on their leading principal directions, where it is wider, padded with zeros.

    Args:
      params: of an `EncoderDecoder` with a vocabulary of its own for the decoder.
      vectors: one per token; rows of zeros (padding, EOS, unused tokens) keep the random rows that they have. May have
        fewer rows than the tables.
      temperature: of the softmax at the start; 0.05 = 20 · cos.
      inputs, outputs: which tables to set. A tied table is set as an output.

    Returns:
      New parameters; `params` is left as it is.

    Raises:
      InputError: the vectors do not fit the tables.
    """
    vectors = np.asarray(vectors, np.float32)
    if vectors.ndim != 2 or not np.isfinite(vectors).all():
        raise InputError("docid vectors must be a finite matrix [tokens, d]", "Check them.", value=vectors.shape)
    if temperature <= 0:
        raise InputError("the temperature must be positive", "0.05 is a good start.", value=temperature)
    if "decoder_token_embedder" not in params:
        raise InputError(
            "the decoder shares the encoder's token table, which docid vectors would overwrite",
            "Give the decoder a vocabulary of its own: EncoderDecoder(..., share_embeddings=False).",
        )
    changed: dict[str, Any] = dict(params)
    given = np.flatnonzero(np.any(vectors != 0, axis=1))
    tied = "logits_dense" not in params["decoder"]
    if inputs and not tied:
        table = np.array(params["decoder_token_embedder"]["embedding"], np.float32)
        _check_rows(vectors, table)
        table[given] = _directions(vectors[given], table.shape[1]) * _typical_norm(table)
        changed["decoder_token_embedder"] = {"embedding": table}
    if outputs:
        name, leaf = ("decoder_token_embedder", "embedding") if tied else ("decoder", "logits_dense")
        table = np.array(params[name][leaf] if tied else params[name][leaf]["kernel"].T, np.float32)
        _check_rows(vectors, table)
        if table.shape[1] != vectors.shape[1]:
            raise InputError(
                f"docid vectors of width {vectors.shape[1]} cannot become output rows of width {table.shape[1]}",
                "Use query_residual with the encoder that made the vectors, or a decoder of their width.",
            )
        # Features of a tied decoder carry a factor d**-0.5.
        scale = table.shape[1] ** 0.5 if tied and "query_scale" not in params else 1.0
        table[given] = vectors[given] * (scale / temperature)
        if tied:
            changed[name] = {"embedding": table}
        else:
            changed["decoder"] = {**params["decoder"], leaf: {"kernel": np.ascontiguousarray(table.T)}}
    return changed


def _check_rows(vectors: np.ndarray, table: np.ndarray) -> None:
    if len(vectors) > len(table):
        raise InputError(
            f"{len(vectors)} docid vectors for a decoder vocabulary of {len(table)}",
            "Give the decoder the docids' vocab_size.",
        )


def _typical_norm(table: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.sum(np.square(table, dtype=np.float64), axis=1))))


def _directions(vectors: np.ndarray, width: int) -> np.ndarray:
    """Unit rows of another width that keep the angles between them as far as it allows."""
    if width < vectors.shape[1]:
        _, principal = np.linalg.eigh(vectors.T.astype(np.float64) @ vectors)  # ascending
        vectors = vectors @ principal[:, ::-1][:, :width].astype(np.float32)
    elif width > vectors.shape[1]:
        vectors = np.pad(vectors, ((0, 0), (0, width - vectors.shape[1])))
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(norms, 1e-12)
