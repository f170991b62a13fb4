"""One room a paper: a system is its settings and the stages that they make.

searcher = systems.GDR().run("my_beir_folder", "runs/mine")
searcher.search("a question", k=5)
"""

from gr_jax.systems import run as run  # gin files name it
from gr_jax.systems.base import System as System
from gr_jax.systems.bm25 import BM25 as BM25
from gr_jax.systems.dpr import DPR as DPR
from gr_jax.systems.dsi import DSI as DSI

# Every system, in the order in which they are listed: `python -m launch.recipe --list`. A new one adds a line.
SYSTEMS: tuple[type[System], ...] = (
    BM25,
    DSI,
    DPR,
)
