"""SEAL's scorer with dictionaries and lists, one document after the other: what `NgramScorer` must agree with."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from gr_jax.docids.spans import TokenText
from gr_jax.retrievers.ngram_scorer import NgramScoring

Ngram = tuple[int, tuple[int, ...]]  # the view, + the number of views for whole segments; and the tokens


def logit(log_prob: float) -> float:
    """log p − log(1 − p)."""
    log_prob = min(log_prob, -1e-10)
    return log_prob - math.log(-math.expm1(log_prob))


def segments_of(text: TokenText) -> list[list[tuple[int, list[int]]]]:
    """Of each document its segments: view and tokens."""
    found: list[list[tuple[int, list[int]]]] = [[] for _ in range(text.num_documents)]
    for place, document in enumerate(text.documents.tolist()):
        tokens = text.tokens[text.offsets[place] : text.offsets[place + 1]].tolist()
        found[document].append((int(text.views[place]), tokens))
    return found


def occurrences(segments: list[tuple[int, list[int]]], ngram: Ngram, num_views: int) -> list[int]:
    """Where an n-gram stands in a document; places count over its segments."""
    root, wanted = ngram
    found, before = [], 0
    whole = root >= num_views
    for view, tokens in segments:
        if view == root % num_views:
            starts = [0] if whole else range(len(tokens) - len(wanted) + 1)
            for start in starts:
                if tuple(tokens[start : start + len(wanted)]) == wanted and (not whole or len(tokens) == len(wanted)):
                    found.append(before + start)
        before += len(tokens)
    return found


def scores(
    text: TokenText,
    log_probs: Mapping[Ngram, float],
    counts: Mapping[Ngram, int],
    singles: Mapping[int, float],
    settings: NgramScoring,
    allowed: Sequence[bool] | None = None,
) -> dict[int, float]:
    """Documents that n-grams nominate, and their scores.

    Args:
      text: of the documents.
      log_probs: log p(n|q) of each n-gram.
      counts: how often each stands in the index.
      singles: token → log p of it as the first.
      settings: of the scorer.
      allowed: which documents may be found.
    """
    num_views, whole_text = len(text.view_names), len(text.tokens)
    every = segments_of(text)

    def weight(log_prob: float, count: int) -> float:
        chance = math.log((count + settings.smoothing) / (whole_text + settings.smoothing))
        return max(0.0, logit(log_prob) - logit(chance))

    plain = {ngram: weight(log_probs[ngram], counts[ngram]) for ngram in log_probs if counts[ngram]}
    weights = {ngram: value**settings.alpha for ngram, value in plain.items() if value > 0}
    ordered = sorted(weights, key=lambda ngram: (-weights[ngram], ngram))
    written = {tokens[0] for _, tokens in log_probs if len(tokens) == 1}
    token_counts: dict[int, int] = defaultdict(int)
    for token in text.tokens.tolist():
        token_counts[token] += 1
    alone = {token: weight(p, token_counts[token]) for token, p in singles.items() if token not in written}
    alone = {token: value for token, value in alone.items() if token_counts[token]}
    levels = [min(settings.most_occurrences, max(counts.values(), default=0)), *sorted(set(counts.values()))]
    nominated: dict[int, float] = {}
    for most in levels:  # until some document that is allowed is nominated
        low = 0 if most <= settings.most_occurrences else most
        rare = [ngram for ngram in ordered if low <= counts[ngram] <= most]
        for document, segments in enumerate(every):
            if not nominated.keys() >= {document} and (allowed is None or allowed[document]):
                has = [ngram for ngram in rare if occurrences(segments, ngram, num_views)]
                if has:
                    nominated[document] = sum(weights[ngram] for ngram in has)
        if nominated:
            break
    chosen = sorted(nominated, key=lambda document: (-nominated[document], document))[: settings.most_documents]
    return {document: _score(every[document], ordered, weights, alone, num_views, settings.beta) for document in chosen}


def _score(
    segments: list[tuple[int, list[int]]],
    ordered: Sequence[Ngram],
    weights: Mapping[Ngram, float],
    alone: Mapping[int, float],
    num_views: int,
    beta: float,
) -> float:
    covered: set[int] = set()
    taken: set[int] = set()
    total = 0.0
    for ngram in ordered:
        own = set(ngram[1])
        gain = weights[ngram] * (1 - beta + beta * len(own - covered) / len(own))
        counted = False
        for place in occurrences(segments, ngram, num_views):
            places = range(place, place + len(ngram[1]))
            if gain > 0 and taken.isdisjoint(places):
                taken.update(places)
                counted = True
        if counted:
            total += gain
            covered |= own
    place = 0
    free: set[int] = set()
    for _, tokens in segments:
        for token in tokens:
            if place not in taken:
                free.add(token)
            place += 1
    for token in free:
        total += alone.get(token, 0.0) * (1 - beta if token in covered else 1.0)
    return total
