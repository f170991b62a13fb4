"""Beam search with lists, with all that ours can do, and a constraint in which several tokens are the same text."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gr_jax.constraints import Trie
from tests.decoding.table_decoder import penalty


class Texts(NamedTuple):
    trie: Any
    text: Any  # int32[...], equal where the texts are


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TextTrie:
    """A trie whose tokens are spellings: token t is the letter letters[t]."""

    trie: Trie
    letters: jax.Array
    open_ended = False

    def initial_state(self, batch, view=None):
        return Texts(self.trie.initial_state(batch), jnp.zeros((batch, 1), jnp.int32))

    def candidates(self, state, scores, k, steps=None):
        found = self.trie.candidates(state.trie, scores, k, steps)
        before = state.text[..., None] if found.parent is None else jnp.take_along_axis(state.text, found.parent, 1)
        text = before * 97 + self.letters[found.token] + 1
        return dataclasses.replace(found, next_state=Texts(found.next_state, text))

    def key(self, state):
        return state.text[..., None]


def merge_plainly(items, letters, how):
    """items: (score, tokens)."""
    texts: dict[tuple, list] = {}
    for score, tokens in sorted(items, reverse=True):
        texts.setdefault(tuple(letters[t] for t in tokens), []).append((score, tokens))
    return [
        (same[0][0] if how == "max" else float(np.logaddexp.reduce([s for s, _ in same])), same[0][1])
        for same in texts.values()
    ]


def search_plainly(
    reference,
    sequences,
    beams,
    max_len,
    *,
    alpha=0.0,
    letters=None,
    merge=None,
    groups=1,
    diversity=0.0,
    backoff=None,
):
    """Returns what is complete, best first, and for each step what goes on and what it completed, best first.

    One group of beams after the other at each step; items are (log-probability, tokens).
    """
    whole = {tuple(s) for s in sequences}
    size = beams // groups
    live, complete = [[(0.0, ())] for _ in range(groups)], [[] for _ in range(groups)]
    steps = []
    for _ in range(max_len):
        chosen_going_on, chosen_ended, kept = Counter(), Counter(), ([], [])
        for group in range(groups):
            extended = [
                (score + log_prob, (*prefix, token))
                for score, prefix in live[group]
                for token, log_prob in reference.next(prefix).items()
            ]
            confidence = {item[1]: item[0] - dict((p, s) for s, p in live[group])[item[1][:-1]] for item in extended}
            going_on, ended = ([i for i in extended if (i[1] in whole) == is_end] for is_end in (False, True))
            if merge:
                going_on, ended = (merge_plainly(items, letters, merge) for items in (going_on, ended))
            going_on.sort(key=lambda item: item[0] - diversity * chosen_going_on[item[1][-1]], reverse=True)
            ended.sort(key=lambda item: item[0] - diversity * chosen_ended[item[1][-1]], reverse=True)
            keep = size
            if backoff is not None and going_on and confidence[going_on[0][1]] < backoff.threshold:
                keep += backoff.extra
            going_on, ended = going_on[:keep], ended[:size]
            chosen_going_on.update(item[1][-1] for item in going_on)
            chosen_ended.update(item[1][-1] for item in ended)
            live[group] = going_on
            complete[group] += ended
            if merge:
                complete[group] = merge_plainly(complete[group], letters, merge)
            complete[group].sort(key=lambda item: item[0] / penalty(len(item[1]), alpha), reverse=True)
            complete[group] = complete[group][:size]
            kept[0].extend(going_on)
            kept[1].extend(ended)
        steps.append(kept)
    found = [item for items in complete for item in items]
    if merge:
        found = merge_plainly(found, letters, merge)
    found = [(score / penalty(len(tokens), alpha), tokens) for score, tokens in found]
    return sorted(found, reverse=True)[:beams], steps


def brute_force_texts(reference, sequences, letters, how):
    """Every text's best spelling with the best, or with the sum, of the probabilities of all its spellings."""
    items = [(reference.score(s), tuple(s)) for s in sequences]
    return sorted(((s, t) for s, t in merge_plainly(items, letters, how) if math.isfinite(s)), reverse=True)
