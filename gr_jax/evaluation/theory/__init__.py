"""What theory says of dense and generative retrieval, as functions that can be checked.

They are of *Does generative retrieval break through the limitations of dense retrieval?* (arXiv 2509.22116), section 3
and its appendices, with its errata.
"""

from gr_jax.evaluation.theory.entropy import cross_entropy as cross_entropy
from gr_jax.evaluation.theory.entropy import entropy as entropy
from gr_jax.evaluation.theory.entropy import kl_divergence as kl_divergence
from gr_jax.evaluation.theory.normalisation import LocalNormalisation as LocalNormalisation
from gr_jax.evaluation.theory.rank import low_rank_error as low_rank_error
from gr_jax.evaluation.theory.rank import numeric_rank as numeric_rank
from gr_jax.evaluation.theory.subtree_mass import SubtreeMass as SubtreeMass
