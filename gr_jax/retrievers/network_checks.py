"""Whether a network that writes identifiers fits its vocabulary and the identifiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from gr_jax import text
from gr_jax.decoding.decoder import NORMALIZERS
from gr_jax.docids import Docids
from gr_jax.errors import InputError


class Vocabularies(Protocol):
    """The sizes that a network knows: a `GenerativeModel` does, and an `EncoderDecoder` without parameters."""

    @property
    def input_vocab_size(self) -> int: ...
    @property
    def output_vocab_size(self) -> int: ...


def check_network(
    network: Vocabularies,
    vocabulary: text.Vocabulary,
    written: Any,
    normalize: str,
    levels: Sequence[tuple[int, int]] | None,
) -> None:
    """Raises InputError for parts that were not made for each other.

    Args:
      network: reads the vocabulary's tokens and writes the identifiers'.
      vocabulary: of the queries.
      written: docids of documents or of clusters, or a constraint: says its `vocab_size`.
      normalize: what probabilities are of, one of `NORMALIZERS`.
      levels: the blocks of tokens that the positions of identifiers have, or None.
    """
    needed = written.vocab_size
    if network.output_vocab_size < needed:
        what = "docids" if isinstance(written, Docids) else type(written).__name__
        raise InputError(
            f"the decoder writes {network.output_vocab_size} tokens, the {what} need {needed}",
            "Use the docids that the network was trained on."
            if isinstance(written, Docids)
            else "Make the constraint over the vocabulary that the network writes.",
        )
    words = network.input_vocab_size
    if vocabulary.size > words:
        raise InputError(
            f"the vocabulary has {vocabulary.size} tokens, the encoder reads {words}",
            "Use the vocabulary that the network was trained with.",
        )
    if normalize not in NORMALIZERS or (normalize == "level" and levels is None):
        raise InputError(
            "scores of these docids cannot be normalised so",
            f'Choose one of {", ".join(NORMALIZERS)}; "level" needs docids with levels.',
            value=normalize,
        )
