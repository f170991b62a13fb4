"""Where words begin among tokens, of any vocabulary."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool

from gr_jax.text.sentences import UNSPACED
from gr_jax.text.vocabulary import Vocabulary

_SPACE = ("▁", "Ġ")  # SentencePiece and byte-level BPE write a space so; WordPiece marks what goes on by ##


def word_starts(vocabulary: Vocabulary) -> Bool[np.ndarray, " vocab"]:
    """Which tokens begin a word. In scripts without spaces every token does, and so does every byte."""
    if not hasattr(vocabulary, "token"):
        return np.ones(vocabulary.size, bool)
    tokens = [vocabulary.token(number) or "" for number in range(vocabulary.size)]
    if any(token.startswith(_SPACE) for token in tokens):
        starts = [token.startswith(_SPACE) or UNSPACED.search(token) is not None for token in tokens]
    else:
        starts = [not token.startswith("##") for token in tokens]
    return np.asarray(starts, bool)
