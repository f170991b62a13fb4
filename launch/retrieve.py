"""Answers a file of queries with an index, and writes the answers as a TREC run.

python -m launch.retrieve --index=runs/mine/index --queries=my_beir_folder/queries.jsonl --output=run.trec --k=100
"""

from __future__ import annotations

import pathlib

from absl import flags

import gr_jax
from gr_jax import corpus, retrievers
from launch import program

_INDEX = flags.DEFINE_string("index", None, "Folder of the index.", required=True)
_QUERIES = flags.DEFINE_string(
    "queries", None, "queries.jsonl[.gz] (`_id`, `text`), or a .tsv of id and text.", required=True
)
_OUTPUT = flags.DEFINE_string("output", None, "TREC run to write.", required=True)
_K = flags.DEFINE_integer("k", 100, "Documents a query.", lower_bound=1)
_QRELS = flags.DEFINE_string("qrels", None, "Answer only the queries that stand in this file.")
_TAG = flags.DEFINE_string("tag", "gr_jax", "Name of the run, its last column.")


def main() -> None:
    searcher = gr_jax.load(_INDEX.value)
    queries = corpus.Queries.load(_QUERIES.value)
    if _QRELS.value:
        queries = queries.select(list(corpus.Qrels.load(_QRELS.value)))
    k = min(_K.value, len(searcher.corpus))
    run = retrievers.retrieve_run(searcher.retriever, queries, searcher.corpus, k=k, progress=True)
    run.save(pathlib.Path(_OUTPUT.value), tag=_TAG.value)
    print(f"{len(queries.ids)} queries, {_K.value} documents each at most: {_OUTPUT.value}")


if __name__ == "__main__":
    program.run(main)
