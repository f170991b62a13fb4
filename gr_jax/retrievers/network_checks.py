"""Whether a network that writes identifiers fits its vocabulary and the identifiers."""

from __future__ import annotations

from gr_jax import models, text
from gr_jax.decoding.decoder import NORMALIZERS
from gr_jax.docids import Docids
from gr_jax.errors import InputError


def check_network(module: models.EncoderDecoder, vocabulary: text.Vocabulary, docids: Docids, normalize: str) -> None:
    """Raises InputError for parts that were not made for each other.

    Args:
      module: reads the vocabulary's tokens and writes the identifiers'.
      vocabulary: of the queries.
      docids: of documents, or of clusters.
      normalize: what probabilities are of, one of `NORMALIZERS`.
    """
    if module.vocab_size < docids.vocab_size:
        raise InputError(
            f"the decoder writes {module.vocab_size} tokens, the docids need {docids.vocab_size}",
            "Use the docids that the network was trained on.",
        )
    words = module.encoder_config.vocab_size
    if vocabulary.size > words:
        raise InputError(
            f"the vocabulary has {vocabulary.size} tokens, the encoder reads {words}",
            "Use the vocabulary that the network was trained with.",
        )
    if normalize not in NORMALIZERS or (normalize == "level" and docids.levels is None):
        raise InputError(
            "scores of these docids cannot be normalised so",
            f'Choose one of {", ".join(NORMALIZERS)}; "level" needs docids with levels.',
            value=normalize,
        )
