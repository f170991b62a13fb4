"""What a student finds for questions of dev, in which order its teacher has that, and what of it was learned: rows of
`benchmarks.dgr`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Int32

from benchmarks import harness
from benchmarks.recipe_runs import RecipeRun
from gr_jax.corpus import Dataset, Run, read_beir
from gr_jax.evaluation import Evaluation, evaluate
from gr_jax.stages.training import sample_queries
from gr_jax.training.metric_writers import read_metrics

QUESTIONS = 600  # of dev, those that arms are measured with
DEPTH = 100  # of the student's documents
PAIRED = 16  # the first of these, whose order is compared; lists are drawn from them
Values = Mapping[str, float]
Documents = Int32[np.ndarray, "questions depth"]


@functools.cache
def questions(data: str, split: str = "dev") -> tuple[Dataset, Mapping[str, Mapping[str, int]], list[str]]:
    """The data, what answers the questions that arms are measured with, some of dev and all of others, and their
    texts."""
    dataset = read_beir(harness.data_folder(data))
    judged = dataset.split(split)
    qrels = sample_queries(judged, QUESTIONS if split == "dev" else len(judged))
    return dataset, qrels, dataset.query_texts(list(qrels))


@functools.cache
def found(student: RecipeRun, split: str = "dev") -> Documents:
    """The documents that it finds for them, best first; −1 where there are fewer."""
    from gr_jax.retrievers import index

    student.index()
    retriever = index.load(student.folder / "index").retriever
    return retriever.retrieve(questions(student.data, split)[2], DEPTH).doc_index


@functools.cache
def ordered(run: RecipeRun) -> Documents:
    """What a run's student finds, in the order of its teacher; what that has no score of stands behind."""
    from gr_jax.retrievers import index
    from gr_jax.retrievers.scoring import candidate_scores

    assert run.trained is not None and run.teacher is not None
    run.teacher.make()
    documents = found(run.trained)
    scores = candidate_scores(index.load(run.teacher_index).retriever, questions(run.data)[2], documents)
    keys = np.where(np.isnan(scores), np.inf, -scores)
    keys = np.where(documents < 0, np.nan, keys)  # sorted to the end
    return np.take_along_axis(documents, np.argsort(keys, axis=1, kind="stable"), axis=1)


def reached(
    data: str, documents: Int[np.ndarray, "questions depth"], measures: Sequence[str], split: str = "dev"
) -> Evaluation:
    """What an order of documents reaches on these questions."""
    dataset, qrels, _ = questions(data, split)
    names = dataset.corpus.doc_ids
    run = {
        query: [(names[one], -float(rank)) for rank, one in enumerate(its) if one >= 0]
        for query, its in zip(qrels, documents.tolist(), strict=True)
    }
    return evaluate(Run(run), qrels, list(measures))


def answers(data: str, documents: Documents) -> Bool[np.ndarray, "questions depth"]:
    """Whether each document answers its question."""
    dataset, qrels, _ = questions(data)
    right = [{dataset.corpus.index_of(name) for name, grade in its.items() if grade > 0} for its in qrels.values()]
    return np.array([[one in its for one in row] for its, row in zip(right, documents.tolist(), strict=True)])


def as_wanted(documents: Documents, wanted: Documents, among: Documents) -> float:
    """The share of the pairs of a question's documents that stand in the wanted order, in the mean over questions.

    Args:
      documents: the order that is looked at. What it does not have stands behind what it has.
      wanted: another one.
      among: the documents that are paired; −1 where there are fewer. A pair that `documents` has none of is left out.
    """
    shares = []
    for own, other, its in zip(documents.tolist(), wanted.tolist(), among.tolist(), strict=True):
        place = {one: number for number, one in enumerate(own) if one >= 0}
        paired = [one for one in other if one >= 0 and one in its]
        pairs = [pair for pair in itertools.combinations(paired, 2) if not place.keys().isdisjoint(pair)]
        right = [place.get(first, DEPTH) < place.get(second, DEPTH) for first, second in pairs]
        if right:
            shares.append(np.mean(right))
    return float(np.mean(shares))


def lost(run: RecipeRun) -> Values:
    """Where the gain of a distillation went, as shares of the questions: what stands first before it, with the teacher
    and after it. Beside it, the share of pairs that stand as the teacher has them, before and after it, and the ranking
    loss of its first and last updates, which is a mean over violated pairs alone."""
    assert run.trained is not None
    before = answers(run.data, found(run.trained))
    teacher, after = answers(run.data, ordered(run))[:, 0], answers(run.data, found(run))[:, 0]
    first, among = before[:, 0], before.any(axis=1)
    shares: dict[str, Any] = {
        "student right": first,
        "teacher right": teacher,
        "no answer among 100": ~among,
        "answer among 100, teacher wrong": among & ~teacher,
        "teacher alone right": teacher & ~first,
        "teacher alone right, learned": teacher & ~first & after,
        "student alone right": first & ~teacher,
        "student alone right, unlearned": first & ~teacher & ~after,
        "both right, unlearned": first & teacher & ~after,
        "both wrong, learned": ~first & ~teacher & after,
        "right after it": after,
    }
    losses = _losses(run)
    paired = found(run.trained)[:, :PAIRED]
    orders = {"before": found(run.trained), "after": found(run)}
    return {
        **{name: float(np.mean(of)) for name, of in shares.items()},
        **{f"pairs as taught, {when}": as_wanted(its, ordered(run), paired) for when, its in orders.items()},
        "first loss": losses[0],
        "last loss": losses[-1],
    }


def kept(run: RecipeRun) -> Values:
    """Of a training that kept its student: what every look on dev measured, whether the student and the teacher are
    right, as shares of the questions, and the ranking loss of the first and last updates."""
    assert run.trained is not None
    run.train()
    looks = {f"RR@10 at step {step}": look["dev/RR@10"] for step, look in run.looks().items()}
    before, teacher = answers(run.data, found(run.trained)), answers(run.data, ordered(run))[:, 0]
    first, among = before[:, 0], before.any(axis=1)
    shares = {
        "student right": first,
        "teacher right": teacher,
        "no answer among 100": ~among,
        "answer among 100, teacher wrong": among & ~teacher,
        "teacher alone right": teacher & ~first,
    }
    losses = _losses(run)
    of_questions = {name: float(np.mean(of)) for name, of in shares.items()}
    return {**looks, **of_questions, "first loss": losses[0], "last loss": losses[-1]}


def _losses(run: RecipeRun) -> list[float]:
    metrics = read_metrics(run.folder / "model" / "metrics.jsonl")
    return [one["train/ranking"] for one in metrics if "train/ranking" in one]
