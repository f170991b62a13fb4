"""Vectors of docid tokens, to initialise a decoder's embeddings and output rows from."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from gr_jax.docids.docids import Docids
from gr_jax.errors import InputError


def token_vectors(
    docids: Docids, embeddings: Float[np.ndarray, "n d"], *, additive: bool = False
) -> Float[np.ndarray, "vocab_size d"]:
    """For each token of the docids, the mean embedding of the documents under it.

    A token that stands at several positions or under several prefixes has all their documents. With one token for each
    node of a cluster tree this is the node's centroid, for the last token of a document its own embedding.

    Args:
      docids: of the documents that `embeddings` has rows for.
      embeddings: [num_documents, d].
      additive: instead, the mean of what the tokens before leave of the embeddings: a document's embedding is then
        about the sum of its tokens' vectors, and a query's product with it the sum of its products with theirs. For
        residual quantisation these are about the codebooks, as long as they were not fitted together.

    Returns:
      float32[vocab_size, d]; rows of tokens that no docid has (padding, EOS, …) are zero.

    Raises:
      InputError: another number of rows than documents.
    """
    embeddings = np.asarray(embeddings)
    if embeddings.ndim != 2 or len(embeddings) != docids.num_documents:
        raise InputError(
            f"embeddings of shape {embeddings.shape} for {docids.num_documents} documents",
            "Give the embeddings that belong to these docids, one row a document.",
        )
    vectors = np.zeros((docids.vocab_size, embeddings.shape[1]), np.float32)
    counts = np.zeros(docids.vocab_size, np.int64)
    left = embeddings[docids.documents].astype(np.float32)  # --> [entries, d]
    row = np.repeat(np.arange(len(docids)), np.diff(docids.offsets))  # --> [entries]
    for position in range(docids.tokens.shape[1]):
        token = docids.tokens[row, position]
        order = np.argsort(token, kind="stable")
        order = order[np.searchsorted(token[order], 1) :]  # without the padding of shorter docids
        present, starts = np.unique(token[order], return_index=True)
        sums, sizes = np.add.reduceat(left[order], starts, axis=0), np.diff(np.append(starts, len(order)))
        vectors[present] += sums
        counts[present] += sizes
        if additive:
            left[order] -= np.repeat(sums / sizes[:, None], sizes, axis=0)
    return vectors / np.maximum(counts, 1)[:, None]


def codeword_vectors(
    docids: Docids, embeddings: Float[np.ndarray, "n d"], codebooks: Float[np.ndarray, "levels size d"]
) -> Float[np.ndarray, "vocab_size d"]:
    """For each token of docids that are codes, its codeword, whether a document has it or not.

    Numbers behind the codes, which tell documents apart that have the same, all have the mean of what codes leave of
    the documents: at the start none is likelier than another.

    Args:
      docids: of residual quantisation.
      embeddings: of their documents, [num_documents, d].
      codebooks: that the codes are of.

    Raises:
      InputError: another number of rows than documents, or other codebooks.
    """
    levels = docids.levels or ()
    sizes = [size for _, size in levels[: docids.meta.get("levels", 0)]]
    if docids.scheme != "residual_quantization" or sizes != [len(book) for book in codebooks]:
        raise InputError(
            f"codebooks {codebooks.shape} are not those of these docids",
            "Give the codebooks that the docids were made with.",
            value=docids.scheme,
        )
    if len(embeddings) != docids.num_documents:
        raise InputError(
            f"embeddings of shape {embeddings.shape} for {docids.num_documents} documents",
            "Give the embeddings that belong to these docids, one row a document.",
        )
    vectors = np.zeros((docids.vocab_size, codebooks.shape[2]), np.float32)
    for (start, size), book in zip(levels, codebooks, strict=False):
        vectors[start : start + size] = book
    row = np.repeat(np.arange(len(docids)), np.diff(docids.offsets))  # --> [entries]
    left = embeddings[docids.documents].astype(np.float32)
    for level in range(len(codebooks)):
        left -= vectors[docids.tokens[row, level]]
    for start, size in levels[len(codebooks) :]:
        vectors[start : start + size] = left.mean(axis=0)
    return vectors
