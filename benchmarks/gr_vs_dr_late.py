"""Studies `negatives` and `dimension` of `benchmarks.gr_vs_dr` for late interaction (MVDR).

They stand beside those of one vector a text (`benchmarks.gr_vs_dr_dense`). Documents are read once: the states of their
tokens stay, and the side of queries is trained with the projection of both by two layers, which starts at random.
Pairs, negatives, steps and learning rates are those of the bi-encoder. Scores are sums over a query's tokens, and the
temperature is ColBERT's, 1. All points have one seed.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import gr_vs_dr_dense, harness
from benchmarks.gr_vs_dr_dense import DATA, GROUP, NEGATIVES, PROTOCOL, WIDTH, WIDTHS, Side, named
from benchmarks.recipe_runs import RecipeRun

MVDR = Side("MVDR", "ColBERT", 1.0)
_PROTOCOL = (*PROTOCOL, "ColBERT.frozen_documents=True", 'Interaction.projection="layers"')


def arm(
    negatives: int | None = 31,
    *,
    width: int = WIDTH,
    seeds: Sequence[int] = (0,),
    data: str = DATA,
    subset: str = "",
    flags: Sequence[str] = (),
) -> tuple[RecipeRun, ...]:
    """Late interaction, once for each seed; see `gr_vs_dr_dense.arm`."""
    return tuple(
        RecipeRun(
            GROUP, data, "colbert", f"{gr_vs_dr_dense.label(negatives, width=width)}_{seed}", subset=subset,
            flags=(
                *_PROTOCOL, *gr_vs_dr_dense.drawn(negatives),
                f"Interaction.dimension={width}", f"ContrastiveTraining.seed={seed}", *flags,
            ),
        )
        for seed in seeds
    )  # fmt: skip


def rows_of_negatives() -> list[harness.Row]:
    """Of the study."""
    arms = {count: arm(count) for count in NEGATIVES}
    table = [gr_vs_dr_dense.row("negatives", f"K = {named(count)}", runs, MVDR) for count, runs in arms.items()]
    return [
        *table,
        gr_vs_dr_dense.row_above("negatives", "K = all", arms[None], "K = 1", arms[1], claimed=False, side=MVDR),
    ]


def rows_of_dimension() -> list[harness.Row]:
    """Of the study."""
    return [gr_vs_dr_dense.row("dimension", f"r = {width}", arm(width=width), MVDR) for width in WIDTHS]
