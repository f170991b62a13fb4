"""Training a writer of n-grams on ranked lists of what it finds itself: LTRGR (Li et al. 2023, arXiv 2306.15222) and
DGR (Li et al. 2024, arXiv 2402.10769)."""

from __future__ import annotations

import dataclasses
import io
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import gin
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32

from gr_jax import progress as progress_lib
from gr_jax import storage
from gr_jax.constraints import FMIndex
from gr_jax.corpus import Dataset
from gr_jax.docids.spans import TokenText
from gr_jax.errors import InputError
from gr_jax.losses.ranking import (
    RANKING_LOSSES,
    DistilledRankNet,
    ListwiseKL,
    MarginMSE,
    RankedLists,
    RankingLoss,
    TwoMargins,
)
from gr_jax.models.copying import CopyDecoder, CopyNetworkModel
from gr_jax.retrievers import index as indexes
from gr_jax.retrievers.ngrams import NgramView
from gr_jax.retrievers.scoring import candidate_scores
from gr_jax.stages import copy_networks, training
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, stage
from gr_jax.stages.settings import setting
from gr_jax.stages.vocabulary import load_vocabulary
from gr_jax.systems.ngram import candidates as finding
from gr_jax.systems.ngram import passage_scores
from gr_jax.systems.ngram.asking import Asking, retriever_of
from gr_jax.systems.ngram.candidates import Candidates
from gr_jax.systems.ngram.drawn_lists import Drawing, DrawnLists, ListBatches
from gr_jax.systems.ngram.list_batches import ListRows
from gr_jax.systems.ngram.samples import Documents, asked_questions, source_targets
from gr_jax.systems.ngram.writer import NgramWriting
from gr_jax.training.source_batches import TargetBatches
from gr_jax.training.task import Task

FAR = 10  # the rank whose distance from the first is the measure of margins
_NATS = 3.0  # of that distance, for losses that read scores as logits
_TAUGHT = "teacher_scores"
_BLOCK = 64  # questions that a teacher is asked at a time


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class Distilling(training.Optimization):
    """How a writer learns from ranked lists; and all that `Optimization` has.

    Attributes:
      batch_size: questions of an update, two lists each.
      loss: "distilled_ranknet" (DGR), "two_margins" (LTRGR), or another of `losses.ranking`.
      margin: of neighbours, in medians of the distance between the student's ranks 1 and 10.
      margins: (base, gap) as they are, in the place of `margin`; the gap is else a third of the margin.
      candidates: documents that are found for a question, and scored by the teacher.
      ngrams: of a document at most, those that give it the most.
      length: documents of a list.
      pool: the negatives of a list are drawn from so many of the best; None draws from all candidates.
      labelled: a list begins with a document that answers the question. False: the teacher's order is all that is
        known.
      generation: weight of learning to write, as before, beside a ranking loss in units of the margin.
      rows: questions' views, with what to write to them, of an update.
      row_tokens, row_ngrams: of a view's n-grams in an update, for all documents of a question's lists.
    """

    steps: int = 300
    batch_size: int = 8
    learning_rate: float = 1e-4
    warmup_steps: int = 30
    weight_decay: float = 0.01
    evaluate_every: int | None = 75
    dev_queries: int | None = 300
    checkpoint_every: int | None = 75
    loss: str = setting("distilled_ranknet", choices=tuple(RANKING_LOSSES))
    margin: float = setting(1.0, above=0)
    margins: tuple[float, float] | None = setting(None, at_least=0)
    candidates: int = setting(32, at_least=2)
    ngrams: int = setting(40, at_least=1)
    length: int = setting(8, at_least=2)
    pool: int | None = setting(15, at_least=1)
    labelled: bool = True
    generation: float = setting(1.0, at_least=0)
    rows: int = setting(16, at_least=1)
    row_tokens: int = setting(384, at_least=8)
    row_ngrams: int = setting(160, at_least=1)

    def check(self) -> None:
        training.check_keep_best("Distilling.keep_best", self.keep_best, ("dev",))
        if self.margins is not None and not self.margins[0] > 0:
            raise InputError("the base of margins is the unit of scores", "Give a base above 0.", value=self.margins[0])
        pool = self.candidates - 1 if self.pool is None else self.pool
        if pool < self.length - 1 or self.candidates < self.length:
            raise InputError(
                f"lists of {self.length} documents, and {min(pool + 1, self.candidates)} to draw them from",
                f"Set Distilling.length to {min(pool + 1, self.candidates)} or fewer.",
                value=self.length,
            )

    @property
    def drawing(self) -> Drawing:
        """How lists are drawn."""
        return Drawing(self.length, self.pool, self.labelled, self.seed)


def margins_of(settings: Distilling, found: Candidates) -> tuple[float, float]:
    """(base, gap) of margins: as they are given, or by how far a student's ranks 1 and 10 are apart in the median."""
    if settings.margins is not None:
        return settings.margins
    base = settings.margin * rank_distance(found)
    return base, base / 3


def rank_distance(found: Candidates) -> float:
    """The median distance of scores between ranks 1 and 10, or the last where there are fewer.

    Raises:
      InputError: no question has two documents of different scores.
    """
    counts = (found.documents >= 0).sum(axis=1)
    several = np.flatnonzero(counts > 1)
    last = np.minimum(counts[several], FAR) - 1
    distances = found.scores[several, 0] - found.scores[several, last]
    if not len(distances) or np.median(distances) <= 0:
        raise InputError("the student ranks nothing: no question has documents of different scores", "Train it longer.")
    return float(np.median(distances))


def teacher_distance(found: Candidates, taught: Float32[np.ndarray, "questions c"] | None) -> float:
    """The median distance of a teacher's scores between ranks 1 and 10, as of `rank_distance`; 1 where it ranks
    nothing, and the student's own where there is no teacher."""
    if taught is None:
        return rank_distance(found)
    ordered = -np.sort(np.where(np.isnan(taught), np.inf, -taught), axis=1)  # those without a score last
    counts = np.isfinite(ordered).sum(axis=1)
    several = np.flatnonzero(counts > 1)
    distances = ordered[several, 0] - ordered[several, np.minimum(counts[several], FAR) - 1]
    median = float(np.median(distances)) if len(distances) else 0.0
    return median if median > 0 else 1.0


def make_loss(
    settings: Distilling, found: Candidates, taught: Float32[np.ndarray, "questions c"] | None = None
) -> RankingLoss:
    """The loss that settings name, of scores in units of the margin's base.

    What reads scores as logits gets both sides in the same unit, whatever the teacher's is: ranks 1 and 10 are three
    nats apart.
    """
    base, gap = margins_of(settings, found)
    kind = RANKING_LOSSES[settings.loss]
    if kind in (DistilledRankNet, TwoMargins):
        return kind(base=1.0, gap=gap / base)
    temperature = rank_distance(found) / base / _NATS
    if kind in (ListwiseKL, MarginMSE):
        return kind(temperature=temperature, teacher_temperature=teacher_distance(found, taught) / _NATS)
    return kind(temperature=temperature)


@stage()
def candidates(place: Place, corpus: pathlib.Path, index: pathlib.Path, *, depth: int, ngrams: int) -> None:
    """What the student finds for the questions of train, with the n-grams by which it found each document.

    Args:
      depth: documents of each question.
      ngrams: of a document at most.
    """
    dataset = load_dataset(corpus)
    retriever: Any = indexes.load(index).retriever
    found = finding.find(retriever, dataset.split_queries("train").texts, depth, ngrams, progress=True)
    found.save(place.folder / "found")
    held = found.held[found.documents >= 0]
    share = float(held.mean()) if len(held) else 0.0
    place.notes.update({"documents": len(held), "share of scores held by n-grams": share})


@dataclasses.dataclass(frozen=True)
class Teacher:
    """An index folder whose scores order a student's candidates.

    Attributes:
      named: its folder, or the one that it is in: a MODEL_DIR, or a run's `hybrid`.
    """

    named: str

    @property
    def index(self) -> pathlib.Path:
        """The folder of the index itself."""
        inner = pathlib.Path(self.named) / "index"
        return inner if (inner / storage.MANIFEST).is_file() else pathlib.Path(self.named)

    def identity(self) -> Any:
        """What its files hold."""
        return storage.read_folder(self.index, indexes.KIND, verify=False).files

    def check(self, dataset: Dataset) -> None:
        """Raises InputError where it is of other documents."""
        found = storage.read_folder(self.index, indexes.KIND, verify=False).corpus
        if found != dataset.corpus.fingerprint:
            raise InputError(
                "a teacher of another corpus",
                "Name the index of a run on the same documents.",
                file=self.index,
                value=found,
            )


@stage()
def taught(place: Place, corpus: pathlib.Path, candidates: pathlib.Path, *, teacher: Teacher) -> None:
    """A teacher's scores of the student's candidates: `scores.npy`, float32[questions, candidates], NaN where it has
    none.

    Interrupted, it goes on behind the last questions that it was asked.
    """
    dataset, found = load_dataset(corpus), Candidates.load(candidates / "found")
    teacher.check(dataset)
    searcher = indexes.load(teacher.index)
    questions = dataset.split_queries("train").texts
    parts = []
    with progress_lib.bar("Asking the teacher", len(questions), enabled=True) as bar:
        for start in range(0, len(questions), _BLOCK):
            block = slice(start, start + _BLOCK)
            kept = place.work / f"{_TAUGHT}_{start}.npy"
            if not kept.is_file():
                own = candidate_scores(searcher.retriever, questions[block], np.asarray(found.documents[block]))
                content = io.BytesIO()
                np.save(content, own)
                place.work.mkdir(parents=True, exist_ok=True)
                storage.write_bytes(kept, content.getvalue())
            parts.append(storage.load_array(kept, dtype=np.float32, ndim=2))
            bar.advance(len(questions[block]))
    np.save(place.folder / "scores.npy", np.concatenate(parts))
    shutil.rmtree(place.work, ignore_errors=True)


def share_held(lists: DrawnLists, rows: ListRows, most: int = 256) -> float:
    """Which share of their scores documents have in batches, in the mean over the lists of some questions."""
    shares = []
    for question in lists.questions[:most].tolist():
        places, _ = lists.draw(question, np.random.default_rng(question))
        shares.append(rows.held(question, places.ravel().tolist()))
    return float(np.mean(np.concatenate(shares)))


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
        lists = batch["list_valid"]  # [questions, lists, documents]
        ranked = RankedLists(lists, batch["list_teacher"])
        costs = self.loss(scores.reshape(lists.shape) / self.base, ranked)  # --> [questions, lists]
        real = jnp.any(lists, axis=(1, 2)).astype(jnp.float32)
        ranking, count = jnp.sum(jnp.mean(costs, axis=1) * real), jnp.sum(real)
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
    candidates: pathlib.Path,
    taught: pathlib.Path | None,
    *,
    settings: Distilling,
    writing: NgramWriting,
    asking: Asking,
) -> None:
    """Trains the student on lists of its candidates. Interrupted, it goes on from its latest checkpoint with the same
    result.

    Args:
      student: the writer that found the candidates.
      taught: the teacher's scores; None: the student's own order is learned, behind the documents that answer.
    """
    dataset, words = load_dataset(corpus), load_vocabulary(vocabulary)
    index, text = FMIndex.load(ngrams / "index"), TokenText.load(ngrams / "text")
    decoder, found = CopyDecoder.load(student), Candidates.load(candidates / "found")
    teacher = None if taught is None else storage.load_array(taught / "scores.npy", dtype=np.float32, ndim=2)
    retriever: Any = retriever_of(decoder, index, text, words, asking, dataset)
    base, _ = margins_of(settings, found)
    lists = DrawnLists(dataset, found, teacher, settings.drawing, base)
    place.notes.update({"lists": lists.counts(), "margin": base, "distance of ranks 1 and 10": rank_distance(found)})
    network = CopyNetworkModel(decoder.module, tuple(np.asarray(decoder.words).tolist()))
    params = jax.tree.map(np.asarray, dict(decoder.params))
    sources = asked_questions(dataset, "train", words, asking.views, writing.query_tokens)
    frozen = writing.encoder != "t5"
    states = None
    if frozen:  # what never changes is computed once
        states = copy_networks.encode_sources(
            decoder.module, params, sources, place.work / "states", what="questions", progress=True
        )
    rows = ListRows(found, sources, len(asking.views), settings.row_tokens, settings.row_ngrams, states)
    place.notes["share of scores that rows hold"] = share_held(lists, rows)
    written = None
    if settings.generation:
        documents = Documents(text, words, words.encode_batch(list(dataset.corpus.titles)))
        data = source_targets(dataset, "train", documents, words, asking.views, writing.sampling, writing.query_tokens)
        if states is not None and np.array_equal(data.sources, sources):  # every question has an answer
            data = dataclasses.replace(data, encoded=states)
        elif frozen:
            own = copy_networks.encode_sources(
                decoder.module, params, data.sources, place.work / "own_states", what="questions", progress=True
            )
            data = dataclasses.replace(data, encoded=own)
        written = TargetBatches(
            data, batch_size=settings.rows, targets=writing.row_targets, eos_id=None, seed=settings.seed
        )
    evaluate = None
    if settings.dev_queries and len(dataset.qrels.get("dev", ())):
        evaluate = training.DevEvaluation(retriever, dataset, settings.dev_queries)
    task = Task(
        model=DistilledWriter(
            network,
            retriever.documents_of.views,
            asking.alpha,
            make_loss(settings, found, teacher),
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
