"""Latent semantic analysis: document vectors without any pretrained weights.

Deerwester et al., "Indexing by latent semantic analysis" (1990): the leading singular vectors of the TF-IDF matrix. It
stands in wherever vectors are needed to cluster documents and no pretrained encoder is installed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from gr_jax.errors import InputError
from gr_jax.text.sentences import UNSPACED

# A run of a script without spaces, or a word of others: "NHKの番組" is one of each.
_WORD = re.compile(rf"(?:{UNSPACED.pattern})+|(?:(?!{UNSPACED.pattern})\w)+")


def _terms(text: str) -> Iterator[str]:
    """Its words; of a run of a script without spaces, its pairs of characters."""
    for word in _WORD.findall(text.lower()):
        if len(word) > 2 and UNSPACED.search(word):
            yield from (word[start : start + 2] for start in range(len(word) - 1))
        else:
            yield word


def latent_semantic_vectors(texts: Sequence[str], *, dimension: int = 128, seed: int = 0) -> np.ndarray:
    """Embeds texts by a truncated SVD of their TF-IDF matrix.

    Args:
      texts: the documents; one without a word gets a vector of zeros.
      dimension: of the vectors.
      seed: of what the solver draws, so that equal texts give equal vectors.

    Returns:
      float32 [len(texts), dimension], rows of unit length (zero rows stay zero). Columns past the matrix are zero.

    Raises:
      InputError: no document has a word.
    """
    words: dict[str, int] = {}
    columns, offsets = [], [0]
    for text in texts:
        columns += [words.setdefault(term, len(words)) for term in _terms(text)]
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

    vectors = np.zeros((len(texts), dimension), np.float32)
    if min(tfidf.shape) <= dimension:  # all of the spectrum, of which the iterative solver cannot give the last value
        left, values, _ = np.linalg.svd(tfidf.toarray(), full_matrices=False)
        vectors[:, : len(values)] = left * values
    else:
        vectors[:] = _leading_part(tfidf.astype(np.float64), dimension, seed)
    vectors[np.diff(counts.indptr) == 0] = 0.0  # what the solver leaves there is noise, which must not get unit length
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


def _leading_part(matrix: scipy.sparse.csr_matrix, k: int, seed: int) -> np.ndarray:
    """Left singular vectors times singular values of the k largest, [rows, k].

    Not by `scipy.sparse.linalg.svds`: where singular values are equal, as they are for texts of one pattern, its solver
    starts again from a vector that it draws from the system's entropy.
    """
    rows, columns = matrix.shape
    random = np.random.default_rng(seed)
    one, other = (matrix, matrix.T) if rows <= columns else (matrix.T, matrix)
    gram = scipy.sparse.linalg.LinearOperator(
        (min(rows, columns),) * 2, matvec=lambda x: one @ (other @ x), dtype=np.float64
    )
    # scipy before 1.17 draws from a fixed state of its own.
    seeded = {"rng": random} if "rng" in inspect.signature(scipy.sparse.linalg.eigsh).parameters else {}
    values, basis = scipy.sparse.linalg.eigsh(gram, k=k, v0=random.standard_normal(gram.shape[0]), **seeded)
    values, basis = values[::-1], basis[:, ::-1]
    return basis * np.sqrt(np.maximum(values, 0)) if rows <= columns else matrix @ basis
