"""The training examples: (text, docid) pairs of three kinds, tokenised once into a memory-mapped store."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from gr_jax import text
from gr_jax.corpus import Dataset
from gr_jax.docids import Docids
from gr_jax.docids.pseudo_queries import PseudoQueries as MadeQueries
from gr_jax.recipes import documents
from gr_jax.recipes.settings import Training, Vectors
from gr_jax.recipes.stages import Stage, Workplace
from gr_jax.training.features import Pair, PairFeatures
from gr_jax.training.token_store import write_token_store

_WORD = re.compile(r"\w+")


class Reads(Protocol):
    """Settings of whatever reads text: what its encoder is, and which vocabulary that has; see `Network`."""

    @property
    def encoder(self) -> str: ...
    @property
    def vocabulary(self) -> str: ...
    @property
    def vocabulary_size(self) -> int: ...


def vocabulary_stage(corpus: Stage, network: Reads) -> Stage:
    """The vocabulary of what is read: the pretrained encoder's, bytes, or pieces trained on the documents."""
    settings: dict = {"vocabulary": network.vocabulary}
    if network.vocabulary == "pretrained":
        settings |= documents.encoder_config(network.encoder)
    if network.vocabulary == "sentencepiece":
        settings["size"] = network.vocabulary_size

    def make(place: Workplace) -> None:
        dataset = documents.load_dataset(place.inputs["corpus"])
        if network.vocabulary == "byte":
            vocabulary: text.Vocabulary = text.ByteVocabulary()
        elif network.vocabulary == "sentencepiece":
            vocabulary = text.SentencePieceVocabulary.train(dataset.document_texts(), network.vocabulary_size)
        else:
            vocabulary = text.HuggingFaceVocabulary(documents.pretrained_folder(network.encoder) / "tokenizer.json")
        vocabulary.save(place.folder / "vocabulary")
        place.meta.update({"size": vocabulary.size})

    return Stage("vocabulary", settings, (corpus,), make, shared=True)


def load_vocabulary(folder: pathlib.Path) -> text.Vocabulary:
    """The vocabulary of a finished vocabulary stage."""
    return text.load_vocabulary(folder / "vocabulary")


def examples_stage(
    corpus: Stage,
    embedded: Stage,
    docids: Stage,
    made_queries: Stage,
    vocabulary: Stage,
    vectors: Vectors,
    training: Training,
) -> Stage:
    """Token rows of queries, documents and pseudo-queries with the docids they should lead to."""

    def make(place: Workplace) -> None:
        dataset = documents.load_dataset(place.inputs["corpus"])
        ids = documents.load_docids(place.inputs["docids"])
        made = MadeQueries.load(place.inputs["pseudo_queries"] / "pseudo_queries")
        features = PairFeatures(
            load_vocabulary(place.inputs[vocabulary.name]), training.max_input_length, eos_id=ids.eos_id
        )
        named = documents.load_docids_of_vectors(place.inputs["docids"])
        parts = documents.passages(dataset, vectors) if len(named) > len(dataset.corpus) else None
        pairs = example_pairs(dataset, Names(ids, named, parts), made, training.document_words)
        store = write_token_store(place.folder / "tokens", pairs, features)
        place.meta.update({"examples": store.counts()})

    settings = {"max_input_length": training.max_input_length, "document_words": training.document_words}
    inputs = (corpus, embedded, docids, made_queries, vocabulary)
    return Stage("examples", settings, inputs, make, shared=True)


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
