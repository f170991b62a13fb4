"""From docids back to the codes that they are made of."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32

from gr_jax.docids.docids import Docids
from gr_jax.errors import InputError


def codes_of(docids: Docids) -> Int32[np.ndarray, "documents levels"]:
    """The codes of every document's quantised vector, without the number that tells documents with equal codes apart.

    Args:
      docids: of `residual_quantization`, one a document.

    Raises:
      InputError: docids of another scheme, or a document that has several or none.
    """
    if docids.scheme != "residual_quantization" or docids.levels is None:
        raise InputError(
            "these docids have no codes", 'Make them with scheme = "residual_quantization".', value=docids.scheme
        )
    rows = np.repeat(np.arange(len(docids)), np.diff(docids.offsets))  # [entries]
    found = np.full(docids.num_documents, -1, np.int64)
    found[docids.documents] = rows
    if len(rows) != docids.num_documents or found.min(initial=0) < 0:
        raise InputError(
            f"{docids.num_documents} documents have {len(rows)} docids",
            "Give the docids of documents, each of which has one.",
            value=len(rows),
        )
    levels = docids.levels[: docids.meta["levels"]]
    return docids.tokens[found, : len(levels)] - np.asarray([start for start, _ in levels], np.int32)
