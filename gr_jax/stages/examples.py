"""The training examples: (text, docid) pairs of three kinds, tokenised once into a memory-mapped store."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gr_jax import storage, text
from gr_jax.corpus import Dataset
from gr_jax.docids import Docids
from gr_jax.docids.pseudo_queries import PseudoQueries as MadeQueries
from gr_jax.errors import InputError
from gr_jax.stages.docids import load_docids, load_docids_of_vectors
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, stage
from gr_jax.stages.pseudo_queries import load_pseudo_queries
from gr_jax.stages.vectors import passages
from gr_jax.stages.vocabulary import load_vocabulary
from gr_jax.training.features import Pair, PairFeatures
from gr_jax.training.token_store import write_token_store

_WORD = re.compile(r"\w+")
# Kind of a stage that examples are made of → parameter, whatever a system calls it; docids' kinds are their schemes.
_KINDS = {
    "corpus": "corpus", "pseudo_queries": "pseudo_queries", "generated": "pseudo_queries", "vocabulary": "vocabulary",
}  # fmt: skip


@stage(shared=True)
def examples(
    place: Place,
    corpus: pathlib.Path,
    docids: pathlib.Path,
    pseudo_queries: pathlib.Path,
    vocabulary: pathlib.Path,
    *,
    sentences: int,
    max_input_length: int,
    document_words: int,
) -> None:
    """Token rows of queries, documents and pseudo-queries with the docids they should lead to.

    Args:
      vocabulary: of what is read.
      sentences: of a document that have a docid besides the document; see `vectors.passages`.
      max_input_length: tokens of a row that are read.
      document_words: words of a document that an indexing example reads.
    """
    made = examples_of(
        corpus, docids, pseudo_queries, vocabulary, sentences=sentences, max_input_length=max_input_length,
        document_words=document_words,
    )  # fmt: skip
    store = write_token_store(place.folder / "tokens", made.pairs(), made.features)
    place.notes["examples"] = store.counts()


@dataclasses.dataclass(frozen=True)
class Examples:
    """Training examples before they are tokenised, and how they are.

    Attributes:
      pairs: streams them, in the order of their token store.
      features: gives them their tokens.
      target_size: tokens that the decoder can write.
      asked: streams each question of a split once, with a docid that answers it.
      splits: names of the splits.
    """

    pairs: Callable[[], Iterator[Pair]]
    features: PairFeatures
    target_size: int
    asked: Callable[[str], Iterator[Pair]]
    splits: Sequence[str]


def examples_of(
    corpus: pathlib.Path,
    docids: pathlib.Path,
    pseudo_queries: pathlib.Path,
    vocabulary: pathlib.Path,
    *,
    sentences: int,
    max_input_length: int,
    document_words: int,
) -> Examples:
    """Those of the stage `examples`, whose arguments these are."""
    dataset = load_dataset(corpus)
    ids = load_docids(docids)
    made = load_pseudo_queries(pseudo_queries)
    features = PairFeatures(load_vocabulary(vocabulary), max_input_length, eos_id=ids.eos_id)
    named = load_docids_of_vectors(docids)
    parts = passages(dataset, sentences) if len(named) > len(dataset.corpus) else None
    names = Names(ids, named, parts)
    return Examples(
        lambda: example_pairs(dataset, names, made, document_words), features, ids.vocab_size,
        lambda split: asked_pairs(dataset, names, split), list(dataset.qrels),
    )  # fmt: skip


def finished_examples(folder: str | os.PathLike, model_dir: str | os.PathLike | None = None) -> Examples:
    """Those of a finished stage, made again from what it read.

    Args:
      folder: of the stage, `shared/examples-KEY`, beside the folders that it read.
      model_dir: of the run, for what it read there: the queries of DSI-QG.

    Raises:
      InputError: it is no such folder, or what it read is neither beside it nor in `model_dir`.
    """
    folder = pathlib.Path(folder)
    meta = storage.read_folder(folder, "examples", verify=False).meta
    read: dict[str, pathlib.Path] = {}
    for name, key in meta["inputs"].items():
        found = [*folder.parent.glob(f"*-{key}"), *([] if model_dir is None else [pathlib.Path(model_dir) / name])]
        manifests = [(one, storage.read_folder(one, verify=False)) for one in found if one.is_dir()]
        of_key = {_KINDS.get(manifest.kind, "docids"): one for one, manifest in manifests if manifest.made_from == key}
        if len(of_key) != 1:
            raise InputError(
                f"the stage {name} that these examples were made of is not there",
                "Run the system again, or name its MODEL_DIR too.",
                file=folder.parent,
            )
        read |= of_key
    parts = (read[name] for name in ("corpus", "docids", "pseudo_queries", "vocabulary"))
    return examples_of(*parts, **meta["config"])


def example_pairs(dataset: Dataset, names: Names, made: MadeQueries, document_words: int) -> Iterator[Pair]:
    """Queries of the train split, the head of every document, and the pseudo-queries, each with a docid."""
    rewrite: Callable[[str], str] = text.TRANSFORMS[dataset.transform]
    corpus = dataset.corpus
    for query_id, relevant in dataset.qrels.get("train", {}).items():
        question = rewrite(dataset.queries.text(query_id))
        for doc_id, grade in relevant.items():
            if grade > 0:
                yield Pair(question, names.best(corpus.index_of(doc_id), question), "query")
    for index in range(len(corpus)):
        document = corpus[index]
        head = rewrite(" ".join(f"{document.title} {document.text}".split()[:document_words]))
        yield Pair(head, names.whole(index), "document")
    for question, index in zip(made.texts, made.documents, strict=True):
        question = rewrite(question)
        yield Pair(question, names.best(int(index), question), "pseudo")


def asked_pairs(dataset: Dataset, names: Names, split: str) -> Iterator[Pair]:
    """Every question of a split that a document answers, with the docid of the first that does."""
    rewrite: Callable[[str], str] = text.TRANSFORMS[dataset.transform]
    for query_id, relevant in dataset.split(split).items():
        question = rewrite(dataset.queries.text(query_id))
        answers = [doc_id for doc_id, grade in relevant.items() if grade > 0]
        if answers:
            yield Pair(question, names.best(dataset.corpus.index_of(answers[0]), question), "query")


class Names:
    """Which of a document's docids an example should lead to.

    Args:
      docids: of the documents.
      named: the same of the passages.
      parts: the passages' texts and documents; None where every document has one docid.
    """

    def __init__(self, docids: Docids, named: Docids, parts: tuple[Sequence[str], np.ndarray] | None):
        row_of = np.repeat(np.arange(len(named)), np.diff(named.offsets))
        self._tokens: list[list[int]] = [[] for _ in range(named.num_documents)]
        for row, passage in zip(row_of, named.documents, strict=True):
            self._tokens[int(passage)] = named.tokens[row, : named.lengths[row]].tolist()
        owner = np.arange(named.num_documents) if parts is None else parts[1]
        self._first = np.searchsorted(owner, np.arange(docids.num_documents + 1))
        self._words = None if parts is None else [_words(part) for part in parts[0]]

    def whole(self, document: int) -> list[int]:
        """The docid of the document as a whole."""
        return self._tokens[self._first[document]]

    def best(self, document: int, question: str) -> list[int]:
        """The docid of the sentence that shares the most words with the question; of the whole where none does."""
        first, end = int(self._first[document]), int(self._first[document + 1])
        if self._words is None or end - first == 1:
            return self._tokens[first]
        asked = _words(question)
        shared = [len(asked & self._words[passage]) for passage in range(first + 1, end)]
        title_alone = len(asked & frozenset.intersection(*self._words[first + 1 : end]))
        best = int(np.argmax(shared))
        return self._tokens[first + 1 + best if shared[best] > title_alone else first]


def _words(sentence: str) -> frozenset[str]:
    return frozenset(_WORD.findall(sentence.lower()))
