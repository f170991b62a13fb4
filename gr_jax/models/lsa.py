"""Latent semantic analysis: document vectors without any pretrained weights.

Deerwester et al., "Indexing by latent semantic analysis" (1990): the leading singular vectors of the TF-IDF matrix. It
stands in wherever vectors are needed to cluster documents and no pretrained encoder is installed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from gr_jax.errors import InputError

_WORD = re.compile(r"\w+")


def latent_semantic_vectors(texts: Sequence[str], *, dimension: int = 128, seed: int = 0) -> np.ndarray:
    """Embeds texts by a truncated SVD of their TF-IDF matrix.

    Args:
      texts: the documents; each must have at least one word for a vector other than zero.
      dimension: of the vectors; cut to what the matrix has.
      seed: of the solver's starting vector, so that equal texts give equal vectors.

    Returns:
      float32 [len(texts), dimension], rows of unit length (zero rows stay zero). Columns past the rank are zero.
    """
    words: dict[str, int] = {}
    columns, offsets = [], [0]
    for text in texts:
        columns += [words.setdefault(word, len(words)) for word in _WORD.findall(text.lower())]
        offsets.append(len(columns))
    if not columns:
        raise InputError("no document has a word in it", "Give documents with text, or install a pretrained encoder.")
    counts = scipy.sparse.csr_matrix(
        (np.ones(len(columns), np.float32), np.asarray(columns), np.asarray(offsets)), shape=(len(texts), len(words))
    )
    counts.sum_duplicates()
    document_frequency = np.bincount(counts.indices, minlength=len(words))
    idf = np.log((1 + len(texts)) / (1 + document_frequency)) + 1
    counts.data = 1 + np.log(counts.data)
    tfidf = (counts @ scipy.sparse.diags(idf)).tocsr()
    norms = np.sqrt(np.asarray(tfidf.multiply(tfidf).sum(axis=1)).ravel())
    tfidf = scipy.sparse.diags(1 / np.maximum(norms, 1e-9)) @ tfidf

    rank = min(dimension, min(tfidf.shape) - 1)
    vectors = np.zeros((len(texts), dimension), np.float32)
    if rank >= 1:
        start = np.random.default_rng(seed).standard_normal(min(tfidf.shape))
        left, values, _ = scipy.sparse.linalg.svds(tfidf.astype(np.float64), k=rank, v0=start)
        vectors[:, :rank] = (left * values)[:, ::-1]
    else:
        vectors[:, 0] = 1.0
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
