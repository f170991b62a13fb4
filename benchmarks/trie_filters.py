"""Decoding restricted to some documents: what it costs, that it is exact, and that nothing is compiled again."""

from __future__ import annotations

import functools
import statistics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import random_decoder
from benchmarks.table_model import STATES, TableModel, code_docids, decode, in_turns, random_table, ratio
from gr_jax.constraints import Trie
from gr_jax.constraints.trie_filter import make_filter
from gr_jax.decoding import beam_search


def filtered(batch: int, beams: int, turns: int, *, network: bool) -> dict[str, float]:
    """The same decoding with a filter for every query and without, and what preparing the filters takes."""
    docids = random_decoder.random_docids()
    trie = Trie.from_docids(docids)
    if network:
        setting = random_decoder.random_setting()
        model: Any = setting.decoder
        tokens = jax.random.randint(jax.random.key(1), (batch, 32), 1, 1000)
        encoded = jax.jit(lambda m, t: m._apply(t, method="encode"))(model, tokens)
        run = jax.jit(functools.partial(random_decoder.decode, beams=beams, normalize="vocabulary"))
        search = functools.partial(run, model, tokens, encoded)
    else:
        model = TableModel(random_table(STATES, docids.vocab_size), hashed=True)
        run = jax.jit(
            lambda model, queries, trie: beam_search(model, queries, trie, beams=beams, max_len=trie.max_steps)
        )
        search = functools.partial(run, model, jnp.arange(batch, dtype=jnp.int32))
    allowed = jax.random.bernoulli(jax.random.key(2), 0.5, (batch, trie.num_documents))
    restricted = trie.restrict(allowed)
    times = in_turns(
        {
            "free": lambda: search(trie),
            "filtered": lambda: search(restricted),
            "prepare": lambda: trie.restrict(allowed).filter,
        },
        turns,
    )
    return {
        "ms": statistics.median(times["filtered"]),
        "time of unfiltered": ratio(times, "filtered", "free"),
        "prepare ms": statistics.median(times["prepare"]),
        "filter bytes a docid": (restricted.nbytes - trie.nbytes) / batch / len(docids),
    }


def filter_trials(trials: int, batch: int, beams: int) -> dict[str, float]:
    """Every query of every batch has a filter of its own, from a handful of documents to nearly all, some of them in
    one part of the tree."""
    docids = code_docids(100_000, 2 + 6 * 256)
    trie = Trie.from_docids(docids)
    model = TableModel(random_table(STATES, docids.vocab_size), hashed=True)
    documents = jnp.asarray(docids.documents)

    @jax.jit
    def trial(model, trie, queries, allowed):
        found = beam_search(model, queries, trie.restrict(allowed), beams=beams, max_len=trie.max_steps)
        document = trie.documents(found.states, 1)[0][..., 0]
        excluded = found.valid & ~jnp.take_along_axis(allowed, jnp.maximum(document, 0), axis=1)
        # With few documents allowed, all of them must be found.
        enough = found.valid.sum(axis=1) == jnp.minimum(allowed.sum(axis=1), beams)
        return excluded.sum(), found.valid.sum(), enough.sum()

    @jax.jit
    def draw(key):
        keys = jax.random.split(key, 4)
        share = 10.0 ** jax.random.uniform(keys[0], (batch, 1), minval=-4.5, maxval=0.0)
        allowed = jax.random.uniform(keys[1], (batch, len(docids))) < share
        start = jax.random.randint(keys[2], (batch, 1), 0, len(docids))
        row = jnp.arange(len(docids))
        near = (row >= start) & (row < start + len(docids) * share)  # a range of docids
        by_row = jnp.zeros_like(allowed).at[:, documents].set(near)
        return jnp.where(jax.random.bernoulli(keys[3], 0.5, (batch, 1)), allowed, by_row)

    sums = np.zeros(3, np.int64)
    for step in range(-(-trials // batch)):
        queries = jnp.arange(step * batch, (step + 1) * batch, dtype=jnp.int32)
        sums += np.asarray(trial(model, trie, queries, draw(jax.random.key(step))), np.int64)
    done = -(-trials // batch) * batch
    return {
        "trials": done,
        "excluded documents": int(sums[0]),
        "documents found": int(sums[1]),
        "queries short of beams": done - int(sums[2]),
        "compilations": _compiled(trial),
    }


def _compiled(function: Any) -> int:
    """For how many shapes a jitted function was compiled."""
    return function._cache_size()


def compilations(filters: int, batch: int, beams: int) -> dict[str, float]:
    """What another filter compiles again, where it is prepared outside of the decoding."""
    trie = Trie.from_docids(code_docids(2000, 2 + 6 * 256))
    model, queries = TableModel(random_table(STATES, trie.vocab_size), hashed=True), jnp.arange(batch)
    before = _compiled(decode), _compiled(make_filter)
    for seed in range(filters):
        allowed = jax.random.bernoulli(jax.random.key(seed), 0.5, (batch, trie.num_documents))
        decode(model, queries, trie.restrict(allowed), beams=beams, steps=trie.max_steps)
    after = _compiled(decode), _compiled(make_filter)
    return {"decode": after[0] - before[0], "filter": after[1] - before[1]}
