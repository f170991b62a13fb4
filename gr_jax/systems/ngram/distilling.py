"""Training a writer of n-grams on ranked lists of what it finds itself: LTRGR (Li et al. 2023, arXiv 2306.15222) and
DGR (Li et al. 2024, arXiv 2402.10769)."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import gin
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from gr_jax import processes
from gr_jax.constraints import FMIndex
from gr_jax.docids.spans import TokenText
from gr_jax.losses.ranking import RankingLoss
from gr_jax.models.copying import CopyDecoder, CopyNetworkModel
from gr_jax.retrievers import index as indexes
from gr_jax.retrievers.ngrams import NgramView
from gr_jax.stages import copy_networks, training
from gr_jax.stages.asked import load_asked
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, stage
from gr_jax.stages.settings import setting
from gr_jax.stages.teaching import (
    FOUND,
    ListLearning,
    lists_to_learn,
    make_loss,
    scores_to_learn,
)
from gr_jax.stages.vocabulary import load_vocabulary
from gr_jax.systems.ngram import candidates as finding
from gr_jax.systems.ngram import passage_scores
from gr_jax.systems.ngram.asking import Asking, retriever_of
from gr_jax.systems.ngram.candidates import Candidates
from gr_jax.systems.ngram.list_batches import ListBatches, ListRows
from gr_jax.systems.ngram.samples import question_tokens
from gr_jax.systems.ngram.writer import NgramWriting, written_targets
from gr_jax.training.ranked_lists import DrawnLists, ranking_cost
from gr_jax.training.source_batches import TargetBatches
from gr_jax.training.task import Task


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class Distilling(ListLearning):
    """How a writer of n-grams learns from ranked lists; and all that `ListLearning` has.

    Attributes:
      ngrams: of a document at most, those that give it the most.
      rows: questions' views, with what to write to them, of an update.
      row_prefixes, row_ngrams: beginnings of n-grams, and n-grams, of a view in an update at most, for all documents of
        a question's lists.
      frozen: an encoder that stayed as it is where writing was learned stays here too. False trains it.
    """

    ngrams: int = setting(40, at_least=1)
    rows: int = setting(16, at_least=1)
    row_prefixes: int = setting(128, at_least=1)
    row_ngrams: int = setting(256, at_least=1)
    frozen: bool = setting(True, neutral=True)


@stage(shared=True, together=True)
def candidates(place: Place, asked: pathlib.Path, index: pathlib.Path, *, depth: int, ngrams: int) -> None:
    """What the student finds for the questions that are asked, with the n-grams by which it found each document.

    Args:
      depth: documents of each question.
      ngrams: of a document at most.
    """
    retriever: Any = indexes.load(index).retriever
    found = finding.find(retriever, load_asked(asked).texts, depth, ngrams, progress=True)
    if not processes.first():
        return  # one table is enough
    found.save(place.folder / FOUND)
    held = found.held[found.documents >= 0]
    share = float(held.mean()) if len(held) else 0.0
    place.notes.update({"documents": len(held), "share of scores held by n-grams": share})


def share_held(lists: DrawnLists, rows: ListRows, most: int = 256) -> float:
    """Which share of their scores documents have in batches, in the mean over the lists of some questions."""
    shares = []
    for question in lists.questions[:most].tolist():
        places, _ = lists.draw(question, np.random.default_rng(question))
        shares.append(rows.held(question, places.ravel().tolist()))
    return float(np.mean(np.concatenate(shares)))


def places_among(rows: Int32[np.ndarray, "n source"], known: Int32[np.ndarray, "m source"]) -> np.ndarray | None:
    """Where each row stands among known ones: int64[n]; None where one of them does not."""
    place = {row.tobytes(): number for number, row in enumerate(np.ascontiguousarray(known))}
    found = [place.get(row.tobytes(), -1) for row in np.ascontiguousarray(rows)]
    return None if -1 in found else np.array(found, np.int64)


@dataclasses.dataclass(frozen=True)
class DistilledWriter:
    """A `CopyNetworkModel` that learns to rank its own candidates, and goes on learning to write.

    Attributes:
      model: the network.
      views: of a question.
      alpha: of the scorer.
      loss: of ranked lists, of scores in units of `base`.
      base: by which scores are divided.
      generation: weight of learning to write.
    """

    model: CopyNetworkModel
    views: tuple[NgramView, ...]
    alpha: float
    loss: RankingLoss
    base: float
    generation: float

    def get_initial_variables(self, rng: Array, input_shapes: Mapping[str, Any], input_types: Any = None) -> Any:
        """See `CopyNetworkModel.get_initial_variables`."""
        return self.model.get_initial_variables(rng, input_shapes, input_types)

    def loss_fn(
        self, params: Any, batch: Mapping[str, Array], dropout_rng: Array | None = None
    ) -> tuple[Float[Array, ""], dict[str, Any]]:
        """The sum over questions of the mean over their lists, and as often the mean of what writing costs a token.

        Args:
          params: of the network.
          batch: see `ListBatches`.
          dropout_rng: None switches dropout off.
        """
        keys = (None, None) if dropout_rng is None else tuple(jax.random.split(dropout_rng))
        scores = passage_scores.scores_of_batch(self.model, params, batch, self.views, self.alpha, keys[0])
        ranking, count = ranking_cost(self.loss, scores / self.base, batch["list_valid"], batch["list_teacher"])
        total, metrics = ranking, {"ranking": (ranking, count)}
        if self.generation:
            own = {name.removeprefix("write_"): one for name, one in batch.items() if name.startswith("write_")}
            written, write_metrics = self.model.loss_fn(params, own, keys[1])
            total += self.generation * count * written / jnp.maximum(write_metrics["weight_sum"], 1.0)
            metrics["writing"] = write_metrics["loss"]
        return total, {**metrics, "loss": (total, count), "weight_sum": count}

    @staticmethod
    def summarize(metrics: Mapping[str, Any]) -> dict[str, float]:
        """Means of the pairs that `loss_fn` gives."""
        return CopyNetworkModel.summarize(metrics)


@stage(trains=True)
def model(
    place: Place,
    corpus: pathlib.Path,
    vocabulary: pathlib.Path,
    ngrams: pathlib.Path,
    student: pathlib.Path,
    asked: pathlib.Path,
    candidates: pathlib.Path,
    teacher_scores: pathlib.Path | None,
    *,
    settings: Distilling,
    writing: NgramWriting,
    asking: Asking,
) -> None:
    """Trains the student on lists of its candidates. Interrupted, it goes on from its latest checkpoint with the same
    result.

    Args:
      student: the writer that found the candidates.
      asked: the questions for which it found them.
      teacher_scores: the teacher's scores; None: the student's own order is learned, behind the documents that answer.
    """
    dataset, words, queries = load_dataset(corpus), load_vocabulary(vocabulary), load_asked(asked)
    index, text = FMIndex.load(ngrams / "index"), TokenText.load(ngrams / "text")
    decoder, found = CopyDecoder.load(student), Candidates.load(candidates / FOUND)
    teacher = scores_to_learn(teacher_scores, found, settings)
    retriever: Any = retriever_of(decoder, index, text, words, asking, dataset)
    lists, of_people, base = lists_to_learn(place, dataset, queries, found, teacher, settings)
    network = CopyNetworkModel(decoder.module, tuple(np.asarray(decoder.words).tolist()))
    params = jax.tree.map(np.asarray, dict(decoder.params))
    sources = question_tokens(queries.texts, dataset.transform, words, asking.views, writing.query_tokens)
    # What never changes is computed once, of the questions that are drawn.
    frozen = writing.keeps_encoder and settings.frozen
    views = len(asking.views)
    drawn = lists.drawn(settings.steps, settings.batch_size)
    asked_rows = (drawn[:, None] * views + np.arange(views)).ravel()
    states = written = None
    if settings.generation:
        _, data = written_targets(dataset, words, text, writing, asking)
        written = TargetBatches(
            data, batch_size=settings.rows, targets=writing.row_targets, eos_id=None, seed=settings.seed
        )
        if frozen:
            among = places_among(sources, data.sources)
            needed = [written.drawn(settings.steps), *([] if among is None else [among[asked_rows]])]
            own = copy_networks.encode_sources(
                decoder.module, params, data.sources, place.work / "own_states", rows=np.unique(np.concatenate(needed)),
                what="questions", progress=True,
            )  # fmt: skip
            written = written.with_states(own)
            states = None if among is None else np.asarray(own[among])
    if frozen and states is None:
        states = copy_networks.encode_sources(
            decoder.module, params, sources, place.work / "states", rows=asked_rows, what="questions", progress=True
        )
    rows = ListRows(found, sources, views, settings.row_prefixes, settings.row_ngrams, states)
    place.notes["share of scores that rows hold"] = share_held(lists, rows)
    evaluate = None
    if settings.dev_queries and len(dataset.qrels.get("dev", ())):
        evaluate = training.DevEvaluation(retriever, dataset, settings.dev_queries)
    task = Task(
        model=DistilledWriter(
            network,
            retriever.documents_of.views,
            asking.alpha,
            make_loss(settings, of_people, teacher),
            base,
            settings.generation,
        ),
        batches=ListBatches(lists, rows, written, settings.batch_size),
        initial_params=params,
        multipliers={"token_embedder": 0.0, "encoder": 0.0} if frozen else {},
        evaluate=evaluate,
    )
    trained = training.fit(place, task, settings).params
    CopyDecoder(decoder.module, trained, np.asarray(decoder.words)).save(place.folder)
    shutil.rmtree(place.work / "states", ignore_errors=True)
    shutil.rmtree(place.work / "own_states", ignore_errors=True)
