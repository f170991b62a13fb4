"""Documents in parts: the whole and its first sentences, each with the title that says what it is about."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32

from gr_jax.corpus.documents import Corpus
from gr_jax.text.sentences import split_sentences

# Words; what is shorter is a heading or a remnant, and its vector says nothing.
SHORTEST_SENTENCE = 4


def sentence_passages(corpus: Corpus, most: int) -> tuple[Sequence[str], Int32[np.ndarray, " passages"]]:
    """The passages of every document: all of it, and where it has several sentences each of the first `most`.

    Args:
      corpus: the documents.
      most: sentences of a document; 0 gives whole documents, lazily.

    Returns:
      Texts, and the position of the document that each belongs to, ascending.
    """
    whole = corpus.contents
    if not most:
        return whole, np.arange(len(whole), dtype=np.int32)
    texts, owner = [], []
    for index, document in enumerate(corpus):
        sentences = [s for s in split_sentences(document.text) if len(s.split()) >= SHORTEST_SENTENCE]
        parts = [f"{document.title} {sentence}" for sentence in sentences[:most]]
        chosen = [document.contents, *(parts if len(parts) > 1 else ())]
        texts += chosen
        owner += [index] * len(chosen)
    return texts, np.asarray(owner, np.int32)
