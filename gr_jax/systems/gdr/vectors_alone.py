"""GDR without its clusters: all documents by the query's vector. What the clusters add and lose is seen beside it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool

from gr_jax.retrievers.base import Ranking, check_question, checked_allowed
from gr_jax.systems.gdr.decoding import Decoded
from gr_jax.systems.gdr.retriever import GDRRetriever


class VectorsAlone:
    """The same vectors and similarity, every cluster looked into, none written.

    Args:
      retriever: GDR's.
    """

    def __init__(self, retriever: GDRRetriever):
        self._retriever = retriever

    @property
    def num_documents(self) -> int:
        """Documents of the corpus that it answers from."""
        return self._retriever.num_documents

    def retrieve(
        self,
        queries: Sequence[str],
        k: int,
        *,
        allowed: Bool[np.ndarray, " documents"] | Bool[np.ndarray, "batch documents"] | None = None,
        explain: bool = False,
    ) -> Ranking:
        """See `Retriever.retrieve`; there is no evidence."""
        del explain
        depth = check_question(queries, k, self.num_documents)
        mask = checked_allowed(allowed, len(queries), self.num_documents)
        count = len(queries)
        none = np.zeros((count, 0), np.float32)
        decoded = Decoded(self._retriever.query_vectors(queries), none.astype(np.int32), none, none)
        everywhere = decoded.with_all_clusters(self._retriever.searcher.num_clusters)
        doc_index = np.full((count, k), -1, np.int32)
        score = np.full((count, k), -np.inf, np.float32)
        doc_index[:, :depth], score[:, :depth] = self._retriever.search(
            everywhere, depth, allowed=mask, chosen=everywhere.clusters.shape[1], beta=0.0
        )
        return Ranking(doc_index, score)
