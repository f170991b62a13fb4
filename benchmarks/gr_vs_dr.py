"""Generative against dense retrieval, study by study: `python -m benchmarks.gr_vs_dr --study=NAME`.

The studies are those of *Does generative retrieval break through the limitations of dense retrieval?* (arXiv
2509.22116), under one protocol. Without --study all are made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from benchmarks import (
    gr_vs_dr_bounds,
    gr_vs_dr_calibration,
    gr_vs_dr_codebook,
    gr_vs_dr_dense,
    gr_vs_dr_docids,
    gr_vs_dr_growth,
    gr_vs_dr_late,
    gr_vs_dr_matched,
    gr_vs_dr_remedies,
    harness,
    records,
)

NAME = "gr_vs_dr"
STUDIES: dict[str, Callable[[], list[harness.Row]]] = {
    "bounds": lambda: [*gr_vs_dr_bounds.rows(), *gr_vs_dr_docids.rows()],
    "negatives": lambda: [
        *gr_vs_dr_dense.rows_of_negatives(),
        *gr_vs_dr_late.rows_of_negatives(),
        *gr_vs_dr_dense.rows_on_embeddings(),
    ],
    "hard": lambda: [*gr_vs_dr_dense.rows_of_hard(), *gr_vs_dr_late.rows_of_hard()],
    "dimension": lambda: [*gr_vs_dr_dense.rows_of_dimension(), *gr_vs_dr_late.rows_of_dimension()],
    "codebook": gr_vs_dr_codebook.rows,
    "growth": lambda: [*gr_vs_dr_growth.rows(), *gr_vs_dr_matched.rows()],
    "remedies": gr_vs_dr_remedies.rows,
    "calibration": gr_vs_dr_calibration.rows,
}
DRAWN = ("negatives", "hard", "dimension")


def rows() -> list[harness.Row]:
    """The rows of all studies; a row's name begins with its study's."""
    return [row for of_study in STUDIES.values() for row in of_study()]


def main(argv: Sequence[str]) -> int:
    """See `harness.main`; --study=NAME stands for the rows of a study."""
    told = []
    for argument in argv:
        name = argument.removeprefix("--study=")
        if name != argument and name not in STUDIES:
            print(f"{NAME}: no study is called {name}; there are {', '.join(STUDIES)}", file=sys.stderr)
            return 2
        told.append(argument if name == argument else f"--rows={name}:*")
    return harness.main(NAME, rows(), told, draw=draw)


def draw() -> None:
    """Pictures of the studies that are recorded, into `benchmarks/results/gr_vs_dr_*.svg`."""
    current = harness.current_values(rows(), records.read(harness.RESULTS / f"{NAME}.json"))
    for study in DRAWN:
        gr_vs_dr_dense.draw(study, current)
    gr_vs_dr_bounds.draw(current)
    gr_vs_dr_codebook.draw(current)
    gr_vs_dr_growth.draw(current)
    gr_vs_dr_matched.draw(current)
    gr_vs_dr_remedies.draw(current)
    gr_vs_dr_calibration.draw(current)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
