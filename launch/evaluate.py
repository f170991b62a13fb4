"""Judges a run.

python -m launch.evaluate --run=run.trec --qrels=my_beir_folder/qrels/test.tsv --metrics="Success@1 nDCG@10"

With a run of dev it also says how sure the system is of its first documents, and how far from being right: Brier score
and calibration error (ECE), before and after one temperature that is fitted on dev.
"""

from __future__ import annotations

from absl import flags

from gr_jax import corpus, evaluation, storage
from gr_jax.errors import InputError
from gr_jax.evaluation import temperature
from launch import program

_RUN = flags.DEFINE_string("run", None, "TREC run.", required=True)
_QRELS = flags.DEFINE_string("qrels", None, "Relevance judgements: BEIR's .tsv or TREC's four columns.", required=True)
_METRICS = flags.DEFINE_string(
    "metrics", "Success@1 Success@10 R@100 RR@10 nDCG@10", "Measures, as ir_measures spells them."
)
_DEV_RUN = flags.DEFINE_string("dev_run", None, "TREC run of the same system on dev, for calibration.")
_DEV_QRELS = flags.DEFINE_string("dev_qrels", None, "Relevance judgements of dev.")
_OUTPUT = flags.DEFINE_string("output", None, "JSON file to write: {measure: value}.")


def main() -> None:
    run, qrels = corpus.Run.load(_RUN.value), corpus.Qrels.load(_QRELS.value)
    values: dict[str, float] = dict(evaluation.evaluate(run, qrels, _METRICS.value.split()))
    if bool(_DEV_RUN.value) != bool(_DEV_QRELS.value):
        raise InputError(
            "a temperature is fitted on a run of dev and its judgements, and one of them is not named",
            "Give both --dev_run and --dev_qrels, or neither.",
            value=_DEV_RUN.value or _DEV_QRELS.value,
        )
    if _DEV_RUN.value and _DEV_QRELS.value:
        dev_run, dev_qrels = corpus.Run.load(_DEV_RUN.value), corpus.Qrels.load(_DEV_QRELS.value)
        values |= temperature.calibrated(run, qrels, dev_run, dev_qrels)
    width = max(14, *(len(measure) + 2 for measure in values))
    for measure, value in values.items():
        print(f"{measure:<{width}}{value:.4f}")
    print(f"{'queries':<{width}}{len(qrels)}")
    if _OUTPUT.value:
        storage.write_json(_OUTPUT.value, values)


if __name__ == "__main__":
    program.run(main)
