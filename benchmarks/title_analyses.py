"""The analyses of CGR's paper (Lee et al. 2022, arXiv 2210.02068, section 5 and appendix C), for `benchmarks.cgr`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks import derived_data, pooled, small_systems
from benchmarks.title_systems import (
    DATA,
    DEV_QUESTIONS,
    SPLIT,
    SYSTEMS,
    answered,
    answers,
    dataset_of,
    evaluated,
    evaluated_both,
    pages_of,
    part_of,
    run_of,
    states_of,
    titles_of,
    unseen,
    vocabulary_folder,
)

SHORT, TITLES = 2, 200  # tokens of titles of which every way is enumerated, and how many there are
NEAREST, SAMPLED = 5, 3000
Values = Mapping[str, float]


def _loaded(run: Any) -> Any:
    from gr_jax.retrievers import index

    run.index()
    return index.load(run.folder / "index")


# ── Decoding.


def enumeration(data: str) -> Values:
    """The largest difference between what is found and every way to write each of a few titles, scored by itself."""
    from gr_jax.constraints import TokenTextTrie
    from gr_jax.docids import Docids
    from gr_jax.retrievers.documents_of import BestDocid
    from gr_jax.retrievers.generative import GenerativeRetriever
    from gr_jax.systems.cgr import vocabulary

    run = run_of(data, "k = 5", trained=False)
    whole: Any = _loaded(run).retriever
    folder = vocabulary_folder(run)
    titles, text_of = vocabulary.load_titles(folder), vocabulary.load_text_of(folder)
    short = [titles.sequence(row) for row in range(len(titles)) if titles.lengths[row] <= SHORT][:TITLES]
    few = Docids.build(short, vocab_size=titles.vocab_size, eos_id=titles.eos_id, scheme="titles")
    trie = TokenTextTrie.from_docids(few, text_of)
    questions = dataset_of(data).query_texts(list(dataset_of(data).split("dev"))[:4])
    values = {"titles": float(len(few))}
    for merge in (None, "max", "sum"):
        made = GenerativeRetriever(
            whole.model, trie, whole.vocabulary, documents_of=BestDocid(few, text_of=text_of), merge=merge,
            transform=whole.transform, beams=16, normalize="vocabulary", max_query_length=whole.max_query_length,
        )  # fmt: skip
        ways, owner = small_systems.every_way(made)
        made.beams = len(ways) if merge is None else len(few)
        forced = small_systems.teacher_forced(made, questions, ways)
        found, worst = made.retrieve(questions, len(few)), 0.0
        for log_probs, documents, scores in zip(forced, found.doc_index, found.score, strict=True):
            expected = np.full(len(few), -np.inf)
            (np.logaddexp if merge == "sum" else np.maximum).at(expected, np.array(owner), np.asarray(log_probs))
            rows = [int(few.rows_of(int(document))[0]) for document in documents]
            worst = max(worst, float(np.abs(expected[rows] - scores).max()))
        values |= {f"ways {merge}": float(len(ways)), f"difference {merge}": worst}
    return values


def merged(data: str, merge: str | None) -> Values:
    """Base on dev, by what becomes of several ways to write a title."""
    from gr_jax.stages.training import sample_queries

    run = run_of(data, "k = 5")
    retriever: Any = _loaded(run).retriever
    retriever.merge = merge
    dataset = dataset_of(data)
    qrels = sample_queries(dataset.split("dev"), DEV_QUESTIONS)
    return answered(retriever, data, qrels, pages_of(dataset, titles_of(run)))


# ── Other documents.


def added(data: str) -> Values:
    """Questions of dev and test about titles that are added without training, beside a build that had them."""
    from gr_jax.corpus import Corpus, Dataset

    part = "-".join(filter(None, (DATA[data], derived_data.NINE_TENTHS)))
    without, having = _loaded(run_of(data, "k = 5", part=part)), _loaded(run_of(data, "k = 5"))
    dataset: Dataset = dataset_of(data)
    known = set(without.corpus.doc_ids)
    new = [one for one in dataset.corpus if one.doc_id not in known]
    without.update(add=Corpus.from_documents(new))
    values: dict[str, float] = {"documents": float(len(new))}
    asked = {}
    for split in ("dev", SPLIT):
        for one, grades in dataset.split(split).items():
            if not known & set(grades):
                asked[one] = grades
    titles = dataset.corpus.titles
    number = {title: f"page_{place}" for place, title in enumerate(dict.fromkeys(titles))}  # an id has no white space
    page_of = {doc_id: number[title] for doc_id, title in zip(dataset.corpus.doc_ids, titles, strict=True)}
    for name, searcher in (("added", without), ("built with them", having)):
        found = answered(searcher.retriever, data, asked, page_of, searcher.corpus)
        values |= {f"{measure}, {name}": value for measure, value in found.items()}
    values["Success@10 lost"] = values["Success@10, built with them"] - values["Success@10, added"]
    return values | {"questions": float(len(asked))}


def zero_shot(title: str) -> Any:
    """Each set answered by the network that was trained on the other, in its own vocabulary, both sets as one."""
    return pooled.together([_transferred(title, *pair) for pair in zip(DATA, reversed(list(DATA)), strict=True)])


@functools.cache
def _transferred(title: str, learned_on: str, asked: str) -> Any:
    from gr_jax.stages.vocabulary import load_vocabulary
    from gr_jax.systems.cgr import vocabulary, writer

    teacher, own = run_of(learned_on, SYSTEMS[title]), run_of(asked, SYSTEMS[title])
    for run in (teacher, own):
        run.index()
    system: Any = own.resolved()
    folder, dataset = vocabulary_folder(own), dataset_of(asked)
    words = load_vocabulary(own.input_folder("model", "vocabulary"))
    start = writer.start_of(dataset, folder, words, system.network, 0, copying=False, aligned=teacher.folder / "model")
    titles = vocabulary.load_titles(folder)
    retriever = writer.retriever_of(
        start.module, start.params, words, titles, vocabulary.load_text_of(folder), system.decoding, dataset
    )
    return answered(retriever, asked, dataset.split(SPLIT), pages_of(dataset, titles))


# ── Which questions.


@functools.cache
def overlap(data: str) -> Mapping[str, float]:
    """Cosine of TF-IDF between each test question and the title that answers it."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    dataset = dataset_of(data)
    title_of = dict(zip(dataset.corpus.doc_ids, dataset.corpus.titles, strict=True))
    weigh = TfidfVectorizer().fit(sorted(set(title_of.values())))
    judged = dataset.split(SPLIT)
    questions = weigh.transform(dataset.query_texts(list(judged)))
    scores = {}
    for place, (one, grades) in enumerate(judged.items()):
        answers = weigh.transform(sorted({title_of[doc_id] for doc_id in grades}))
        scores[one] = float((questions[place] @ answers.T).max())
    return scores


@functools.cache
def low_overlap() -> frozenset[str]:
    """Test questions whose overlap with the title is below the mean of their set."""
    low: set[str] = set()
    for data in DATA:
        scores = overlap(data)
        mean = float(np.mean(list(scores.values())))
        low |= {one for one, score in scores.items() if score < mean}
    return frozenset(low)


def by_overlap(title: str) -> Values:
    """Of a system, over both sets: questions of low and of high overlap apart, and those about unseen titles."""
    found, low = evaluated_both(title), low_overlap()
    parts = {
        "low": part_of(found, low),
        "high": part_of(found, set(found.query_ids) - low),
        "unseen": part_of(found, frozenset().union(*map(unseen, DATA))),
    }
    values = {f"{measure}, {name}": value for name, one in parts.items() for measure, value in one.items()}
    return values | {f"questions, {name}": float(len(one.query_ids)) for name, one in parts.items()}


def four_sets(first: str, second: str) -> Values:
    """How many questions both, one or neither answers at rank 1, and how many of these are of low overlap (C.6)."""
    one, other = evaluated_both(first), evaluated_both(second)
    right, theirs = (np.asarray(x.per_query["Success@1"]) > 0 for x in (one, other))
    low = np.array([query in low_overlap() for query in one.query_ids])
    values: dict[str, float] = {}
    for name, chosen in (
        (f"{first}+ {second}+", right & theirs),
        (f"{first}+ {second}-", right & ~theirs),
        (f"{first}- {second}+", ~right & theirs),
        (f"{first}- {second}-", ~right & ~theirs),
    ):
        values |= {name: float(chosen.sum()), f"{name}, low": float(low[chosen].mean()) if chosen.any() else 0.0}
    return values


# ── The vectors.


def vectors(data: str, title: str) -> Values:
    """How often the nearest vectors are of the same token, and of the same place in a title; how evenly ids lie on the
    sphere; and whether clusters of all states, whatever their tokens, are of one token."""
    from sklearn.cluster import MiniBatchKMeans

    from gr_jax.systems.cgr import vocabulary

    run = run_of(data, SYSTEMS[title])
    run.index()
    folder = vocabulary_folder(run)
    titles, text_of = vocabulary.load_titles(folder), vocabulary.load_text_of(folder)
    used = np.flatnonzero((text_of >= 0) & (text_of != titles.eos_id))
    table, chosen = vocabulary.load_table(folder)[used], np.random.default_rng(0)
    asked = np.sort(chosen.choice(len(used), min(SAMPLED, len(used)), replace=False))
    near = _nearest(table, asked)
    states = states_of(run)
    states = states / np.linalg.norm(states, axis=1, keepdims=True)
    tokens = np.concatenate([titles.sequence(row) for row in range(len(titles))])
    places = np.concatenate([np.arange(length) for length in titles.lengths])
    some = np.sort(chosen.choice(len(states), min(SAMPLED, len(states)), replace=False))
    beside = _nearest(states, some)
    same = tokens[beside] == tokens[some][:, None]
    first = places[some] == 0
    pairs = table[asked] @ table[asked].T
    apart = ~np.eye(len(asked), dtype=bool)
    clusters = MiniBatchKMeans(1000, n_init=1, random_state=0, batch_size=4096).fit_predict(states)
    most = sum(np.bincount(tokens[clusters == one]).max() for one in np.unique(clusters))
    return {
        "same token, ids": float(np.mean(text_of[used][near] == text_of[used][asked][:, None])),
        "same token, states": float(same.mean()),
        "same token, first in a title": float(same[first].mean()),
        "same token, further on": float(same[~first].mean()),
        "same place, states": float(np.mean(places[beside] == places[some][:, None])),
        "uniformity": float(np.log(np.mean(np.exp(-2 * (2 - 2 * pairs[apart]))))),
        "of a cluster's main token": float(most / len(tokens)),
    }


def _nearest(rows: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """The rows nearest to some of them by cosine, themselves not among them; rows have length 1."""
    similar = rows[asked] @ rows.T
    similar[np.arange(len(asked)), asked] = -np.inf
    return np.argpartition(-similar, NEAREST, axis=1)[:, :NEAREST]


def side_by_side(first: str, second: str, count: int = 12) -> str:
    """A table of test questions that only one of two systems answers, and what each finds first, in Markdown."""
    lines = [f"| question | title | {first} | {second} |", "|---|---|---|---|"]
    for data in DATA:
        dataset, found = dataset_of(data), {}
        title_of = dict(zip(dataset.corpus.doc_ids, dataset.corpus.titles, strict=True))
        for title in (first, second):
            ranked = answers(data, title)
            found[title] = {one: title_of[documents[0][0]] for one, documents in ranked.items() if documents}
        one, other = (evaluated(data, title) for title in (first, second))
        differ = np.asarray(one.per_query["Success@1"]) != np.asarray(other.per_query["Success@1"])
        asked = [query for query, differs in zip(one.query_ids, differ.tolist(), strict=True) if differs]
        judged = dataset.split(SPLIT)
        for query in [asked[place] for place in np.linspace(0, len(asked) - 1, count // 2).astype(int)]:
            (question,) = dataset.query_texts([query])
            right = " / ".join(sorted({title_of[doc_id] for doc_id in judged[query]}))
            cells = (question, right, found[first].get(query, ""), found[second].get(query, ""))
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
