"""What entry points print for people: hits, and what to try next."""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Sequence

import gin

from gr_jax.printing import printable
from gr_jax.retrievers.phrases import marked
from gr_jax.retrievers.searcher import Searcher

_REASONS = 8  # that are marked in a document
_PASSAGE = 110  # characters of it that are shown


def show_hits(searcher: Searcher, question: str, k: int, *, probability: bool = False) -> None:
    """Prints the hits of one question, and marks in their texts what they were found by; see `Searcher.search`."""
    print(f"? {printable(question)}")
    for rank, hit in enumerate(searcher.search(question, k, explain=True, probability=probability), 1):
        print(f"{rank:>3}. {hit}")
        spans = [span for reason in hit.evidence[:_REASONS] for span in reason.spans]
        print(f"     {printable(marked(hit.text, spans, _PASSAGE))}")


@gin.configurable(module="launch", allowlist=["questions"])
def show_next(searcher: Searcher, model_dir: str | os.PathLike, questions: Sequence[str] = ()) -> None:
    """Asks a few questions, and names the commands that a user would try next.

    Args:
      searcher: over the finished index.
      model_dir: of the run.
      questions: to ask.
    """
    for question in questions:
        print()
        show_hits(searcher, question, k=3)
    asked = questions[0] if questions else "your question"
    print(f"\nReport:  {model_dir}/results/report.html  (and report.md, metrics.json, runs/*.trec)")
    print("Next:")
    python, index = _python(), f"{model_dir}/index"
    print(f'  {python} -m launch.search --index={index} "{asked}"')
    splits = sorted(path.stem for path in pathlib.Path(model_dir).glob("results/qrels/*.tsv"))
    if splits:
        qrels = f"--qrels={model_dir}/results/qrels/{splits[0]}.tsv"
        queries = f"--queries={model_dir}/results/queries.jsonl"
        print(f"  {python} -m launch.retrieve --index={index} {queries} {qrels} --output=run.trec --k=100")
        print(f"  {python} -m launch.evaluate --run=run.trec {qrels}")
    print(f'  {python} -c \'import gr_jax; print(*gr_jax.load("{index}").search("{asked}", k=5), sep="\\n")\'')


def _python() -> str:
    """This interpreter, as it is called from here: the environment of `make quickstart` is not activated."""
    path = pathlib.Path(sys.executable)
    return os.path.relpath(path) if path.is_relative_to(pathlib.Path.cwd()) else "python"
