"""Generative against dense retrieval, study by study: `python -m benchmarks.gr_vs_dr --study=NAME`.

The studies are those of *Does generative retrieval break through the limitations of dense retrieval?* (arXiv
2509.22116), under one protocol. Without --study all are made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from benchmarks import gr_vs_dr_bounds, gr_vs_dr_calibration, harness

NAME = "gr_vs_dr"
STUDIES: dict[str, Callable[[], list[harness.Row]]] = {
    "bounds": gr_vs_dr_bounds.rows,
    "calibration": gr_vs_dr_calibration.rows,
}


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
    return harness.main(NAME, rows(), told)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
