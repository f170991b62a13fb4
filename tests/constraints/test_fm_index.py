import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax.constraints import fm_index_candidates
from gr_jax.constraints.fm_index import FMIndex
from gr_jax.decoding import LogitScores
from gr_jax.docids.spans import TokenText
from tests.constraints.ngram_reference import NGrams, padded

pytest.importorskip("pydivsufsort")

LONGEST = 5
walk = jax.jit(lambda index, ngrams, view: index.walk(ngrams, view))
locate = jax.jit(lambda index, state: index.locate(state, 8))
next_counts = jax.jit(lambda index, state: index.next_counts(state))


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
    samples = jnp.pad(index.samples, (0, SAMPLES - len(index.samples)))
    return dataclasses.replace(index, samples=samples, sample_rate=1)  # only the samples depend on the rate


def states_of(index, ngrams, view=0, size=256):
    """States [1, size] after n-grams; those that are too many are left out."""
    rows = padded(ngrams[:size] + [()] * (size - len(ngrams)), LONGEST)
    state = walk(index, jnp.asarray(rows), jnp.full(size, view, jnp.int32))
    return jax.tree.map(lambda x: x.reshape(1, size), state)


@settings(max_examples=12)
@given(seed=st.integers(0, 2**20), vocab=st.sampled_from([5, 50]), sample_rate=st.sampled_from([1, 3, 16]))
def test_what_follows_and_where_every_ngram_stands(seed, vocab, sample_rate):
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


@functools.partial(jax.jit, static_argnames=("k", "narrow", "looked_up", "normalize"))
def best(index, state, logits, k, narrow, looked_up, normalize="vocabulary"):
    """Candidates of states [1, n], with other limits between the ways of finding them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fm_index_candidates, "NARROW", narrow)
        patch.setattr(fm_index_candidates, "LOOKED_UP", looked_up)
        patch.setattr(fm_index_candidates, "LOOKED_UP_EACH", 1)
        return index.candidates(state, LogitScores(logits, normalize), k)


@settings(max_examples=6)
@given(
    seed=st.integers(0, 2**20),
    way=st.sampled_from([(1024, 64, "vocabulary"), (4, 6, "vocabulary"), (1, 50, "vocabulary"), (4, 6, "constraint")]),
    eos=st.booleans(),
)
def test_candidates_are_the_best_allowed_tokens(seed, way, eos):
    vocab, k, (narrow, looked_up, normalize) = 50, 5, way
    text = make_text(seed, vocab - 1)
    text = dataclasses.replace(text, vocab_size=vocab)
    index = make_index(text, eos_id=vocab - 1 if eos else None)
    reference = NGrams(text, 0, LONGEST)
    ngrams = reference.ngrams(LONGEST)[:100] + [(3, 3, 3, 3, 3)]
    state = states_of(index, ngrams, size=128)
    logits = np.random.default_rng(seed).normal(size=(1, 128, vocab + 2)).astype(np.float32)
    found = best(index, state, jnp.asarray(logits), k, narrow, looked_up, normalize)
    found, ending = jax.tree.map(np.asarray, found), found.ending
    assert ending == eos and found.token.shape == (1, 128, k + eos)
    normalized = np.asarray(jax.nn.log_softmax(logits[0], axis=-1))
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
    dead = ~found.valid[0]
    assert (after.low[dead] == after.high[dead]).all() and (after.low < after.high)[~dead].all()
