"""Judges a run.

gr-jax evaluate --run=run.trec --qrels=my_beir_folder/qrels/test.tsv --metrics="Success@1 nDCG@10"

With --kilt=TASK.jsonl instead of --qrels it gives KILT's measures of pages. The run is then a file of predictions, or a
TREC run over ids of pages: --run=predictions.jsonl --kilt=nq-dev-kilt.jsonl

With --passages the run is of passages, as `BeirPassages` calls them, and each document stands where its best one does.

With a run of dev it also says how sure the system is of its first documents, and how far from being right: Brier score
and calibration error (ECE), before and after one temperature that is fitted on dev.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from absl import flags

from gr_jax import corpus, evaluation, storage
from gr_jax.corpus import cutting, kilt, kilt_predictions
from gr_jax.errors import InputError
from gr_jax.evaluation import pages, temperature

from . import program

_RUN = flags.DEFINE_string("run", None, "TREC run; with --kilt also a .jsonl file of predictions.", required=True)
_QRELS = flags.DEFINE_string("qrels", None, "Relevance judgements: BEIR's .tsv or TREC's four columns.")
_KILT = flags.DEFINE_string("kilt", None, "File of a KILT task with its evidence, instead of --qrels.")
_METRICS = flags.DEFINE_string(
    "metrics", "Success@1 Success@10 R@100 RR@10 nDCG@10", "Measures, as ir_measures spells them."
)
_DEV_RUN = flags.DEFINE_string("dev_run", None, "TREC run of the same system on dev, for calibration.")
_DEV_QRELS = flags.DEFINE_string("dev_qrels", None, "Relevance judgements of dev.")
_PASSAGES = flags.DEFINE_bool("passages", False, "The run is of passages, d#n, and documents are judged: d.")
_OUTPUT = flags.DEFINE_string("output", None, "JSON file to write: {measure: value}.")


def main() -> None:
    if bool(_QRELS.value) == bool(_KILT.value):
        raise InputError(
            "a run is judged by one file",
            "Give --qrels or --kilt, and not both.",
            value=(_QRELS.value, _KILT.value),
        )
    if _KILT.value:
        program.refuse_unused(["metrics", "dev_run", "dev_qrels"], "with --kilt, which has measures of its own")
    show(*(_judged_by_kilt(_KILT.value) if _KILT.value else _judged(_QRELS.value or "")))


def _judged(file: str) -> tuple[dict[str, float], int]:
    """Measures, and how many queries they are of."""
    run, qrels = _run(_RUN.value), corpus.Qrels.load(file)
    values: dict[str, float] = dict(evaluation.evaluate(run, qrels, _METRICS.value))
    if bool(_DEV_RUN.value) != bool(_DEV_QRELS.value):
        raise InputError(
            "a temperature is fitted on a run of dev and its judgements, and one of them is not named",
            "Give both --dev_run and --dev_qrels, or neither.",
            value=_DEV_RUN.value or _DEV_QRELS.value,
        )
    if _DEV_RUN.value and _DEV_QRELS.value:
        dev_run, dev_qrels = _run(_DEV_RUN.value), corpus.Qrels.load(_DEV_QRELS.value)
        values |= temperature.calibrated(run, qrels, dev_run, dev_qrels)
    return values, len(qrels)


def _run(file: str) -> corpus.Run:
    """A run, of documents where it is of passages."""
    run = corpus.Run.load(file)
    if not _PASSAGES.value:
        return run
    return pages.run_of_pages(run, cutting.documents_of(doc_id for found in run.values() for doc_id, _ in found))


def _judged_by_kilt(file: str) -> tuple[dict[str, float], int]:
    """KILT's measures, and how many questions they are of; one that a TREC run lacks was answered with nothing."""
    questions = list(kilt.read_kilt(file))
    if _PASSAGES.value and _RUN.value.removesuffix(".gz").endswith(".jsonl"):
        raise InputError("predictions are of pages", "Leave --passages out, or give a TREC run.", value=_RUN.value)
    if _RUN.value.removesuffix(".gz").endswith(".jsonl"):
        answers: Mapping[str, Sequence[str]] = kilt_predictions.read_predictions(_RUN.value)
    else:
        run = _run(_RUN.value)
        if not any(one.key in run for one in questions):
            raise InputError(
                "no question of the run is in the task",
                f"Use the run of {file}.",
                file=_RUN.value,
                value=next(iter(run), None),
            )
        answers = {one.id: [page for page, _ in run.get(one.key, ())] for one in questions}
    return dict(evaluation.evaluate_kilt(questions, answers)), len(questions)


def show(values: Mapping[str, float], queries: int) -> None:
    """Prints measures, and writes them where that is wanted."""
    width = max(14, *(len(measure) + 2 for measure in values))
    for measure, value in values.items():
        print(f"{measure:<{width}}{value:.4f}")
    print(f"{'queries':<{width}}{queries}")
    if _OUTPUT.value:
        storage.write_json(_OUTPUT.value, dict(values))


if __name__ == "__main__":
    program.run(main)
