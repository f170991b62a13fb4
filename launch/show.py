"""What entry points print for people: hits, and what to try next."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence

import gin

from gr_jax.printing import printable
from gr_jax.retrievers.phrases import marked
from gr_jax.retrievers.searcher import Searcher

from . import program

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
    from gr_jax.stages import hybrid  # not for gr-jax search, which starts fast

    for question in questions:
        print()
        show_hits(searcher, question, k=3)
    asked = questions[0] if questions else "your question"
    print(f"\nReport:  {model_dir}/results/report.html  (and report.md, metrics.json, runs/*.trec)")
    print("Next:")
    index, why = hybrid.best_on_dev(model_dir)
    if why:
        print(f"  # {why}")
    print(f'  {program.command("search")} --index={index} "{asked}"')
    splits = sorted(path.stem for path in pathlib.Path(model_dir).glob("results/qrels/*.tsv"))
    if splits:
        qrels = f"--qrels={model_dir}/results/qrels/{splits[0]}.tsv"
        queries = f"--queries={model_dir}/results/queries.jsonl"
        print(f"  {program.command('retrieve')} --index={index} {queries} {qrels} --output=run.trec --k=100")
        print(f"  {program.command('evaluate')} --run=run.trec {qrels}")
    searched = f'gr_jax.load("{index}").search("{asked}", k=5)'
    print(f"  {program.python()} -c 'import gr_jax; print(*{searched}, sep=\"\\n\")'")
