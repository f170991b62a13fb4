"""Search inside clusters: only the documents of each query's chosen clusters are scored."""

from __future__ import annotations

import math
import os
import pathlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from gr_jax import storage
from gr_jax.clustering import kmeans
from gr_jax.dense import gathering, kernels
from gr_jax.dense import tiles as tiles_lib
from gr_jax.dense.base import (
    SCANN,
    Allowed,
    Found,
    check_chosen,
    check_clusters,
    check_positions,
    check_search,
    check_vectors,
    held,
    merge,
    nothing_found,
    optional,
    usable,
)
from gr_jax.dense.fusing import FusedSearch, make_plan
from gr_jax.dense.scorers import ClusterScorers
from gr_jax.dense.tiles import Tiles
from gr_jax.errors import InputError, InputWarning

KIND = "clustered_search"
BACKENDS = ("numba", "xla", "scann")
_SCORED = 1 << 24  # scores of documents and clusters that are held at a time
_TAIL = 4096  # an added tail shorter than this is not worth sorting everything anew


class ClusteredSearch:
    """Documents stored by cluster; a query is scored against the documents of the clusters chosen for it.

    Who chooses is free: `search_clusters` takes the clusters (GDR's decoder writes them), `search` takes those whose
    mean vector has the largest inner product with the query.

    Args:
      vectors: float32[n, d]; may be memory-mapped, but is copied into memory in the clusters' order.
      clusters: int[n], each document's cluster; or int[n, m] where documents are in several, −1 for none. None makes
        `num_clusters` clusters by k-means.
      num_clusters: clusters in all; None takes as many as `clusters` names, or about 4√n.
      chosen: how many clusters `search` looks into.
      codes: None, or "row" or "dimension": scores come from int8 codes with such scales, and `overfetch` · k + 16
        candidates are scored again from the float32 rows.
      overfetch: see `codes`. None scores nothing again: no float32 row is read, scores are right to about 1e-3 of the
        vectors' lengths.
      backend: "numba" (CPU), "xla", "scann" (CPU, a brute-force scorer of each cluster; without codes), or "auto":
        numba where the default device is a CPU and numba is installed, else XLA.
      seed: of k-means.

    Raises:
      InputError: shapes that do not fit, values that are not finite, unknown settings, numba missing though asked for.
    """

    def __init__(
        self,
        vectors: Float[np.ndarray, "n d"],
        clusters: Int[np.ndarray, " n"] | Int[np.ndarray, "n m"] | None = None,
        *,
        num_clusters: int | None = None,
        chosen: int = 32,
        codes: str | None = None,
        overfetch: float | None = 1.25,
        backend: str = "auto",
        seed: int = 0,
    ):
        vectors = check_vectors(vectors)
        if clusters is None:
            num_clusters = num_clusters or max(1, min(round(4 * math.sqrt(len(vectors))), len(vectors)))
            clusters = kmeans(vectors, num_clusters, seed=seed).assignments if len(vectors) else np.zeros(0, np.int32)
        clusters = check_clusters(clusters, len(vectors), num_clusters)
        count = max(num_clusters or 0, int(clusters.max(initial=-1)) + 1, 1)
        settings = {"chosen": chosen, "codes": codes, "overfetch": overfetch}
        self._start(_sort(vectors, clusters, count, codes, 0), np.ones(len(vectors), bool), settings, backend)

    def _start(self, main: Tiles, live: np.ndarray, settings: dict, backend: str) -> None:
        check_settings(settings["chosen"], settings["overfetch"])
        self.settings, self.asked, self.backend = settings, backend, _choose_backend(backend)
        check_codes(self.backend, settings["codes"])
        self._main, self._live, self._all_live = main, live, bool(live.all())
        self._tail: Tiles | None = None
        self._added: list[tuple[np.ndarray, np.ndarray]] = []  # vectors and clusters that are in no tiles yet
        self._made: dict[tuple[int, Callable], tuple[Tiles, Any]] = {}
        self._live_on_device: jax.Array | None = None
        self._means: tuple[list[Tiles], np.ndarray, np.ndarray] | None = None

    @property
    def num_documents(self) -> int:
        """Positions that have been given out."""
        return len(self._live)

    @property
    def num_live(self) -> int:
        """Documents that are not removed."""
        return int(self._live.sum())

    @property
    def num_clusters(self) -> int:
        """Clusters, empty ones included."""
        return self._main.num_clusters

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        return self._main.rows.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes in memory, the device's and ScaNN's copies included."""
        tiles = [t for t in (self._main, self._tail) if t is not None]
        made = sum(laid_out.nbytes for _, laid_out in self._made.values())
        return sum(t.nbytes for t in tiles) + made + held(self._live, *(vectors for vectors, _ in self._added))

    def search(self, queries: Float[np.ndarray, "batch d"], k: int, *, allowed: Allowed | None = None) -> Found:
        """See `VectorSearch.search`; looks into the `chosen` clusters whose means have the largest inner products, of
        those that have a document that is allowed; into all of these where no more documents are allowed than `chosen`
        clusters have on average."""
        queries, filters = check_search(queries, k, allowed, width=self.width, documents=self.num_documents)
        if filters is None or not len(queries):
            return self.search_clusters(queries, self.choose_clusters(queries), k)
        holding = np.concatenate([self.holding(row[None]) for row in filters])
        few = self.settings["chosen"] * self.num_live / max(1, np.count_nonzero(self._cluster_means()[1]))
        some = (filters & self._live).sum(axis=1) <= few
        counts = np.where(some, holding.sum(axis=1), self.settings["chosen"])
        clusters = self.choose_clusters(queries, max(1, int(counts.max())), among=holding)
        clusters = np.where(np.arange(clusters.shape[1]) < counts[:, None], clusters, -1)
        return self.search_clusters(queries, clusters, k, allowed=filters)

    def choose_clusters(
        self,
        queries: Float[np.ndarray, "batch d"],
        chosen: int | None = None,
        *,
        among: Bool[np.ndarray, "rows clusters"] | None = None,
    ) -> Int[np.ndarray, "batch chosen"]:
        """The clusters whose means have the largest inner product with each query, best first; empty ones never.

        Args:
          queries: [batch, d].
          chosen: how many; None takes as many as `search` looks into.
          among: which clusters may be chosen, one row for all queries or one for each; None allows all.

        Returns:
          int32[batch, chosen], or as many as there are clusters; −1 where fewer hold documents.

        Raises:
          InputError: queries that do not fit or are not finite, chosen < 1.
        """
        queries, _ = check_search(queries, 1, None, width=self.width, documents=self.num_documents)
        chosen = self.settings["chosen"] if chosen is None else chosen
        if chosen < 1:
            raise InputError("search needs a cluster", "Give chosen ≥ 1.", value=chosen)
        means, sizes = self._cluster_means()
        there = np.broadcast_to(sizes > 0 if among is None else (sizes > 0) & among, (len(queries), self.num_clusters))
        chosen = min(chosen, self.num_clusters)
        found = np.empty((len(queries), chosen), np.int32)
        block = max(1, _SCORED // self.num_clusters)
        for start in range(0, len(queries), block):
            own = there[start : start + block]
            scores = np.where(own, queries[start : start + block] @ means.T, -np.inf)  # --> [block, clusters]
            best = np.argpartition(-scores, chosen - 1, axis=1)[:, :chosen]
            order = np.lexsort((best, -np.take_along_axis(scores, best, 1)), axis=1)
            best = np.take_along_axis(best, order, 1)
            found[start : start + block] = np.where(np.take_along_axis(own, best, 1), best, -1)
        return found

    def members(self) -> tuple[Int[np.ndarray, " entries"], Int[np.ndarray, " entries"]]:
        """Clusters, ascending, and the documents in each, ascending, without removed ones."""
        parts = [(t.clusters(), t.documents) for t in self._all_tiles()]
        clusters, documents = (np.concatenate(part) for part in zip(*parts, strict=True))
        kept = self._live[documents]
        clusters, documents = clusters[kept], documents[kept]
        order = np.lexsort((documents, clusters))
        return clusters[order], documents[order]

    def sizes(self) -> Int[np.ndarray, " clusters"]:
        """How many documents each cluster has, without removed ones."""
        live = [t.clusters()[self._live[t.documents]] for t in self._all_tiles()]
        return np.sum([np.bincount(clusters, minlength=self.num_clusters) for clusters in live], axis=0)

    def holding(self, allowed: Bool[np.ndarray, "rows documents"]) -> Bool[np.ndarray, "rows clusters"]:
        """Which clusters have a document that is allowed and not removed."""
        return np.any([t.holding(allowed & self._live) for t in self._all_tiles()], axis=0)

    def contains(
        self, documents: Int[np.ndarray, " k"], clusters: Int[np.ndarray, " chosen"]
    ) -> Bool[np.ndarray, "chosen k"]:
        """Which of the documents are in each of the clusters; none is in cluster −1, and document −1 is in none."""
        found = np.zeros((len(clusters), len(documents)), bool)
        for row in np.flatnonzero(clusters >= 0):
            for tiles in self._all_tiles():
                found[row] |= tiles.contains(documents, int(clusters[row]))
        return found

    def search_clusters(
        self,
        queries: Float[np.ndarray, "batch d"],
        clusters: Int[np.ndarray, "batch chosen"],
        k: int,
        *,
        cluster_scores: Float[np.ndarray, "batch chosen"] | None = None,
        similarity: str = "dot",
        allowed: Allowed | None = None,
        plan: str | None = None,
    ) -> Found:
        """The k best documents of each query inside the clusters chosen for it.

        score(q, d) = similarity(q·d) + the score of d's cluster; a document of several chosen clusters gets the highest
        (GDR, arXiv 2401.10487: tanh(q·d) + β · the generation score of the cluster, softmaxed over the beam).

        Args:
          queries: [batch, d].
          clusters: int[batch, chosen], none twice in a row; −1 chooses none.
          k: how many documents each query gets at most.
          cluster_scores: float[batch, chosen], added to the scores of the clusters' documents; None adds nothing.
          similarity: "dot" or "tanh".
          allowed: as `VectorSearch.search`.
          plan: of the XLA backend: "tiles" or "full" instead of the cheaper of the two.

        Returns:
          As `VectorSearch.search`.

        Raises:
          InputError: shapes that do not fit, no such cluster, one that is chosen twice, values that are not finite.
        """
        queries, filters = check_search(queries, k, allowed, width=self.width, documents=self.num_documents)
        if similarity not in ("dot", "tanh") or plan not in (None, *gathering.PLANS):
            raise InputError(
                "unknown similarity or plan", "Give 'dot' or 'tanh'; 'tiles', 'full' or None.", value=(similarity, plan)
            )
        clusters, bonus = check_chosen(clusters, cluster_scores, len(queries), self.num_clusters)
        if not len(queries) or not clusters.shape[1]:
            return nothing_found(len(queries), k)
        filters = np.zeros((1, 0), bool) if filters is None else filters
        arguments = (queries, clusters, bonus, k, self._live, filters)
        return merge([self._search_tiles(t, arguments, similarity == "tanh", plan) for t in self._all_tiles()], k)

    def fused(self, batch: int, chosen: int, k: int) -> FusedSearch:
        """The same search as a part of a program that chooses the clusters on the device.

        Args:
          batch: queries of the program.
          chosen: clusters that each chooses.
          k: how many documents each gets at most.
        """
        tiles = self._all_tiles()
        if self._live_on_device is None:
            padding = gathering.in_blocks(self.num_documents) - self.num_documents
            self._live_on_device = jnp.asarray(np.pad(self._live, (0, padding)))
        return FusedSearch(
            tuple(self._laid_out(t, gathering.DeviceTiles.send) for t in tiles),
            self._live_on_device,
            tuple(make_plan(t, batch, chosen, k, self.settings["overfetch"]) for t in tiles),
        )

    def finish(
        self,
        found: Sequence[tuple[np.ndarray, np.ndarray]],
        queries: Float[np.ndarray, "batch d"],
        clusters: Int[np.ndarray, "batch chosen"],
        cluster_scores: Float[np.ndarray, "batch chosen"],
        k: int,
        *,
        similarity: str = "dot",
    ) -> Found:
        """The documents of what `FusedSearch.search` found, as `search_clusters` gives them.

        Args:
          found: its scores and entries, on the host.
          queries, clusters, cluster_scores, k, similarity: what it was asked, as of `search_clusters`.
        """
        asked = queries, clusters, cluster_scores, k, similarity == "tanh", self.settings["overfetch"] is not None
        parts = [
            gathering.finish(tiles, entries, scores, *asked)
            for tiles, (scores, entries) in zip(self._all_tiles(), found, strict=True)
        ]
        return merge(parts, k)

    def add(
        self, vectors: Float[np.ndarray, "n d"], clusters: Int[np.ndarray, " n"] | Int[np.ndarray, "n m"] | None = None
    ) -> None:
        """Adds documents; they get the next positions. The tail they are in is sorted at the next search, and merged
        when it is a quarter of the rest: then all rows are copied into memory, mapped ones too.

        Args:
          vectors: [n, d].
          clusters: of each document, as of the constructor; None takes the one whose mean has the largest inner product
            with it (GDR's rule for new documents).
        """
        vectors = check_vectors(vectors, self.width)
        if clusters is None:
            clusters = np.maximum(self.choose_clusters(vectors, 1), 0)
        clusters = check_clusters(clusters, len(vectors), self.num_clusters)
        self._added.append((vectors.copy(), clusters))
        self._live = np.concatenate([self._live, np.ones(len(vectors), bool)])
        self._live_on_device = None

    def remove(self, positions: Int[np.ndarray, " n"]) -> None:
        """See `VectorSearch.remove`. Their vectors go when the tail is merged; from the means they go at once."""
        self._live[check_positions(positions, self.num_documents)] = False
        self._all_live, self._live_on_device, self._means = bool(self._live.all()), None, None

    def save(self, folder: str | os.PathLike) -> None:
        """Writes tiles, codes and what was removed. What was added is merged first; see `add`."""
        self._merge()
        meta = {**self.settings, "documents": self.num_documents, "multiplicity": self._main.multiplicity}
        with storage.write_folder(folder, KIND, meta=meta) as new:
            tiles_lib.write(self._main, new)
            np.save(new / "live.npy", self._live)

    @classmethod
    def load(
        cls, folder: str | os.PathLike, *, mmap: bool = True, verify: bool = True, backend: str = "auto"
    ) -> ClusteredSearch:
        """Reads what `save` wrote.

        Args:
          folder: the artefact.
          mmap: leave the float32 rows on disk until added documents are merged: where there are codes, only candidates
            are read.
          verify: check the checksums.
          backend: as of the constructor.

        Raises:
          InputError: not such a folder, or altered.
        """
        manifest = storage.read_folder(folder, KIND, verify=verify)
        path = pathlib.Path(folder)
        try:
            settings = {name: manifest.meta[name] for name in ("chosen", "codes", "overfetch")}
            multiplicity = int(manifest.meta["multiplicity"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"not a readable clustered search: {error}", "Make it again.", file=path) from error
        main = tiles_lib.read(path, multiplicity=multiplicity, coded=settings["codes"] is not None, mmap=mmap)
        live = storage.load_array(path / "live.npy", dtype=bool, ndim=1)
        if len(main.documents) and not 0 <= main.documents.min() <= main.documents.max() < len(live):
            raise InputError("it names documents that it has not", "Make it again.", file=path)
        search = cls.__new__(cls)
        search._start(main, live, settings, backend)
        return search

    def _search_tiles(self, tiles: Tiles, arguments: tuple, tanh: bool, plan: str | None) -> Found:
        if not len(tiles.documents):
            return nothing_found(len(arguments[0]), arguments[3])
        overfetch = self.settings["overfetch"]
        if self.backend == "numba":
            queries, clusters, bonus, k, live, filters = arguments
            live = live[:0] if self._all_live else live
            return kernels.search(tiles, queries, clusters, bonus, k, live, filters, tanh=tanh, overfetch=overfetch)
        if self.backend == "scann":
            return self._laid_out(tiles, ClusterScorers).search(*arguments, tanh=tanh)
        return gathering.search(
            tiles,
            self._laid_out(tiles, gathering.DeviceTiles.send),
            *arguments,
            tanh=tanh,
            overfetch=overfetch,
            plan=plan,
        )

    def _laid_out(self, tiles: Tiles, lay_out: Callable[[Tiles], Any]) -> Any:
        """What the backend makes of tiles, made once and dropped with them."""
        key = id(tiles), lay_out
        if key not in self._made:
            there = {id(t) for t in self._all_tiles()}
            kept = {key: made for key, made in self._made.items() if key[0] in there}
            self._made = {**kept, key: (tiles, lay_out(tiles))}
        return self._made[key][1]

    def _all_tiles(self) -> list[Tiles]:
        """The tiles of all documents, with what was added since the last search."""
        if self._added:
            parts = [] if self._tail is None else [self._tail]
            first = self.num_documents - sum(len(vectors) for vectors, _ in self._added)
            for vectors, clusters in self._added:
                parts.append(_sort(vectors, clusters, self.num_clusters, None, first))
                first += len(vectors)
            self._added = []
            self._tail = tiles_lib.join(parts, self._live, self.settings["codes"])
            if len(self._tail.documents) > max(_TAIL, len(self._main.documents) // 4):
                self._merge()
        return [self._main] if self._tail is None else [self._main, self._tail]

    def _merge(self) -> None:
        """Makes one of the main tiles and the tail; removed documents' vectors go."""
        parts = self._all_tiles()
        if len(parts) > 1:
            self._main, self._tail = tiles_lib.join(parts, self._live, self.settings["codes"]), None

    def _cluster_means(self) -> tuple[Float[np.ndarray, "clusters d"], Int[np.ndarray, " clusters"]]:
        """The mean vectors of the clusters, zeros where one is empty, and their sizes, both of what is live; kept until
        documents come or go."""
        tiles = self._all_tiles()
        if self._means is None or [id(t) for t in self._means[0]] != [id(t) for t in tiles]:
            parts = [t.live_sums(self._live) for t in tiles]
            sums, sizes = (np.sum(part, axis=0) for part in zip(*parts, strict=True))
            self._means = tiles, sums / np.maximum(sizes, 1)[:, None].astype(np.float32), sizes
        return self._means[1:]


def check_settings(chosen: int, overfetch: float | None) -> None:
    """Raises InputError for settings by which nothing could be found."""
    if chosen < 1 or (overfetch is not None and overfetch < 1):
        raise InputError(
            "search needs a cluster, and candidates at least as many as answers",
            "Give chosen ≥ 1, and overfetch ≥ 1 or None.",
            value=(chosen, overfetch),
        )


def check_codes(backend: str, codes: str | None) -> None:
    """Raises InputError where the backend cannot score int8 codes, and is to."""
    if backend == "scann" and codes is not None:
        raise InputError(
            "ScaNN cannot search int8 codes of ours", "Leave codes out, or take another backend.", value=codes
        )


def backend_at_hand(name: str) -> str:
    """The backend that an index was saved with; "auto", with a warning, where its package cannot be imported here: all
    of them find the same."""
    if name in ("auto", "xla") or usable(SCANN if name == "scann" else name):
        return name
    warnings.warn(f"the package {name} cannot be imported here: clusters are searched by another", InputWarning, 2)
    return "auto"


def _choose_backend(name: str) -> str:
    if name == "auto":
        if jax.default_backend() != "cpu":
            return "xla"
        if usable("numba"):
            return "numba"
        slower = "without numba XLA searches clusters, on a CPU several times slower: pip install 'gr_jax[search]'"
        warnings.warn(slower, InputWarning, 2)
        return "xla"
    if name not in BACKENDS:
        raise InputError("unknown backend", f"Choose among auto, {', '.join(BACKENDS)}.", value=name)
    if name != "xla":
        optional(SCANN if name == "scann" else name, f"Clustered search by {name}")
    return name


def _sort(vectors: np.ndarray, clusters: np.ndarray, num_clusters: int, scale: str | None, first: int) -> Tiles:
    """Tiles of documents from position `first` on."""
    source, place = np.nonzero(clusters >= 0)
    multiplicity = int((clusters >= 0).sum(axis=1).max(initial=1))
    return tiles_lib.lay_out(
        vectors, source, source + first, clusters[source, place], num_clusters, scale, multiplicity
    )
