"""Titles in a vocabulary of contextualized tokens: `python -m benchmarks.cgr`.

A page is a title; documents of one title are one page, and measures are of pages. `nq_boolq_dev` and 10,000 documents
of `wiki_intro_179k` together have 1,851 test questions, which show a difference of .021 at 80% power where a tenth of
them differ. 78% of them ask for a title that no training question asks for. Nothing is trained on made queries.

Before anything is trained, rows on dev say what the vocabulary itself knows: with the tokens of a title written in
their order by beam search, and as a bag, which is the same sum over the tokens of every title there is, each in its
likeliest sense, so that nothing is lost on the way. What is copied is counted on training questions. Rows of the
matrix say whether it is what the paper describes, and how large it grows.
"""

from __future__ import annotations

import functools
import itertools
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks import derived_data, harness, pooled
from benchmarks.recipe_runs import RecipeRun
from gr_jax.corpus import Dataset, read_beir
from gr_jax.evaluation import Evaluation, evaluate
from gr_jax.evaluation.pages import qrels_of_pages, run_of_pages

NAME, GROUP = "cgr", "titles"
DATA = {"nq_boolq_dev": "", "wiki_intro_179k": "10k"}
SPLIT, DEV_QUESTIONS = "test", 300
MEASURES = ("Success@1", "Success@10", "RR@10")
REBUILDS = (1, 3, 7)
# Title → gin file, and flags.
KINDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "k = 5": ("cgr", ()),
    "k = 1": ("cgr", ("Contextual.clusters=1",)),
    "k = 20": ("cgr", ("Contextual.clusters=20",)),
    "all embeddings": ("cgr", ("Contextual.clusters=None",)),
    "title-only k = 5": ("cgr", ("Contextual.content=False",)),
    "title-only all embeddings": ("cgr", ("Contextual.content=False", "Contextual.clusters=None")),
    "GENRE*": ("genre_star", ()),
    "k = 5 with copying": ("cgr", ("CGR.copying=True",)),
    "GENRE": ("genre", ()),
    "Contra": ("cgr_contra", ()),
    "Contra with copying": ("cgr_contra", ("CGRContra.copying=True",)),
    "Contra in_batch": ("cgr_contra", ('Aligning.loss="in_batch"',)),
    "Contra one_positive": ("cgr_contra", ('Aligning.loss="one_positive"',)),
    **{f"Async {times}": ("cgr_async", (f"CGRAsync.rebuilds={times}",)) for times in REBUILDS},
}
UNTRAINED = (
    "k = 1", "k = 5", "k = 20", "all embeddings", "title-only k = 5", "title-only all embeddings", "GENRE*",
    "k = 5 with copying", "GENRE",
)  # fmt: skip
SYSTEMS = {
    "CGR": "k = 5",
    "title-only": "title-only k = 5",
    "GENRE*": "GENRE*",
    "CGR with copying": "k = 5 with copying",
    "GENRE": "GENRE",
    "k = 1": "k = 1",
    "Contra": "Contra",
    "Contra with copying": "Contra with copying",
}
# Success@1 and @10 that should be reached on test.
BARS = {
    ("CGR", "nq_boolq_dev"): (0.60, 0.83),
    ("CGR", "wiki_intro_179k"): (0.24, 0.38),
    ("GENRE", "nq_boolq_dev"): (0.55, 0.77),
    ("GENRE", "wiki_intro_179k"): (0.22, 0.32),
}
PAIRS = (("CGR", "GENRE*", True), ("title-only", "GENRE*", True), ("CGR with copying", "GENRE", False))
SIZES = {"10k": 10_000, "32k": 32_000, "179k": 0}  # documents; 0: all
KILT, WIDTH = 5_903_530, 1024  # pages of the paper's corpus, and numbers of its vectors
PAPER = {"GB at k = 5": 0.47, "GB of all": 148.0}
Values = Mapping[str, float]


def run_of(data: str, kind: str, *, trained: bool) -> RecipeRun:
    """A system, before its training or after."""
    system, flags = KINDS[kind]
    label = "_".join(kind.replace("=", "").replace("*", "_star").split())
    if not trained:
        name = {"cgr": "CGR", "genre": "GENRE", "genre_star": "GENREStar"}[system]
        flags, label = (*flags, f"{name}.training=None"), f"{label}_untrained"
    return RecipeRun(GROUP, data, system, label, subset=DATA[data], flags=flags)


def _dataset(data: str) -> Dataset:
    folder, subset = harness.data_folder(data), DATA[data]
    return read_beir(folder, subset=derived_data.subset(folder, subset) if subset else None)


def _pages(dataset: Dataset, titles: Any) -> dict[str, str]:
    """Document → its page."""
    ids = dataset.corpus.doc_ids
    return {ids[document]: str(titles.rows_of(document)[0]) for document in range(len(ids))}


# ── What the vocabulary is.


def matrix(data: str) -> Values:
    """That of k = 5: whether titles can be read back from it, its rows, and its inertia beside scikit-learn's, which
    starts four times too."""
    from sklearn.cluster import KMeans

    from gr_jax import docids as docids_lib
    from gr_jax.stages.docids import load_docids
    from gr_jax.systems.cgr import Contextual, vocabulary

    run = run_of(data, "k = 5", trained=False)
    run.index()
    folder = run.input_folder("model", "contextual_vocabulary")
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
    states = np.load(run.input_folder(folder, "title_states") / "states.npy")
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


# ── What it knows before anything is trained.


def untrained(data: str, kind: str) -> Values:
    """Dev, in order and as a bag."""
    from gr_jax.retrievers import index, ranking_to_run
    from gr_jax.stages.training import sample_queries
    from gr_jax.systems.cgr import vocabulary

    run = run_of(data, kind, trained=False)
    run.index()
    dataset, folder = _dataset(data), run.input_folder("model", "contextual_vocabulary")
    titles, text_of = vocabulary.load_titles(folder), vocabulary.load_text_of(folder)
    retriever: Any = index.load(run.folder / "index").retriever
    network, penalty = retriever.model, retriever.length_penalty
    qrels = sample_queries(dataset.split("dev"), DEV_QUESTIONS)
    texts = dataset.query_texts(list(qrels))
    pages = _pages(dataset, titles)
    judged = qrels_of_pages(qrels, pages)
    in_order = run_of_pages(ranking_to_run(retriever.retrieve(texts, 20), list(qrels), dataset.corpus), pages)
    found = evaluate(in_order, judged, MEASURES)
    values = {name: found[name] for name in MEASURES} | {"ids": float(np.sum(text_of >= 0))}
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


# ── What is reached.


def _evaluated(data: str, title: str) -> Evaluation:
    """Of the trained system, on pages of test."""
    from gr_jax.corpus import Qrels, Run
    from gr_jax.stages.results import run_file
    from gr_jax.systems.cgr import vocabulary

    run = run_of(data, SYSTEMS[title], trained=True)
    run.make()
    system: Any = run.resolved()
    results = run.folder / "results"
    folder = run.input_folder("model", "contextual_vocabulary")
    pages = _pages(_dataset(data), vocabulary.load_titles(folder))
    found = Run.load(run_file(results, system.name, SPLIT))
    qrels = Qrels.load(results / "qrels" / f"{SPLIT}.tsv")
    return evaluate(run_of_pages(found, pages), qrels_of_pages(qrels, pages), MEASURES)


def reached(data: str, system: str) -> Values:
    """Of pages."""
    found = _evaluated(data, system)
    return {**found, "core-minutes": run_of(data, SYSTEMS[system], trained=True).core_minutes()}


def above(first: str, second: str) -> Values:
    """Over both sets."""
    return pooled.differences(*(pooled.together([_evaluated(data, one) for data in DATA]) for one in (first, second)))


def _of_runs(name: str, config: Mapping[str, Any], measure: Any, *runs: RecipeRun, **more: Any) -> harness.Row:
    """A row of runs with one seed."""
    return harness.Row(
        name=name, config=config, measure=measure, corpus=runs[0].fingerprint, seeds=(0,), runs=runs, **more
    )


def rows() -> list[harness.Row]:
    """The table."""
    table = [
        _of_runs(
            f"{data} matrix",
            {"sizes": [5]},
            functools.partial(matrix, data),
            run_of(data, "k = 5", trained=False),
            at_least={"titles read back": 1.0, "rows beyond the sum": 0},
            at_most={"rows beyond the sum": 0, "inertia beside scikit-learn": 1.02},
        )
        for data in DATA
    ]
    for size in SIZES:
        table.append(
            harness.Row(
                name=f"matrix of {size} documents", config={"size": size}, measure=functools.partial(growth, size)
            )
        )
    table.append(
        harness.Row(
            name="matrix of 5.9M pages", config={"from": ["32k", "179k"]}, measure=extrapolated, note="extrapolated"
        )
    )
    for data, kind in itertools.product(DATA, UNTRAINED):
        table.append(
            _of_runs(
                f"{data} dev untrained {kind}",
                {"questions": DEV_QUESTIONS},
                functools.partial(untrained, data, kind),
                run_of(data, kind, trained=False),
            )
        )
    for data, (system, kind) in itertools.product(DATA, SYSTEMS.items()):
        table.append(
            _of_runs(
                f"{data} {SPLIT} {system}",
                {"split": SPLIT},
                functools.partial(reached, data, system),
                run_of(data, kind, trained=True),
                at_least=dict(zip(MEASURES[:2], BARS.get((system, data), ()), strict=False)),
            )
        )
    for first, second, claimed in PAIRS:
        table.append(
            _of_runs(
                f"{' + '.join(DATA)} {first} above {second}",
                {"split": SPLIT},
                functools.partial(above, first, second),
                *(run_of(data, SYSTEMS[one], trained=True) for one in (first, second) for data in DATA),
                at_least={"RR@10 above": 1e-9} if claimed else {},
                at_most={"p RR@10": 0.05} if claimed else {},
                note="paired t-test over the questions of one training",
            )
        )
    return table


if __name__ == "__main__":
    sys.exit(harness.main(NAME, rows()))
