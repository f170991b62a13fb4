"""Asks an index: `python -m launch.search --index=DIR "a question"`; without a question it reads them line by line."""

from __future__ import annotations

import sys

from absl import flags

import gr_jax
from gr_jax.retrievers.searcher import Searcher
from launch import program

_INDEX = flags.DEFINE_string("index", None, "Folder of the index.", required=True)
_K = flags.DEFINE_integer("k", 5, "Documents to show.", lower_bound=1)


def main(words: list[str]) -> None:
    searcher = gr_jax.load(_INDEX.value)
    if words:
        show(searcher, " ".join(words))
        return
    print("A question a line; an empty line ends.", file=sys.stderr)
    for line in sys.stdin:
        if not line.strip():
            break
        show(searcher, line.strip())


def show(searcher: Searcher, question: str) -> None:
    """Prints the hits of one question."""
    print(f"? {question}")
    for rank, hit in enumerate(searcher.search(question, _K.value), 1):
        print(f"{rank:>3}. {hit}")
        print(f"     {' '.join(hit.text.split())[:110]}")


main.takes_words = True  # type: ignore[attr-defined]

if __name__ == "__main__":
    program.run(main)
