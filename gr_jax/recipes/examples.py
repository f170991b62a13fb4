"""The training examples: (text, docid) pairs of three kinds, tokenised once into a memory-mapped store."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator

import numpy as np

from gr_jax import text
from gr_jax.corpus import Dataset
from gr_jax.docids import Docids
from gr_jax.docids.pseudo_queries import PseudoQueries as MadeQueries
from gr_jax.recipes import documents
from gr_jax.recipes.settings import Network, Training
from gr_jax.recipes.stages import Stage, Workplace
from gr_jax.training.features import Pair, PairFeatures
from gr_jax.training.token_store import write_token_store


def vocabulary_stage(corpus: Stage, network: Network) -> Stage:
    """The vocabulary of what is read: the pretrained encoder's, bytes, or pieces trained on the documents."""
    settings: dict = {"vocabulary": network.vocabulary}
    if network.vocabulary == "pretrained":
        settings["encoder"] = network.encoder
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


def examples_stage(corpus: Stage, docids: Stage, made_queries: Stage, vocabulary: Stage, training: Training) -> Stage:
    """Token rows of queries, documents and pseudo-queries with the docids they should lead to."""

    def make(place: Workplace) -> None:
        dataset = documents.load_dataset(place.inputs["corpus"])
        ids = documents.load_docids(place.inputs["docids"])
        made = MadeQueries.load(place.inputs["pseudo_queries"] / "pseudo_queries")
        features = PairFeatures(
            load_vocabulary(place.inputs["vocabulary"]), training.max_input_length, eos_id=ids.eos_id
        )
        pairs = example_pairs(dataset, ids, made, training.document_words)
        store = write_token_store(place.folder / "tokens", pairs, features)
        place.meta.update({"examples": store.counts()})

    settings = {"max_input_length": training.max_input_length, "document_words": training.document_words}
    return Stage("examples", settings, (corpus, docids, made_queries, vocabulary), make, shared=True)


def example_pairs(dataset: Dataset, docids: Docids, made: MadeQueries, document_words: int) -> Iterator[Pair]:
    """Queries of the train split, the head of every document, and the pseudo-queries; each once for every docid."""
    rewrite: Callable[[str], str] = text.TRANSFORMS[dataset.transform]
    names = docids_by_document(docids)
    corpus = dataset.corpus
    for query_id, relevant in dataset.qrels.get("train", {}).items():
        question = rewrite(dataset.queries.text(query_id))
        for doc_id, grade in relevant.items():
            if grade > 0:
                for name in names[corpus.index_of(doc_id)]:
                    yield Pair(question, name, "query")
    for index in range(len(corpus)):
        document = corpus[index]
        head = " ".join(f"{document.title} {document.text}".split()[:document_words])
        for name in names[index]:
            yield Pair(rewrite(head), name, "document")
    for question, index in zip(made.texts, made.documents, strict=True):
        for name in names[int(index)]:
            yield Pair(rewrite(question), name, "pseudo")


def docids_by_document(docids: Docids) -> list[list[list[int]]]:
    """For each document its docids, as lists of tokens."""
    names: list[list[list[int]]] = [[] for _ in range(docids.num_documents)]
    row_of = np.repeat(np.arange(len(docids)), np.diff(docids.offsets))
    for row, document in zip(row_of, docids.documents, strict=True):
        names[int(document)].append(docids.tokens[row, : docids.lengths[row]].tolist())
    return names
