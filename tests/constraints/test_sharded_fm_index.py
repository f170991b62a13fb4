"""An FM-index in parts against one of the whole text, which is built anew."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax.constraints import FMIndex, ShardedFMIndex, fm_index_candidates, load_constraint, save_constraint
from gr_jax.decoding import LogitScores, beam_search
from gr_jax.docids.spans import TokenText
from gr_jax.errors import InputError
from gr_jax.text.vocabulary import ByteVocabulary
from tests.compiled import call
from tests.constraints.ngram_reference import NGrams, padded
from tests.decoding.table_decoder import TableDecoder

pytest.importorskip("pydivsufsort")

VOCAB, LONGEST, STATES = 24, 4, 320
EOS = VOCAB - 1
LENGTHS = (9, 0, 11, 3, 6, 1)  # of the segments of a part and view
DOCUMENTS = 4  # of a part; the last has no text
walk = jax.jit(lambda index, ngrams, view: index.walk(ngrams, view))
counts = jax.jit(lambda index, state: (index.count(state), index.next_counts(state), index.allowed(state)))
advance = jax.jit(lambda index, state, token: index.advance(state, token))
documents = jax.jit(lambda index, state: index.documents(state, 3))
search = jax.jit(beam_search, static_argnames=("beams", "max_len", "merge"))


def text_of(seed, parts, views=2):
    """Text of documents of several parts. Each part has most tokens, none has all, and some runs are everywhere.
    Shapes do not depend on the seed, so nothing is compiled again."""
    rng = np.random.default_rng(seed)
    run = rng.integers(3, 9, 3)
    segments, owners, of_view = [], [], []
    for part in range(parts):
        own = np.arange(2 * part, 2 * part + 9)  # tokens
        rows = [rng.choice(own, length) for length in rng.permuted(np.tile(LENGTHS, (views, 1)), axis=1).reshape(-1)]
        for row in rows:
            if len(row) > 5:
                row[1:4] = run
        whole = [row for row in rows if len(row) > 5]
        places = [(row, i) for row in whole for i in (0, *range(4, len(row)))]
        for token, place in zip(own, rng.permutation(len(places))[: len(own)], strict=True):
            row, i = places[place]
            row[i] = token
        segments += rows
        owners += (part * DOCUMENTS + rng.integers(0, DOCUMENTS - 1, len(rows))).tolist()
        of_view += np.repeat(np.arange(views), len(LENGTHS)).tolist()
    return TokenText.of(
        segments, VOCAB, documents=owners, views=of_view, view_names=("body", "title")[:views],
        num_documents=parts * DOCUMENTS,
    )  # fmt: skip


def index_of(text, eos_id=None):
    """With samples whose shape is always the same."""
    index = FMIndex.from_text(text, eos_id=eos_id, filters=True, sample_rate=1)
    samples = np.pad(index.samples, (0, 400 - len(index.samples)))
    return dataclasses.replace(index, samples=jnp.asarray(samples))


def sharded(text, parts, eos_id=None):
    texts = [text.between(DOCUMENTS * part, DOCUMENTS * (part + 1)) for part in range(parts)]
    return ShardedFMIndex(tuple(index_of(one, eos_id) for one in texts))


def states_of(index, ngrams, view):
    """States [1, 320] after n-grams."""
    rows = padded(ngrams + [(VOCAB - 2,)] * (STATES - len(ngrams)), LONGEST)  # which follows nothing
    state = walk(index, jnp.asarray(rows), jnp.full(STATES, view, jnp.int32))
    return jax.tree.map(lambda x: np.asarray(x).reshape(1, STATES, *x.shape[2:]), state)


def ngrams_of(text, view):
    """What stands in the text, shuffled so that all lengths are among the first, and some that do not stand there."""
    found = NGrams(text, view % 2, LONGEST, anchored=view >= 2).ngrams(LONGEST)
    some = np.random.default_rng(0).permutation(len(found))[: STATES - 3]
    return [*(found[i] for i in sorted(some)), (5, 5, 5, 5), (VOCAB - 2,)]


@settings(max_examples=6)
@given(seed=st.integers(0, 2**20), view=st.integers(0, 3))
def test_counts_and_what_follows(seed, view):
    text = text_of(seed, 3)
    one, other = index_of(text, EOS), sharded(text, 3, EOS)
    ngrams = ngrams_of(text, view)
    states = [states_of(index, ngrams, view) for index in (one, other)]
    for column in zip(counts(one, states[0]), counts(other, states[1]), strict=True):
        np.testing.assert_array_equal(*column)
    token = np.random.default_rng(seed).integers(-1, VOCAB, (1, STATES)).astype(np.int32)
    for now in (token, np.full_like(token, EOS), token):
        states = [advance(index, state, now) for index, state in zip((one, other), states, strict=True)]
        for column in zip(counts(one, states[0]), counts(other, states[1]), strict=True):
            np.testing.assert_array_equal(*column)
        for name in ("view", "depth", "ended"):
            np.testing.assert_array_equal(getattr(states[0], name), getattr(states[1], name))
        accepts = [call(index, "accepts", state) for index, state in zip((one, other), states, strict=True)]
        np.testing.assert_array_equal(*accepts)


@settings(max_examples=4)
@given(seed=st.integers(0, 2**20), filtered=st.booleans())
def test_documents_and_filters(seed, filtered):
    text = text_of(seed, 2)
    allowed = np.random.default_rng(seed).random((1, 2 * DOCUMENTS)) < (0.5 if filtered else 1.0)
    unfiltered = index_of(text), sharded(text, 2)
    one, other = (index.restrict(jnp.asarray(allowed)) for index in unfiltered)
    ngrams = ngrams_of(text, 0)
    states = [states_of(index, ngrams, 0) for index in (one, other)]
    for column in zip(counts(one, states[0]), counts(other, states[1]), strict=True):
        np.testing.assert_array_equal(*column)
    # States that lead to allowed documents know how often their n-grams stand in all.
    np.testing.assert_array_equal(
        *(call(index, "count", state) for index, state in zip(unfiltered, states, strict=True))
    )
    found, number = (np.asarray(x)[0] for x in documents(other, states[1]))
    np.testing.assert_array_equal(number, documents(one, states[0])[1][0])
    places = NGrams(text, 0, LONGEST, allowed=allowed[0]).places
    for ngram, row in zip(ngrams, found, strict=False):
        having = {document for document, _, _ in places.get(ngram, ())}
        listed = row[row >= 0].tolist()
        assert set(listed) <= having and len(set(listed)) == len(listed) == min(3, len(having))
        assert (row[len(listed) :] == -1).all()


@functools.partial(jax.jit, static_argnames=("k", "narrow", "few_wide", "looked_up", "normalize"))
def best(index, state, logits, k, narrow, few_wide, looked_up, normalize):
    """Candidates with other limits between the ways of finding them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fm_index_candidates, "NARROW", narrow)
        patch.setattr(fm_index_candidates, "FEWEST", 2)
        patch.setattr(fm_index_candidates, "LOOKED_UP", looked_up)
        patch.setattr(fm_index_candidates, "LOOKED_UP_EACH", 1)
        patch.setattr(fm_index_candidates, "FEW_WIDE", few_wide)
        patch.setattr(fm_index_candidates, "READ", 16)
        patch.setattr(fm_index_candidates, "READ_AT_ONCE", 8)
        return index.candidates(state, LogitScores(logits, normalize), k)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize(
    "narrow, few_wide, looked_up, normalize, eos, filtered",
    [
        (3, 0.0, 6, "vocabulary", True, True),  # some certified, some collected
        (4, 0.0, 6, "constraint", False, True),
        # Read where they stand, some at once and some one by one.
        pytest.param(1024, 0.5, 64, "vocabulary", False, False, marks=pytest.mark.slow),
        pytest.param(4, 0.0, 6, "constraint", True, False, marks=pytest.mark.slow),
    ],
)
def test_candidates(narrow, few_wide, looked_up, normalize, eos, filtered, seed):
    k = 5
    text, eos_id = text_of(seed, 2), EOS if eos else None
    indexes = index_of(text, eos_id), sharded(text, 2, eos_id)
    if filtered:
        allowed = jnp.asarray(np.random.default_rng(seed).random((1, 2 * DOCUMENTS)) < 0.5)
        indexes = tuple(index.restrict(allowed) for index in indexes)
    ngrams = [(), *ngrams_of(text, 0)]
    logits = jnp.asarray(np.random.default_rng(seed).normal(size=(1, STATES, VOCAB + 2)), jnp.float32)
    states = [states_of(index, ngrams, 0) for index in indexes]
    settings = k, narrow, few_wide, looked_up, normalize
    found = [best(index, state, logits, *settings) for index, state in zip(indexes, states, strict=True)]
    assert found[0].ending == found[1].ending == eos
    valid = np.asarray(found[0].valid)
    np.testing.assert_array_equal(found[1].valid, valid)
    np.testing.assert_array_equal(found[1].token[valid], found[0].token[valid])
    np.testing.assert_allclose(found[1].log_prob[valid], found[0].log_prob[valid], atol=1e-6)
    after = [one.next_state for one in found]
    for name in ("depth", "ended", "view"):
        np.testing.assert_array_equal(getattr(after[0], name)[valid], getattr(after[1], name)[valid])
    flat = [jax.tree.map(lambda x: np.asarray(x).reshape(1, -1, *x.shape[3:]), state) for state in after]
    for method in ("accepts", "count"):
        one, other = (call(index, method, state) for index, state in zip(indexes, flat, strict=True))
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow  # what it stands on is shown above
def test_beam_search():
    """Equal n-grams of different ranges would be merged: there are none."""
    steps, beams = 2, 6
    text = text_of(5, 2)
    decoder = TableDecoder.random(0, VOCAB, steps)
    cache = decoder.init_cache(np.random.default_rng(0).normal(size=(3, 8)), beams, steps)
    one, other = (
        search(decoder, cache, index, beams=beams, max_len=steps, merge="sum")
        for index in (index_of(text), sharded(text, 2))
    )
    for name in ("sequences", "lengths", "valid"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)


def test_keys_tell_ngrams_apart():
    text = text_of(1, 2)
    index, ngrams = sharded(text, 2), ngrams_of(text, 0)[:-2]
    keys = np.asarray(call(index, "key", states_of(index, ngrams, 0)))[0, : len(ngrams)]
    assert len({tuple(key) for key in keys.tolist()}) == len(ngrams)


def test_rows_lead_to_documents():
    text = text_of(2, 2)
    one, other = index_of(text), sharded(text, 2)
    ngrams = ngrams_of(text, 0)
    ranges = [jax.tree.map(np.asarray, call(index, "rows", states_of(index, ngrams, 0))) for index in (one, other)]
    for place in range(40):
        found = []
        for index, (lows, highs) in zip((one, other), ranges, strict=True):
            low, high = lows[0, place], highs[0, place]
            rows = np.concatenate([np.arange(a, b) for a, b in zip(low, high, strict=True)]).astype(int)
            found.append(sorted(np.asarray(index.row_documents)[rows].tolist()))
        assert found[0] == found[1]


def test_through_a_folder(tmp_path):
    text = text_of(3, 2)
    index = ShardedFMIndex([FMIndex.from_text(text.between(first, first + 4), filters=True) for first in (0, 4)])
    save_constraint(tmp_path / "index", index)
    found = load_constraint(tmp_path / "index")
    assert isinstance(found, ShardedFMIndex) and found.nbytes == index.nbytes
    assert jax.tree.structure(found) == jax.tree.structure(index)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(index), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(InputError, match="vocabulary of 24 tokens"):
        ShardedFMIndex.load(tmp_path / "index", vocabulary=ByteVocabulary())
    file = tmp_path / "index" / "part_1" / "bwt.npy"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match="bwt.npy"):
        load_constraint(tmp_path / "index")


def test_parts_that_do_not_fit_are_refused():
    text = text_of(4, 2)
    index = sharded(text, 2)
    with pytest.raises(InputError, match="no parts"):
        ShardedFMIndex(())
    with pytest.raises(InputError, match="differ in their eos_id"):
        ShardedFMIndex((index.parts[0], index_of(text.between(0, 4), EOS)))
    with pytest.raises(InputError, match=r"Give booleans .batch, 8."):
        index.restrict(jnp.ones((1, 4), bool))
    with pytest.raises(InputError, match="no such view.*body, title"):
        index.initial_state(1, "abstract")
    with pytest.raises(InputError, match="no blocks of tokens per level"):
        scores = LogitScores(jnp.zeros((1, 1, VOCAB)), "level", levels=((0, VOCAB),))
        index.candidates(index.initial_state(1), scores, 2)
    with pytest.raises(InputError, match="a range of documents"):
        text.between(3, 9)
