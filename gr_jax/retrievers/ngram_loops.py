"""The loops of `ngram_scorer`, compiled by numba; see `gr_jax.dense.compiled`.

N-grams are numbered from the weightiest on. Those that may stand anywhere in a view hang below one root of a tree of
tokens, those that must be a whole segment below another; a document's matches are found by walking it from each of its
tokens.
"""

from __future__ import annotations

import numpy as np

from gr_jax.dense.compiled import BOOL, INT32, INT32_2, INT64, NUMBER, loop, numba, read, sort

FLOAT64 = read(numba.float64)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_LOW = np.uint64(0xFFFFFFFF)


@numba.njit(nogil=True)
def slot_of(keys, key):
    """Where a pair of node and token stands in a table of a power of two places, or the empty place for it."""
    mask = np.uint64(len(keys) - 1)
    place = (np.uint64(key) * _MIX >> np.uint64(20)) & mask
    while keys[place] >= 0 and keys[place] != key:
        place = (place + np.uint64(1)) & mask
    return place


@numba.njit(nogil=True)
def grow(tokens, lengths, roots, num_roots, vocab):
    """The tree of the n-grams.

    Returns:
      first: int32[roots, vocab], the node of each first token; 0: none.
      keys, nodes: the table of further tokens, by `slot_of`; keys are −1 where it is empty.
      ends: int32[nodes], the n-gram that ends at each node; −1: none.
    """
    total, size = np.sum(lengths), 16
    while size < 4 * total:
        size *= 2
    first = np.zeros((num_roots, vocab), np.int32)
    keys, nodes = np.full(size, -1, np.int64), np.zeros(size, np.int32)
    ends = np.full(total + num_roots + 1, -1, np.int32)
    made = num_roots
    for ngram in range(len(lengths)):
        node = first[roots[ngram], tokens[ngram, 0]]
        if node == 0:
            node = made
            made += 1
            first[roots[ngram], tokens[ngram, 0]] = node
        for i in range(1, lengths[ngram]):
            key = np.int64(node) * vocab + tokens[ngram, i]
            place = slot_of(keys, key)
            if keys[place] < 0:
                keys[place] = key
                nodes[place] = made
                made += 1
            node = nodes[place]
        if ends[node] < 0:
            ends[node] = ngram
    return first, keys, nodes, ends


@numba.njit(nogil=True)
def matches_of(document, texts, num_views, tree, found):
    """Every place of every n-gram in a document, as number << 32 | place; places count its tokens over its segments.
    Returns how many there are."""
    text, offsets, views, own, starts = texts
    first, keys, nodes, ends = tree
    vocab = first.shape[1]
    count, before = 0, 0
    for at in range(starts[document], starts[document + 1]):
        segment = own[at]
        begin, end = offsets[segment], offsets[segment + 1]
        for whole in range(2):
            root = views[segment] + whole * num_views
            for i in range(begin, min(begin + 1, end) if whole else end):
                node = first[root, text[i]]
                j = i + 1
                while node > 0:
                    if ends[node] >= 0 and (not whole or j == end):
                        found[count] = (np.uint64(ends[node]) << np.uint64(32)) | np.uint64(before + i - begin)
                        count += 1
                    if j == end:
                        break
                    key = np.int64(node) * vocab + text[j]
                    place = slot_of(keys, key)
                    node = nodes[place] if keys[place] == key else 0
                    j += 1
        before += end - begin
    return count


@numba.njit(nogil=True)
def share_of_new(tokens, length, covered, stamp):
    """The share of an n-gram's different tokens that nothing has covered yet."""
    different, new = 0, 0
    for i in range(length):
        earlier = False
        for j in range(i):
            earlier |= tokens[i] == tokens[j]
        if not earlier:
            different += 1
            new += covered[tokens[i]] != stamp
    return new / different


@numba.njit(nogil=True)
def score_of(document, stamp, ngrams, beta, texts, found, count, seen, counts):
    """A document's score from its matches.

    Args:
      stamp: marks what this document has covered, different for each.
      ngrams: tokens, lengths, weights, and the weights of single tokens.
      found, count: its matches; they are sorted.
      seen: places for stamps: of tokens that n-grams covered, of tokens that counted alone, of places that are taken.
      counts: gets what counted: n-grams by number and single tokens as −1 − token, with score and place.

    Returns:
      The score, and how many counted.
    """
    tokens, lengths, weights, singles = ngrams
    text, offsets, _, own, starts = texts
    covered, alone, taken = seen
    sort(found, count)
    total, previous, written = 0.0, np.int64(-1), 0
    for match in range(count):
        ngram = np.int64(found[match] >> np.uint64(32))
        place = np.int64(found[match] & _LOW)
        length = lengths[ngram]
        gain = 0.0
        if ngram != previous:
            gain = weights[ngram] * (1.0 - beta + beta * share_of_new(tokens[ngram], length, covered, stamp))
            if gain <= 0.0:
                continue
        free = True
        for i in range(place, place + length):
            free &= taken[i] != stamp
        if not free:
            continue
        for i in range(place, place + length):
            taken[i] = stamp
        if ngram != previous:
            previous = ngram
            total += gain
            for i in range(length):
                covered[tokens[ngram, i]] = stamp
            counts[0][written], counts[1][written], counts[2][written] = ngram, gain, place
            written += 1
    place = np.int64(0)
    for at in range(starts[document], starts[document + 1]):
        segment = own[at]
        for i in range(offsets[segment], offsets[segment + 1]):
            token = text[i]
            if singles[token] > 0.0 and taken[place] != stamp and alone[token] != stamp:
                alone[token] = stamp
                gain = singles[token] * (1.0 - beta if covered[token] == stamp else 1.0)
                if gain > 0.0:
                    total += gain
                    counts[0][written], counts[1][written], counts[2][written] = -1 - token, gain, place
                    written += 1
            place += 1
    return total, written


@numba.njit(nogil=True)
def is_whole(document, tokens, length, view, texts):
    """Whether a segment of a document's view is the n-gram."""
    text, offsets, views, own, starts = texts
    for at in range(starts[document], starts[document + 1]):
        segment = own[at]
        begin, end = offsets[segment], offsets[segment + 1]
        if views[segment] == view and end - begin == length:
            same = True
            for i in range(length):
                same &= text[begin + i] == tokens[i]
            if same:
                return True
    return False


@numba.njit(nogil=True)
def nominate(tokens, lengths, roots, weights, rows, nominates, num_views, texts, allowed, most):
    """The documents in which an n-gram stands that may nominate, ascending; of more than `most` those with the largest
    sum of weights."""
    low, high, row_documents = rows
    num_documents = len(texts[4]) - 1
    seen = np.full(num_documents, -1, np.int32)
    sums = np.zeros(num_documents)
    touched = np.empty(num_documents, np.int64)
    count = 0
    for ngram in range(len(lengths)):
        if not nominates[ngram] or weights[ngram] <= 0.0:
            continue
        view = roots[ngram] - num_views  # below 0 where it may stand anywhere
        for part in range(low.shape[1]):
            for row in range(low[ngram, part], high[ngram, part]):
                document = row_documents[row]
                if seen[document] == ngram or (len(allowed) and not allowed[document]):
                    continue
                if view >= 0 and not is_whole(document, tokens[ngram], lengths[ngram], view, texts):
                    continue
                if seen[document] < 0:
                    touched[count] = document
                    count += 1
                seen[document] = ngram
                sums[document] += weights[ngram]
    chosen = np.sort(touched[:count])
    if count > most:
        order = np.argsort(-sums[chosen], kind="mergesort")[:most]
        chosen = np.sort(chosen[order])
    return chosen


@numba.njit(nogil=True)
def rooms(vocab, longest, width):
    """Room to score documents in: for stamps, for matches and for what counts; see `score_of`."""
    most = longest * (width + 1) + 1  # at each place n-grams of every length end, in a segment that is whole one more
    seen = np.full(vocab, -1, np.int32), np.full(vocab, -1, np.int32), np.full(longest, -1, np.int32)
    return seen, np.empty(2 * most, np.uint64), (np.empty(most, np.int64), np.empty(most), np.empty(most, np.int64))


@loop(
    INT32_2, INT32, INT32, FLOAT64, FLOAT64, numba.float64, INT32_2, INT32_2, INT32, BOOL,
    INT32, INT64, INT32, INT32, INT64, NUMBER, BOOL, NUMBER, NUMBER,
    numba.int32[::1], numba.float64[::1],
)  # fmt: skip
def search(
    tokens, lengths, roots, weights, singles, beta, low, high, row_documents, nominates,
    text, offsets, views, own, starts, num_views, allowed, longest, most,
    documents, scores,
):  # fmt: skip
    """The best documents of one query; returns how many were written to `documents` and `scores`.

    Args:
      tokens, lengths, roots, weights: of the n-grams, the weightiest first; roots are views, + `num_views` for n-grams
        that must be whole segments.
      singles: [vocab] the weight of a token alone, where nothing else covers it.
      beta: how much of a weight is lost where its tokens are covered.
      low, high: [n, parts] ranges of rows of each n-gram, one in each part of the index.
      row_documents: of the index' rows.
      nominates: whether each may nominate documents.
      text, offsets, views: the segments.
      own, starts: segments by document.
      allowed: which documents may be found; empty: all.
      longest: tokens of the longest document.
      most: documents that are nominated.
    """
    texts = text, offsets, views, own, starts
    chosen = nominate(
        tokens, lengths, roots, weights, (low, high, row_documents), nominates, num_views, texts, allowed, most
    )
    tree = grow(tokens, lengths, roots, 2 * num_views, len(singles))
    seen, found, counts = rooms(len(singles), longest, tokens.shape[1])
    every = np.empty(len(chosen))
    for stamp in range(len(chosen)):
        count = matches_of(chosen[stamp], texts, num_views, tree, found)
        every[stamp], _ = score_of(
            chosen[stamp], stamp, (tokens, lengths, weights, singles), beta, texts, found, count, seen, counts
        )
    order = np.argsort(-every, kind="mergesort")  # stable: equal scores by the lower position
    kept = min(len(order), len(documents))
    for rank in range(kept):
        documents[rank] = chosen[order[rank]]
        scores[rank] = every[order[rank]]
    return kept


@loop(
    INT32_2, INT32, INT32, FLOAT64, FLOAT64, numba.float64,
    INT32, INT64, INT32, INT32, INT64, NUMBER, NUMBER, NUMBER,
)  # fmt: skip
def explain(
    tokens, lengths, roots, weights, singles, beta, text, offsets, views, own, starts, num_views, longest, document
):
    """What counted in one document: n-grams by number and single tokens as −1 − token, scores, places."""
    texts = text, offsets, views, own, starts
    tree = grow(tokens, lengths, roots, 2 * num_views, len(singles))
    seen, found, counts = rooms(len(singles), longest, tokens.shape[1])
    count = matches_of(document, texts, num_views, tree, found)
    _, written = score_of(document, 0, (tokens, lengths, weights, singles), beta, texts, found, count, seen, counts)
    return counts[0][:written], counts[1][:written], counts[2][:written]
