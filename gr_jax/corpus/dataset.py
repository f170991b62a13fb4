"""A data set: a corpus, queries, and which documents answer them."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gr_jax import storage
from gr_jax.corpus.columns import MappedColumn
from gr_jax.corpus.documents import Corpus, Document
from gr_jax.corpus.queries import Queries
from gr_jax.corpus.trec import Qrels
from gr_jax.errors import InputError
from gr_jax.printing import printable
from gr_jax.text.transforms import get_transform

KIND = "dataset"
_FORMS = {
    "queries": 'query id → text: {"q1": "who sees at night?"}',
    "qrels": 'split → query id → document id → grade: {"test": {"q1": {"0": 1}}}',
}


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A corpus, queries, and which documents answer them.

    Attributes:
      corpus: the documents, as they were read.
      queries: of all splits, as they were read; none where there are only documents.
      qrels: split → judgements.
      name: what it is called in reports.
      transform: name of the transform of `gr_jax.text.TRANSFORMS` that documents and queries go through before
        anything reads them (`document_texts`, `query_texts`).
      notes: counts and versions of whatever made it, JSON values.

    Raises:
      InputError: qrels of a query or a document that is not there, or an unknown transform.

    Made of texts by `from_texts`, of files by a reader (`read_beir`), or of its parts.
    """

    corpus: Corpus
    queries: Queries = Queries((), ())
    qrels: Mapping[str, Qrels] = dataclasses.field(default_factory=dict)
    name: str = "dataset"
    transform: str = "none"
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        get_transform(self.transform)
        for split, qrels in self.qrels.items():
            for query_id, grades in qrels.items():
                if query_id not in self.queries:
                    raise InputError(f"{split} qrels of a query that is not there", "Add the query.", value=query_id)
                for doc_id in grades:
                    if doc_id not in self.corpus:
                        raise self._unknown_document(split, doc_id)

    def _unknown_document(self, split: str, doc_id: str) -> InputError:
        judged = (one for qrels in self.qrels.values() for grades in qrels.values() for one in grades)
        if any(one in self.corpus for one in judged):
            return InputError(f"{split} qrels of a document that is not there", "Add the document.", value=doc_id)
        return InputError(
            "no judgement names a document of the corpus",
            f"Name documents by their ids, which are like {self.corpus.doc_ids[0]!r}.",
            value=doc_id,
        )

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        ids: Iterable[str] | None = None,
        titles: Iterable[str] | None = None,
        *,
        queries: Mapping[str, str] | None = None,
        qrels: Mapping[str, Mapping[str, Mapping[str, int]]] | None = None,
        name: str = "texts",
    ) -> Dataset:
        """A data set of texts in memory, which `System.run` takes as it takes a folder.

        Args:
          texts: of the documents.
          ids: of the documents, unique and without white space; None counts them: "0", "1", …
          titles: of the documents; None leaves them without.
          queries: query id → text.
          qrels: split → query id → document id → grade, which is 1 or more for what is relevant:
            {"test": {"q1": {"0": 1}}}.
          name: what it is called in reports.

        Raises:
          InputError: no texts, ids or titles of another number, an id that is unusable or comes twice, what is no text,
            or queries or judgements that do not fit.
        """
        texts = _checked_texts("texts", texts)
        names = list(map(str, range(len(texts)))) if ids is None else _checked_texts("ids", ids, len(texts))
        headings = [""] * len(texts) if titles is None else _checked_texts("titles", titles, len(texts))
        for what, given in (("queries", queries), ("qrels", qrels)):
            if given is not None and not isinstance(given, Mapping):
                raise InputError(f"{what} are no mapping", f"Give {_FORMS[what]}.", value=given)
        for of_split in (qrels or {}).values():
            if not all(isinstance(one, Mapping) for one in (of_split, *getattr(of_split, "values", tuple)())):
                raise InputError("qrels without splits", f"Give {_FORMS['qrels']}.", value=of_split)
        asked = dict(queries or {})
        _checked_texts("queries", list(asked.values()))
        return cls(
            Corpus.from_documents(map(Document, names, headings, texts)),
            Queries(tuple(asked), tuple(asked.values())),
            {split: Qrels(judgements) for split, judgements in (qrels or {}).items()},
            name=name,
        )

    @functools.cached_property
    def fingerprint(self) -> dict[str, Any]:
        """What every artefact and report carries: JSON values, splits as [queries, pairs]."""
        splits = {split: [len(qrels), qrels.num_pairs] for split, qrels in self.qrels.items()}
        return {"corpus": self.corpus.fingerprint, "documents": len(self.corpus), "splits": splits}

    def summary(self) -> str:
        """The fingerprint in one line."""
        splits = [f"{split} {len(qrels):,}" for split, qrels in self.qrels.items()]
        queries = f"queries: {', '.join(splits)}" if splits else "no judged queries"
        return printable(f"{self.name}: {len(self.corpus):,} documents ({self.corpus.fingerprint}), {queries}")

    def document_texts(self) -> Sequence[str]:
        """Title and text of each document, transformed, lazily."""
        contents = self.corpus.contents
        return contents if self.transform == "none" else MappedColumn(get_transform(self.transform), contents)

    def query_texts(self, ids: Iterable[str] | None = None) -> list[str]:
        """The texts of these queries (of all, where `ids` is None), transformed."""
        texts = self.queries.texts if ids is None else self.queries.select(ids).texts
        return list(map(get_transform(self.transform), texts))

    def split_queries(self, split: str) -> Queries:
        """The queries of one split, in its order.

        Raises:
          InputError: there is no such split.
        """
        return self.queries.select(self.split(split))

    def split(self, split: str) -> Qrels:
        """The judgements of one split.

        Raises:
          InputError: there is no such split.
        """
        if split not in self.qrels:
            raise InputError(
                f"{self.name} has no such split", f"Choose one of {', '.join(self.qrels) or 'none'}.", value=split
            )
        return self.qrels[split]

    def save(self, folder: str | os.PathLike) -> None:
        """Writes everything as an artefact of kind "dataset"."""
        meta = {"name": self.name, "transform": self.transform, "notes": dict(self.notes), "splits": list(self.qrels)}
        with storage.write_folder(folder, KIND, corpus=self.corpus.fingerprint, meta=meta) as new:
            self.corpus.save(new / "corpus")
            self.queries.save(new / "queries.jsonl")
            for split, qrels in self.qrels.items():
                qrels.save(new / "qrels" / f"{split}.tsv")

    @classmethod
    def load(cls, folder: str | os.PathLike, *, verify: bool = True) -> Dataset:
        """Reads what `save` wrote; the corpus is memory-mapped.

        Raises:
          InputError: `folder` is no data set, or a truncated or altered one.
        """
        meta = storage.read_folder(folder, KIND, verify=verify).meta
        folder = pathlib.Path(folder)
        return cls(
            # Every file was checked just now.
            corpus=Corpus.load(folder / "corpus", verify=False),
            queries=Queries.load(folder / "queries.jsonl", allow_none=True),
            qrels={split: Qrels.load(folder / "qrels" / f"{split}.tsv", allow_none=True) for split in meta["splits"]},
            name=meta["name"],
            transform=meta["transform"],
            notes=meta["notes"],
        )


def _checked_texts(what: str, given: Iterable[str], count: int | None = None) -> list[str]:
    """A list of texts, as many as there are documents.

    Raises:
      InputError: one of them is no text, or there are more or fewer.
    """
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InputError(f"{what} are no list", "Give a list of texts.", value=given)
    listed = list(given)
    for number, one in enumerate(listed):
        if not isinstance(one, str):
            raise InputError(f"number {number} of the {what} is no text", "Give texts.", value=one)
    if count is not None and len(listed) != count:
        raise InputError(f"{len(listed)} {what} for {count} texts", "Give one for each text, in order.")
    return listed
