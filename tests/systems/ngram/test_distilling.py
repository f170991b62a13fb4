"""Batches of lists of n-grams, and what they cost: the sum over questions of what their documents' scores cost."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from gr_jax import corpus as corpus_lib
from gr_jax.corpus import Dataset
from gr_jax.errors import InputError
from gr_jax.losses.ranking import DistilledRankNet, ListwiseKL, RankedLists
from gr_jax.models.copying import CopyNetworkModel
from gr_jax.systems import SEAL
from gr_jax.systems.ngram import Asking, NgramWriting, candidates, passage_scores
from gr_jax.systems.ngram.candidates import Candidates
from gr_jax.systems.ngram.distilling import DistilledWriter, places_among
from gr_jax.systems.ngram.list_batches import ListBatches, ListRows
from gr_jax.training.ranked_lists import Drawing, DrawnLists
from gr_jax.training.source_batches import SourceTargets, TargetBatches
from tests import small_data

pytest.importorskip("bm25s")
pytest.importorskip("Stemmer")
pytest.importorskip("pydivsufsort")
pytest.importorskip("numba")
pytest.importorskip("sentencepiece")

WRITING = NgramWriting(
    encoder="t5", vocabulary="sentencepiece", vocabulary_size=330, width=32, heads=2, mlp_width=32, encoder_layers=1,
    decoder_layers=1, dropout=0.0, words=32, query_tokens=64, row_targets=48, span_tokens=4, title_tokens=4,
)  # fmt: skip
DEPTH, SIZE, LENGTH = 8, 5, 4


class Student(NamedTuple):
    """A writer that was not trained, what it finds for the questions of train, and how it reads them."""

    dataset: Dataset
    retriever: Any
    found: Candidates
    teacher: np.ndarray
    rows: ListRows
    written: SourceTargets
    model: CopyNetworkModel


@pytest.fixture(scope="module")
def student(tmp_path_factory) -> Student:
    folder = small_data.write_beir(tmp_path_factory.mktemp("beir") / "animals", count=24)
    system = SEAL(writing=WRITING, trained=False, asking=Asking(beams=4, tokens=4, title_tokens=4))
    searcher = system.run(folder, tmp_path_factory.mktemp("seal"), until="index", say=lambda line: None)
    dataset, retriever = corpus_lib.read_beir(folder), searcher.retriever
    texts = dataset.split_queries("train").texts
    found = candidates.find(retriever, texts, DEPTH, ngrams=40)
    sources, lengths = retriever._reader.read(texts, retriever.views)
    sources = np.where(np.arange(sources.shape[1]) < lengths[:, None], sources, 0).astype(np.int32)
    teacher = np.random.default_rng(0).normal(size=found.documents.shape).astype(np.float32)
    teacher[found.documents < 0] = np.nan
    teacher[:, 5] = np.nan
    rows = ListRows(found, sources, len(retriever.views), prefixes=800, ngrams=400)
    written = SourceTargets(sources, [[[one[:3], one[3:4]] for one in sources.tolist()]])  # which can be copied
    model = CopyNetworkModel(retriever.model.module, tuple(np.asarray(retriever.model.words).tolist()))
    return Student(dataset, retriever, found, teacher, rows, written, model)


def batches(student: Student, seed: int = 0, process: tuple[int, int] | None = None) -> tuple[ListBatches, DrawnLists]:
    drawing = Drawing(LENGTH, None, False, seed)
    unlabelled: list[None] = [None] * len(student.found.documents)
    lists = DrawnLists(unlabelled, student.found, student.teacher, drawing, margin=1e9)
    written = TargetBatches(student.written, batch_size=SIZE, targets=8, eos_id=None, seed=seed, process=process)
    return ListBatches(lists, student.rows, written, SIZE, process=process), lists


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(
        np.array_equal(one[k], other[k], equal_nan=k == "list_teacher") for k in one
    )


def test_a_batch_depends_on_the_seed_and_its_number_alone(student):
    made, lists = batches(student)
    per_epoch = -(-len(lists.questions) // SIZE)
    whole = iter(made)
    all_of_it = [next(whole) for _ in range(per_epoch + 2)]
    assert {name: one.shape for name, one in all_of_it[0].items()} == made.input_shapes
    again = batches(student)[0]
    for number in reversed(range(len(all_of_it))):
        assert same(again.batch(number), all_of_it[number])
    after = iter(batches(student)[0])
    after.set_state({"number": 3})
    assert same(next(after), all_of_it[3])
    assert not same(batches(student, seed=1)[0].batch(0), all_of_it[0])
    assert not same(all_of_it[per_epoch], all_of_it[0])


def test_processes_share_out_the_questions_of_a_batch(student):
    """A question stays with all of its views."""
    whole, parts = batches(student)[0], [batches(student, process=(index, SIZE))[0] for index in range(SIZE)]
    for number in range(3):
        shares = [part.batch(number) for part in parts]
        assert same({name: np.concatenate([one[name] for one in shares]) for name in shares[0]}, whole.batch(number))
    assert all(part.input_shapes == whole.input_shapes and part.settings == whole.settings for part in parts)
    with pytest.raises(InputError, match="cannot be split over 3 processes"):
        batches(student, process=(0, 3))


def test_teacher_scores_stand_beside_their_documents(student):
    made, lists = batches(student)
    per_epoch = -(-len(lists.questions) // SIZE)
    for number in range(per_epoch):
        batch, drawn = made.batch(number), lists.batch(number, SIZE)
        real = len(lists.questions) - number * SIZE
        assert batch["list_valid"][:real].all() and not batch["list_valid"][real:].any()
        assert np.isnan(batch["list_teacher"][real:]).all()
        assert not batch["coefficients"][real:].any()  # a question that fills up has no document
        for row, question in enumerate(drawn.questions[:real].tolist()):
            own = student.rows.batch([question], drawn.places[row].reshape(1, -1))
            np.testing.assert_array_equal(batch["coefficients"][row], own["coefficients"][0])
            np.testing.assert_array_equal(batch["list_teacher"][row], student.teacher[question][drawn.places[row]])
    assert len(lists.questions) % SIZE  # so that there is one that fills up


@pytest.mark.parametrize(
    ("loss", "generation"),
    [
        (DistilledRankNet(1.0, 0.5), 0.7),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in ((DistilledRankNet(1.0, 0.5), 0.0), (ListwiseKL(0.5, 2.0), 0.0), (ListwiseKL(0.5, 2.0), 0.7))
        ),
    ],
)
def test_a_batch_costs_what_its_documents_cost_one_by_one(student, loss, generation):
    made, lists = batches(student)
    number = -(-len(lists.questions) // SIZE) - 1  # one that is filled up
    drawn, params, views = (
        lists.batch(number, SIZE),
        student.retriever.model.params,
        student.retriever.documents_of.views,
    )
    alpha, base = student.retriever.documents_of.scorer.settings.alpha, 3.0
    batch = made.batch(number)
    distilled = DistilledWriter(student.model, views, alpha, loss, base, generation)
    total, metrics = jax.jit(distilled.loss_fn)(params, batch)
    scores_of = jax.jit(
        lambda params, batch: passage_scores.scores_of_batch(student.model, params, batch, views, alpha)
    )

    def score(question: int, place: int) -> float:
        alone = student.rows.batch([question], np.array([[place]]))
        return float(np.asarray(scores_of(params, alone))[0, 0])

    cost = jax.jit(loss)
    ranking, real = 0.0, len(lists.questions) - number * SIZE
    for row, question in enumerate(drawn.questions[:real].tolist()):
        costs = []
        for places, judged in zip(drawn.places[row].tolist(), drawn.teacher[row], strict=True):
            scores = np.array([score(question, place) for place in places], np.float32) / np.float32(base)
            costs.append(float(cost(scores, RankedLists(np.ones(LENGTH, bool), judged))))
        ranking += float(np.mean(costs))
    assert ranking > 0 and 0 < real < SIZE
    assert float(metrics["ranking"][0]) == pytest.approx(ranking, rel=1e-3)
    assert float(metrics["weight_sum"]) == real
    if not generation:
        assert "writing" not in metrics and float(total) == pytest.approx(ranking, rel=1e-3)
        return
    own = {name.removeprefix("write_"): one for name, one in batch.items() if name.startswith("write_")}
    log_probs, possible, _ = jax.jit(student.model.token_log_probs)(params, own)
    counted = np.asarray(own["decoder_loss_weights"]) * np.asarray(possible)
    writing = -float(np.sum(np.asarray(log_probs)[counted > 0])) / counted.sum()
    assert float(total) == pytest.approx(ranking + generation * real * writing, rel=1e-3)


def test_rows_are_found_among_known_ones():
    known = np.random.default_rng(0).integers(0, 9, (20, 6)).astype(np.int32)
    places = places_among(known[[7, 3, 19]], known)
    assert places is not None
    np.testing.assert_array_equal(known[places], known[[7, 3, 19]])
    assert places_among(np.append(known[:2], [[9] * 6], axis=0).astype(np.int32), known) is None
