"""Search over document vectors: exact on device, inside clusters, or by ScaNN."""

from typing import TYPE_CHECKING

from gr_jax import lazy

if TYPE_CHECKING:
    from gr_jax.dense.base import VectorSearch as VectorSearch
    from gr_jax.dense.building import build_clustered as build_clustered
    from gr_jax.dense.clustered import ClusteredSearch as ClusteredSearch
    from gr_jax.dense.exact import ExactSearch as ExactSearch
    from gr_jax.dense.max_sim import MaxSimSearch as MaxSimSearch
    from gr_jax.dense.registry import installed as installed
    from gr_jax.dense.registry import load_searcher as load_searcher
    from gr_jax.dense.registry import make_searcher as make_searcher
    from gr_jax.dense.scann import ScannSearch as ScannSearch
    from gr_jax.dense.token_vectors import TokenVectors as TokenVectors

__getattr__, __dir__, __all__ = lazy.names(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
