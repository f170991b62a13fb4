"""Asks an index; without a question it reads them line by line.

gr-jax search --index=runs/mine/index "how do I shard an array?"

With --probability it says of each hit how probable it is that it is the answer; `gr-jax calibrate` measures that first.
"""

from __future__ import annotations

import sys

from absl import flags

import gr_jax

from . import program, show


def main(words: list[str]) -> None:
    searcher = gr_jax.load(flags.FLAGS.index)
    if words:
        show.show_hits(searcher, " ".join(words), flags.FLAGS.k, probability=flags.FLAGS.probability)
        return
    print("A question a line; an empty line ends.", file=sys.stderr)
    for line in sys.stdin:
        if not line.strip():
            break
        show.show_hits(searcher, line.strip(), flags.FLAGS.k, probability=flags.FLAGS.probability)


main.takes_words = True  # type: ignore[attr-defined]

if __name__ == "__main__":
    flags.DEFINE_string("index", None, "Folder of the index.", required=True)
    flags.DEFINE_integer("k", 5, "Documents to show.", lower_bound=1)
    flags.DEFINE_bool("probability", False, "Say how probable it is that a hit is the answer.")
    program.run(main)
