"""Training: token stores, batches, optimisers, the loop, checkpoints.

store = write_token_store("runs/mine/tokens", pairs, PairFeatures(vocabulary, max_input_length=64))
batches = make_batches(store, batch_size=64, rates={"query": 1, "document": 1, "pseudo": 3})
settings = TrainSettings(steps=1000, optimizer=adamw(Schedule(1e-3, warmup_steps=50)))
result = train(Task(model, batches), settings, model_dir="runs/mine")
"""

from typing import TYPE_CHECKING

from gr_jax import lazy

if TYPE_CHECKING:
    from gr_jax.training.batches import make_batches as make_batches
    from gr_jax.training.candidate_lists import Candidate as Candidate
    from gr_jax.training.candidate_lists import CandidateLists as CandidateLists
    from gr_jax.training.checkpoints import load_params as load_params
    from gr_jax.training.contrastive_batches import ContrastiveBatches as ContrastiveBatches
    from gr_jax.training.example_sources import register_source as register_source
    from gr_jax.training.example_sources import source_names as source_names
    from gr_jax.training.features import Pair as Pair
    from gr_jax.training.features import PairFeatures as PairFeatures
    from gr_jax.training.hooks import Hook as Hook
    from gr_jax.training.hooks import HookError as HookError
    from gr_jax.training.list_batches import ListBatches as ListBatches
    from gr_jax.training.loop import TrainResult as TrainResult
    from gr_jax.training.loop import train as train
    from gr_jax.training.negatives import Negatives as Negatives
    from gr_jax.training.optimizers import Schedule as Schedule
    from gr_jax.training.optimizers import adafactor as adafactor
    from gr_jax.training.optimizers import adamw as adamw
    from gr_jax.training.partitioning import make_mesh as make_mesh
    from gr_jax.training.refreshed_negatives import RefreshedNegatives as RefreshedNegatives
    from gr_jax.training.relabelling import Relabelled as Relabelled
    from gr_jax.training.sequence_batches import make_sequence_batches as make_sequence_batches
    from gr_jax.training.task import Task as Task
    from gr_jax.training.task import TrainSettings as TrainSettings
    from gr_jax.training.token_store import TokenStore as TokenStore
    from gr_jax.training.token_store import write_token_store as write_token_store
    from gr_jax.training.vector_batches import VectorBatches as VectorBatches

__getattr__, __dir__, __all__ = lazy.names(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
