"""The trie: time beside STATIC's, memory, build, real titles, filters, growth, files. `python -m benchmarks.trie`.

STATIC (youtube/static-constraint-decoding, arXiv 2602.22647) is in no package index:

    git clone https://github.com/youtube/static-constraint-decoding  # into a folder of peers
    GR_JAX_PEERS=that/folder python -m benchmarks.trie

Both sides get the same sorted docids and the same logits: a table's row of the last token. STATIC looks at so many
tokens of each beam at its second step; with as many as beams its top-K is exact like ours, and that is what "time of
peer's" is against. With the 30 of its own benchmark it is faster and may miss some ("time of peer's at 30"). Ours also
returns scores, states and flags. Times are medians of alternating runs in one process, those of building of three runs
each; 1e7 docids need 6 GB of memory.
About 10 minutes on 2 cores.
"""

from __future__ import annotations

import functools
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import harness, trie_filters, trie_titles
from benchmarks.table_model import TableModel, decode, in_turns, random_table, ratio, timed
from gr_jax.constraints import Trie
from gr_jax.decoding import Beams
from gr_jax.docids import Docids
from gr_jax.errors import InputError

PEERS, PEER = "GR_JAX_PEERS", "static-constraint-decoding"
VOCABULARY, LENGTH, BATCH, BEAMS = 2048, 8, 2, 70
THEIR_TOKENS = 30
BUILDS = 3


def random_docids(count: int) -> tuple[Docids, float]:
    """Docids of random tokens, and the seconds that sorting and checking them took."""
    tokens = np.random.default_rng(0).integers(1, VOCABULARY, (count, LENGTH), dtype=np.int32)
    start = time.perf_counter()
    docids = Docids.build(tokens, vocab_size=VOCABULARY, duplicates="share")
    return docids, time.perf_counter() - start


def _peer() -> tuple[Callable, Callable]:
    folder = pathlib.Path(os.environ.get(PEERS, "")) / PEER
    if not (os.environ.get(PEERS) and (folder / "static_decoding").is_dir()):
        raise InputError(
            "STATIC, which this row is measured beside, is not there",
            f"git clone https://github.com/youtube/{PEER} and name the folder that holds {PEER} in {PEERS}.",
            value=os.environ.get(PEERS),
        )
    sys.path.insert(0, str(folder))
    try:
        from static_decoding.csr_utils import build_static_index
        from static_decoding.decoding_jax import sparse_transition_jax
    finally:
        sys.path.remove(str(folder))
    return build_static_index, sparse_transition_jax


def against_static(count: int, turns: int) -> dict[str, float]:
    build_peer, decode_peer = _peer()
    docids, sort_s = random_docids(count)
    builds = {"ours": lambda: Trie.from_docids(docids), "peer": lambda: build_peer(docids.tokens, VOCABULARY)}
    building = in_turns(builds, BUILDS)
    index = build_peer(docids.tokens, VOCABULARY)
    packed, offsets, widths, *dense = index
    peer_bytes = sum(array.nbytes for array in (packed, offsets, *dense))
    arrays = [jnp.asarray(array) for array in (packed, offsets, *dense)]
    widths = tuple(int(width) for width in widths)
    del index, packed, offsets, dense
    trie = Trie.from_docids(docids)
    docids_count = len(docids)
    del docids, builds

    def theirs(table: jax.Array, tokens: int) -> Callable[[], jax.Array]:
        def model(last, key):
            return table[last[:, 0]][:, None], key

        start, steps = 0, LENGTH
        fixed = (model, jax.random.key(0), BATCH, BEAMS, tokens, start, steps, VOCABULARY, widths)
        return lambda: decode_peer(*fixed, *arrays, d_dense=2)

    def ours(table: jax.Array) -> Callable[[], Beams]:
        model, queries = TableModel(table), jnp.zeros(BATCH, jnp.int32)
        return lambda: decode(model, queries, trie, beams=BEAMS, steps=LENGTH)

    same = []
    for seed in (1, 2):
        table = random_table(VOCABULARY, VOCABULARY, seed)
        found = ours(table)()
        same.append(np.asarray(found.sequences == theirs(table, BEAMS)()).all(-1) & np.asarray(found.valid))
    table = random_table(VOCABULARY, VOCABULARY)
    times = in_turns({"ours": ours(table), "peer": theirs(table, BEAMS), "30": theirs(table, THEIR_TOKENS)}, turns)
    return {
        "ms": statistics.median(times["ours"]),
        "peer ms": statistics.median(times["peer"]),
        "time of peer's": ratio(times, "ours", "peer"),
        f"time of peer's at {THEIR_TOKENS}": ratio(times, "ours", "30"),
        "same top-K": float(np.mean(same)),
        "bytes a docid": trie.nbytes / docids_count,
        "peer bytes a docid": peer_bytes / docids_count,
        "sort s": sort_s,
        "build s": statistics.median(building["ours"]) / 1e3,
        "peer build s": statistics.median(building["peer"]) / 1e3,
        "build of peer's": ratio(building, "ours", "peer"),
    }


def growth(small: int, large: int, turns: int) -> dict[str, float]:
    tries = {count: Trie.from_docids(random_docids(count)[0]) for count in (small, large)}
    model, queries = TableModel(random_table(VOCABULARY, VOCABULARY)), jnp.zeros(BATCH, jnp.int32)
    sides = {
        str(count): functools.partial(decode, model, queries, trie, beams=BEAMS, steps=LENGTH)
        for count, trie in tries.items()
    }
    times = in_turns(sides, turns)
    return {"ms": statistics.median(times[str(large)]), "growth": ratio(times, str(large), str(small))}


def adding(count: int, more: int, turns: int) -> dict[str, float]:
    """Against building the trie of all docids: from sorted ones, and with sorting them."""
    tokens = np.random.default_rng(0).integers(1, VOCABULARY, (count + more, LENGTH), dtype=np.int32)
    trie = Trie.from_docids(Docids.build(tokens[:count], vocab_size=VOCABULARY))
    new, every = Docids.build(tokens[count:], vocab_size=VOCABULARY), Docids.build(tokens, vocab_size=VOCABULARY)
    grown, built = trie.add(new), Trie.from_docids(every)
    same = all(bool((a == b).all()) for a, b in zip(*map(jax.tree.leaves, (grown, built)), strict=True))
    sides = {
        "add": lambda: trie.add(new),
        "build": lambda: Trie.from_docids(every),
        "sort": lambda: Trie.from_docids(Docids.build(tokens, vocab_size=VOCABULARY)),
    }
    times = in_turns(sides, turns)
    return {
        "ms": statistics.median(times["add"]),
        "times faster than sorted build": ratio(times, "build", "add"),
        "times faster than build": ratio(times, "sort", "add"),
        "equal": float(same and grown.levels == built.levels),
    }


def files(count: int) -> dict[str, float]:
    trie = Trie.from_docids(random_docids(count)[0])
    with tempfile.TemporaryDirectory() as folder:
        save_s = timed(lambda: trie.save(f"{folder}/trie"))[1]
        loaded, load_s = timed(Trie.load, f"{folder}/trie")
        mapped, map_s = timed(Trie.load, f"{folder}/trie", mmap=True)
        same = all(
            bool((a == b).all() & (a == c).all())
            for a, b, c in zip(*map(jax.tree.leaves, (trie, loaded, mapped)), strict=True)
        )
    return {"save s": save_s, "load s": load_s, "map s": map_s, "equal": float(same)}


def rows() -> list[harness.Row]:
    """The table."""
    setting = {"vocabulary": VOCABULARY, "length": LENGTH, "batch": BATCH, "beams": BEAMS}
    found = []
    for count, turns in ((10**5, 100), (10**6, 100), (10**7, 60)):
        ceilings = {"time of peer's": 1.0, f"time of peer's at {THEIR_TOKENS}": 1.0}
        if count == 10**7:
            ceilings |= {"bytes a docid": 30.0, "build of peer's": 1.0}
        found.append(
            harness.Row(
                name=f"{count:,} docids",
                config={**setting, "docids": count, "turns": turns, "builds": BUILDS},
                measure=functools.partial(against_static, count, turns),
                at_most=ceilings,
                at_least={"same top-K": 1.0},
                seeds=(0, 1, 2),
                speed=True,
            )
        )
    found.append(
        harness.Row(
            name="from 1e5 to 1e7 docids",
            config={**setting, "docids": [10**5, 10**7], "turns": 200},
            measure=functools.partial(growth, 10**5, 10**7, 200),
            at_most={"growth": 1.25},
            seeds=(0,),
            speed=True,
        )
    )
    for batch, beams in ((8, 10), (1, 100)):
        found.append(
            harness.Row(
                name=f"titles, {batch}×{beams}",
                config={"data": trie_titles.TITLES, "batch": batch, "beams": beams, "turns": 60, "sampled": 32},
                measure=functools.partial(trie_titles.real_titles, batch, beams, 60, 32),
                at_most={"step of code trie's": 1.5, "largest difference": 1e-4},
                at_least={"same top-K": 1.0},
                corpus=lambda: trie_titles.corpus_of_titles().corpus.fingerprint,
                seeds=(0,),
                speed=True,
            )
        )
    found.append(
        harness.Row(
            name="1,000 docids added to 1e6",
            config={**setting, "docids": 10**6, "added": 1000, "turns": 7},
            measure=functools.partial(adding, 10**6, 1000, 7),
            at_least={"equal": 1.0, "times faster than sorted build": 1.0},
            seeds=(0,),
            speed=True,
        )
    )
    found.append(
        harness.Row(
            name="files, 1e6 docids",
            config={**setting, "docids": 10**6},
            measure=functools.partial(files, 10**6),
            at_least={"equal": 1.0},
            seeds=(0,),
        )
    )
    for network in (False, True):
        found.append(
            harness.Row(
                name=f"filtered, {'T5-small' if network else 'table logits'}, 8×10",
                config={"docids": 100_000, "batch": 8, "beams": 10, "turns": 60, "network": network},
                measure=functools.partial(trie_filters.filtered, 8, 10, 60, network=network),
                at_most={"time of unfiltered": 1.2},
                seeds=(0,),
                speed=True,
            )
        )
    found.append(
        harness.Row(
            name="filters, 1e5 trials",
            config={"docids": 100_000, "trials": 100_000, "batch": 32, "beams": 10},
            measure=functools.partial(trie_filters.filter_trials, 100_000, 32, 10),
            at_most={"excluded documents": 0, "queries short of beams": 0, "compilations": 1},
            at_least={"trials": 100_000},
            seeds=(0,),
        )
    )
    found.append(
        harness.Row(
            name="filters, compiled again",
            config={"docids": 2000, "filters": 20, "batch": 4, "beams": 5},
            measure=functools.partial(trie_filters.compilations, 20, 4, 5),
            at_most={"decode": 1, "filter": 1},
            seeds=(0,),
        )
    )
    return found


if __name__ == "__main__":
    sys.exit(harness.main("trie", rows()))
