"""The questions for which a student finds documents and a teacher orders them: those of train, and others that nobody
has judged."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool

from gr_jax import storage
from gr_jax.corpus import Dataset, Queries
from gr_jax.errors import InputError
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, stage
from gr_jax.stages.pseudo_queries import load_pseudo_queries

_FILE = "queries.jsonl"


def unjudged(dataset: Dataset) -> list[str]:
    """Ids of the questions that have no judgement in any split."""
    judged = {query_id for qrels in dataset.qrels.values() for query_id in qrels}
    return [query_id for query_id in dataset.queries.ids if query_id not in judged]


def _some(ids: Sequence[str], number: int | None) -> list[str]:
    """So many of them, in their order; all where there are fewer, or where no number is given.

    The choice does not depend on the seed of a training, so that trainings share what is found.
    """
    if number is None or number >= len(ids):
        return list(ids)
    return [ids[place] for place in np.sort(np.random.default_rng(0).permutation(len(ids))[:number])]


def check_asked(dataset: Dataset, unlabelled: int, setting: str) -> None:
    """Raises InputError where there are fewer questions without a judgement than are to be asked.

    Args:
      dataset: documents and questions.
      unlabelled: questions without a judgement.
      setting: what says so.
    """
    there = len(unjudged(dataset)) if unlabelled else 0
    if there < unlabelled:
        raise InputError(
            f"{unlabelled} questions without a judgement are to be asked, and queries.jsonl has {there}",
            f"Set {setting} to {there} or fewer, or add questions that stand in no file of qrels/.",
            value=unlabelled,
        )


def any_answered(dataset: Dataset, labelled: int | None = None) -> bool:
    """Whether a document answers any question of train: has a grade above 0.

    Args:
      dataset: documents and questions.
      labelled: of so many of them, those that `asked_questions` asks; None: of all.
    """
    train: Mapping[str, Mapping[str, int]] = dataset.qrels.get("train", {})
    return any(grade > 0 for one in _some(list(train), labelled) for grade in train[one].values())


@stage(shared=True)
def asked_questions(
    place: Place,
    corpus: pathlib.Path,
    pseudo_queries: pathlib.Path | None,
    *,
    labelled: int | None,
    unlabelled: int,
    made: int,
    setting: str,
) -> None:
    """Questions in `queries.jsonl`: of train first, then those without a judgement, then those made from documents.

    Args:
      pseudo_queries: queries made from documents; None: there are none.
      labelled: questions of train; None takes all.
      unlabelled: questions without a judgement in any split.
      made: queries made from documents.
      setting: the class that says how many, for messages.
    """
    dataset = load_dataset(corpus)
    train = _some(list(dataset.qrels.get("train", ())), labelled)
    ids = train + _some(unjudged(dataset), unlabelled)
    texts = list(dataset.queries.select(ids).texts)
    if made:
        found = () if pseudo_queries is None else load_pseudo_queries(pseudo_queries).texts
        named = {f"made:{number}": text for number, text in enumerate(dict.fromkeys(found))}  # each once
        free = [name for name in named if name not in dataset.queries]
        if len(free) < made:
            raise InputError(
                f"{made} queries that were made from documents are to be asked, and there are {len(free)}",
                f"Set {setting}.made to {len(free)} or fewer.",
                value=made,
            )
        chosen = _some(free, made)
        ids, texts = ids + chosen, texts + [named[name] for name in chosen]
    lines = (json.dumps({"_id": name, "text": text}) for name, text in zip(ids, texts, strict=True))
    storage.write_text(place.folder / _FILE, "".join(f"{line}\n" for line in lines))
    place.notes.update({"of train": len(train), "not judged": len(ids) - len(train) - made, "made": made})


def load_asked(folder: pathlib.Path) -> Queries:
    """The questions of a finished stage."""
    return Queries.load(folder / _FILE)


def answers_of(dataset: Dataset, asked: Queries) -> list[dict[int, int] | None]:
    """The documents that answer each question, with their grades, by the judgements of train; None where it has no
    judgement."""
    train: Mapping[str, Mapping[str, int]] = dataset.qrels.get("train", {})
    return [
        {dataset.corpus.index_of(doc_id): grade for doc_id, grade in train[one].items() if grade > 0}
        if one in train
        else None
        for one in asked.ids
    ]


def asked_by_people(dataset: Dataset, asked: Queries) -> Bool[np.ndarray, " questions"]:
    """Which questions were not made from documents."""
    return np.array([one in dataset.queries for one in asked.ids], bool)
