"""BM25 on every data set: the line that the other tables are read against. `python -m benchmarks.bm25`.

The claims on both sides are the data sets' published reference values ± .01: BM25 that is better than the reference is
another BM25. About 2 minutes on 2 cores, 1.2 GB of memory.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

from benchmarks import harness
from gr_jax.corpus import Dataset, read_beir
from gr_jax.evaluation import evaluate

if TYPE_CHECKING:
    from gr_jax.retrievers import BM25

MEASURES = ("Success@1", "Success@10", "R@100", "RR@10")
TOLERANCE = 0.01
JAPANESE = {"k1": 1.2, "b": 0.75, "analyzer": "character_bigrams"}

# Data set, its subset, split, settings, reference values of Success@1, Success@10, RR@10.
REFERENCES: tuple[tuple[str, str, str, dict, tuple[float, float, float]], ...] = (
    ("squad_dev", "", "test", {}, (0.789, 0.953, 0.848)),
    ("squad_dev", "", "test_unseen", {}, (0.757, 0.957, 0.829)),
    ("nq_boolq_dev", "", "test", {}, (0.711, 0.931, 0.791)),
    ("jaquad", "", "test", JAPANESE, (0.822, 0.967, 0.875)),
    ("wiki_intro_179k", "10k", "test", {}, (0.366, 0.581, 0.439)),
    ("wiki_intro_179k", "32k", "test", {}, (0.312, 0.535, 0.383)),
    ("wiki_intro_179k", "100k", "test", {}, (0.246, 0.457, 0.313)),
    ("wiki_intro_179k", "", "test", {}, (0.203, 0.417, 0.268)),
    ("wiki_intro_179k", "", "test_dbpedia", {}, (0.382, 0.734, 0.495)),
)


@functools.lru_cache(maxsize=1)
def _dataset(name: str, subset: str) -> Dataset:
    folder = harness.data_folder(name)
    return read_beir(folder, subset=folder / "subsets" / f"{subset}.ids.gz" if subset else None)


@functools.cache
def _fingerprint(name: str, subset: str) -> str:
    return _dataset(name, subset).corpus.fingerprint


@functools.lru_cache(maxsize=1)
def _index(name: str, subset: str, settings: tuple[tuple[str, object], ...]) -> BM25:
    from gr_jax.retrievers import BM25

    return BM25(_dataset(name, subset).corpus, progress=True, **dict(settings))  # type: ignore[arg-type]


def _measure(name: str, subset: str, split: str, settings: dict) -> dict[str, float]:
    from gr_jax.retrievers import retrieve_run

    data = _dataset(name, subset)
    index = _index(name, subset, tuple(settings.items()))
    run = retrieve_run(index, data.split_queries(split), data.corpus, k=100, progress=True)
    return evaluate(run, data.split(split), MEASURES)


def rows() -> list[harness.Row]:
    """The table."""
    found = []
    for name, subset, split, settings, reference in REFERENCES:
        measures = ("Success@1", "Success@10", "RR@10")
        found.append(
            harness.Row(
                name=" ".join(filter(None, (name, subset, split))),
                config={"data": name, "subset": subset, "split": split, "k": 100, "k1": 0.9, "b": 0.4, **settings},
                measure=functools.partial(_measure, name, subset, split, settings),
                at_least={m: round(value - TOLERANCE, 4) for m, value in zip(measures, reference, strict=True)},
                at_most={m: round(value + TOLERANCE, 4) for m, value in zip(measures, reference, strict=True)},
                note="character bigrams" if settings else "",
                corpus=functools.partial(_fingerprint, name, subset),
            )
        )
    return found


if __name__ == "__main__":
    sys.exit(harness.main("bm25", rows()))
