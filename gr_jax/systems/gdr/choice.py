"""How much GDR's cluster scores weigh, and how many clusters are looked into: chosen on dev."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gr_jax import evaluation
from gr_jax import progress as progress_lib
from gr_jax.errors import InputError
from gr_jax.retrievers.base import Ranking, ranking_to_run

if TYPE_CHECKING:
    from gr_jax.corpus import Corpus, Queries
    from gr_jax.systems.gdr.retriever import GDRRetriever

BETAS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
CHOSEN = (5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120)
MEASURES = ("Success@1", "RR@10", "R@100")


@dataclasses.dataclass(frozen=True)
class Choice:
    """What `choose` found.

    Attributes:
      beta, chosen: of the best point; see `GDRRetriever`.
      measure: what was to be highest.
      table: every point that was measured: {"beta", "chosen", "share_scored", measure: value, …}.
    """

    beta: float
    chosen: int
    measure: str
    table: tuple[Mapping[str, Any], ...]

    def retriever(self, of: GDRRetriever) -> GDRRetriever:
        """The same retriever with what was chosen."""
        other = copy.copy(of)
        other.beta, other.chosen = self.beta, self.chosen
        return other

    def as_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {**dataclasses.asdict(self), "table": [dict(point) for point in self.table]}


# The settings say the rest (`ClusterSearch`).
def choose(
    retriever: GDRRetriever,
    queries: Queries,
    qrels: Mapping[str, Mapping[str, int]],
    corpus: Corpus,
    *,
    betas: Sequence[float] = BETAS,
    chosen: Sequence[int] = CHOSEN,
    measure: str = "R@100",
    measures: Sequence[str] = MEASURES,
    most_share: float = 1.0,
    k: int = 100,
    progress: bool = False,
) -> Choice:
    """Measures every beta with every number of clusters. Queries are decoded once, and searched again for each.

    Args:
      retriever: any; its own beta and number of clusters do not count.
      queries: of a dev split.
      qrels: the documents that answer them.
      corpus: that the retriever answers from.
      betas: weights of the clusters' scores.
      chosen: numbers of clusters looked into; those beyond the beams are as good as all.
      measure: what is to be highest.
      measures: others for the table.
      most_share: points that score a larger share of the documents, in the mean over the queries, are not taken, unless
        all of them do.
      k: depth of the rankings; at least the measures'.
      progress: show a bar.

    Returns:
      The best point, and all. Of equal values the one with fewer clusters is taken, then the lower beta.

    Raises:
      InputError: nothing to choose from, numbers out of range, an unknown measure, no queries.
    """
    if not betas or min(betas) < 0 or not chosen or min(chosen) < 1:
        raise InputError(
            "nothing to choose from", "Give betas ≥ 0 and chosen ≥ 1.", value=(tuple(betas), tuple(chosen))
        )
    (name,) = evaluation.parse_measures(measure)
    names = list(dict.fromkeys([*evaluation.parse_measures(measures), name]))
    for one in names:
        if "@" in one and int(one.partition("@")[2]) > k:
            raise InputError(f"rankings of {k} documents", "Give k of at least the measures' depth.", value=one)
    decoded = retriever.decode(queries.texts)
    table: list[dict[str, Any]] = []
    with progress_lib.bar("Choosing on dev how to search", len(chosen) * len(betas), enabled=progress) as bar:
        for count in chosen:
            share = float(np.mean(retriever.share_scored(decoded, count)))
            for beta in betas:
                ranking = Ranking(*retriever.search(decoded, k, chosen=count, beta=beta))
                values = evaluation.evaluate(ranking_to_run(ranking, queries.ids, corpus), qrels, names)
                table.append({"beta": float(beta), "chosen": int(count), "share_scored": share, **values})
                bar.advance()
    least = min(point["share_scored"] for point in table)
    affordable = [point for point in table if point["share_scored"] <= max(most_share, least)]
    best = max(affordable, key=lambda point: (point[name], -point["chosen"], -point["beta"]))
    return Choice(best["beta"], best["chosen"], name, tuple(table))
