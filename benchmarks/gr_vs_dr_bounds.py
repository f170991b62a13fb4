"""Study `bounds` of `benchmarks.gr_vs_dr`: what a softmax over drawn documents lacks of one over all.

Each bound is held against draws, on random scores and on MiniLM's. A bound fails where the draws contradict it by more
than `SURE` standard errors: of thousands of true bounds chance lets none fail.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping

import numpy as np

import gr_jax
from benchmarks import dense_quality, harness
from gr_jax import storage
from gr_jax.corpus import read_beir
from gr_jax.evaluation import dot_plots, plots
from gr_jax.evaluation.theory import LocalNormalisation

DATA, QUESTIONS = "nq_boolq_dev", 200
NEGATIVES = (1, 7, 31, 127)
TEMPERATURES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
EPSILONS = (0.1, 0.5, 0.9)
MATRICES, SAMPLES = 1000, 2000
SURE = 5.0
Values = Mapping[str, float]


def checked(queries: Iterable[LocalNormalisation]) -> Values:
    """How many of some queries contradict each form, the means of what is bounded and of the corrected bound, and how
    far a bound has to be off to be seen, for half of the queries and for nine in ten."""
    failing = dict.fromkeys(("corrected", "without the positive", "Eq. 5", "corrected tail", "Eq. 15"), 0)
    gaps, bounds, widths, count = [], [], [], 0
    for number, query in enumerate(queries):
        count += 1
        drawn = query.differences(SAMPLES, seed=number)
        mean, error = float(drawn.mean()), float(drawn.std()) / math.sqrt(SAMPLES) + 1e-9
        failing["corrected"] += not mean - query.upper_bound <= SURE * error  # so that NaN does not pass
        failing["without the positive"] += mean - query.without_positive > SURE * error
        failing["Eq. 5"] += query.as_printed - mean > SURE * error
        gaps.append(mean)
        widths.append(SURE * error)
        bounds.append(query.upper_bound)
        seen = [(epsilon, query.tail_seen(epsilon, SAMPLES, seed=number)) for epsilon in EPSILONS]
        for name, form in (("corrected tail", query.tail), ("Eq. 15", query.tail_as_printed)):
            allowed = [form(epsilon) for epsilon, _ in seen]
            failing[name] += any(
                share - most > SURE * math.sqrt(max(most, 1 / SAMPLES) / SAMPLES)
                for (_, share), most in zip(seen, allowed, strict=True)
            )
    return {
        **{f"{name} fails": value / count for name, value in failing.items()},
        "log Z_K − log Z": float(np.mean(gaps)),
        "corrected bound": float(np.mean(bounds)),
        "seen from, half of them": float(np.median(widths)),
        "seen from, nine in ten": float(np.quantile(widths, 0.9)),
        "checked": float(count),
    }


def random_matrices() -> Values:
    """A query each, of 20 to 500 documents, with scores of several spreads and with even and uneven proposals."""
    return checked(map(random_query, range(MATRICES)))


def random_query(seed: int) -> LocalNormalisation:
    """One of them."""
    random = np.random.default_rng(seed)
    documents = int(random.integers(20, 500))
    scores = random.normal(size=documents) * random.choice([0.1, 1.0, 3.0])
    proposal = None if seed % 2 else random.dirichlet(np.full(documents, 0.3))
    positive = int(np.argmax(scores)) if seed % 3 else int(random.integers(documents))
    return LocalNormalisation(scores, positive, NEGATIVES[seed // 2 % 4], float(random.choice(TEMPERATURES)), proposal)


def of_minilm(temperature: float) -> Values:
    """MiniLM's cosines of questions and all documents, with each number of negatives."""
    scores, positives = cosines()
    return checked(
        LocalNormalisation(row, positive, negatives, temperature)
        for negatives in NEGATIVES
        for row, positive in zip(scores, positives, strict=True)
    )


@functools.cache
def cosines() -> tuple[np.ndarray, list[int]]:
    """float [questions, documents], and the document that answers each question."""
    run = dense_quality.ZERO_SHOT[DATA]
    run.make()
    searcher, dataset = gr_jax.load(run.folder / "index"), read_beir(run.source)
    queries, qrels = dataset.split_queries("test"), dataset.split("test")
    queries = queries.select(queries.ids[:QUESTIONS])
    found = searcher.retrieve(queries.texts, len(searcher.corpus))
    scores = np.zeros(found.score.shape)
    np.put_along_axis(scores, found.doc_index.astype(np.int64), found.score, axis=1)
    best = [max(grades, key=grades.__getitem__) for grades in map(qrels.__getitem__, queries.ids)]
    return scores, [searcher.corpus.index_of(doc_id) for doc_id in best]


def counter_example() -> Values:
    """Weights of nearly 0 and 2 with equal odds, 31 of them: how probable a mean of at most e^−.9 is, beside Eq. 15."""
    from scipy import stats

    query, epsilon = LocalNormalisation(np.array([-50.0, math.log(2.0)]), 1, 31), 0.9
    exact = float(stats.binom.cdf(math.floor(31 * math.exp(-epsilon) / 2), 31, 0.5))
    return {
        "exact": exact,
        "Eq. 15": query.tail_as_printed(epsilon),
        "corrected tail": query.tail(epsilon),
        "Eq. 15 below exact": float(query.tail_as_printed(epsilon) < exact),
        "corrected below exact": float(query.tail(epsilon) < exact),
    }


def of_different_documents() -> Values:
    """Four documents of scores 1, 0, 0 and 0, the first the positive, and one other as negative: what Eq. 5 wants of
    E[log Z_K − log Z], and what it is, whichever negative it is."""
    query = LocalNormalisation(np.array([1.0, 0.0, 0.0, 0.0]), 0, 1)
    exact = math.log(math.e + 1) - math.log(math.e + 3)
    return {"exact": exact, "Eq. 5": query.as_printed, "Eq. 5 above exact": float(query.as_printed > exact)}


def of_a_large_positive() -> Values:
    """A positive of score 20 among a thousand documents of score 0, and one negative drawn of all: the expectation by
    enumeration of the negatives, the bound that leaves the positive out, and the corrected one."""
    weights = np.exp(np.r_[20.0, np.zeros(999)])
    exact = float(np.mean(np.log(weights[0] + weights)) - np.log(weights.sum()))
    query = LocalNormalisation(np.log(weights), 0, 1)
    return {
        "exact": exact,
        "without the positive": query.without_positive,
        "corrected bound": query.upper_bound,
        "without the positive below exact": float(query.without_positive < exact),
        "corrected bound below exact": float(query.upper_bound < exact),
    }


def draw(current: Mapping[str, Values]) -> None:
    """How many questions contradict each form, of the rows that are recorded."""
    forms = ("corrected", "corrected tail", "Eq. 5", "Eq. 15", "without the positive")
    named = {
        row.name.removeprefix("bounds: "): {form: current[row.name][f"{form} fails"] for form in forms}
        for row in rows()
        if row.name in current and "corrected fails" in current[row.name]
    }
    if named:
        figure = dot_plots.dots(
            named, title="Bounds that draws contradict", x="share of queries whose draws contradict the bound"
        )
        storage.write_bytes(harness.RESULTS / "gr_vs_dr_bounds.svg", plots.to_svg(figure))


def rows() -> list[harness.Row]:
    """The study."""
    holds = {"corrected fails": 0.0, "corrected tail fails": 0.0}
    table = [
        harness.Row(
            name="bounds: 1,000 random score matrices",
            config={"matrices": MATRICES, "negatives": list(NEGATIVES), "samples": SAMPLES, "sure": SURE},
            measure=random_matrices,
            at_most=holds,
        ),
        harness.Row(
            name="bounds: two weights, worked out",
            config={"negatives": 31, "epsilon": 0.9},
            measure=counter_example,
            at_least={"Eq. 15 below exact": 1.0},
            at_most={"corrected below exact": 0.0},
        ),
        harness.Row(
            name="bounds: four documents, worked out",
            config={"negatives": 1, "documents": 4},
            measure=of_different_documents,
            at_least={"Eq. 5 above exact": 1.0},
        ),
        harness.Row(
            name="bounds: a large positive, worked out",
            config={"negatives": 1, "documents": 1000},
            measure=of_a_large_positive,
            at_least={"without the positive below exact": 1.0},
            at_most={"corrected bound below exact": 0.0},
        ),
    ]
    run = dense_quality.ZERO_SHOT[DATA]
    for temperature in TEMPERATURES:
        table.append(
            harness.Row(
                name=f"bounds: MiniLM on {DATA}, τ = {temperature:g}",
                config={"questions": QUESTIONS, "negatives": list(NEGATIVES), "samples": SAMPLES, "sure": SURE},
                measure=functools.partial(of_minilm, temperature),
                at_most=holds,
                corpus=run.fingerprint,
                runs=[run],
            )
        )
    return table
