"""Answers a file of queries with an index, and writes the answers as a TREC run.

gr-jax retrieve --index=runs/mine/index --queries=my_beir_folder/queries.jsonl --output=run.trec --k=100

With --kilt=TASK.jsonl instead of --queries it answers a KILT task with an index of its pages, and writes predictions as
KILT's own scripts read them: --kilt=nq-dev-kilt.jsonl --output=predictions.jsonl
TriviaQA's task has no questions; they come from its own files: --kilt_questions=unfiltered-web-dev.json
"""

from __future__ import annotations

from absl import flags

import gr_jax
from gr_jax import corpus, retrievers, storage
from gr_jax.corpus import kilt, kilt_predictions, trec
from gr_jax.errors import InputError

from . import program

_INDEX = flags.DEFINE_string("index", None, "Folder of the index.", required=True)
_QUERIES = flags.DEFINE_string("queries", None, "queries.jsonl[.gz] (`_id`, `text`), or a .tsv of id and text.")
_KILT = flags.DEFINE_string("kilt", None, "File of a KILT task, instead of --queries.")
_KILT_QUESTIONS = flags.DEFINE_multi_string(
    "kilt_questions",
    [],
    "With --kilt: TriviaQA's own files, which have the questions; repeated, or with commas between.",
)
_OUTPUT = flags.DEFINE_string("output", None, "TREC run to write; with --kilt predictions.", required=True)
_K = flags.DEFINE_integer("k", 100, "Documents a query.", lower_bound=1)
_QRELS = flags.DEFINE_string("qrels", None, "Answer only the queries that stand in this file.")
_TAG = flags.DEFINE_string("tag", "gr_jax", "Name of the run, its last column.")


def main() -> None:
    if bool(_QUERIES.value) == bool(_KILT.value):
        raise InputError(
            "questions are of one file", "Give --queries or --kilt, and not both.", value=(_QUERIES.value, _KILT.value)
        )
    if _KILT.value:
        program.refuse_unused(["tag"], "with --kilt")
    else:
        program.refuse_unused(["kilt_questions"], "without --kilt")
    trec.check_tag(_TAG.value)
    storage.check_writable(_OUTPUT.value)
    questions = _questions(_KILT.value) if _KILT.value else []
    if _QUERIES.value:
        queries = corpus.Queries.load(_QUERIES.value)
    else:
        queries = corpus.Queries(tuple(one.key for one in questions), tuple(one.text for one in questions))
    searcher = gr_jax.load(_INDEX.value)
    if _QRELS.value:
        queries = queries.select(list(corpus.Qrels.load(_QRELS.value)))
    k = min(_K.value, len(searcher.corpus))
    run = retrievers.retrieve_run(searcher.retriever, queries, searcher.corpus, k=k, progress=True)
    if _KILT.value:
        kilt_predictions.write_predictions(_OUTPUT.value, questions, run, searcher.corpus, k)
    else:
        run.save(_OUTPUT.value, tag=_TAG.value)
    print(f"{len(queries.ids)} queries, {_K.value} documents each at most: {_OUTPUT.value}")


def _questions(file: str) -> list[kilt.Question]:
    """Of a KILT task, each with its text."""
    texts: dict[str, str] = {}
    for name in ",".join(_KILT_QUESTIONS.value).split(",") if _KILT_QUESTIONS.value else []:
        texts |= kilt.read_triviaqa(name)
    return list(kilt.read_kilt(file, texts))


if __name__ == "__main__":
    program.run(main)
