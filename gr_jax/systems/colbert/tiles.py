"""Contrastive batches with the states of documents' tokens, which stay as they are, instead of the tokens; and MaxSim
of such a batch.

A batch has every document once, whoever drew it, in tiles of `TILE` tokens: documents differ much in length, and as
rows of one length most of a batch would be padding. The last tile of a document is filled up with its last token, which
changes no maximum.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import grain
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Int32

from gr_jax.dense.token_vectors import TokenRows
from gr_jax.errors import InputError
from gr_jax.training.contrastive_batches import ContrastiveBatches
from gr_jax.training.vector_batches import Completed, fingerprint_of_vectors

TILE = 16  # tokens
BLOCK = 4096  # tokens that are projected and scored at a time; see `tile_scores`
PARTS = 8  # sizes that a batch's tokens have between one power of two and the next: each is compiled once
QUERIES = 8  # that meet their own documents at a time


class StateBatches(grain.IterDataset):
    """`ContrastiveBatches` with the states of documents' tokens.

    Args:
      batches: queries, their answers and their negatives, made with `document_tokens=False`, on one process.
      states: of the tokens of every document of the corpus, memory-mapped or not; float16 or float32.

    Yields:
      What `batches` yields, with these for document_position: document_states [T, e], in the precision of `states`,
      the tokens of every document of the batch once, T a multiple of `BLOCK`; document_tiles int32[B·(1+n), W], for
      each document the numbers of its tiles, the last one repeated. Where there is no document, they are 0.

    Raises:
      InputError: batches with tokens of documents, of another corpus or of several processes, or states in int8.
    """

    def __init__(self, batches: ContrastiveBatches, states: TokenRows):
        super().__init__()
        if batches.document_tokens:
            raise InputError("these documents are states", "Make the batches with document_tokens=False.")
        if states.num_documents != len(batches.documents):
            raise InputError(
                f"states of {states.num_documents} documents, and there are {len(batches.documents)}",
                "Make both from one corpus.",
                value=states.num_documents,
            )
        if states.scales is not None:
            raise InputError("states that are trained on are numbers as they are", "Store them in float16.")
        if len(batches.local) != batches.batch_size:
            raise InputError(
                "documents that a batch has once cannot be split over processes",
                "Train on one process.",
                value=len(batches.local),
            )
        self.batches, self.states = batches, states
        self._lengths = np.diff(states.offsets)
        self._width = -(-int(self._lengths.max()) // TILE)
        self.settings = {"batches": batches.settings, "states": fingerprint_of_vectors(states.vectors)}

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes that all batches have; how many states there are differs."""
        shapes = self.batches.input_shapes
        rows = shapes.pop("document_position")
        return {**shapes, "document_tiles": (*rows, self._width)}

    def __iter__(self) -> grain.DatasetIterator:
        return Completed(self.batches, self.complete)

    def complete(self, _step: int, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """A batch of those inside, with states."""
        positions = batch.pop("document_position")
        chosen = np.unique(positions[positions >= 0])
        counts = -(-self._lengths[chosen] // TILE)
        first = np.cumsum(counts) - counts  # the number of each document's first tile
        place = np.minimum(np.searchsorted(chosen, positions), len(chosen) - 1)
        tiles = first[place][:, None] + np.minimum(np.arange(self._width), counts[place][:, None] - 1)
        tiles = np.where(positions[:, None] >= 0, tiles, 0)
        return {**batch, "document_states": self._states_of(chosen, counts), "document_tiles": tiles.astype(np.int32)}

    def _states_of(self, chosen: Int[np.ndarray, " n"], counts: Int[np.ndarray, " n"]) -> np.ndarray:
        """States [T, e] of documents, one behind the other in tiles."""
        owner = np.repeat(np.arange(len(chosen)), counts)
        number = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]  # of a tile within its document
        within = number[:, None] * TILE + np.arange(TILE)
        rows = self.states.offsets[chosen[owner]][:, None] + np.minimum(
            within, self._lengths[chosen[owner]][:, None] - 1
        )
        rows = rows.reshape(-1)
        made = np.zeros((_rounded(len(rows)), self.states.vectors.shape[1]), self.states.vectors.dtype)
        made[: len(rows)] = self.states.vectors[rows]
        return made


def _rounded(tokens: int) -> int:
    """So many tokens, or up to a `PARTS`-th more: a multiple of `BLOCK` of which there are few."""
    blocks = -(-tokens // BLOCK)
    step = max(1, (1 << (blocks - 1).bit_length()) // (2 * PARTS))
    return -(-blocks // step) * step * BLOCK


def tile_scores(
    queries: Float[Array, "B Q d"],
    weights: Float[Array, "B Q"],
    project: Callable[[Float[Array, "n e"]], Float[Array, "n d"]],
    states: Float[Array, "T e"],
    tiles: Int32[Array, "D W"],
    *,
    own_alone: bool,
) -> Float[Array, "B D"]:
    """MaxSim of every query with every document of a batch of `StateBatches`; see `dense.max_sim.max_sim`.

    Block by block states are projected and meet all queries, and of each tile the maximum is kept. Going back, each
    block is computed once more, so that memory holds the vectors of one block. Where only own documents count, states
    are projected without gradients, and a query meets its own. Few tokens are the best for anyone: these are projected
    once more, with gradients.

    Args:
      queries, weights: vectors of the queries' tokens, and what each counts.
      project: what takes states to vectors.
      states, tiles: of the batch.
      own_alone: score only each query's own group of documents; what others brought scores 0.
    """
    count, length = weights.shape
    if own_alone:
        return _own_tile_scores(queries, weights, project, states, tiles)

    @jax.checkpoint
    def block(rows: Float[Array, "block e"]) -> Float[Array, "B Q tiles"]:
        products = jnp.einsum("bqd,td->bqt", queries, project(rows), preferred_element_type=jnp.float32)
        return products.reshape(count, length, -1, TILE).max(axis=-1)

    found = jax.lax.map(block, _blocks(states))  # [blocks, B, Q, tiles]
    found = jnp.moveaxis(found, 0, 2).reshape(count, length, -1)  # [B, Q, T / TILE]
    best = found[:, :, tiles].max(axis=-1)  # [B, Q, D]
    return jnp.einsum("bqn,bq->bn", best, weights.astype(jnp.float32))


def _own_tile_scores(
    queries: Float[Array, "B Q d"],
    weights: Float[Array, "B Q"],
    project: Callable[[Float[Array, "n e"]], Float[Array, "n d"]],
    states: Float[Array, "T e"],
    tiles: Int32[Array, "D W"],
) -> Float[Array, "B D"]:
    """Of each query's own group of documents. Which tokens are the best is found without gradients."""
    count, width = len(weights), tiles.shape[1]
    found = jax.lax.map(lambda rows: jax.lax.stop_gradient(project(rows)), _blocks(states))
    vectors = found.reshape(-1, TILE, found.shape[-1])
    by_tile = jnp.asarray(states).reshape(-1, TILE, states.shape[-1])

    def own(query: Array, weight: Array, group: Array) -> Float[Array, " group"]:
        """Of one query: [Q, d], [Q] and [1+n, W]."""
        documents = vectors[group].reshape(len(group), width * TILE, -1)
        best = jnp.einsum("qd,nsd->qns", jax.lax.stop_gradient(query), documents).argmax(axis=-1)  # [Q, 1+n]
        tile = jnp.take_along_axis(group, best.T // TILE, axis=1).T
        chosen = project(by_tile[tile, best % TILE].astype(jnp.float32))  # [Q, 1+n, d]
        products = jnp.einsum("qd,qnd->qn", query, chosen, preferred_element_type=jnp.float32)
        return weight.astype(jnp.float32) @ products

    @jax.checkpoint
    def some(ones: list[Array]) -> Float[Array, "some group"]:
        return jax.vmap(own)(*ones)

    # A part of the queries at a time, for the memory. Each has queries of every device.
    at_once = math.gcd(count, QUERIES)
    groups = tiles.reshape(count, -1, width)
    parts = [one.reshape(at_once, -1, *one.shape[1:]).swapaxes(0, 1) for one in (queries, weights, groups)]
    scores = jax.lax.map(some, parts).swapaxes(0, 1).reshape(count, -1)  # [B, 1+n]
    return (scores[:, None] * jnp.eye(count)[:, :, None]).reshape(count, -1)


def _blocks(states: Float[Array, "T e"]) -> Float[Array, "blocks block e"]:
    return states.astype(jnp.float32).reshape(-1, BLOCK, states.shape[-1])
