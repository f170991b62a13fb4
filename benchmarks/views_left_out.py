"""What each view of MINDER's questions is worth: rows of `benchmarks.generative_baselines`.

The trained writer answers each question once, in all views. Then documents are ranked once with all of it, and once
without what each view wrote. So the writer is the same one: it was trained with the view that is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.recipe_runs import MEASURES, RecipeRun
from gr_jax.corpus import read_beir
from gr_jax.evaluation import Evaluation, evaluate
from gr_jax.retrievers.documents_of import Written
from gr_jax.systems.ngram.samples import BODY, PSEUDO_QUERY, TITLE

# In the order in which MINDER asks; "" leaves nothing out.
VIEWS = {BODY: "text", TITLE: "titles", PSEUDO_QUERY: "queries"}
_K = 100


def without(written: Written, view: int) -> Written:
    """What was found for one query, but for what a view wrote.

    Args:
      written: of one query, rows are its views.
      view: its row.
    """
    found = written.looked_up
    lengths, first = np.array(found.lengths), np.array(found.first_log_probs)
    lengths[view], first[view] = 0, -np.inf
    return written._replace(looked_up=found._replace(lengths=lengths, first_log_probs=first))


@functools.cache
def evaluations(run: RecipeRun, split: str) -> Mapping[str, Evaluation]:
    """The view that is left out → measures on a split; "" with all views."""
    from gr_jax.retrievers import index

    run.make()
    dataset = read_beir(harness.data_folder(run.data))
    qrels = dataset.split(split)
    retriever: Any = index.load(run.folder / "index").retriever
    queries, ids = list(qrels), dataset.corpus.doc_ids
    names: Mapping[str, int | None] = {"": None, **{view: row for row, view in enumerate(VIEWS)}}
    runs: dict[str, dict[str, list[tuple[str, float]]]] = {name: {} for name in names}
    for place, written in retriever.written(dataset.query_texts(queries)):
        for name, row in names.items():
            kept = written if row is None else without(written, row)
            best = retriever.documents_of.rank(kept, _K, explain=False)
            runs[name][queries[place]] = [(ids[one.document], one.score) for one in best]
    return {name: evaluate(found, qrels, MEASURES) for name, found in runs.items()}
