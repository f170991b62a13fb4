import dataclasses
import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax.constraints import fm_index_candidates
from gr_jax.constraints.fm_index import FMIndex
from gr_jax.corpus import read_beir
from gr_jax.decoding import LogitScores, beam_search, score_docids
from gr_jax.docids.spans import TokenText
from gr_jax.errors import InputError
from gr_jax.text.vocabulary import ByteVocabulary
from tests.compiled import call
from tests.constraints.ngram_reference import NGrams, padded
from tests.decoding.table_decoder import Reference, TableDecoder

pytest.importorskip("pydivsufsort")

LONGEST = 5
walk = jax.jit(lambda index, ngrams, view: index.walk(ngrams, view))
locate = jax.jit(lambda index, state: index.locate(state, 8))
advance = jax.jit(lambda index, state, token: index.advance(state, token))
documents = jax.jit(lambda index, state: index.documents(state, 3))
allowed_tokens = jax.jit(lambda index, state: index.allowed(state))
search = jax.jit(beam_search, static_argnames=("beams", "max_len", "unroll"))
next_counts = jax.jit(lambda index, state: index.next_counts(state))
about = jax.jit(lambda index, s: (index.allowed(s), index.accepts(s), index.count(s), index.documents(s, 3)))


LENGTHS = (9, 0, 14, 3, 17, 1, 8, 5, 12, 6)  # of the segments of a view
SAMPLES = 400


def make_text(seed, vocab, views=1, documents=6):
    """Random segments, one of them empty, with repeated runs and every token somewhere. Shapes do not depend on the
    seed, so nothing is compiled again."""
    rng = np.random.default_rng(seed)
    run, rest = rng.integers(0, vocab, 5), list(range(vocab))
    rows = []
    for length in rng.permuted(np.tile(LENGTHS, (views, 1)), axis=1).reshape(-1):
        row = rng.integers(0, vocab, length)
        if rng.random() < 0.6:
            row[: min(5, length)] = run[: min(5, length)]
        rows.append(row)
    flat = np.concatenate(rows)
    flat[rng.permutation(len(flat))[:vocab]] = rest
    offsets = np.append(0, np.cumsum([len(row) for row in rows]))
    return TokenText.of(
        [flat[a:b] for a, b in zip(offsets, offsets[1:], strict=False)],
        vocab,
        documents=rng.integers(0, documents, len(rows)),
        views=np.repeat(np.arange(views), len(LENGTHS)),
        view_names=("body", "title", "query")[:views],
        num_documents=documents,
    )


def make_index(text, **settings):
    """With arrays whose shapes are always the same."""
    index = FMIndex.from_text(text, **settings)
    samples = np.pad(index.samples, (0, SAMPLES - len(index.samples)))
    return dataclasses.replace(
        index, samples=jnp.asarray(samples), sample_rate=1
    )  # only the samples depend on the rate


def states_of(index, ngrams, view=0, size=256):
    """States [1, size] after n-grams; those that are too many are left out."""
    rows = padded(ngrams[:size] + [()] * (size - len(ngrams)), LONGEST)
    state = walk(index, jnp.asarray(rows), jnp.full(size, view, jnp.int32))
    return jax.tree.map(lambda x: np.asarray(x).reshape(1, size), state)


@settings(max_examples=6)
@given(seed=st.integers(0, 2**20), sample_rate=st.sampled_from([1, 3, 16]))
def test_what_follows_and_where_every_ngram_stands(seed, sample_rate):
    vocab = 20
    text = make_text(seed, vocab, views=2)
    index = make_index(text, sample_rate=sample_rate)
    for view in range(4):
        reference = NGrams(text, view % 2, LONGEST, anchored=view >= 2)
        ngrams = reference.ngrams(LONGEST)[:256]
        state = states_of(index, ngrams, view)
        counts = np.asarray(next_counts(index, state))[0]
        located = jax.tree.map(lambda x: np.asarray(x)[0], locate(index, state))
        for i, ngram in enumerate(ngrams):
            expected = np.zeros(vocab, int)
            for token, count in reference.following[ngram].items():
                expected[token] = count
            np.testing.assert_array_equal(counts[i], expected, err_msg=str(ngram))
            if ngram:
                places = sorted(reference.places[ngram])
                assert int(state.high[0, i] - state.low[0, i]) == len(places)
                found = sorted(zip(*(x[i].tolist() for x in located), strict=True), reverse=True)
                found = [place for place in found if place[0] >= 0]
                assert len(found) == min(8, len(places)) and set(found) <= set(places)
                assert len(set(found)) == len(found)


@functools.partial(jax.jit, static_argnames=("k", "narrow", "few_wide", "looked_up", "normalize"))
def best(index, state, logits, k, narrow, few_wide, looked_up, normalize):
    """Candidates of states [1, n], with other limits between the ways of finding them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fm_index_candidates, "NARROW", narrow)
        patch.setattr(fm_index_candidates, "FEWEST", 2)
        patch.setattr(fm_index_candidates, "LOOKED_UP", looked_up)
        patch.setattr(fm_index_candidates, "LOOKED_UP_EACH", 1)
        patch.setattr(fm_index_candidates, "FEW_WIDE", few_wide)
        patch.setattr(fm_index_candidates, "READ", 16)
        patch.setattr(fm_index_candidates, "READ_AT_ONCE", 8)
        return index.candidates(state, LogitScores(logits, normalize), k)


@pytest.mark.parametrize(
    "narrow, few_wide, looked_up, normalize, eos, filtered",
    [
        (1024, 0.5, 64, "vocabulary", False, False),  # read where they stand, some at once and some one by one
        (4, 0.0, 6, "vocabulary", True, True),  # some certified, some collected
        pytest.param(1, 1.0, 9, "vocabulary", False, True, marks=pytest.mark.slow),  # all collected
        (4, 0.0, 6, "constraint", True, False),
    ],
)
def test_candidates_are_the_best_allowed_tokens(narrow, few_wide, looked_up, normalize, eos, filtered):
    vocab, k = 50, 5
    for seed in range(2):
        text = dataclasses.replace(make_text(seed, vocab - 1), vocab_size=vocab)
        index = make_index(text, eos_id=vocab - 1 if eos else None, filters=True)
        allowed = np.random.default_rng(seed).random(6) < (0.5 if filtered else 1.0)
        if filtered:
            index = index.restrict(jnp.asarray(allowed)[None])
        reference = NGrams(text, 0, LONGEST, allowed=allowed)
        ngrams = NGrams(text, 0, LONGEST).ngrams(LONGEST)[:100] + [(3, 3, 3, 3, 3)]
        state = states_of(index, ngrams, size=128)
        logits = np.random.default_rng(seed).normal(size=(1, 128, vocab + 2)).astype(np.float32)
        found = best(index, state, jnp.asarray(logits), k, narrow, few_wide, looked_up, normalize)
        found, ending = jax.tree.map(np.asarray, found), found.ending
        assert ending == eos and found.token.shape == (1, 128, k + eos)
        normalized = scipy.special.log_softmax(logits[0], axis=-1)
        for i, ngram in enumerate(ngrams):
            following = set(reference.following.get(ngram, ()))
            ends = eos and bool(ngram) and ngram in reference.following
            scores = normalized[i]
            over = [*following, *([vocab - 1] if ends else [])]
            if normalize == "constraint" and over:
                scores = logits[0, i] - np.logaddexp.reduce(logits[0, i, over])
            expected = sorted(following, key=lambda token: -scores[token])[:k]
            valid = found.valid[0, i, :k]
            assert found.token[0, i, :k][valid].tolist() == expected
            np.testing.assert_allclose(found.log_prob[0, i, :k][valid], scores[expected], atol=1e-5)
            if eos:
                assert found.valid[0, i, k] == ends
                assert not ends or abs(found.log_prob[0, i, k] - scores[vocab - 1]) < 1e-5
        after = jax.tree.map(lambda x: x[0], found.next_state)
        if normalize == "constraint":  # no mass at all is normalised to none
            nothing = best(index, state, jnp.full_like(logits, -np.inf), k, narrow, few_wide, looked_up, normalize)
            assert (np.asarray(nothing.log_prob) == -np.inf).all() and np.asarray(nothing.valid).any()
        dead = ~found.valid[0]
        assert (after.low[dead] == after.high[dead]).all() and (after.low < after.high)[~dead].all()


@settings(max_examples=3)
@given(seed=st.integers(0, 2**20), filtered=st.booleans())
def test_documents_of_ngrams(seed, filtered):
    text = make_text(seed, 20, documents=9)
    index = make_index(text, filters=True)
    allowed = np.random.default_rng(seed).random(9) < (0.4 if filtered else 1.0)
    index = index.restrict(jnp.asarray(allowed)[None])
    reference = NGrams(text, 0, LONGEST, allowed=allowed)
    ngrams = NGrams(text, 0, LONGEST).ngrams(LONGEST)[:256]
    state = states_of(index, ngrams)
    found, number = jax.tree.map(lambda x: np.asarray(x)[0], documents(index, state))
    located = jax.tree.map(lambda x: np.asarray(x)[0], locate(index, state))
    mask, counts = np.asarray(allowed_tokens(index, state))[0], np.asarray(call(index, "count", state))[0]
    for i, ngram in enumerate(ngrams):
        having = {document for document, _, _ in reference.places.get(ngram, ())}
        assert set(located.document[i].tolist()) - {-1} <= having
        listed = found[i][found[i] >= 0].tolist()
        assert set(listed) <= having and len(set(listed)) == len(listed) == min(3, len(having)), ngram
        assert number[i] == min(4, len(having))
        assert set(np.flatnonzero(mask[i]).tolist()) == set(reference.following.get(ngram, ()))
        assert not ngram or counts[i] == len(reference.places.get(ngram, ()))


def test_filters_of_a_batch_are_each_queries_own():
    text = make_text(3, 20)
    index = make_index(text, filters=True)
    allowed = np.random.default_rng(0).random((4, 6)) < 0.5
    restricted = index.restrict(jnp.asarray(allowed))
    counts = np.asarray(next_counts(restricted, call(index, "initial_state", batch=4)))[:, 0]
    for query in range(4):
        following = NGrams(text, 0, 1, allowed=allowed[query]).following.get((), {})
        assert {token: count for token, count in enumerate(counts[query].tolist()) if count} == dict(following)


def test_a_second_filter_allows_nothing_that_the_first_did_not():
    index = make_index(make_text(4, 20), filters=True)
    first, second = np.random.default_rng(0).random((2, 3, 6)) < 0.6
    twice, once = index.restrict(first).restrict(second), index.restrict(first & second)
    np.testing.assert_array_equal(twice.filter, once.filter)
    with pytest.raises(InputError, match=r"Give booleans .3, 6."):
        twice.restrict(second[:1])


def test_filters_of_other_queries_are_never_taken():
    """In an index of several blocks; the filter of one query serves any number."""
    rng = np.random.default_rng(0)
    text = TokenText.of([rng.integers(0, 20, 300) for _ in range(6)], 20)
    index = FMIndex.from_text(text, filters=True)
    allowed = np.array([False, True, False, True, False, True])
    single = index.restrict(allowed[None])
    assert single.filter.shape[1] > 1
    following = NGrams(text, 0, 1, allowed=allowed).following[()]
    counts = np.asarray(next_counts(single, call(index, "initial_state", batch=3)))[:, 0]
    np.testing.assert_array_equal(counts, [[following[token] for token in range(20)]] * 3)
    with pytest.raises(InputError, match="3 queries under filters of 2"):
        next_counts(index.restrict(np.stack([allowed, ~allowed])), index.initial_state(3))


@pytest.mark.parametrize("unroll, eos", [(1, True), pytest.param(None, False, marks=pytest.mark.slow)])
def test_beam_search_finds_what_plain_beam_search_over_ngrams_finds(unroll, eos):
    vocab, beams, steps = 20, 4, 3
    for seed in range(2):
        text = dataclasses.replace(make_text(seed, vocab - 1, views=2), vocab_size=vocab)
        index = make_index(text, eos_id=vocab - 1 if eos else None)
        decoder = TableDecoder.random(seed, vocab, steps)
        queries = np.random.default_rng(seed).normal(size=(3, 8))
        found = search(
            decoder, decoder.init_cache(queries, beams, steps), index, beams=beams, max_len=steps, unroll=unroll
        )
        ngrams = NGrams(text, 0, steps)
        for query in range(3):
            reference = Reference(decoder, queries[query], "vocabulary", [])
            expected = plain_search(reference, ngrams, beams, steps, vocab - 1 if eos else None)
            valid = np.asarray(found.valid[query])
            assert valid.sum() == len(expected)
            lengths = np.asarray(found.lengths[query])[valid]
            rows = np.asarray(found.sequences[query])[valid]
            assert [tuple(row[:n].tolist()) for row, n in zip(rows, lengths, strict=True)] == [s for _, s in expected]
            np.testing.assert_allclose(np.asarray(found.scores[query])[valid], [s for s, _ in expected], atol=1e-4)


def test_ngrams_given_are_scored_over_what_may_follow_them():
    vocab, steps = 20, 3
    text = dataclasses.replace(make_text(0, vocab - 1, views=2), vocab_size=vocab)
    index = make_index(text)
    decoder = TableDecoder.random(0, vocab, steps)
    query = np.random.default_rng(0).normal(size=(1, 8))
    ngrams = NGrams(text, 0, steps)
    reference = Reference(decoder, query[0], "constraint", [])
    for prefix in ngrams.following:
        reference.following[prefix] = set(ngrams.following[prefix])
    sequences = [ngram for ngram in ngrams.ngrams(steps) if len(ngram) == steps]
    scores = jax.jit(score_docids, static_argnames="normalize")(
        decoder,
        decoder.init_cache(query, len(sequences) + 1, steps),
        np.asarray([[*sequences, (19, 19, 19)]]),
        np.full((1, len(sequences) + 1), steps),
        normalize="constraint",
        constraint=index,
    )
    np.testing.assert_allclose(scores[0, :-1], [reference.score(ngram) for ngram in sequences], atol=1e-4)
    assert scores[0, -1] == -np.inf


def plain_search(reference, ngrams, beams, steps, eos):
    """Beam search with lists; n-grams are complete at the last step, or wherever EOS ends them."""
    live, complete = [(0.0, ())], []
    for _ in range(steps):
        extended, ended = [], []
        for score, ngram in live:
            reference.following[ngram] = set(ngrams.following[ngram]) | ({eos} if eos is not None and ngram else set())
            for token, log_prob in reference.next(ngram).items():
                (ended if token == eos else extended).append((score + log_prob, (*ngram, token)))
        complete = sorted(complete + ended, reverse=True)[:beams]
        live = sorted(extended, reverse=True)[:beams]
    return sorted(complete + live, reverse=True)[:beams]


def test_a_state_after_a_token_that_does_not_follow_is_dead_for_ever():
    text = TokenText.of([[1, 2, 3], [2, 1]], 6)
    index = FMIndex.from_text(text, eos_id=0)
    wrong = np.array([[2, 2, 1], [4, 1, 1], [3, 2, 1], [-5, 1, 1], [6, 1, 1], [99, 1, 1], [1, 0, 2], [0, 1, 2]])
    state = call(index, "initial_state", batch=len(wrong))
    for token in wrong.T:
        state = advance(index, state, token[:, None])
    allowed, accepts, count, found = jax.tree.map(np.asarray, about(index, state))
    assert not allowed.any() and not accepts.any() and not count.any() and (found[0] == -1).all()
    ended = advance(index, index.find([[1, 2]] * len(wrong)), np.zeros((len(wrong), 1), np.int32))
    allowed, accepts, _, found = jax.tree.map(np.asarray, about(index, ended))
    assert accepts.all() and not allowed.any() and np.asarray(ended.ended).all()
    assert found[0][0].tolist() == [[0, -1, -1]]


def test_keys_tell_ngrams_apart():
    text = make_text(1, 20, views=2)
    index = make_index(text)
    ngrams = NGrams(text, 0, LONGEST).ngrams(LONGEST)[:256]
    keys = np.asarray(call(index, "key", states_of(index, ngrams)))[0, : len(ngrams)]
    assert len({tuple(key) for key in keys.tolist()}) == len(ngrams)


def test_views_by_name():
    text = TokenText.of([[1, 2], [2, 3, 4]], 6, views=[0, 1], view_names=("title", "body"))
    index = FMIndex.from_text(text)
    following = {
        view: set(np.flatnonzero(np.asarray(allowed_tokens(index, index.initial_state(1, view)))[0, 0]).tolist())
        for view in (None, "title", "^title", "body", "^body")
    }
    assert following == {None: {1, 2}, "title": {1, 2}, "^title": {1}, "body": {2, 3, 4}, "^body": {2}}
    assert call(index, "count", index.find([[2], [1]], "body")).tolist() == [[1], [0]]
    with pytest.raises(InputError, match="no such view.*title, body"):
        index.initial_state(1, "abstract")
    with pytest.raises(InputError, match="no such view.*got 4"):
        index.initial_state(1, 4)
    for views in (np.array([0, 4]), jnp.array([0, -1]), np.int64(4)):
        with pytest.raises(InputError, match="no such view"):
            index.initial_state(2, views)
    rows = index.initial_state(3, jnp.array([1, 0, 3]))
    assert call(index, "count", rows).tolist() == [[4], [3], [1]]


def test_levels_are_refused():
    index = FMIndex.from_text(TokenText.of([[1, 2]], 6))
    scores = LogitScores(jnp.zeros((1, 1, 6)), "level", levels=((0, 6),))
    with pytest.raises(InputError, match="no blocks of tokens per level"):
        index.candidates(index.initial_state(1), scores, 2)


def test_large_vocabularies_and_many_symbols():
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 200_000, 300) for _ in range(4)] + [np.full(50, 199_999)]
    text = TokenText.of(rows, 200_000)
    index = FMIndex.from_text(text)
    reference = NGrams(text, 0, 2)
    ngrams = [(int(row[5]),) for row in rows] + [(199_999, 199_999)]
    state = index.find(ngrams)
    for ngram, counts in zip(ngrams, np.asarray(next_counts(index, state))[:, 0], strict=True):
        assert {token: counts[token] for token in np.flatnonzero(counts)} == dict(reference.following[ngram])


def test_real_text_with_ranges_of_every_width(shared_data):
    """The limits between the ways of finding candidates as they are: 200,000 bytes of real text."""
    vocabulary = ByteVocabulary()
    corpus = read_beir(shared_data / "nq_boolq_dev").corpus
    rows = [vocabulary.encode(text) for text in itertools.islice(corpus.texts, 400)]
    index = FMIndex.from_text(TokenText.of(rows, vocabulary.size))
    text = [bytes(token - 3 for token in row) for row in rows]
    ngrams = [b"", b"e", b" ", b"th", b" the", b"t", b"an", b"s ", b" of the", b"X", b"was born", b"qq"]
    state = jax.tree.map(
        lambda x: np.asarray(x).reshape(1, -1), index.find([[byte + 3 for byte in ngram] for ngram in ngrams])
    )
    widths = np.asarray(call(index, "count", state))[0]
    assert widths.max() > fm_index_candidates.READ and (widths > 1024).mean() > fm_index_candidates.FEW_WIDE
    logits = np.random.default_rng(0).normal(size=(1, len(ngrams), vocabulary.size)).astype(np.float32)
    candidates = jax.jit(lambda index, state, logits: index.candidates(state, LogitScores(logits), 6))
    found = jax.tree.map(np.asarray, candidates(index, state, logits))
    mask = np.asarray(allowed_tokens(index, state))[0]
    for i, ngram in enumerate(ngrams):
        after = re.compile(b"(?=" + re.escape(ngram) + b"(.))", re.DOTALL)
        expected = np.unique([match[1][0] + 3 for row in text for match in after.finditer(row)]).astype(int)
        np.testing.assert_array_equal(np.flatnonzero(mask[i]), expected)
        best_first = expected[np.argsort(-logits[0, i, expected])][:6]
        np.testing.assert_array_equal(found.token[0, i][found.valid[0, i]], best_first)
