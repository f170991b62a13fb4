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
from gr_jax.corpus.documents import Corpus
from gr_jax.corpus.queries import Queries
from gr_jax.corpus.trec import Qrels
from gr_jax.errors import InputError
from gr_jax.printing import printable
from gr_jax.text.transforms import get_transform

KIND = "dataset"


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
                        raise InputError(
                            f"{split} qrels of a document that is not there", "Add the document.", value=doc_id
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
