"""What entry points print for people: hits, and what to try next."""

from __future__ import annotations

import os
from collections.abc import Sequence

import gin

from gr_jax.retrievers.searcher import Searcher


def show_hits(searcher: Searcher, question: str, k: int) -> None:
    """Prints the hits of one question."""
    print(f"? {question}")
    for rank, hit in enumerate(searcher.search(question, k), 1):
        print(f"{rank:>3}. {hit}")
        print(f"     {' '.join(hit.text.split())[:110]}")


@gin.configurable(module="launch")
def show_next(searcher: Searcher, model_dir: str | os.PathLike = gin.REQUIRED, questions: Sequence[str] = ()) -> None:
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
    print(f'  python -m launch.search --index={model_dir}/index "{asked}"')
    print(f"  python -m launch.retrieve --index={model_dir}/index --queries=queries.jsonl --output=run.trec --k=100")
    print("  python -m launch.evaluate --run=run.trec --qrels=qrels/test.tsv")
    print(f'  python -c \'import gr_jax; print(*gr_jax.load("{model_dir}/index").search("{asked}", k=5), sep="\\n")\'')
