"""The stages by which a network that writes docids learns to rank what it finds, as a teacher does (after DGR, Li et
al. 2024, arXiv 2402.10769). A document's score is the log-probability of its docid."""

from __future__ import annotations

import dataclasses
import pathlib
import warnings
from collections.abc import Mapping
from typing import Any

import gin
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Int32

from gr_jax import models, processes, sharing, storage
from gr_jax import progress as progress_lib
from gr_jax.docids import Docids
from gr_jax.errors import InputError, InputWarning
from gr_jax.losses.ranking import RankingLoss
from gr_jax.models import network_folder
from gr_jax.retrievers import Ranking
from gr_jax.retrievers import index as indexes
from gr_jax.retrievers.generative import GenerativeRetriever
from gr_jax.retrievers.query_reader import QueryReader
from gr_jax.stages import networks, training
from gr_jax.stages.asked import load_asked
from gr_jax.stages.docids import load_codewords, load_docids
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, stage
from gr_jax.stages.networks import Network
from gr_jax.stages.settings import setting
from gr_jax.stages.teaching import (
    FOUND,
    FoundDocuments,
    ListLearning,
    lists_to_learn,
    make_loss,
    scores_to_learn,
)
from gr_jax.stages.vocabulary import load_vocabulary
from gr_jax.stages.write_docids import Decoding, Training
from gr_jax.training.batches import make_batches
from gr_jax.training.docid_lists import DocidListBatches, DocidTargets, targets_of
from gr_jax.training.ranked_lists import ranking_cost
from gr_jax.training.task import Task
from gr_jax.training.token_store import TokenStore

KIND = "docid_candidates"
_BLOCK = 64  # questions that the student answers at a time
_NEVER = -1e10  # finite, so that a document without a docid has slopes of 0 and not of NaN


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class DocidDistilling(ListLearning):
    """How a writer of docids learns from ranked lists; and all that `ListLearning` has.

    Attributes:
      docids: of a document at most, where it has several: those by which it was found, best first. Its score is that
        of the best.
      rows: packed rows of examples of what is to be written, of an update.
    """

    steps: int = 300
    batch_size: int = 16
    warmup_steps: int = 30
    weight_decay: float = 0.0
    questions: int | None = setting(4800, at_least=1)
    docids: int = setting(4, at_least=1)
    rows: int = setting(16, at_least=1)


def docids_found(ranking: Ranking, docids: Docids, most: int) -> Int32[np.ndarray, "questions c n"]:
    """The rows of the docids by which documents were found, best first, −1 where there are fewer.

    Args:
      ranking: with evidence where documents have several docids.
      docids: of the documents.
      most: of a document.
    """
    rows = np.full((*ranking.doc_index.shape, most), -1, np.int32)
    for question, documents in enumerate(ranking.doc_index.tolist()):
        for place, document in enumerate(documents):
            if document < 0:
                continue
            own: list[Any] = docids.rows_of(document).tolist()
            if len(own) > 1:
                assert ranking.evidence is not None
                own = [docids.row_of(one.tokens) for one in ranking.evidence[question][place]]
            rows[question, place, : len(own[:most])] = own[:most]
    return rows


@stage(shared=True, together=True)
def docid_candidates(
    place: Place,
    corpus: pathlib.Path,
    asked: pathlib.Path,
    docids: pathlib.Path,
    index: pathlib.Path,
    *,
    depth: int,
    most: int,
) -> None:
    """What the student finds for the questions that are asked, and the docids by which it found each document.

    Args:
      depth: documents of each question.
      most: docids of a document.
    """
    dataset, ids = load_dataset(corpus), load_docids(docids)
    retriever = indexes.load(index).retriever
    depth, several = min(depth, len(dataset.corpus)), len(ids.documents) > ids.num_documents
    most = min(most, int(np.bincount(ids.documents).max()))
    questions = load_asked(asked).texts

    def find(part: int) -> dict[str, np.ndarray]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InputWarning)  # of long questions, in every block
            ranking = retriever.retrieve(questions[part * _BLOCK : (part + 1) * _BLOCK], depth, explain=several)
        return {"documents": ranking.doc_index, "scores": ranking.score, "rows": docids_found(ranking, ids, most)}

    answers = []
    with progress_lib.bar("Finding documents", len(questions), enabled=True) as bar:
        for found in sharing.in_parts("candidates", -(-len(questions) // _BLOCK), find, "while finding documents"):
            answers.append(found)
            bar.advance(len(found["rows"]))
    if not processes.first():
        return  # one table is enough
    documents, scores, rows = (np.concatenate([one[name] for one in answers]) for name in answers[0])
    with storage.write_folder(place.folder / FOUND, KIND, corpus=dataset.corpus.fingerprint) as new:
        np.save(new / "documents.npy", documents.astype(np.int32))
        np.save(new / "scores.npy", np.where(documents >= 0, scores, 0).astype(np.float32))
        np.save(new / "docids.npy", rows)
    place.notes["documents"] = int((documents >= 0).sum())


def read_questions(vocabulary: Any, transform: str, texts: Any, most: int) -> Int32[np.ndarray, "questions source"]:
    """Questions as retrieval reads them; 0 behind each.

    Args:
      vocabulary, transform: of the network.
      texts: questions.
      most: tokens read of each.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        tokens, lengths = QueryReader(vocabulary, transform, most, 1).read(texts)
    return tokens[:, : max(1, int(lengths.max(initial=0)))].astype(np.int32)


@dataclasses.dataclass(frozen=True)
class DistilledDocidWriter:
    """An `EncoderDecoder` that learns to rank its own candidates, and goes on learning to write docids.

    Attributes:
      scorer: normalises as the student's decoding does.
      writer: learns to write, as the student did; None where nothing is written.
      loss: of ranked lists, of scores in units of `base`.
      base: by which scores are divided.
      generation: weight of learning to write.
    """

    scorer: models.EncoderDecoderModel
    writer: models.EncoderDecoderModel | None
    loss: RankingLoss
    base: float
    generation: float

    def get_initial_variables(self, rng: Array, input_shapes: Mapping[str, Any], input_types: Any = None) -> Any:
        """See `EncoderDecoderModel.get_initial_variables`."""
        batch, *_, length = input_shapes["docid_tokens"]
        shapes = {
            "encoder_input_tokens": input_shapes["encoder_input_tokens"],
            "decoder_input_tokens": (batch, length),
        }
        return self.scorer.get_initial_variables(rng, shapes, input_types)

    def scores(
        self, params: Any, batch: Mapping[str, Array], dropout_rng: Array | None = None
    ) -> Float[Array, "batch documents"]:
        """Of each document of each question the log-probability of the best of its docids; 0 of none.

        Args:
          params: of the network.
          batch: see `DocidListBatches`.
          dropout_rng: None switches dropout off.
        """
        tokens: Int[Array, "batch documents n length"] = batch["docid_tokens"]
        sequences = tokens.reshape(len(tokens), -1, tokens.shape[-1])  # --> [batch, documents · n, length]
        of_docids = self.scorer.sequence_log_probs(params, batch["encoder_input_tokens"], sequences, dropout_rng)
        there = jnp.any(tokens != 0, axis=-1)  # [batch, documents, n]
        best = jnp.max(jnp.where(there, of_docids.reshape(there.shape), _NEVER), axis=-1)
        return jnp.where(jnp.any(there, axis=-1), best, 0.0)

    def loss_fn(
        self, params: Any, batch: Mapping[str, Array], dropout_rng: Array | None = None
    ) -> tuple[Float[Array, ""], dict[str, Any]]:
        """The sum over questions of the mean over their lists, and as often the mean of what writing costs a token.

        Args:
          params: of the network.
          batch: see `DocidListBatches`.
          dropout_rng: None switches dropout off.
        """
        keys = (None, None) if dropout_rng is None else tuple(jax.random.split(dropout_rng))
        scores = self.scores(params, batch, keys[0]) / self.base
        ranking, count = ranking_cost(self.loss, scores, batch["list_valid"], batch["list_teacher"])
        total, metrics = ranking, {"ranking": (ranking, count)}
        if self.writer is not None:
            own = {name.removeprefix("write_"): one for name, one in batch.items() if name.startswith("write_")}
            written, of_writing = self.writer.loss_fn(params, own, keys[1])
            total += self.generation * count * written / jnp.maximum(of_writing["weight_sum"], 1.0)
            metrics["writing"] = of_writing["loss"]
        return total, {**metrics, "loss": (total, count), "weight_sum": count}

    @staticmethod
    def summarize(metrics: Mapping[str, Any]) -> dict[str, float]:
        """Means of the pairs that `loss_fn` gives."""
        return models.EncoderDecoderModel.summarize(metrics)


@stage(trains=True)
def model(
    place: Place,
    corpus: pathlib.Path,
    docids: pathlib.Path,
    vocabulary: pathlib.Path,
    examples: pathlib.Path | None,
    student: pathlib.Path,
    asked: pathlib.Path,
    candidates: pathlib.Path,
    teacher_scores: pathlib.Path | None,
    *,
    network: Network,
    settings: DocidDistilling,
    writing: Training | None,
    decoding: Decoding,
) -> None:
    """Trains the student on lists of its candidates. Interrupted, it goes on from its latest checkpoint with the same
    result.

    Args:
      examples: of docids that are to be written; None where `settings.generation` is 0.
      student: the network that found the candidates.
      asked: the questions for which it found them.
      teacher_scores: the teacher's scores; None: the student's own order is learned, behind the documents that answer.
      network: that the student was made by, which says how fast its parts learn.
      writing: how the student learned to write.
      decoding: how the student answered, and how it is looked at on dev.
    """
    dataset, ids, words = load_dataset(corpus), load_docids(docids), load_vocabulary(vocabulary)
    queries = load_asked(asked)
    module, params = network_folder.load_network(student)
    found = FoundDocuments.load(candidates)
    teacher = scores_to_learn(teacher_scores, found, settings)
    lists, of_people, base = lists_to_learn(place, dataset, queries, found, teacher, settings)
    targets = DocidTargets(
        targets_of(ids),
        storage.load_array(candidates / FOUND / "docids.npy", mmap=True),
        read_questions(words, dataset.transform, queries.texts, decoding.max_query_length),
    )
    of_docids: dict[str, Any] = {"levels": ids.levels, "eos_id": ids.eos_id}
    written = writer = None
    if settings.generation:
        if examples is None or writing is None:
            raise InputError(
                "there are no examples of docids to go on learning from", "Set DocidDistilling.generation to 0."
            )
        writer = models.EncoderDecoderModel(
            module,
            label_smoothing=writing.label_smoothing,
            rdrop=writing.rdrop or 0.0,
            normalize=writing.normalize,
            **of_docids,
        )
        written = make_batches(
            TokenStore.load(examples / "tokens"),
            batch_size=settings.rows,
            lengths={"inputs": writing.row_length, "targets": writing.row_targets},
            rates=writing.rates,
            seed=settings.seed,
        )
    evaluate = None
    if settings.dev_queries and len(dataset.qrels.get("dev", ())):
        retriever = GenerativeRetriever.over_docids(
            module, params, words, ids,
            transform=dataset.transform, beams=decoding.beams, normalize=decoding.normalize,
            max_query_length=decoding.max_query_length,
        )  # fmt: skip
        evaluate = training.DevEvaluation(retriever, dataset, settings.dev_queries)
    task = Task(
        model=DistilledDocidWriter(
            models.EncoderDecoderModel(module, normalize=decoding.normalize, **of_docids),
            writer,
            make_loss(settings, of_people, teacher),
            base,
            settings.generation,
        ),
        batches=DocidListBatches(lists, targets, written, settings.batch_size),
        initial_params=params,
        # A student that began with a pretrained encoder has all that one has.
        multipliers=networks.learning_rate_multipliers(
            module, network, None if network.encoder == "t5" else params, codewords=load_codewords(docids) is not None
        ),
        evaluate=evaluate,
    )
    network_folder.save_network(place.folder, module, training.fit(place, task, settings).params)
