"""Batches for GDR: those of a bi-encoder, and what the decoder shall write: the cluster of every query's answer."""

from __future__ import annotations

import hashlib

import grain
import numpy as np
from jaxtyping import Bool, Float, Int32

from gr_jax.docids import Docids, memberships
from gr_jax.errors import InputError
from gr_jax.training.contrastive_batches import ContrastiveBatches
from gr_jax.training.vector_batches import Completed, fingerprint_of_vectors, vectors_at


class GDRBatches(grain.IterDataset):
    """`ContrastiveBatches` with cluster identifiers (CIDs), and with document vectors where they are frozen.

    Args:
      batches: queries, their answers and their negatives, with `document_positions=True`. Where `vectors` are given,
        make them with `document_tokens=False`.
      clusters: a docid is a CID and stands for the documents of its cluster. Where a document is in several clusters,
        one of them is drawn anew for every batch, from the seed of `batches` and the number of the batch.
      vectors: of every document of the corpus, any float type, memory-mapped or not; None where documents are encoded
        from their tokens.

    Yields:
      encoder_input_tokens int32[B, Lq]; decoder_input_tokens and decoder_target_tokens int32[B, T] and
      decoder_loss_weights float32[B, T], of a CID of the answer (EOS included where CIDs end in it);
      document_index int32[B·(1+n)]; document_vectors float32[B·(1+n), d] or document_tokens int32[B·(1+n), Ld];
      negative_in_cluster bool[B, n] where there are negatives: whether one shares a cluster with the answer, wherever
      it was found; relevant_index where `batches` yields it. Every document has its own vector and clusters, also where
      its tokens, which may have been cut, are those of another one.

    Raises:
      InputError: the parts are of different corpora, or the answer of a query is in no cluster.
    """

    def __init__(
        self,
        batches: ContrastiveBatches,
        clusters: Docids,
        vectors: Float[np.ndarray, "documents d"] | None = None,
    ):
        super().__init__()
        count = len(batches.documents)
        for name, found in (
            ("clusters", clusters.num_documents),
            ("vectors", count if vectors is None else len(vectors)),
        ):
            if found != count:
                raise InputError(
                    f"{name} of {found} documents, and there are {count}", "Make both from one corpus.", value=found
                )
        if (vectors is None) != batches.document_tokens or not batches.document_positions:
            raise InputError(
                "documents have either vectors or tokens, and positions in any case",
                "Give vectors and batches made with document_tokens=False, or neither and document_positions=True.",
                value=(batches.document_tokens, batches.document_positions),
            )
        self.batches, self.clusters, self.vectors = batches, clusters, vectors
        self._clusters_of = memberships(clusters)
        self.batch_size = batches.batch_size
        self._targets = np.zeros((len(clusters), clusters.max_steps), np.int32)
        self._targets[:, : clusters.tokens.shape[1]] = clusters.tokens
        if clusters.eos_id is not None:
            self._targets[np.arange(len(clusters)), clusters.lengths] = clusters.eos_id
        self._check_answers()
        self.settings = {
            "batches": batches.settings,
            "clusters": _fingerprint(clusters.tokens, clusters.offsets, clusters.documents),
            "vectors": None if vectors is None else fingerprint_of_vectors(vectors),
        }

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the longest batch over all processes, as T5X's `get_initial_variables` wants them."""
        shapes = dict(self.batches.input_shapes)
        decoder = (self.batch_size, self._targets.shape[1])
        own: dict[str, tuple[int, ...]] = {"encoder_input_tokens": shapes.pop("query_tokens")}
        own |= {f"decoder_{name}": decoder for name in ("input_tokens", "target_tokens", "loss_weights")}
        if self.vectors is not None:
            own["document_vectors"] = (*shapes["document_index"], self.vectors.shape[1])
        shapes.pop("document_position")
        if self.batches.num_negatives:
            own["negative_in_cluster"] = (self.batch_size, self.batches.num_negatives)
        return own | shapes

    def __iter__(self) -> grain.DatasetIterator:
        return Completed(self.batches, self.complete)

    def complete(self, step: int, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Batch number `step` of `batches`, with what is GDR's."""
        batch = dict(batch)
        # Not document_index: documents that begin alike have one number there, and clusters of their own.
        positions = batch.pop("document_position")
        queries = batch.pop("query_tokens")
        groups = positions.reshape(len(queries), -1)  # [B, 1+n]
        targets = self._draw(step, groups[:, 0])
        found = {
            "encoder_input_tokens": queries,
            "decoder_input_tokens": np.pad(targets, ((0, 0), (1, 0)))[:, :-1],
            "decoder_target_tokens": targets,
            "decoder_loss_weights": (targets != 0).astype(np.float32),
        }
        if self.vectors is not None:
            found["document_vectors"] = vectors_at(self.vectors, positions)
        if groups.shape[1] > 1:
            found["negative_in_cluster"] = self._shared(groups)
        return found | batch

    def _shared(self, groups: Int32[np.ndarray, "B n_plus_one"]) -> Bool[np.ndarray, "B n"]:
        """Which negatives share a cluster with their answer."""
        clusters = np.where(groups[:, :, None] >= 0, self._clusters_of[groups], -1)  # [B, 1+n, most]
        own, theirs = clusters[:, :1, None, :], clusters[:, 1:, :, None]
        return ((own == theirs) & (theirs >= 0)).any(axis=(2, 3))

    def _draw(self, step: int, answers: Int32[np.ndarray, " B"]) -> Int32[np.ndarray, "B T"]:
        """Target tokens of one CID of each answer; zeros where the answer is −1."""
        # For all processes, each of which takes its own; the 2 keeps apart from what ContrastiveBatches draws.
        draws = np.random.default_rng([self.batches.seed, step, 2]).random(self.batch_size)[self.batches.local]
        targets = np.zeros((len(answers), self._targets.shape[1]), np.int32)
        for i in np.flatnonzero(answers >= 0).tolist():
            rows = self.clusters.rows_of(int(answers[i]))
            targets[i] = self._targets[rows[int(draws[i] * len(rows))]]
        return targets

    def _check_answers(self) -> None:
        clustered = np.zeros(self.clusters.num_documents, bool)
        clustered[self.clusters.documents] = True
        without = np.setdiff1d(self.batches.positive, np.flatnonzero(clustered))
        if len(without):
            raise InputError(
                "the answer of a training query is in no cluster",
                "Make clusters of all documents of the corpus.",
                value=f"document {without[0]}",
            )


def _fingerprint(*arrays: np.ndarray) -> str:
    """16 hex digits of their content."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
