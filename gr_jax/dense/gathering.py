"""Scoring the chosen clusters of each query in XLA, in one of two ways.

"tiles" slices contiguous pieces of the chosen clusters: it moves batch · rows · d numbers. "full" multiplies with every
document and masks those of other clusters: it moves entries · d numbers, whatever is chosen. So where batch · rows
reaches the number of entries, the full product is the cheaper one, and by far on an accelerator.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from gr_jax.dense import streaming
from gr_jax.dense.base import Found, merge, nothing_found
from gr_jax.dense.tiles import Tiles, candidates

PLANS = ("tiles", "full")
TILE = 64  # rows of a cluster that are sliced at once
_STEP_BYTES = 1 << 26  # sliced rows that are held at once
_BLOCK_SCORES = 1 << 23  # scores of the full product that are held at once
Best = tuple[Float[Array, "batch k"], Int[Array, "batch k"], Int[Array, "batch k"]]  # scores, documents, entries
_LAST = np.iinfo(np.int32).max  # stands for no document: behind every other among equal scores


def in_blocks(length: int, block: int = 1 << 13) -> int:
    """The length of a padded array: few lengths, so that documents can be added without compiling anew."""
    return max(-(-length // block) * block, block)


def choose_plan(batch: int, rows_per_query: float, entries: int) -> str:
    """The cheaper way by the numbers that it moves."""
    return "full" if batch * rows_per_query >= entries else "tiles"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DeviceTiles:
    """Tiles on the device, with rows of padding behind the last cluster so that every slice is whole.

    Attributes:
      rows: float32 or int8 [padded entries, d].
      scales: float32[padded entries], by which the products with int8 rows are multiplied; None for float32.
      dimension_scales: float32[d], by which queries are multiplied before; None for float32.
      documents: int32[padded entries].
      clusters: int32[padded entries].
      offsets: int32[clusters + 1]; entries offsets[c]:offsets[c + 1] are those of cluster c.
    """

    rows: jax.Array
    scales: jax.Array | None
    dimension_scales: jax.Array | None
    documents: jax.Array
    clusters: jax.Array
    offsets: jax.Array

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(array.nbytes for array in jax.tree.leaves(self))

    @classmethod
    def send(cls, tiles: Tiles) -> DeviceTiles:
        """Copies tiles to the default device."""
        entries = len(tiles.documents)
        padded = in_blocks(entries + TILE)

        def pad(array, fill=0):
            whole = np.full((padded, *array.shape[1:]), fill, array.dtype)
            whole[:entries] = array
            return jnp.asarray(whole)

        codes = tiles.codes
        return cls(
            pad(tiles.rows if codes is None else codes.codes),
            None if codes is None else pad(codes.row_scales),
            None if codes is None else jnp.asarray(codes.dimension_scales),
            pad(tiles.documents),
            pad(tiles.clusters(), tiles.num_clusters),
            jnp.asarray(tiles.offsets.astype(np.int32)),
        )


def search(
    tiles: Tiles,
    on_device: DeviceTiles,
    queries: np.ndarray,
    clusters: np.ndarray,
    bonus: np.ndarray,
    k: int,
    live: np.ndarray,
    allowed: np.ndarray,
    *,
    tanh: bool,
    overfetch: float | None,
    plan: str | None = None,
) -> Found:
    """As `kernels.search`.

    Args:
      on_device: the same tiles there.
      plan: "tiles" or "full"; None takes the cheaper one.
    """
    sizes = np.diff(tiles.offsets)
    chosen = np.where(clusters >= 0, sizes[clusters], 0)  # --> [batch, chosen]
    plan = plan or choose_plan(len(queries), chosen.sum(axis=1).mean(), len(tiles.documents))
    if not bonus.shape[1]:
        bonus = np.zeros(clusters.shape, np.float32)
    batch = 1 << (len(queries) - 1).bit_length()
    most = k * tiles.multiplicity
    coded = queries
    if tiles.codes is not None:
        most, coded = candidates(most, overfetch), queries * tiles.codes.dimension_scales
    coded = _pad(coded, batch)
    keep = _pad(allowed & live if allowed.shape[1] else live[None], batch if len(allowed) > 1 else 1)
    keep = np.pad(keep, ((0, 0), (0, in_blocks(keep.shape[1]) - keep.shape[1])))  # as many programs as tiles have
    if plan == "full":
        table = np.full((batch, tiles.num_clusters + 1), -np.inf, np.float32)  # the last column: no cluster
        table[np.arange(len(clusters))[:, None], clusters] = np.where(clusters >= 0, bonus, -np.inf)
        scores, entries = search_full(coded, *arrays(on_device), table, keep, k=most, tanh=tanh)
    else:
        slices = _slices(tiles, clusters, bonus, chosen, batch)
        scores, entries = search_tiles(coded, *arrays(on_device), *slices, keep, k=most, tanh=tanh)
    scores, entries = np.asarray(scores)[: len(clusters)], np.asarray(entries)[: len(clusters)]
    return finish(tiles, entries, scores, queries, clusters, bonus, k, tanh, overfetch is not None)


def finish(tiles, entries, scores, queries, clusters, bonus, k, tanh, again) -> Found:
    """The k best documents of candidate entries [batch, candidates]. again: scores that were made with int8 codes are
    made anew from the float32 rows."""
    if again and tiles.codes is not None:
        scores = _rescore(tiles, entries, scores, queries, clusters, bonus, tanh)
    return best_of_entries(tiles, entries, scores, k)


def _rescore(tiles, entries, scores, queries, clusters, bonus, tanh) -> Float[np.ndarray, "batch candidates"]:
    """The scores of entries by their float32 rows; −inf stays."""
    exact = np.full(scores.shape, -np.inf, np.float32)
    for b, found in enumerate(entries):
        real = np.flatnonzero(~np.isneginf(scores[b]))
        inside = np.searchsorted(tiles.offsets, found[real], side="right") - 1
        order = np.argsort(clusters[b])
        extra = bonus[b][order[np.searchsorted(clusters[b], inside, sorter=order)]]
        products = tiles.rows[found[real]] @ queries[b]
        exact[b, real] = (np.tanh(products) if tanh else products) + extra
    return exact


def best_of_entries(tiles: Tiles, entries: np.ndarray, scores: np.ndarray, k: int) -> Found:
    """The k best documents of candidate entries; a document of several entries gets the best."""
    if not len(tiles.documents):
        return nothing_found(len(scores), k)
    documents = tiles.documents[np.clip(entries, 0, len(tiles.documents) - 1)]
    documents = np.where(np.isneginf(scores), _LAST, documents)
    order = np.lexsort((documents, -scores), axis=1)
    documents, scores = np.take_along_axis(documents, order, 1), np.take_along_axis(scores, order, 1)
    if tiles.multiplicity > 1:
        by_document = np.argsort(documents, axis=1, kind="stable")  # each document's best stands first
        ordered = np.take_along_axis(documents, by_document, 1)
        again = np.zeros(documents.shape, bool)
        np.put_along_axis(again, by_document[:, 1:], ordered[:, 1:] == ordered[:, :-1], 1)
        scores = np.where(again, -np.inf, scores)
        order = np.argsort(again, axis=1, kind="stable")
        documents, scores = np.take_along_axis(documents, order, 1), np.take_along_axis(scores, order, 1)
    return merge([(np.where(np.isneginf(scores), -1, documents).astype(np.int32), scores)], k)


def arrays(tiles: DeviceTiles):
    return tiles.rows, tiles.scales, tiles.documents, tiles.clusters


def _pad(array: np.ndarray, length: int) -> np.ndarray:
    padded = np.zeros((length, *array.shape[1:]), array.dtype)
    padded[: len(array)] = array
    return padded


def _slices(tiles: Tiles, clusters: np.ndarray, bonus: np.ndarray, sizes: np.ndarray, batch: int):
    """The pieces that each query needs: first row, row behind the last, bonus; each [batch, pieces], padded with empty
    ones to a power of two."""
    pieces = -(-sizes // TILE)  # --> [queries, chosen]
    per_query = pieces.sum(axis=1)
    width = 1 << max(int(per_query.max(initial=1)) - 1, 0).bit_length()
    pair = np.repeat(np.arange(pieces.size), pieces.reshape(-1))
    within = np.arange(len(pair)) - np.repeat(np.cumsum(pieces.reshape(-1)) - pieces.reshape(-1), pieces.reshape(-1))
    query = pair // clusters.shape[1] if clusters.shape[1] else pair
    place = np.arange(len(pair)) - np.repeat(np.cumsum(per_query) - per_query, per_query)
    cluster = clusters.reshape(-1)[pair]
    starts, ends = np.zeros((2, batch, width), np.int32)
    extra = np.zeros((batch, width), np.float32)
    starts[query, place] = tiles.offsets[cluster] + within * TILE
    ends[query, place] = tiles.offsets[cluster + 1]
    extra[query, place] = bonus.reshape(-1)[pair]
    return starts, ends, extra


def _score(products, scales, bonus, tanh):
    scores = products if scales is None else products * scales
    return (jnp.tanh(scores) if tanh else scores) + bonus


def _nothing(batch: int, k: int) -> Best:
    scores, documents = streaming.nothing(batch, k)
    return scores, documents, documents


def _keep_best(best: Best, scores, documents, entries) -> Best:
    """The best of `best` and more candidates [batch, n]; of equal scores the lower document's, whatever the order."""
    k = best[0].shape[-1]
    high, places = streaming.highest(scores, k)
    last = high[:, -1:]
    # Of those that equal the last of the k, any may have got in: the lowest documents among them are looked for anew.
    lowest, equal = streaming.highest(jnp.where(scores == last, -documents, -_LAST), k)
    places = jnp.concatenate([places, equal], axis=1)
    scores = jnp.concatenate(
        [jnp.where(high == last, -jnp.inf, high), jnp.where(lowest > -_LAST, last, -jnp.inf)], axis=1
    )
    found = (scores, jnp.take_along_axis(documents, places, 1), jnp.take_along_axis(entries, places, 1))
    scores, documents, entries = (jnp.concatenate(pair, axis=1) for pair in zip(best, found, strict=True))
    falling, documents, entries = lax.sort((-scores, documents, entries), num_keys=2)  # --> [batch, 3k at most]
    return -falling[:, :k], documents[:, :k], entries[:, :k]


@functools.partial(jax.jit, static_argnames=("k", "tanh"))
def search_full(queries, rows, scales, documents, clusters, table, keep, *, k: int, tanh: bool):
    batch, entries = len(queries), len(rows)
    block = entries
    while block % 2 == 0 and block * batch > _BLOCK_SCORES:
        block //= 2

    def add_block(best, first):
        def cut(x):
            return lax.dynamic_slice_in_dim(x, first, block)

        products = jnp.matmul(queries, cut(rows).astype(jnp.float32).T, precision=streaming.EXACT)  # --> [batch, block]
        scores = _score(products, None if scales is None else cut(scales), jnp.take(table, cut(clusters), axis=1), tanh)
        names = cut(documents)
        scores = jnp.where(jnp.take(keep, names, axis=1), scores, -jnp.inf)
        numbers = first + jnp.arange(block, dtype=jnp.int32)
        return _keep_best(best, scores, *(jnp.broadcast_to(x, scores.shape) for x in (names, numbers))), None

    firsts = jnp.arange(0, entries, block, dtype=jnp.int32)
    scores, _, found = lax.scan(add_block, _nothing(batch, k), firsts)[0]
    return scores, found


@functools.partial(jax.jit, static_argnames=("k", "tanh"))
def search_tiles(queries, rows, scales, documents, clusters, starts, ends, bonus, keep, *, k: int, tanh: bool):
    batch, pieces = starts.shape
    step = pieces
    while step % 2 == 0 and batch * step * TILE * rows.shape[1] * 4 > _STEP_BYTES:
        step //= 2

    def cut(x, starts):
        return jax.vmap(jax.vmap(lambda start: lax.dynamic_slice_in_dim(x, start, TILE)))(starts)

    def add_pieces(best, first):
        part = [lax.dynamic_slice_in_dim(x, first, step, axis=1) for x in (starts, ends, bonus)]
        pieces = cut(rows, part[0]).astype(jnp.float32)  # --> [batch, step, tile, d]
        products = jnp.einsum("bd,bstd->bst", queries, pieces, precision=streaming.EXACT)
        scores = _score(products, None if scales is None else cut(scales, part[0]), part[2][..., None], tanh)
        names = cut(documents, part[0])  # --> [batch, step, tile]
        numbers = part[0][..., None] + jnp.arange(TILE, dtype=jnp.int32)
        inside = numbers < part[1][..., None]
        kept = keep[0][names] if len(keep) == 1 else jax.vmap(lambda row, name: row[name])(keep, names)
        scores = jnp.where(inside & kept, scores, -jnp.inf)
        return _keep_best(best, *(x.reshape(batch, -1) for x in (scores, names, numbers))), None

    firsts = jnp.arange(0, pieces, step, dtype=jnp.int32)
    scores, _, found = lax.scan(add_pieces, _nothing(batch, k), firsts)[0]
    return scores, found
