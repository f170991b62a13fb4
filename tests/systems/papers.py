"""The configurations at the papers' sizes, as tests resolve them."""

from typing import Any

from gr_jax import systems
from tests.systems.configured import MACROS, resolved

PAPERS = {
    "dsi": systems.DSI,
    "nci": systems.NCI,
    "seal": systems.SEAL,
    "minder": systems.MINDER,
    "ltrgr": systems.LTRGR,
    "dgr": systems.DGR,
    "genre": systems.GENRE,
    "cgr": systems.CGR,
    "gdr": systems.GDR,
}


def paper(name: str, *bindings: str, **macros: str) -> Any:
    """The system that a file makes.

    Args:
      bindings: gin flags.
      macros: instead of those of `configured.MACROS`.
    """
    own = {macro: value for macro, value in MACROS.items() if macro not in ("T5", "BERT")}  # which the files give
    return resolved(f"papers/nq320k_{name}", bindings=bindings, macros=own | macros)
