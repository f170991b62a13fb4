"""What ir_datasets knows, by its ids: documents, questions and judgements (MacAvaney et al. 2021, arXiv 2103.02280)."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gr_jax import storage
from gr_jax.corpus.dataset import Dataset
from gr_jax.corpus.documents import Corpus, Document
from gr_jax.corpus.queries import Queries
from gr_jax.corpus.trec import Qrels
from gr_jax.datasets import folder
from gr_jax.errors import InputError

PREFIX = "ir_datasets:"
_TEXTS = ("text", "body", "abstract", "main_content")  # fields beside a title, as data sets call them
WITHOUT_JUDGEMENT = "questions without a judgement, which were left out"
REPEATED = "judgements of a pair that was judged before, of which the later counts"


def load(identifier: str) -> Any:
    """ir_datasets' own data set of an id.

    Raises:
      InputError: ir_datasets is not installed, or does not know the id.
    """
    try:
        import ir_datasets
    except ImportError as error:
        raise InputError("data sets by their ids need ir_datasets", "pip install 'gr_jax[irdatasets]'.") from error
    try:
        return ir_datasets.load(identifier)
    except KeyError as error:
        raise InputError(
            "ir_datasets knows no data set of this id", "Its ids are listed at its site: beir/nfcorpus/test.",
            value=identifier,
        ) from error  # fmt: skip


def documents(found: Any) -> Iterator[Document]:
    """Streams the documents of one of ir_datasets' data sets: titles where they have any, and what they say."""
    for one in found.docs_iter():
        title = getattr(one, "title", "")
        title = title if isinstance(title, str) else ""
        text = next((getattr(one, name) for name in _TEXTS if isinstance(getattr(one, name, None), str)), None)
        if text is None:  # its own idea of a text, which begins with a title where there is one
            text = one.default_text().removeprefix(title).strip()
        yield Document(str(one.doc_id), title, text)


def split_name(identifier: str) -> str:
    """The last part of an id, where it is a split's; else "test"."""
    last = identifier.rpartition("/")[2]
    return last if last in ("train", "dev", "test", "validation") else "test"


def parts(identifiers: str) -> list[tuple[str, str]]:
    """(split, id) of ids with "+" between, whose documents are the same.

    Raises:
      InputError: two are of one split.
    """
    named = [(split_name(one.strip()), one.strip()) for one in identifiers.split("+")]
    splits = [split for split, _ in named]
    if len(set(splits)) < len(splits):
        raise InputError("two data sets of one split", "Give one for each of train, dev and test.", value=identifiers)
    return named


def judged(found: Any, identifier: str) -> tuple[list[tuple[str, str]], dict[str, dict[str, int]], int]:
    """(id, text) of the questions with a judgement, the judgements, and how many were repeated.

    Raises:
      InputError: the data set has no questions or no judgements, or one of a question that is not there.
    """
    if not found.has_queries() or not found.has_qrels():
        raise InputError("no questions with judgements", "Name one of its parts that has both.", value=identifier)
    grades: dict[str, dict[str, int]] = {}
    repeated = 0
    for one in found.qrels_iter():
        of_query = grades.setdefault(str(one.query_id), {})
        repeated += str(one.doc_id) in of_query
        of_query[str(one.doc_id)] = int(one.relevance)
    texts = {str(one.query_id): one.default_text() for one in found.queries_iter()}
    missing = next((query for query in grades if query not in texts), None)
    if missing is not None:
        raise InputError(f"{identifier}: a judgement of a question that is not there", "Report it.", value=missing)
    return [(query, text) for query, text in texts.items() if query in grades], grades, repeated


def read(identifiers: str) -> Dataset:
    """Ids with "+" between, as one data set in memory; each is a split, and the documents are those of the first.

    Raises:
      InputError: see `load`, `parts` and `judged`.
    """
    named = parts(identifiers)
    questions: dict[str, str] = {}
    qrels = {}
    for split, identifier in named:
        asked, grades, _ = judged(load(identifier), identifier)
        questions |= dict(asked)
        qrels[split] = Qrels(grades)
    corpus = Corpus.from_documents(documents(load(named[0][1])))
    return Dataset(corpus, Queries(tuple(questions), tuple(questions.values())), qrels, identifiers)


def build(identifiers: str, output: pathlib.Path, *, show: bool = True) -> folder.About:
    """Writes a folder of ids with "+" between; see `read`.

    Raises:
      InputError: the same, or the folder holds something else.
    """
    named: Sequence[tuple[str, str]] = parts(identifiers)
    found = {identifier: load(identifier) for _, identifier in named}
    with folder.building(output, "ir_datasets", identifiers):
        return _build(named, found, identifiers, output, show)


def _build(
    named: Sequence[tuple[str, str]], found: Mapping[str, Any], identifiers: str, output: pathlib.Path, show: bool
) -> folder.About:
    notes = {folder.HALVES: 0, REPEATED: 0, WITHOUT_JUDGEMENT: 0}
    asked: dict[str, str] = {}
    rows: dict[str, list[tuple[str, str, int]]] = {}
    for split, identifier in named:
        questions, grades, repeated = judged(found[identifier], identifier)
        for query, text in questions:
            if asked.setdefault(query, text) != text:
                raise InputError("a question of two splits with other texts", "Build them apart.", value=query)
        notes[REPEATED] += repeated
        notes[WITHOUT_JUDGEMENT] += sum(1 for _ in found[identifier].queries_iter()) - len(questions)
        rows[split] = [(query, page, grade) for query, of_query in grades.items() for page, grade in of_query.items()]
    with storage.writing(output / folder.CORPUS) as file:
        for document in documents(found[named[0][1]]):
            line, counted = folder.document_line(document)
            notes[folder.HALVES] += len(counted)
            file.write(line + b"\n")
    for name, count in folder.write_questions(
        output, ((output, query, text, {}) for query, text in asked.items())
    ).items():
        notes[name] += count
    return folder.finish(
        output, dataset="ir_datasets", variant=identifiers, whose="as ir_datasets reads it",
        questions=folder.write_judgements(output, rows), raw=[], notes=notes, show=show,
    )  # fmt: skip
