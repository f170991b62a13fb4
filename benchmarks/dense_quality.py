"""How well dense, lexical and reranking systems retrieve: `python -m benchmarks.dense_quality`.

Every row reads a system that is run as a user runs it, in a process of its own, into `runs/dense/`: once, wherever it
appears. What was chosen (steps, rates, weights, depth) was chosen on dev or train; the test splits are only read here.
Headline rows train for at most the standard budget, 30 minutes on 2 cores, with one seed; comparisons for at most the
small one, 5 minutes, with three: a query's measure is then its mean over the seeds, p of the paired t-test over
queries, and p over seeds is not given: three are too few.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence

from benchmarks import harness
from benchmarks.recipe_runs import CORES, RecipeRun
from benchmarks.systems import System
from gr_jax.corpus import read_beir
from gr_jax.evaluation import compare, evaluate

SEEDS = (0, 1, 2)
STANDARD, SMALL = CORES * 30.0, CORES * 5.0  # core-minutes of training
MEASURE = "RR@10"
AGAIN = "negatives made again"  # as a model's manifest has it
Values = Mapping[str, float]

_UNTRAINED = ("DPR.training=None", "DPR.query_training=None", "Encoders.document_length=128")
ZERO_SHOT = {
    "squad_dev": RecipeRun("dense", "squad_dev", "dpr", "zero_shot", flags=_UNTRAINED),
    "nq_boolq_dev": RecipeRun("dense", "nq_boolq_dev", "dpr", "zero_shot", flags=_UNTRAINED),
    "wiki_intro_179k 10k": RecipeRun("dense", "wiki_intro_179k", "dpr", "zero_shot", "10k", flags=_UNTRAINED),
}
# The same with as many tokens as the trained encoder's index reads.
AS_LONG = {
    data: RecipeRun("dense", data, "dpr", "zero_shot_256", flags=(*_UNTRAINED[:2], "Encoders.document_length=256"))
    for data in ("squad_dev", "nq_boolq_dev")
}
# On nq_boolq_dev training both sides lowers the mean of dev and of held-out questions over all documents, training the
# side of queries alone raises it (rows "nq_boolq_dev dev, …"): so that is done.
QUERIES_ALONE = ("DPR.training=None",)
DPR = {
    "squad_dev": RecipeRun("dense", "squad_dev", "dpr"),
    "nq_boolq_dev": RecipeRun("dense", "nq_boolq_dev", "dpr", "queries_alone", flags=QUERIES_ALONE),
}
BOTH_SIDES = RecipeRun("dense", "nq_boolq_dev", "dpr", flags=("DPR.query_training=None",))
PASSAGES = {
    data: RecipeRun("dense", data, "dpr_passages", run.label, flags=run.flags, trained=run) for data, run in DPR.items()
}
CROSSED = RecipeRun("dense", "nq_boolq_dev", "bm25_cross_encoder")
# What MiniLM reaches as it is, in another's hands: Success@1, Success@10, RR@10; to be met within .01.
REFERENCE = {
    ("squad_dev", "test"): (0.616, 0.893, 0.709),
    ("nq_boolq_dev", "test"): (0.843, 0.989, 0.906),
    ("wiki_intro_179k 10k", "test"): (0.349, 0.543, 0.409),
}
FINE_TUNED = {
    ("squad_dev", "test"): (0.68, 0.93),
    ("squad_dev", "test_unseen"): (0.65, 0.92),
    ("nq_boolq_dev", "test"): (0.85, 0.99),
}


# What late interaction and its bi-encoder are to have in common: examples, negatives, tokens read, choice on dev.
_ALIKE = (
    "ContrastiveTraining.held_out=None",
    'ContrastiveTraining.keep_best="dev/RR@10"',
    "Mining.shares={'bm25': 1.0}",
    "Encoders.query_length=32",
    "Encoders.document_length=128",
)


def small(data: str, system: str, *flags: str, budget: str = "small", label: str = "small") -> tuple[RecipeRun, ...]:
    """A system at the small budget, once for each seed."""
    return tuple(
        RecipeRun(
            "dense", data, system, f"{label}_{seed}", budget=budget, flags=(*flags, f"ContrastiveTraining.seed={seed}")
        )
        for seed in SEEDS
    )


def reached(system: System, split: str) -> Values:
    """Its measures, and the core-minutes that it trained."""
    values = dict(system.evaluate(split))
    if len(system.runs) > 1:
        values["spread"] = system.spread(split, MEASURE)
    refreshes = [run.training()[AGAIN] for run in system.runs if AGAIN in run.training()]
    if refreshes:
        values["refreshes"] = min(refreshes)
    return {**values, "core-minutes": system.core_minutes()} if system.name != "BM25" else values


def compared(system: System, others: Sequence[System], split: str) -> Values:
    """Its RR@10 less that of each of the others, and p of the paired t-test."""
    own = system.evaluate(split)
    values = {MEASURE: own[MEASURE]}
    for other in others:
        found = compare(own, other.evaluate(split), MEASURE)
        values |= {f"above {other.name}": found.difference, f"p {other.name}": found.p_t}
    return values


def on_dev(run: RecipeRun) -> Values:
    """RR@10 over all documents, of dev, of the questions that training held out, and their mean: what was chosen by."""
    from gr_jax import retrievers
    from gr_jax.retrievers import index
    from gr_jax.stages.pairs import load_held_out

    run.make()
    BOTH_SIDES.make()
    held_out = load_held_out(BOTH_SIDES.input_folder("model", "pairs"))
    dataset, searcher = read_beir(harness.data_folder(run.data)), index.load(run.folder / "index")
    train = dataset.split("train")
    values = {}
    for name, qrels in (("dev", dataset.split("dev")), ("held out", {one: train[one] for one in held_out})):
        queries = dataset.queries.select(list(qrels))
        found = retrievers.retrieve_run(searcher.retriever, queries, dataset.corpus, k=10)
        values[f"{name} {MEASURE}"] = evaluate(found, qrels, (MEASURE,))[MEASURE]
    return {**values, "mean": sum(values.values()) / len(values)}


def significant(system: str, splits: Sequence[tuple[str, str]]) -> Values:
    """On how many splits the combination is above both its parts, p < .05 for each."""
    count = 0
    for data, split in splits:
        own, *parts = (System((DPR[data],), name).evaluate(split) for name in (system, "BM25", "DPR"))
        found = [compare(own, part, MEASURE) for part in parts]
        count += all(one.difference > 0 and one.p_t < 0.05 for one in found)
    return {"splits with p < .05": count}


def _row(name: str, system: System, split: str, **bounds) -> harness.Row:
    return harness.Row(
        name=name,
        config={"split": split, "system": system.config()},
        measure=functools.partial(reached, system, split),
        corpus=system.runs[0].fingerprint,
        seeds=() if system.name == "BM25" else tuple(range(len(system.runs))),
        runs=system.runs,
        **bounds,
    )


def _comparison(
    name: str, system: System, others: Sequence[System], split: str, *, significant: bool = True, floor: bool = True
) -> harness.Row:
    return harness.Row(
        name=name,
        config={"split": split, "system": system.config(), "others": [other.config() for other in others]},
        measure=functools.partial(compared, system, others, split),
        at_least={f"above {other.name}": 1e-9 for other in others} if floor else {},
        at_most={f"p {other.name}": 0.05 for other in others} if significant else {},
        corpus=system.runs[0].fingerprint,
        seeds=tuple(range(len(system.runs))),
        runs=[run for one in (system, *others) for run in one.runs],
        note="RR@10, paired t-test",
    )


def _within(values: Sequence[float]) -> dict[str, dict[str, float]]:
    measures = ("Success@1", "Success@10", MEASURE)
    return {
        "at_least": {name: round(value - 0.01, 4) for name, value in zip(measures, values, strict=True)},
        "at_most": {name: round(value + 0.01, 4) for name, value in zip(measures, values, strict=True)},
    }


def rows() -> list[harness.Row]:
    """The table, in the order in which it is measured."""
    table = []
    for (data, split), expected in REFERENCE.items():
        table.append(_row(f"{data} {split} MiniLM", System((ZERO_SHOT[data],), "DPR"), split, **_within(expected)))
    judged = list(FINE_TUNED)
    for data, split in judged:
        table.append(_row(f"{data} {split} BM25", System((DPR[data],), "BM25"), split))
        as_long = System((AS_LONG[data],), "DPR")
        table.append(_row(f"{data} {split} MiniLM, 256 tokens", as_long, split))
        hits = dict(zip(("Success@1", "Success@10"), FINE_TUNED[data, split], strict=True))
        budget = {"core-minutes": STANDARD}
        table.append(_row(f"{data} {split} DPR", System((DPR[data],), "DPR"), split, at_least=hits, at_most=budget))
        sentences = System((PASSAGES[data],), "DPR")
        table.append(_row(f"{data} {split} DPR, a vector a sentence", sentences, split, at_least=hits, at_most=budget))
    both = System((BOTH_SIDES,), "DPR")
    table.append(_row("nq_boolq_dev test DPR, both sides trained", both, "test", at_most={"core-minutes": STANDARD}))
    chosen_among = {"as it is": AS_LONG["nq_boolq_dev"], "both sides": BOTH_SIDES, "queries": DPR["nq_boolq_dev"]}
    for title, run in chosen_among.items():
        table.append(
            harness.Row(
                name=f"nq_boolq_dev dev, trained: {title}",
                config={"split": "dev"},
                measure=functools.partial(on_dev, run),
                corpus=run.fingerprint,
                seeds=(0,),
                runs=[run, BOTH_SIDES],  # whose questions were held out
            )
        )
    for data, split in judged:
        parts = [System((DPR[data],), name) for name in ("BM25", "DPR")]
        mixed = System((DPR[data],), "BM25 + DPR")
        table.append(_comparison(f"{data} {split} BM25 + DPR", mixed, parts, split, significant=False))
    table.append(
        harness.Row(
            name="BM25 + DPR above both",
            config={"splits": judged},
            corpus=lambda: " ".join(run.fingerprint() for run in DPR.values()),
            measure=functools.partial(significant, "BM25 + DPR", judged),
            at_least={"splits with p < .05": 2},
            seeds=(0,),
            runs=list(DPR.values()),
        )
    )
    crossed, bm25 = (System((CROSSED,), name) for name in ("BM25 → cross-encoder", "BM25"))
    standard = {"core-minutes": STANDARD}
    table.append(_row("nq_boolq_dev test BM25 → cross-encoder", crossed, "test", at_most=standard))
    table.append(_comparison("nq_boolq_dev test BM25 → cross-encoder above BM25", crossed, [bm25], "test"))
    table += _at_small_budget()
    return table


def _at_small_budget() -> list[harness.Row]:
    budget = {"at_most": {"core-minutes": SMALL}}
    colbert = System(small("nq_boolq_dev", "colbert", *_ALIKE), "ColBERT")
    encoder = System(small("nq_boolq_dev", "dpr", *_ALIKE, label="alike"), "DPR")
    table = [
        _row("nq_boolq_dev test DPR, small", encoder, "test", **budget),
        _row("nq_boolq_dev test ColBERT, small", colbert, "test", **budget),
        _comparison("nq_boolq_dev test ColBERT above DPR", colbert, [encoder], "test", significant=False),
    ]
    # Beside what it mines itself BM25's negatives, with which its authors begin.
    shares = "Mining.shares={'ance': 0.5, 'bm25': 0.5}"
    ance = System(small("squad_dev", "ance", shares, budget="small_ance"), "ANCE")
    batch = System(small("squad_dev", "dpr_in_batch"), "DPR in-batch")
    for split in ("test", "test_unseen"):
        table.append(_row(f"squad_dev {split} DPR in-batch, small", batch, split, **budget))
        table.append(_row(f"squad_dev {split} ANCE, small", ance, split, **budget))
        name = f"squad_dev {split} ANCE above in-batch"
        table.append(_comparison(name, ance, [batch], split, significant=False, floor=False))
    return table


if __name__ == "__main__":
    sys.exit(harness.main("dense_quality", rows()))
