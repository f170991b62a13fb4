"""Search inside clusters as a part of a larger program, which itself decides on the device which clusters they are."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from gr_jax.dense import gathering
from gr_jax.dense.gathering import DeviceTiles
from gr_jax.dense.tiles import Tiles, candidates

Candidates = tuple[Float[Array, "batch most"], Int[Array, "batch most"]]


class Plan(NamedTuple):
    """How some tiles are searched; decided on the host, since shapes follow from it.

    Attributes:
      name: "tiles" or "full", see `gathering`.
      pieces: that the largest clusters which a query can choose have together.
      most: candidates of each query.
    """

    name: str
    pieces: int
    most: int


def make_plan(tiles: Tiles, batch: int, chosen: int, k: int, overfetch: float | None) -> Plan:
    """The cheaper plan for queries that choose the largest clusters.

    Args:
      tiles: of all clusters.
      batch: queries.
      chosen: clusters of each query.
      k: documents of each query.
      overfetch: see `ClusteredSearch`.
    """
    sizes = np.sort(np.diff(tiles.offsets))[::-1][:chosen]
    pieces = int((-(-sizes // gathering.TILE)).sum())
    most = k * tiles.multiplicity
    return Plan(
        gathering.choose_plan(batch, float(sizes.sum()), len(tiles.documents)),
        1 << max(pieces - 1, 0).bit_length(),
        most if tiles.codes is None else candidates(most, overfetch),
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FusedSearch:
    """What a program needs to search; a pytree, an argument of jitted functions. `ClusteredSearch.fused` makes it, and
    `ClusteredSearch.finish` makes documents of what it finds.

    Attributes:
      tiles: on the device.
      live: bool[padded documents], which are not removed.
      plans: static; one for each of the tiles.
    """

    tiles: tuple[DeviceTiles, ...]
    live: Bool[Array, " padded_documents"]
    plans: tuple[Plan, ...] = dataclasses.field(metadata={"static": True})

    def search(
        self,
        queries: Float[Array, "batch d"],
        clusters: Int[Array, "batch chosen"],
        bonus: Float[Array, "batch chosen"],
        allowed: Bool[Array, "batch documents"] | None,
        *,
        tanh: bool,
    ) -> tuple[Candidates, ...]:
        """Scores and entries of the best of each of the tiles; −inf where there are fewer.

        Args:
          queries: [batch, d].
          clusters: int[batch, chosen], none twice in a row; −1 chooses none.
          bonus: added to the scores of the clusters' documents.
          allowed: which documents may be found; None allows all.
          tanh: scores are tanh(q·d) + bonus instead of q·d + bonus.
        """
        keep = self.live[None]
        if allowed is not None:
            keep &= jnp.pad(allowed, ((0, 0), (0, len(self.live) - allowed.shape[1])))
        return tuple(
            _search(tiles, plan, queries, clusters, bonus, keep, tanh)
            for tiles, plan in zip(self.tiles, self.plans, strict=True)
        )


def _search(tiles: DeviceTiles, plan: Plan, queries, clusters, bonus, keep, tanh: bool) -> Candidates:
    coded = queries if tiles.dimension_scales is None else queries * tiles.dimension_scales
    arrays = gathering.arrays(tiles)
    if plan.name == "full":
        table = jnp.full((len(clusters), len(tiles.offsets)), -jnp.inf)  # the last column: no cluster
        rows = jnp.arange(len(clusters))[:, None]
        table = table.at[rows, clusters].set(jnp.where(clusters >= 0, bonus, -jnp.inf))
        return gathering.search_full(coded, *arrays, table, keep, k=plan.most, tanh=tanh)
    slices = _slices(tiles.offsets, clusters, bonus, plan.pieces)
    return gathering.search_tiles(coded, *arrays, *slices, keep, k=plan.most, tanh=tanh)


def _slices(
    offsets: Int[Array, " clusters_plus_1"],
    clusters: Int[Array, "batch chosen"],
    bonus: Float[Array, "batch chosen"],
    pieces: int,
) -> tuple[Int[Array, "batch pieces"], Int[Array, "batch pieces"], Float[Array, "batch pieces"]]:
    """The pieces that each query needs: first row, row behind the last, bonus; empty ones behind them."""
    sizes = jnp.where(clusters >= 0, offsets[clusters + 1] - offsets[clusters], 0)  # --> [batch, chosen]
    of_cluster = -(-sizes // gathering.TILE)
    ends = jnp.cumsum(of_cluster, axis=1)
    number = jnp.arange(pieces, dtype=jnp.int32)
    place = jax.vmap(lambda row: jnp.searchsorted(row, number, side="right"))(ends)  # --> [batch, pieces]
    inside = place < clusters.shape[1]
    place = jnp.minimum(place, clusters.shape[1] - 1)

    def of_piece(x):
        return jnp.take_along_axis(x, place, axis=1)

    cluster = jnp.maximum(of_piece(clusters), 0)
    within = number - of_piece(ends - of_cluster)
    first = jnp.where(inside, offsets[cluster] + within * gathering.TILE, 0)
    return first, jnp.where(inside, offsets[cluster + 1], 0), of_piece(bonus)
