"""One room a paper: a system is its settings and the stages that they make.

searcher = systems.GDR().run("my_beir_folder", "runs/mine")
searcher.search("a question", k=5)
"""

from gr_jax.systems.base import System as System
from gr_jax.systems.bm25 import BM25 as BM25
from gr_jax.systems.colbert import ColBERT as ColBERT
from gr_jax.systems.cross_encoder import BM25CrossEncoder as BM25CrossEncoder
from gr_jax.systems.doct5query import BM25DocT5Query as BM25DocT5Query
from gr_jax.systems.dpr import DPR as DPR
from gr_jax.systems.dsi import DSI as DSI

# Every system, in the order in which they are listed: `python -m launch.recipe --list`. A new one adds a line.
SYSTEMS: tuple[type[System], ...] = (
    BM25,
    DSI,
    DPR,
    ColBERT,
    BM25CrossEncoder,
    BM25DocT5Query,
)
