"""What documents are called: identifier token sequences and the schemes that make them."""

from gr_jax.docids.children import children as children
from gr_jax.docids.clusters import memberships as memberships
from gr_jax.docids.clusters import name_clusters as name_clusters
from gr_jax.docids.clusters import names_of_clusters as names_of_clusters
from gr_jax.docids.codes import codes_of as codes_of
from gr_jax.docids.contextual_tokens import ContextualTokens as ContextualTokens
from gr_jax.docids.contextual_tokens import contextual_tokens as contextual_tokens
from gr_jax.docids.docids import Docids as Docids
from gr_jax.docids.hierarchical_kmeans import hierarchical_kmeans as hierarchical_kmeans
from gr_jax.docids.numeric import atomic as atomic
from gr_jax.docids.numeric import naive_numeric as naive_numeric
from gr_jax.docids.residual_quantization import docids_of_codes as docids_of_codes
from gr_jax.docids.residual_quantization import residual_quantization as residual_quantization
from gr_jax.docids.spans import TokenText as TokenText
from gr_jax.docids.spans import token_text as token_text
from gr_jax.docids.statistics import describe as describe
from gr_jax.docids.statistics import statistics as statistics
from gr_jax.docids.titles import title_of as title_of
from gr_jax.docids.titles import titles as titles
from gr_jax.docids.token_vectors import codeword_vectors as codeword_vectors
from gr_jax.docids.token_vectors import token_vectors as token_vectors
