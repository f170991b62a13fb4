"""What the vocabulary of titles is, and what it knows before anything is trained, for `benchmarks.cgr`."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks import derived_data, harness
from benchmarks.title_systems import (
    DEV_QUESTIONS,
    MEASURES,
    dataset_of,
    pages_of,
    run_of,
    states_of,
    vocabulary_folder,
)
from gr_jax.corpus import Dataset, read_beir
from gr_jax.evaluation import evaluate
from gr_jax.evaluation.pages import qrels_of_pages, run_of_pages

SIZES = {"10k": 10_000, "32k": 32_000, "179k": 0}  # documents; 0: all
KILT, WIDTH = 5_903_530, 1024  # pages of the paper's corpus, and numbers of its vectors
PLAIN = 50  # hypotheses of a beam that does not look ahead
PAPER = {"GB at k = 5": 0.47, "GB of all": 148.0}
Values = Mapping[str, float]


def matrix(data: str) -> Values:
    """That of k = 5: whether titles can be read back from it, its rows, and its inertia beside scikit-learn's, which
    starts four times too."""
    from sklearn.cluster import KMeans

    from gr_jax import docids as docids_lib
    from gr_jax.stages.docids import load_docids
    from gr_jax.systems.cgr import Contextual, vocabulary

    run = run_of(data, "k = 5", trained=False)
    run.index()
    folder = vocabulary_folder(run)
    titles, written = vocabulary.load_titles(folder), load_docids(folder)
    text_of = vocabulary.load_text_of(folder)
    read_back = np.mean(
        [
            text_of[written.sequence(int(written.rows_of(one)[0]))].tolist()
            == titles.sequence(int(titles.rows_of(one)[0]))
            for one in range(titles.num_documents)
        ]
    )
    settings = Contextual()
    states = states_of(run)
    started = time.monotonic()
    made = docids_lib.contextual_tokens(vocabulary.pages_of(titles), states, clusters=settings.clusters, seed=0)
    seconds = time.monotonic() - started
    tokens = np.concatenate([titles.sequence(row) for row in range(len(titles))])
    members = np.bincount(tokens)
    k = settings.clusters or 0
    expected = int(np.minimum(members, k).sum()) + 2  # padding and the end
    groups = [states[tokens == token] for token in np.flatnonzero(members > k)]
    theirs = sum(KMeans(k, n_init=4, random_state=0).fit(group).inertia_ for group in groups)
    return {
        "titles read back": float(read_back),
        "rows": len(made.text_of),
        "rows beyond the sum": len(made.text_of) - expected,
        "inertia beside scikit-learn": made.inertia / theirs,
        "seconds": seconds,
    }


def growth(size: str) -> Values:
    """Rows and bytes at k = 5 and of all embeddings; the vectors are not needed for that."""
    counts, pages = _members(size)
    few, every = int(np.minimum(counts, 5).sum()), int(counts.sum())
    return {
        "pages": pages,
        "rows at k = 5": few,
        "rows of all": every,
        "share": few / every,
        "MB at k = 5": few * WIDTH * 4 / 1e6,
        "MB of all": every * WIDTH * 4 / 1e6,
    }


@functools.cache
def _members(size: str) -> tuple[np.ndarray, int]:
    """How often each token stands in titles, and how many titles there are."""
    from gr_jax.stages import pretrained
    from gr_jax.systems.cgr.vocabulary import titles_of
    from gr_jax.text import HuggingFaceVocabulary

    folder = harness.data_folder("wiki_intro_179k")
    dataset = read_beir(folder, subset=derived_data.subset(folder, size) if SIZES[size] else None)
    words = HuggingFaceVocabulary(pretrained.pretrained_folder("minilm") / "tokenizer.json")
    titles = titles_of(dataset, words, 24)
    return np.bincount(np.concatenate([titles.sequence(row) for row in range(len(titles))])), len(titles)


def extrapolated() -> Values:
    """Rows at KILT's 5.9 million pages, by the power law through the two largest sizes, beside the paper's bytes."""
    smaller, larger = growth("32k"), growth("179k")
    found: dict[str, float] = {}
    for name, paper in (("at k = 5", "GB at k = 5"), ("of all", "GB of all")):
        first, second = smaller[f"rows {name}"], larger[f"rows {name}"]
        exponent = np.log(second / first) / np.log(larger["pages"] / smaller["pages"])
        rows = second * (KILT / larger["pages"]) ** exponent
        found |= {f"rows {name}": float(rows), f"GB {name}": float(rows * WIDTH * 4 / 1e9)}
        found[f"paper's {paper}"] = PAPER[paper]
    return found


def untrained(data: str, kind: str) -> Values:
    """Dev: as it is found by default, by a plain beam of 50, and as a bag."""
    from gr_jax.retrievers import index, ranking_to_run
    from gr_jax.stages.training import sample_queries
    from gr_jax.systems.cgr import vocabulary

    run = run_of(data, kind, trained=False)
    run.index()
    dataset, folder = dataset_of(data), vocabulary_folder(run)
    titles, text_of = vocabulary.load_titles(folder), vocabulary.load_text_of(folder)
    retriever: Any = index.load(run.folder / "index").retriever
    network, penalty = retriever.model, retriever.length_penalty
    qrels = sample_queries(dataset.split("dev"), DEV_QUESTIONS)
    texts = dataset.query_texts(list(qrels))
    pages = pages_of(dataset, titles)
    judged = qrels_of_pages(qrels, pages)
    values = {"ids": float(np.sum(text_of >= 0))}
    for says, changes in (("", {}), (" of a plain beam", {"beams": PLAIN, "lookahead": False})):
        own = retriever.searching(**changes)
        in_order = run_of_pages(ranking_to_run(own.retrieve(texts, 20), list(qrels), dataset.corpus), pages)
        found = evaluate(in_order, judged, MEASURES)
        values |= {f"{name}{says}": found[name] for name in MEASURES}
    if not hasattr(network.module, "text_of"):  # what is copied depends on what was written before
        scores = _of_bags(network, retriever.vocabulary, titles, text_of, texts, dataset, penalty)
        best = np.argsort(-scores, axis=1)[:, :20]
        bags = {one: [(str(row), float(scores[place, row])) for row in best[place]] for place, one in enumerate(qrels)}
        found = evaluate(bags, judged, MEASURES)
        values |= {f"{name} as a bag": found[name] for name in MEASURES}
    return values


def _of_bags(
    network: Any, words: Any, titles: Any, text_of: np.ndarray, texts: list[str], dataset: Dataset, penalty: float
) -> np.ndarray:
    """Scores [questions, titles] of all titles, by the untrained network's logits, which no token before changes."""
    import jax
    import jax.numpy as jnp

    from gr_jax.retrievers.query_reader import QueryReader

    scores = np.zeros((len(texts), len(titles)), np.float32)
    sequences = [[*titles.sequence(row), titles.eos_id] for row in range(len(titles))]
    lengths = np.array([len(one) for one in sequences])
    rows, places = np.repeat(np.arange(len(titles)), lengths), np.concatenate(sequences)

    @jax.jit
    def best(tokens):
        zeros = jnp.zeros((len(tokens), 1), jnp.int32)
        features = network.module.apply({"params": network.params}, tokens, zeros, method="features")[:, 0]
        logits = jnp.where(text_of >= 0, features @ network.table.T, -jnp.inf)
        return jnp.full((len(tokens), titles.vocab_size), -jnp.inf).at[:, text_of].max(logits)

    asked, _ = QueryReader(words, dataset.transform, 64, 32).read(texts)
    for start in range(0, len(asked), 32):
        for place, one in enumerate(np.asarray(best(asked[start : start + 32])), start):
            scores[place] = np.bincount(rows, one[places], len(titles))
    return scores / ((5 + lengths) / 6) ** penalty
