"""Opens an index of any kind that comes with this package: `gr_jax.load` is this module's.

The kinds of the layers are known at once. Those of systems are asked for only where an index is of none of them, for
they bring networks with them.
"""

from __future__ import annotations

import gr_jax.registered  # noqa: F401  the kinds of the layers
from gr_jax.registry import DOCUMENTS_OF, NETWORKS, RETRIEVERS
from gr_jax.retrievers.index import load as load


def _systems() -> None:
    import gr_jax.systems  # noqa: F401  every room registers its own


for _registry in (RETRIEVERS, NETWORKS, DOCUMENTS_OF):
    _registry.when_unknown(_systems)
