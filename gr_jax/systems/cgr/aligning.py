"""Contra's first step (CGR, Lee et al. 2022, arXiv 2210.02068, section 3.3): what the decoder gives before its first
token is brought near all tokens of the title, against a matrix that stays as it is."""

from __future__ import annotations

import dataclasses
import pathlib

import gin

from gr_jax.losses.title_tokens import TITLE_LOSSES
from gr_jax.models import network_folder
from gr_jax.models.title_tokens import TitleTokenModel
from gr_jax.stages import training
from gr_jax.stages.docids import load_docids
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, stage
from gr_jax.stages.networks import Network
from gr_jax.stages.settings import setting
from gr_jax.stages.vocabulary import load_vocabulary
from gr_jax.systems.cgr.writer import TitleDecoding, dev_looks, matrix_held, rates_of, start_of
from gr_jax.training.batches import make_batches
from gr_jax.training.task import Task
from gr_jax.training.token_store import TokenStore

_BUCKETS = (16, 24, 32)  # tokens of rows, the longest aside: a row holds one question, and most are short


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class Aligning(training.Optimization):
    """How the first step is trained; and all that `Optimization` has. The examples and their lengths are those of the
    second step's `Training`.

    Attributes:
      batch_size: questions of an update, all of about one length. A question waits for others of its length: of a rare
        one it may not be learned from before the last step.
      keep_best: None by default: what it is good for shows when its encoder has made the vocabulary.
      loss: "all_positives", the paper's; "one_positive" or "in_batch", those that it is compared with (C.2).
    """

    steps: int = 100
    batch_size: int = 64
    learning_rate: float = 5e-5  # at four times as much titles that nobody asks for in train are unlearned (on dev)
    warmup_steps: int = 30
    evaluate_every: int | None = None
    dev_queries: int | None = None
    keep_best: str | None = None
    loss: str = setting("all_positives", choices=TITLE_LOSSES)

    def check(self) -> None:
        super().check()
        training.check_keep_best("Aligning.keep_best", self.keep_best, ("dev",))


@stage(trains=True)
def aligned(
    place: Place,
    corpus: pathlib.Path,
    contextual: pathlib.Path,
    vocabulary: pathlib.Path,
    examples: pathlib.Path,
    *,
    network: Network,
    settings: Aligning,
    row_length: int,
    row_targets: int,
    decoding: TitleDecoding,
) -> None:
    """Trains the network to find its title's tokens. Interrupted, it goes on from its latest checkpoint with the same
    result.

    Args:
      contextual: the decoder's vocabulary, whose vectors stay as they are.
      examples: questions, and titles in decoder ids; only those of the training split are learned from.
      row_length, row_targets: tokens of a question, and of a title.
      decoding: of the looks at dev.
    """
    dataset, words, ids = load_dataset(corpus), load_vocabulary(vocabulary), load_docids(contextual)
    module, params, pretrained, _ = start_of(dataset, contextual, words, network, settings.seed, copying=False)
    evaluate = dev_looks(settings, module, params, words, contextual, decoding, dataset)
    task = Task(
        model=TitleTokenModel(module, loss=settings.loss, eos_id=ids.eos_id),
        batches=make_batches(
            TokenStore.load(examples / "tokens"),
            batch_size=settings.batch_size,
            lengths={"inputs": [*(one for one in _BUCKETS if one < row_length), row_length], "targets": row_targets},
            pack=False,
            rates={"query": 1.0},
            seed=settings.seed,
        ),
        initial_params=params,
        multipliers=matrix_held(rates_of(module, network, pretrained)),
        evaluate=evaluate,
    )
    if settings.multipliers is not None:
        settings = dataclasses.replace(settings, multipliers=matrix_held(settings.multipliers))
    network_folder.save_network(place.folder, module, training.fit(place, task, settings).params)
