"""Judges a run.

python -m launch.evaluate --run=run.trec --qrels=my_beir_folder/qrels/test.tsv --metrics="Success@1 nDCG@10"
"""

from __future__ import annotations

from absl import flags

from gr_jax import corpus, evaluation, storage
from launch import program

_RUN = flags.DEFINE_string("run", None, "TREC run.", required=True)
_QRELS = flags.DEFINE_string("qrels", None, "Relevance judgements: BEIR's .tsv or TREC's four columns.", required=True)
_METRICS = flags.DEFINE_string(
    "metrics", "Success@1 Success@10 R@100 RR@10 nDCG@10", "Measures, as ir_measures spells them."
)
_OUTPUT = flags.DEFINE_string("output", None, "JSON file to write: {measure: value}.")


def main() -> None:
    run, qrels = corpus.Run.load(_RUN.value), corpus.Qrels.load(_QRELS.value)
    values = evaluation.evaluate(run, qrels, _METRICS.value.split())
    for measure, value in values.items():
        print(f"{measure:<14}{value:.4f}")
    print(f"{'queries':<14}{len(qrels)}")
    if _OUTPUT.value:
        storage.write_json(_OUTPUT.value, values)


if __name__ == "__main__":
    program.run(main)
