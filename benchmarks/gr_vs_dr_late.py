"""Studies `negatives`, `hard` and `dimension` of `benchmarks.gr_vs_dr` for late interaction (MVDR).

They stand beside those of one vector a text (`benchmarks.gr_vs_dr_dense`). Documents are read once: the states of their
tokens stay, and the side of queries is trained with the projection of both by two layers, which starts at random.
Pairs, negatives, steps, learning rates and seeds are those of the bi-encoder. Scores are sums over a query's tokens,
and the temperature is ColBERT's, 1.

The reference of the dimension is late interaction that is not trained: the states of MiniLM's tokens on their principal
axes, which are those of 256 documents, and MaxSim of cosines.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from benchmarks import gr_vs_dr_dense, harness
from benchmarks.gr_vs_dr_dense import DATA, GROUP, PROTOCOL, SPLITS, WIDTH, WIDTHS, Side
from benchmarks.recipe_runs import RecipeRun

MVDR = Side("MVDR", "ColBERT", 1.0)
_PROTOCOL = (*PROTOCOL, "ColBERT.frozen_documents=True", 'Interaction.projection="layers"')
Values = Mapping[str, float]


def arm(
    negatives: int | None = 31,
    *,
    hard: float = 0.0,
    width: int = WIDTH,
    seeds: Sequence[int] = (0,),
    data: str = DATA,
    subset: str = "",
    flags: Sequence[str] = (),
) -> tuple[RecipeRun, ...]:
    """Late interaction, once for each seed; see `gr_vs_dr_dense.arm`."""
    return tuple(
        RecipeRun(
            GROUP, data, "colbert", f"{gr_vs_dr_dense.label(negatives, hard=hard, width=width)}_{seed}", subset=subset,
            flags=(
                *_PROTOCOL, *gr_vs_dr_dense.drawn(negatives, hard),
                f"Interaction.dimension={width}", f"ContrastiveTraining.seed={seed}", *flags,
            ),
        )
        for seed in seeds
    )  # fmt: skip


def principal(width: int) -> RecipeRun:
    """Late interaction on so many principal axes, which is not trained."""
    flags = (
        "ColBERT.training=None", 'Interaction.projection="principal"', f"Interaction.dimension={width}",
        "Encoders.document_length=256",
    )  # fmt: skip
    return RecipeRun(GROUP, DATA, "colbert", f"principal_r{width}", flags=flags)


def untrained(width: int) -> Values:
    """What it reaches."""
    return dict(gr_vs_dr_dense.evaluated([principal(width)], MVDR))


def rows_of_negatives() -> list[harness.Row]:
    """Of the study."""
    return gr_vs_dr_dense.rows_of_negatives(arm, MVDR)


def rows_of_hard() -> list[harness.Row]:
    """Of the study."""
    return gr_vs_dr_dense.rows_of_hard(arm, MVDR)


def rows_of_dimension() -> list[harness.Row]:
    """Of the study, with its reference."""
    references = [
        harness.Row(
            name=f"dimension: MVDR by PCA, r = {width}",
            config={"splits": list(SPLITS), "width": width},
            measure=functools.partial(untrained, width),
            corpus=principal(width).fingerprint,
            runs=[principal(width)],
            note="MiniLM, nothing trained",
        )
        for width in WIDTHS
    ]
    return [*gr_vs_dr_dense.rows_of_widths(arm, MVDR), *references]
