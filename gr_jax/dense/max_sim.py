"""MaxSim (ColBERT, Khattab & Zaharia 2020, §3.3): each query vector finds its best document vector, and the sum counts.

`max_sim` scores what is in memory and is differentiable; `MaxSimSearch` finds the exact best of a corpus that need not
fit beside the model, block by block, and ranks candidates of another retriever anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from gr_jax.dense.base import Allowed, Found, check_search
from gr_jax.dense.streaming import EXACT
from gr_jax.dense.token_vectors import TokenVectors
from gr_jax.errors import InputError

# Products with what is masked. Finite, so that a query vector of weight 0 stays 0 and gradients stay free of NaN.
MASKED = -1e4
# Lengths that documents are padded to; each is compiled once.
_LENGTHS = (16, 32, 48, 64, 96, 128, 160, 192, 256, 384, 512)
# Queries, tokens of each above which they are fewer, and token vectors scored at a time. A CPU is fastest where their
# products fit its cache and a block that was read serves many queries, any other device where it has much to do at
# once.
_ON_CPU, _ELSEWHERE = (32, 16, 1 << 13), (64, 64, 1 << 17)
# Bytes of token vectors that a device keeps where nobody says whether it shall.
_KEPT = 1 << 32
# Queries that are always scored at a time, or are made up to; tokens up to which they are padded to a multiple of 8,
# and longer ones as documents are.
_LEAST, _PLAIN = 8, 64


def max_sim(
    queries: Float[Array, "B Q d"],
    weights: Float[Array, "B Q"],
    documents: Float[Array, "N S d"],
    mask: Bool[Array, "N S"],
) -> Float[Array, "B N"]:
    """score(q, d) = Σ_i w_i · max_j q_i · d_j, of every query with every document.

    Args:
      queries: vectors of the queries' tokens.
      weights: of each; 0 for what is padding, 1 otherwise in ColBERT.
      documents: vectors of the documents' tokens.
      mask: which of them count. A document of which none does scores −10,000 for each unit of weight.
    """
    products = jnp.einsum("bqd,nsd->bqns", queries, documents, preferred_element_type=jnp.float32)
    best = jnp.max(jnp.where(mask, products, MASKED), axis=-1)  # [B, Q, N]
    return jnp.einsum("bqn,bq->bn", best, weights.astype(jnp.float32))


def max_sim_pairs(
    queries: Float[Array, "B Q d"],
    weights: Float[Array, "B Q"],
    documents: Float[Array, "B S d"],
    mask: Bool[Array, "B S"] | None = None,
    *,
    precision: jax.lax.Precision | None = None,
) -> Float[Array, " B"]:
    """The score of each query with the document of the same row.

    Args:
      queries, weights, documents, mask: as of `max_sim`; no mask where all vectors count.
      precision: of the products; None takes the device's own, which may be less than float32's.
    """
    products = jnp.einsum("bqd,bsd->bqs", queries, documents, preferred_element_type=jnp.float32, precision=precision)
    if mask is not None:
        products = jnp.where(mask[:, None], products, MASKED)
    return jnp.sum(jnp.max(products, axis=-1) * weights, axis=-1)


class _Block(NamedTuple):
    """Documents of similar length. `documents` are the real ones; the arrays may have more rows."""

    documents: np.ndarray
    vectors: Any  # [rows, length, d]
    scales: Any  # [rows, length] or None


class MaxSimSearch:
    """Exact search by MaxSim over stored token vectors.

    Documents are read shard by shard, within a shard in blocks of similar length, so that little is padded; every block
    is one matrix product with all tokens of a batch of queries.

    Args:
      vectors: of the documents, usually memory-mapped.
      resident: keep all blocks on the device, in the precision that they are stored in. False reads them anew for every
        batch of queries, and needs memory for one block only. None keeps them where they are stored in up to 4 GiB,
        padding not counted, and nothing on a CPU, into whose memory they are mapped anyway.
      shard_documents: documents whose scores are held at a time.
      block_tokens: token vectors scored at a time; `batch · query length · block_tokens` products are in memory. None
        takes 8,192 on a CPU and 131,072 elsewhere.
      batch: queries scored at a time, fewer where they are long: above 16 tokens on a CPU, above 64 elsewhere. None
        takes 32 on a CPU and 64 elsewhere.
      mesh: spread the documents of every block over all of its devices.
    """

    def __init__(
        self,
        vectors: TokenVectors,
        *,
        resident: bool | None = None,
        shard_documents: int = 65_536,
        block_tokens: int | None = None,
        batch: int | None = None,
        mesh: Mesh | None = None,
    ):
        on_cpu = jax.default_backend() == "cpu"
        queries, self._long, tokens = _ON_CPU if on_cpu else _ELSEWHERE
        self._batch = queries if batch is None else batch
        self._block_tokens = tokens if block_tokens is None else block_tokens
        sizes = (shard_documents, self._block_tokens, self._batch)
        if min(sizes) < 1:
            raise InputError("shards, blocks and batches hold at least one vector", "Give 1 or more.", value=sizes)
        self.vectors, self._shard = vectors, shard_documents
        self.resident = not on_cpu and vectors.nbytes <= _KEPT if resident is None else resident
        self._devices = 1 if mesh is None else int(np.prod(list(mesh.shape.values())))
        self._sharding = None if mesh is None else NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self._kept: dict[int, tuple[int, list[_Block]]] = {}  # shard → the document behind its last one, blocks

    @property
    def num_documents(self) -> int:
        """Positions that have been given out, those of removed documents included."""
        return self.vectors.num_documents

    def search(
        self,
        queries: Float[np.ndarray, "batch Q d"],
        weights: Float[np.ndarray, "batch Q"],
        k: int,
        *,
        allowed: Allowed | None = None,
    ) -> Found:
        """The k best documents of each query, best first; equal scores in the order of the documents.

        Args:
          queries: vectors of the queries' tokens.
          weights: of each; 0 for padding.
          k: how many documents.
          allowed: which may be found, one row for all queries or one for each; None allows all. Documents that were
            removed from the vectors are never found.

        Returns:
          Positions and scores; −1 and −inf where there are fewer than k documents.

        Raises:
          InputError: shapes that do not fit, values that are not finite, or k < 1.
        """
        queries, weights = self._check(queries, weights)
        _, allowed = check_search(queries[:, 0], k, allowed, width=self.vectors.dimension, documents=self.num_documents)
        live = self.vectors.live
        if not live.all():
            allowed = live[None] if allowed is None else allowed & live
        if allowed is not None:
            allowed = np.broadcast_to(allowed, (len(queries), self.num_documents))
        lengths = _counted(weights)
        order = np.argsort(lengths, kind="stable")  # padding costs as much as words: those of similar length together
        places, best = np.full((len(queries), k), -1, np.int32), np.full((len(queries), k), -np.inf, np.float32)
        start = 0
        while start < len(queries):
            rows = order[start : start + self._batch]
            most = max(_LEAST, self._batch * self._long // max(int(lengths[rows[-1]]), 1))
            if self._height(len(rows)) > most:
                rows = rows[: 1 << (most.bit_length() - 1)]
            start += len(rows)
            width = int(lengths[rows[-1]])
            width = width if width <= _PLAIN else _bucket(width)
            asked = self._prepare(queries[rows, :width], weights[rows, :width])
            mask = None if allowed is None else allowed[rows]
            own = places[rows], best[rows]
            for shard in range(0, self.num_documents, self._shard):
                index, scores = self._score_shard(asked, shard, len(rows), mask)
                _merge(*own, index, scores)
            places[rows], best[rows] = own
        return places, best

    def score(
        self,
        queries: Float[np.ndarray, "batch Q d"],
        weights: Float[np.ndarray, "batch Q"],
        candidates: Int[np.ndarray, "batch c"],
    ) -> Float[np.ndarray, "batch c"]:
        """Scores each query's own candidates, as reranking needs it; −inf where one is −1 or was removed.

        Raises:
          InputError: shapes that do not fit, values that are not finite, or no such document.
        """
        queries, weights = self._check(queries, weights)
        candidates = np.asarray(candidates)
        if candidates.ndim != 2 or len(candidates) != len(queries) or candidates.max(initial=-1) >= self.num_documents:
            raise InputError(
                f"candidates do not fit {len(queries)} queries over {self.num_documents} documents",
                "Give one row of document positions for each query, −1 for none.",
                value=candidates.shape,
            )
        scores = np.full(candidates.shape, -np.inf, np.float32)
        row, column = np.nonzero((candidates >= 0) & self.vectors.live[np.maximum(candidates, 0)])
        pairs = candidates[row, column]
        padded = _pad_queries(queries, weights, len(queries))
        for chosen, length, height in self._plan(self.vectors.lengths[pairs]):
            vectors, scales = self.vectors.padded(pairs[_fill(chosen, height)], length)
            query, weight = (array[row[_fill(chosen, height)]] for array in padded)
            part = np.asarray(_score_pairs(query, weight, vectors, scales))[: len(chosen)]
            scores[row[chosen], column[chosen]] = part
        return scores

    def _check(self, queries: Any, weights: Any) -> tuple[Float[np.ndarray, "batch Q d"], Float[np.ndarray, "batch Q"]]:
        queries, weights = np.asarray(queries), np.asarray(weights)
        fit = queries.ndim == 3 and queries.shape[2] == self.vectors.dimension and weights.shape == queries.shape[:2]
        if not fit or not queries.shape[1]:
            raise InputError(
                f"queries of shape {queries.shape} with weights of shape {weights.shape}",
                f"Give [batch, tokens, {self.vectors.dimension}] and [batch, tokens], with a token at least.",
            )
        # Padding counts too: 0 · NaN is NaN.
        finite = np.isfinite(queries).all(axis=-1) & np.isfinite(weights)  # --> [batch, tokens]
        if not finite.all():
            row, token = np.argwhere(~finite)[0]
            raise InputError(
                "a query has a vector or a weight that is not finite",
                "Find out how its text was encoded.",
                value=f"query {row}, token {token}",
            )
        return queries, weights

    def _prepare(self, queries: np.ndarray, weights: np.ndarray) -> tuple[Array, Array]:
        vectors, padded = (jnp.asarray(array) for array in _pad_queries(queries, weights, self._height(len(queries))))
        return vectors, padded

    def _height(self, count: int) -> int:
        """What so many queries are made up to, so that few heights are compiled."""
        return min(self._batch, max(_LEAST, 1 << (count - 1).bit_length()))

    def _score_shard(
        self, asked: tuple[Array, Array], shard: int, count: int, allowed: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Positions of the documents of a shard that may be found, ascending, and their scores [count, documents]."""
        end = min(shard + self._shard, self.num_documents)
        if allowed is None or self.resident:
            documents = np.arange(shard, end)
        else:
            documents = shard + np.flatnonzero(allowed[:, shard:end].any(axis=0))
        scores = np.full((count, end - shard), -np.inf, np.float32)
        pending: list[tuple[np.ndarray, Array]] = []

        def collect() -> None:
            positions, part = pending.pop(0)
            scores[:, positions - shard] = np.asarray(part)[:count, : len(positions)]

        for block in self._blocks(shard, documents, whole=len(documents) == end - shard):
            pending.append((block.documents, _score_block(*asked, block.vectors, block.scales)))
            if len(pending) > 1:  # one block computes while the next is read
                collect()
        while pending:
            collect()
        if allowed is not None:
            scores[~allowed[:, shard:end]] = -np.inf
        return documents, scores[:, documents - shard]

    def _blocks(self, shard: int, documents: np.ndarray, *, whole: bool) -> Iterator[_Block]:
        end = min(shard + self._shard, self.num_documents)
        known, blocks = self._kept.get(shard, (shard, []))
        if whole and known == end:  # no document was added to it since
            yield from blocks
            return
        kept = []
        for chosen, length, height in self._plan(self.vectors.lengths[documents]):
            vectors, scales = self.vectors.padded(documents[_fill(chosen, height)], length)
            placed = jax.device_put((vectors, scales), self._sharding)
            block = _Block(documents[chosen], *placed)
            if whole and self.resident:
                kept.append(block)
            yield block
        if whole and self.resident:
            self._kept[shard] = end, kept

    def _plan(self, lengths: np.ndarray) -> Iterator[tuple[np.ndarray, int, int]]:
        """Groups of similar length: positions in `lengths`, the length they are padded to, and rows of the array."""
        order = np.argsort(lengths, kind="stable")
        ordered, start = lengths[order], 0
        while start < len(order):
            bucket = _bucket(int(ordered[start]))
            while True:
                height = self._rows(bucket)
                here = int(np.searchsorted(ordered, bucket, side="right")) - start
                if 2 * here >= height or start + here == len(order):
                    break
                bucket = _bucket(int(ordered[start + here]))  # too few of this length: together with longer ones
            end = start + min(here, height)
            while height % (2 * self._devices) == 0 and height // 2 >= end - start:
                height //= 2
            yield order[start:end], bucket, height
            start = end

    def _rows(self, length: int) -> int:
        """Rows of a block of documents of this length: a power of two, and at least one for each device."""
        rows = max(self._block_tokens // length, 1)
        return max(1 << (rows.bit_length() - 1), 1) * self._devices


def _bucket(length: int) -> int:
    return next((bucket for bucket in _LENGTHS if bucket >= length), -(-length // 256) * 256)


def _counted(weights: Float[np.ndarray, "batch Q"]) -> Int[np.ndarray, " batch"]:
    """How many tokens each query has, up to the last one that counts."""
    return np.where(weights != 0, np.arange(1, weights.shape[1] + 1), 0).max(axis=1)


def _fill(chosen: np.ndarray, height: int) -> np.ndarray:
    """`chosen` with its last entry repeated up to `height`."""
    return chosen[np.minimum(np.arange(height), len(chosen) - 1)]


def _pad_queries(queries: np.ndarray, weights: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """At least `count` queries, of a number of tokens that is a multiple of 8, so that few shapes are compiled."""
    more, length = max(count - len(queries), 0), -queries.shape[1] % 8
    return (
        np.pad(np.asarray(queries, np.float32), ((0, more), (0, length), (0, 0))),
        np.pad(np.asarray(weights, np.float32), ((0, more), (0, length))),
    )


def _merge(index: np.ndarray, scores: np.ndarray, new_index: np.ndarray, new_scores: np.ndarray) -> None:
    """Takes the better of what was found before and of what is new into `index`, `scores`; new ones stand later."""
    k = index.shape[1]
    for row in range(len(index)):
        values = new_scores[row]
        keep = np.flatnonzero(values > -np.inf)
        if len(keep) > k:
            bound = np.partition(values[keep], len(keep) - k)[len(keep) - k]
            keep = keep[values[keep] >= bound]
        positions = np.concatenate([index[row], new_index[keep].astype(np.int32)])
        together = np.concatenate([scores[row], values[keep]])
        order = np.argsort(-together, kind="stable")[:k]
        index[row], scores[row] = positions[order], together[order]


def _dequantized(vectors: Array, scales: Array | None) -> Array:
    vectors = vectors.astype(jnp.float32)
    return vectors if scales is None else vectors * scales[..., None]


@jax.jit
def _score_block(queries: Array, weights: Array, vectors: Array, scales: Array | None) -> Float[Array, "B n"]:
    count, length, dimension = vectors.shape
    tokens = _dequantized(vectors, scales).reshape(-1, dimension)  # [n · length, d]
    products = jnp.matmul(queries.reshape(-1, dimension), tokens.T, precision=EXACT)  # [B · Q, n · length]
    best = products.reshape(*queries.shape[:2], count, length).max(axis=-1)  # [B, Q, n]
    return jnp.einsum("bqn,bq->bn", best, weights, precision=EXACT)


@jax.jit
def _score_pairs(queries: Array, weights: Array, vectors: Array, scales: Array | None) -> Float[Array, " n"]:
    return max_sim_pairs(queries, weights, _dequantized(vectors, scales), precision=EXACT)
