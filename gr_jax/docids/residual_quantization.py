"""Docids that are the codes of quantised vectors (semantic ids; TIGER, Rajput et al. 2023, section 3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from gr_jax import clustering
from gr_jax.docids import rows
from gr_jax.docids.docids import Docids
from gr_jax.errors import InputError

COLLISIONS = ("number", "share", "reserved")


def residual_quantization(
    embeddings: Float[np.ndarray, "n d"],
    *,
    levels: int = 6,
    bits: int = 8,
    beams: int = 5,
    collisions: str = "number",
    reserved: int = 64,
    codebooks: Float[np.ndarray, "levels size d"] | None = None,
    seed: int = 0,
    first_token: int = 2,
    metric: str = "euclidean",
    iterations: int = 10,
    refits: int = 0,
    progress: bool = False,
) -> Docids:
    """One docid for each document: the codes of its vector, one token a level.

    Code c of level i is the token first_token + i · 2^bits + c. `meta` records the mean squared error of the vectors
    that the codes stand for, and how many documents share all their codes with another.

    Args:
      embeddings: a row for each document.
      levels: codebooks, and so tokens.
      bits: each has 2^bits codes.
      beams: of the encoding, see `clustering.residual_quantization`.
      collisions: of documents with the same codes. "number": each gets one more token, its number among them in
        document order, so docids differ in length, and none is a prefix of another. "share": they share the docid.
        "reserved": every docid ends in a number, of which `reserved` have tokens beforehand, so that the tokens do not
        depend on the documents, and others can join later.
      reserved: tokens for the numbers of documents with the same codes.
      codebooks: that were learnt before, of other documents, say; `levels` and `bits` are then theirs.
      seed: of the codebooks.
      first_token: tokens below it are left to padding, EOS, ….
      metric: "euclidean" or "cosine".
      iterations: Lloyd steps of a codebook.
      refits: rounds in which all codebooks are fitted together, or were, where they are given.
      progress: show a bar.

    Raises:
      InputError: see `clustering.residual_quantization`; an unknown policy; first_token < 1; more documents with the
        same codes than numbers are reserved.
    """
    if collisions not in COLLISIONS:
        raise InputError("unknown policy for equal codes", f"Use one of {', '.join(COLLISIONS)}.", value=collisions)
    if first_token < 1:
        raise InputError("0 is padding, not a docid token", "Give first_token ≥ 1.", value=first_token)
    points = clustering.check_embeddings(embeddings, metric)
    if codebooks is None:
        codebooks = clustering.learn_codebooks(
            points, levels=levels, bits=bits, seed=seed, iterations=iterations, refits=refits, progress=progress
        )
    codes, errors = clustering.quantize(points, codebooks, beams=beams, progress=progress)
    meta: dict[str, Any] = {"beams": beams, "seed": seed, "metric": metric, "iterations": iterations}
    meta |= {"refits": refits} if refits else {}
    meta["reconstruction_error"] = float(errors.mean(dtype=np.float64))
    bits = int(codebooks.shape[1]).bit_length() - 1
    return docids_of_codes(
        codes, bits=bits, collisions=collisions, reserved=reserved, first_token=first_token, meta=meta
    )


def docids_of_codes(
    codes: Int[np.ndarray, "n levels"],
    *,
    bits: int,
    collisions: str = "number",
    reserved: int = 64,
    first_token: int = 2,
    meta: Mapping[str, Any],
) -> Docids:
    """Docids of codes; see `residual_quantization`. With "reserved" numbers those of some documents stay what they are
    whatever documents stand behind them.

    Args:
      codes: of each document's vector.
      bits: each is one of 2^bits.
      collisions, reserved, first_token: see `residual_quantization`.
      meta: how they were made, beside what is given here.

    Raises:
      InputError: more documents with the same codes than numbers are reserved.
    """
    levels = codes.shape[1]
    blocks = [(first_token + (level << bits), 1 << bits) for level in range(levels)]
    tokens = codes + np.asarray([start for start, _ in blocks], np.int32)  # --> [n, levels]
    _, same, counts = np.unique(codes, axis=0, return_inverse=True, return_counts=True)
    same = same.reshape(-1)  # NumPy 2.0 gives it a second axis
    colliding = counts[same] > 1
    if collisions == "reserved":
        if counts.max() > reserved:
            raise InputError(
                f"{counts.max()} documents have the same codes, and {reserved} numbers are reserved for them",
                f"Reserve {counts.max()} or more, or take more codebooks.",
                value=reserved,
            )
        blocks.append((sum(blocks[-1]), reserved))
        tokens = np.concatenate([tokens, (rows.place_among_equal(same) + blocks[-1][0])[:, None]], axis=1)
    if collisions == "number" and colliding.any():
        blocks.append((sum(blocks[-1]), int(counts.max())))
        number = np.where(colliding, rows.place_among_equal(same) + blocks[-1][0], 0)
        tokens = np.concatenate([tokens, number[:, None]], axis=1)
    return Docids.build(
        tokens,
        vocab_size=sum(blocks[-1]),
        levels=blocks,
        duplicates="share" if collisions == "share" else "refuse",
        scheme="residual_quantization",
        meta={
            "levels": levels,
            "bits": bits,
            "collisions": collisions,
            "first_token": first_token,
            **meta,
            **({"reserved": reserved} if collisions == "reserved" else {}),
            "colliding_documents": int(colliding.sum()),
        },
    )
