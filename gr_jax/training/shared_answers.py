"""Queries with equal tokens share their answers."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np

from gr_jax.training.contrastive_batches import first_equal
from gr_jax.training.token_store import Ragged, TokenStore


def share_answers(queries: TokenStore, *, most: int = 128) -> TokenStore:
    """Gives queries with equal tokens one another's answers. Titles that several documents have are such queries:
    without this, each of these documents would be a wrong answer to its own title.

    Args:
      queries: as `ContrastiveBatches` reads them.
      most: answers of a query, beyond which others' are left out.

    Returns:
      The same rows, each one's own answers first, then the others', ascending.
    """
    first = first_equal(queries.inputs)
    order = np.argsort(first, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(first[order])) + 1)
    answers = [queries.targets[row] for row in range(len(queries))]
    shared = 0
    for rows in groups:
        if len(rows) < 2:
            continue
        union = np.unique(np.concatenate([answers[row] for row in rows.tolist()]))
        for row in rows.tolist():
            others = np.setdiff1d(union, answers[row])[: max(0, most - len(answers[row]))]
            answers[row] = np.concatenate([answers[row], others]).astype(np.int32)
            shared += len(others)
    if not shared:
        return queries
    offsets = np.cumsum([0, *map(len, answers)], dtype=np.int64)
    digest = hashlib.sha256(f"{queries.fingerprint} shared {most}".encode()).hexdigest()[:16]
    return dataclasses.replace(queries, targets=Ragged(np.concatenate(answers), offsets), fingerprint=digest)
