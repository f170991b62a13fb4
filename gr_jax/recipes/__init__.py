"""Recipes: a system's stages in order, each a folder, finished ones skipped.

searcher = recipes.dsi("my_beir_folder", "runs/mine")
searcher.search("a question", k=5)
"""

import gr_jax.registered  # noqa: F401  so that recipes open every index that they wrote
from gr_jax.recipes.clusters import Clusters as Clusters
from gr_jax.recipes.cross_encoder import bm25_cross_encoder as bm25_cross_encoder
from gr_jax.recipes.dense import dpr as dpr
from gr_jax.recipes.dense_settings import ContrastiveTraining as ContrastiveTraining
from gr_jax.recipes.dense_settings import Encoders as Encoders
from gr_jax.recipes.dense_settings import Lexical as Lexical
from gr_jax.recipes.dense_settings import Mining as Mining
from gr_jax.recipes.dense_settings import Search as Search
from gr_jax.recipes.doct5query import GeneratedQueries as GeneratedQueries
from gr_jax.recipes.doct5query import bm25_doct5query as bm25_doct5query
from gr_jax.recipes.dsi import dsi as dsi
from gr_jax.recipes.gdr import gdr as gdr
from gr_jax.recipes.gdr_settings import ClusterSearch as ClusterSearch
from gr_jax.recipes.gdr_settings import Matching as Matching
from gr_jax.recipes.interaction_settings import Crossing as Crossing
from gr_jax.recipes.interaction_settings import Interaction as Interaction
from gr_jax.recipes.late_interaction import colbert as colbert
from gr_jax.recipes.lexical import bm25 as bm25
from gr_jax.recipes.nci import nci as nci
from gr_jax.recipes.query_generator import QueryGenerating as QueryGenerating
from gr_jax.recipes.run import run as run
from gr_jax.recipes.settings import Decoding as Decoding
from gr_jax.recipes.settings import Identifiers as Identifiers
from gr_jax.recipes.settings import Network as Network
from gr_jax.recipes.settings import PseudoQueries as PseudoQueries
from gr_jax.recipes.settings import Training as Training
from gr_jax.recipes.settings import Vectors as Vectors
from gr_jax.recipes.sources import BeirFolder as BeirFolder
from gr_jax.recipes.sources import PythonDocs as PythonDocs
