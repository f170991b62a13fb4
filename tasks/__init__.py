"""seqio Tasks and Mixtures. They call the feature functions of `gr_jax.training.features`, as `write_token_store` does,
so tokens are byte for byte the same with seqio and without it.
"""

from gr_jax.errors import InputError

try:
    import seqio as _seqio  # noqa: F401
except ImportError as error:
    raise InputError(
        "tasks need the package seqio",
        "Run pip install 'gr_jax[data]', or tokenise without it: gr_jax.training.write_token_store.",
    ) from error

from .datasets import add_docid_tasks as add_docid_tasks
from .datasets import add_text_tasks as add_text_tasks
from .pairs import add_pairs_mixture as add_pairs_mixture
from .pairs import add_pairs_task as add_pairs_task
from .pairs import write_token_store_from_task as write_token_store_from_task
from .top_k import top_k_metric as top_k_metric
