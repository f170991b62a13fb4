"""The writer of n-grams: its settings, and the stage that trains it."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import gin
import numpy as np

from gr_jax.constraints import FMIndex
from gr_jax.corpus import Dataset
from gr_jax.docids.spans import TokenText
from gr_jax.errors import InputError
from gr_jax.models.copy_network import CopyNetwork
from gr_jax.models.copying import CopyDecoder, CopyNetworkModel
from gr_jax.stages import copy_networks, training
from gr_jax.stages.copy_networks import CopyTraining
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, stage
from gr_jax.stages.settings import setting
from gr_jax.stages.vocabulary import load_vocabulary
from gr_jax.systems.ngram import samples
from gr_jax.systems.ngram.asking import Asking, retriever_of
from gr_jax.systems.ngram.samples import Documents, Sampling, source_targets
from gr_jax.text import Vocabulary
from gr_jax.training.source_batches import SourceTargets, TargetBatches
from gr_jax.training.task import Task

# What the logits start from: the place behind the token written last is so much likelier, and words of its own that
# stand nowhere in the query have so large a share.
NEXT_PLACE = 4.0
SHARE_OF_WORDS = 0.3


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class NgramWriting(CopyTraining):
    """The writer of n-grams and its training; and all that `CopyTraining` has.

    It reads a question and writes what stands in the documents that answer it. Before training it copies each word of
    the question as often as training questions' words stand in what they lead to.

    Attributes:
      encoder: a pretrained one is not trained further, unless `frozen` is False.
      multipliers: for an encoder that is trained alone.
      spans, titles: of a document that a question may learn to write, in their views; a row takes as many as fit.
      pseudo_queries: so many of a document's, of which as many spans are drawn.
      made_questions: so many of a document's pseudo-queries are asked beside the questions of train (MINDER, §3.3).
      span_tokens: of a span.
      title_tokens: longer titles are not learned.
      temperature: of the overlap with the question by which spans are drawn; None draws all alike.
    """

    steps: int = 200
    warmup_steps: int = 30
    learning_rate: float = 5e-4
    weight_decay: float = 0.01
    evaluate_every: int | None = 50
    dev_queries: int | None = 300
    checkpoint_every: int | None = 50
    words: int = 4096
    query_tokens: int = 48
    row_targets: int = 96
    spans: int = setting(32, at_least=1)
    titles: int = setting(3, at_least=0)
    pseudo_queries: int = setting(5, at_least=0)
    made_questions: int = setting(0, at_least=0, neutral=0)
    span_tokens: int = setting(6, at_least=1)
    title_tokens: int = setting(15, at_least=1)
    temperature: float | None = setting(1.0, above=0)

    def check(self) -> None:
        super().check()
        training.check_keep_best("NgramWriting.keep_best", self.keep_best, ("dev",))
        longest = max(self.span_tokens, self.title_tokens)
        if self.row_targets < longest:
            raise InputError(
                "an n-gram does not fit NgramWriting.row_targets",
                f"Set it to {longest} or more.",
                value=self.row_targets,
            )

    @property
    def sampling(self) -> Sampling:
        """How identifiers are drawn."""
        return Sampling(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Sampling)})


@stage(trains=True)
def model(
    place: Place,
    corpus: pathlib.Path,
    vocabulary: pathlib.Path,
    ngrams: pathlib.Path,
    *,
    settings: NgramWriting,
    asking: Asking,
) -> None:
    """Trains the writer on the train split. Interrupted, it goes on from its latest checkpoint with the same result."""
    dataset, words = load_dataset(corpus), load_vocabulary(vocabulary)
    index, text = FMIndex.load(ngrams / "index"), TokenText.load(ngrams / "text")
    module, params, own, frozen, data = _start(dataset, words, text, settings, asking)
    network = CopyNetworkModel(module, tuple(own))
    batches = TargetBatches(
        data, batch_size=settings.batch_size, targets=settings.row_targets, eos_id=None, seed=settings.seed
    )
    if frozen:  # what never changes is computed once, of the questions that are drawn
        states = copy_networks.encode_sources(
            module, params, data.sources, place.work / "states", rows=batches.drawn(settings.steps), what="questions",
            progress=True,
        )  # fmt: skip
        batches = batches.with_states(states)
    evaluate = None
    if settings.dev_queries and len(dataset.qrels.get("dev", ())):
        decoder = CopyDecoder(module, params, np.asarray(own, np.int32))
        retriever = retriever_of(decoder, index, text, words, asking, dataset)
        evaluate = training.DevEvaluation(retriever, dataset, settings.dev_queries)
    task = Task(
        model=network,
        batches=batches,
        initial_params=params,
        multipliers={"token_embedder": 0.0, "encoder": 0.0} if frozen else {},
        evaluate=evaluate,
    )
    trained = training.fit(place, task, settings).params
    CopyDecoder(module, trained, np.asarray(own, np.int32)).save(place.folder)
    shutil.rmtree(place.work / "states", ignore_errors=True)


@stage()
def untrained(
    place: Place,
    corpus: pathlib.Path,
    vocabulary: pathlib.Path,
    ngrams: pathlib.Path,
    *,
    settings: NgramWriting,
    asking: Asking,
) -> None:
    """The writer as it is before any training: it copies as often as was counted; see `model`."""
    dataset, words = load_dataset(corpus), load_vocabulary(vocabulary)
    module, params, own, _, _ = _start(dataset, words, TokenText.load(ngrams / "text"), settings, asking)
    CopyDecoder(module, params, np.asarray(own, np.int32)).save(place.folder)
    training.keep_curves(place)


def _start(
    dataset: Dataset, words: Vocabulary, text: TokenText, settings: NgramWriting, asking: Asking
) -> tuple[CopyNetwork, dict, list[int], bool, SourceTargets]:
    """The network, its first parameters, its own words, whether its encoder stays as it is, and what it learns from."""
    asked, data = written_targets(dataset, words, text, settings, asking)
    own = copy_networks.frequent_words((one for targets in data.kinds[0] for one in targets), settings.words)
    module, params, frozen = copy_networks.make_network(settings, words.size, own, counted=True)
    return module, _counted(params, asked, own, words), own, frozen, data


def written_targets(
    dataset: Dataset, words: Vocabulary, text: TokenText, settings: NgramWriting, asking: Asking
) -> tuple[SourceTargets, SourceTargets]:
    """What is written to the questions of people, and to these and the generated ones that are asked besides."""
    documents = Documents(text, words, words.encode_batch(list(dataset.corpus.titles)))
    how = (words, asking.views, settings.sampling, settings.query_tokens)
    asked = source_targets(dataset, "train", documents, *how)
    made = samples.made_targets(documents, len(dataset.corpus), *how)
    return asked, asked if made is None else asked.joined(made)


def _counted(params: dict, data: SourceTargets, own: Sequence[int], vocabulary: Vocabulary) -> dict:
    """Parameters by which the untrained writer is the counted copier: what is learned adds nothing yet. Questions of
    people alone are counted; generated ones share more with their documents."""
    rates = samples.copy_rates(data, vocabulary.size)
    first = np.zeros(vocabulary.size)
    for targets in data.kinds[0]:
        for target in targets:
            first[target[0]] += 1
    shares = (first[list(own)] + 0.1) / (first.sum() + 0.1 * len(own))
    copy_mass = np.mean([rates[source[source != 0]].sum() for source in data.sources])
    bias = np.log(rates).astype(np.float32)
    unused = len(params["copy_bias"]) - len(bias)  # rows of a pretrained table that no token of the vocabulary has
    found: dict[str, Any] = {**params, "copy_bias": np.pad(bias, (0, unused), mode="minimum")}
    found["copy_next"] = np.float32(NEXT_PLACE)
    found["word_bias"] = np.log(shares * SHARE_OF_WORDS * copy_mass).astype(np.float32)
    found["copy_query"] = {"kernel": np.zeros_like(params["copy_query"]["kernel"])}
    found["words"] = {"kernel": 0.1 * params["words"]["kernel"]}
    return found
