"""The stage of queries that are made from the documents themselves."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping

import gin

from gr_jax.docids import pseudo_queries as made_queries
from gr_jax.errors import InputError
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, stage
from gr_jax.stages.keys import content
from gr_jax.stages.settings import Settings, setting


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class PseudoQueries(Settings):
    """Queries made from the documents themselves.

    Attributes:
      kinds: how many of each kind ("span", "sentence", "title", "cloze", "generated") a document gets.
      seed: of the choice.
      generated: folder of the table that queries of the kind "generated" are taken from: `generated/pseudo_queries` in
        the MODEL_DIR of `bm25_doct5query`. None takes none.
    """

    kinds: Mapping[str, int] = setting({"title": 1, "sentence": 6, "span": 6, "cloze": 12}, at_least=0)
    seed: int = setting(0, at_least=0)
    generated: str | None = setting(None, neutral=None, identity=lambda table: content(table))

    def check(self) -> None:
        if bool(self.kinds.get("generated")) != (self.generated is not None):
            raise InputError(
                'queries of the kind "generated" are taken from a table, and no others are',
                'Set both PseudoQueries.kinds["generated"] and PseudoQueries.generated, or neither.',
                value=self.generated,
            )

    def summary(self) -> str:
        """How many of which kind, for reports."""
        return ", ".join(f"{count} {kind}" for kind, count in self.kinds.items()) or "none"


@stage(shared=True)
def pseudo_queries(place: Place, corpus: pathlib.Path, *, settings: PseudoQueries) -> None:
    """Queries made from the documents."""
    dataset = load_dataset(corpus)
    table = made_queries.PseudoQueries.load(settings.generated) if settings.generated else None
    made = made_queries.pseudo_queries(dataset.corpus, kinds=dict(settings.kinds), seed=settings.seed, generated=table)
    made.save(place.folder / "pseudo_queries")
    place.notes.update({"pseudo_queries": len(made.texts), "per_document": len(made.texts) / len(dataset.corpus)})


def load_pseudo_queries(folder: pathlib.Path) -> made_queries.PseudoQueries:
    """The queries of a finished stage."""
    return made_queries.PseudoQueries.load(folder / "pseudo_queries")
