"""Measures how sure an index is of its answers, on questions with judgements that nothing was trained on.

gr-jax calibrate --index=runs/mine/index --queries=my_beir_folder/queries.jsonl \
    --qrels=my_beir_folder/qrels/dev.tsv

One temperature is fitted and kept in the folder of the index. Then `searcher.search(question, probability=True)` and
`gr-jax search --probability` say of every hit how probable it is that it is the answer.
"""

from __future__ import annotations

from absl import flags

import gr_jax
from gr_jax import corpus
from gr_jax.evaluation.calibration_pages import Page
from gr_jax.retrievers import index

from . import program

_INDEX = flags.DEFINE_string("index", None, "Folder of the index.", required=True)
_QUERIES = flags.DEFINE_string(
    "queries", None, "queries.jsonl[.gz] (`_id`, `text`), or a .tsv of id and text.", required=True
)
_QRELS = flags.DEFINE_string("qrels", None, "Relevance judgements: BEIR's .tsv or TREC's four columns.", required=True)
_DEPTH = flags.DEFINE_integer("depth", 100, "Documents over which scores are normalised.", lower_bound=1)


def main() -> None:
    searcher = gr_jax.load(_INDEX.value)
    queries, qrels = corpus.Queries.load(_QUERIES.value), corpus.Qrels.load(_QRELS.value)
    made = searcher.calibrate(queries, qrels, depth=_DEPTH.value, progress=True)
    index.save_calibration(_INDEX.value, made)
    page = Page(f"How sure is {_INDEX.value}?")
    page.add_fitted(f"{made.queries} questions", "index", made)
    page.print()
    print(f"Kept in {_INDEX.value}/{index.CALIBRATION}. Next:")
    print(f'  {program.command("search")} --index={_INDEX.value} --probability "your question"')


if __name__ == "__main__":
    program.run(main)
