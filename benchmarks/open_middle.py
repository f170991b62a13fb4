"""Other networks under other constraints than a docid trie's: `python -m benchmarks.open_middle`.

Three small systems with random weights on squad_dev (see `benchmarks.small_systems`): they show that any model writes
under any constraint and is searched, filtered, saved and loaded, not that they retrieve well. On 200 paragraphs what is
found is compared with every identifier written out and scored by teacher forcing; speed is of the whole corpus.
About 10 minutes on 2 cores.
"""

from __future__ import annotations

import functools
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import gr_jax
from benchmarks import harness, small_systems
from gr_jax import models, text
from gr_jax.corpus import Corpus, Dataset, Document, read_beir
from gr_jax.retrievers import GenerativeRetriever, index

DATA, SPLIT, K = "squad_dev", "dev", 10
QUERIES, ENUMERATED_QUERIES, ENUMERATED_DOCUMENTS, CHARACTERS = 128, 4, 200, 200
WORDS = 2000  # of the text vocabulary of titles and prompts
BATCH = 32

Make = Callable[..., GenerativeRetriever]


class CountingNetwork(models.DecoderOnly):
    """Counts the prompt tokens that are read whenever a program runs."""

    def read_prompt(self, tokens: jax.Array) -> Any:
        """See `DecoderOnly.read_prompt`."""
        jax.debug.callback(functools.partial(PROMPT_TOKENS.append, tokens.shape[1]))
        return super().read_prompt(tokens)


PROMPT_TOKENS: list[int] = []


@functools.lru_cache(maxsize=1)
def _dataset() -> Dataset:
    return read_beir(harness.data_folder(DATA))


@functools.cache
def _fingerprint() -> str:
    return _dataset().corpus.fingerprint


@functools.lru_cache(maxsize=1)
def _vocabulary() -> text.Vocabulary:
    corpus = _dataset().corpus
    return text.SentencePieceVocabulary.train([*corpus.titles, *corpus.texts], WORDS)


def part_of(corpus: Corpus) -> Corpus:
    """Paragraphs from everywhere, cut so that all their n-grams can be written out."""
    places = np.linspace(0, len(corpus) - 1, ENUMERATED_DOCUMENTS)
    return Corpus.from_documents(
        Document(one.doc_id, one.title, one.text[:CHARACTERS]) for one in (corpus[int(i)] for i in places)
    )


def _ngrams(corpus: Corpus, **settings: Any) -> GenerativeRetriever:
    return small_systems.ngrams(corpus, max_query_length=128, **settings)


def _titles(corpus: Corpus, **settings: Any) -> GenerativeRetriever:
    return small_systems.contextual_titles(corpus, _vocabulary(), **settings)


def _prompted(corpus: Corpus, **settings: Any) -> GenerativeRetriever:
    return small_systems.prompted(corpus, _vocabulary(), network=CountingNetwork, **settings)


def _measure(make: Make, settings: dict[str, Any]) -> dict[str, float]:
    dataset = _dataset()
    queries = dataset.split_queries(SPLIT).texts[:QUERIES]
    PROMPT_TOKENS.clear()
    whole = make(dataset.corpus, batch_size=BATCH, **settings)
    whole.retrieve(queries, K)  # compiled
    started = time.perf_counter()
    found = whole.retrieve(queries, K)
    seconds = time.perf_counter() - started
    jax.effects_barrier()
    read = sum(PROMPT_TOKENS) / (2 * len(queries))
    allowed = np.random.default_rng(0).random(len(dataset.corpus)) < 0.1
    filtered = whole.retrieve(queries, K, allowed=allowed).doc_index
    with tempfile.TemporaryDirectory() as folder:
        index.save(pathlib.Path(folder) / "index", whole, dataset.corpus)
        loaded = gr_jax.load(pathlib.Path(folder) / "index").retriever
        loaded._reader.batch_size = BATCH  # type: ignore[attr-defined]  # how to compute, which is not kept
        again = loaded.retrieve(queries, K)
    return {
        "documents": len(dataset.corpus),
        "queries/s": len(queries) / seconds,
        "equals enumeration": _agreement(make, part_of(dataset.corpus), queries[:ENUMERATED_QUERIES]),
        "filter respected": float(np.mean(allowed[filtered[filtered >= 0]])),
        "saved = loaded": float(np.all(again.doc_index == found.doc_index) and np.all(again.score == found.score)),
        "prompt tokens read a query": read,
    }


def _agreement(make: Make, corpus: Corpus, queries: Sequence[str]) -> float:
    """With as many beams as there is to write, unfiltered and under a filter."""
    made = make(corpus, batch_size=1)
    made.beams = small_systems.enough_beams(made, corpus)
    shares = []
    for allowed in (None, np.random.default_rng(1).random(len(corpus)) < 0.3):
        ranking = made.retrieve(queries, len(corpus), allowed=allowed)
        shares.append(small_systems.agreement(ranking, small_systems.enumerate_all(made, corpus, queries, allowed)))
    return float(np.mean(shares))


def rows() -> list[harness.Row]:
    """The table."""
    systems: list[tuple[str, Make, dict[str, Any], float]] = [
        ("n-grams, FM-index, encoder-decoder", _ngrams, {"beams": 15, "max_len": 10}, 0.0),
        ("titles by contextual tokens, token-text trie, encoder-decoder", _titles, {"beams": 50, "merge": "max"}, 0.0),
        ("docids, trie, decoder-only behind a prompt", _prompted, {"beams": 50}, 0.1),
    ]
    return [
        harness.Row(
            name=name,
            config={
                "data": DATA, "split": SPLIT, "queries": QUERIES, "k": K, "batch": BATCH, "words": WORDS,
                "enumerated": [ENUMERATED_DOCUMENTS, CHARACTERS, ENUMERATED_QUERIES], **settings,
            },
            measure=functools.partial(_measure, make, settings),
            at_least={"equals enumeration": 1.0, "filter respected": 1.0, "saved = loaded": 1.0},
            at_most={"prompt tokens read a query": most},
            corpus=_fingerprint,
            seeds=(0,),
        )
        for name, make, settings, most in systems
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(harness.main("open_middle", rows()))
