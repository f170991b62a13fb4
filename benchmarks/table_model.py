"""A model whose logits are rows of a table, so that a decode's time is the constraint's, and turns of several sides."""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from gr_jax.constraints import Trie
from gr_jax.decoding import Beams, LogitScores, beam_search
from gr_jax.docids import Docids

STATES = 512  # rows of the table of logits where the vocabulary is large


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TableModel:
    """Logits are a row of a table: that of the last token, or one of `STATES` that token, step and query choose."""

    table: jax.Array
    hashed: bool = dataclasses.field(metadata={"static": True}, default=False)
    start_token = 0

    def step(self, tokens, step, ancestors, cache):
        if self.hashed:
            tokens = (tokens * 31 + step * 7 + cache[:, None]) % STATES
        return self.table[tokens], cache

    def scores(self, features, level, normalize):
        return LogitScores(features, normalize)


@functools.partial(jax.jit, static_argnames=("beams", "steps"))
def decode(model: TableModel, queries: jax.Array, trie: Trie, *, beams: int, steps: int) -> Beams:
    return beam_search(model, queries, trie, beams=beams, max_len=steps, unroll=steps)


def random_table(rows: int, vocabulary: int, seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (rows, vocabulary)) * 2


def code_docids(count: int, vocabulary: int) -> Docids:
    """Random codes 6 × 256 in a vocabulary of any size."""
    rng = np.random.default_rng(0)
    codes = np.unique(rng.integers(0, 256, (count + count // 50, 6)), axis=0)
    codes = codes[np.sort(rng.permutation(len(codes))[:count])] + 2 + 256 * np.arange(6)
    levels = [(2 + 256 * level, 256) for level in range(6)]
    return Docids.build(codes, vocab_size=vocabulary, levels=levels)


def in_turns(sides: Mapping[str, Callable[[], Any]], turns: int) -> dict[str, list[float]]:
    """Milliseconds of each side in each turn; every side runs once before."""
    for run in sides.values():
        jax.block_until_ready(run())
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(turns):
        for name, run in sides.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            times[name].append(1e3 * (time.perf_counter() - start))
    return times


def ratio(times: Mapping[str, list[float]], one: str, other: str) -> float:
    """The median over turns: what disturbs the machine disturbs both."""
    return statistics.median(a / b for a, b in zip(times[one], times[other], strict=True))


def timed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    result = jax.block_until_ready(function(*args, **kwargs))
    return result, time.perf_counter() - start
