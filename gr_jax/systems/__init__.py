"""One room a paper: a system is its settings and the stages that they make.

searcher = systems.GDR().run("my_beir_folder", "runs/mine")
searcher.search("a question", k=5)
"""

# Settings of systems, and sources of documents.
from gr_jax.stages.bm25 import Lexical as Lexical
from gr_jax.stages.clusters import Clusters as Clusters
from gr_jax.stages.contrastive import ContrastiveTraining as ContrastiveTraining
from gr_jax.stages.docids import Identifiers as Identifiers
from gr_jax.stages.encoders import Encoders as Encoders
from gr_jax.stages.negatives import Mining as Mining
from gr_jax.stages.networks import Network as Network
from gr_jax.stages.pseudo_queries import PseudoQueries as PseudoQueries
from gr_jax.stages.rank_docids import DocidDistilling as DocidDistilling
from gr_jax.stages.sources import BeirFolder as BeirFolder
from gr_jax.stages.sources import BeirPassages as BeirPassages
from gr_jax.stages.sources import PythonDocs as PythonDocs
from gr_jax.stages.vectors import Vectors as Vectors
from gr_jax.stages.write_docids import Decoding as Decoding
from gr_jax.stages.write_docids import Training as Training
from gr_jax.systems import run as run  # gin files name it
from gr_jax.systems.base import System as System
from gr_jax.systems.bm25 import BM25 as BM25
from gr_jax.systems.cgr import CGR as CGR
from gr_jax.systems.cgr import GENRE as GENRE
from gr_jax.systems.cgr import Aligning as Aligning
from gr_jax.systems.cgr import CGRAsync as CGRAsync
from gr_jax.systems.cgr import CGRContra as CGRContra
from gr_jax.systems.cgr import Contextual as Contextual
from gr_jax.systems.cgr import GENREStar as GENREStar
from gr_jax.systems.cgr import TitleDecoding as TitleDecoding
from gr_jax.systems.colbert import ColBERT as ColBERT
from gr_jax.systems.colbert import Interaction as Interaction
from gr_jax.systems.cross_encoder import BM25CrossEncoder as BM25CrossEncoder
from gr_jax.systems.cross_encoder import Crossing as Crossing
from gr_jax.systems.doct5query import BM25DocT5Query as BM25DocT5Query
from gr_jax.systems.doct5query import GeneratedQueries as GeneratedQueries
from gr_jax.systems.doct5query import QueryGenerating as QueryGenerating
from gr_jax.systems.dpr import DPR as DPR
from gr_jax.systems.dpr import Search as Search
from gr_jax.systems.dsi import DSI as DSI
from gr_jax.systems.dsi_clusters import DSIClusters as DSIClusters
from gr_jax.systems.dsi_dgr import DSIDGR as DSIDGR
from gr_jax.systems.dsi_qg import DSIQG as DSIQG
from gr_jax.systems.gdr import GDR as GDR
from gr_jax.systems.gdr import ClusterSearch as ClusterSearch
from gr_jax.systems.gdr import Matching as Matching
from gr_jax.systems.nci import NCI as NCI
from gr_jax.systems.ngram import MINDER as MINDER
from gr_jax.systems.ngram import SEAL as SEAL
from gr_jax.systems.ngram import Asking as Asking
from gr_jax.systems.ngram import NgramWriting as NgramWriting
from gr_jax.systems.ngram.dgr import DGR as DGR
from gr_jax.systems.ngram.dgr import LTRGR as LTRGR
from gr_jax.systems.ngram.distilling import Distilling as Distilling

# Every system, in the order in which they are listed: `gr-jax recipe --list`. A new one adds a line.
SYSTEMS: tuple[type[System], ...] = (
    BM25,
    DSI,
    DPR,
    ColBERT,
    BM25CrossEncoder,
    BM25DocT5Query,
    DSIClusters,
    NCI,
    GDR,
    DSIQG,
    SEAL,
    MINDER,
    LTRGR,
    DGR,
    DSIDGR,
    GENRE,
    GENREStar,
    CGR,
    CGRAsync,
    CGRContra,
)
