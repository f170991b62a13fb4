"""Merging, groups, backoff and history of beam search, against the same with lists."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax.constraints import Trie
from gr_jax.decoding import beam_search, score_docids
from gr_jax.decoding.backoff import Backoff
from gr_jax.decoding.groups import choose_by_group
from gr_jax.decoding.merging import merge_equal
from gr_jax.decoding.processors import Temperature
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from tests.decoding.plain_search import TextTrie, brute_force_texts, merge_plainly, search_plainly
from tests.decoding.table_decoder import Reference, TableDecoder, plain_beam_search

VOCAB, D, STEPS = 13, 8, 4
LETTERS = np.asarray([0, 1, 2, 2, 3, 3, 4, 5, 5, 6, 7, 8, 9])
search = jax.jit(
    beam_search,
    static_argnames=(
        "beams max_len normalize length_penalty batch unroll merge groups backoff history end_within_beams".split()
    ),
)


def make(eos, count=60, seed=0):
    """Docids of up to 3 tokens among 7, some of which are spellings of the same letter."""
    rng = np.random.default_rng(seed)
    sequences = {tuple(rng.integers(2, 9, rng.integers(1, 4) if eos else 3).tolist()) for _ in range(count)}
    docids = Docids.build(sorted(sequences), vocab_size=VOCAB, eos_id=1 if eos else None)
    targets = [tuple(docids.target(row)) for row in range(len(docids))]
    return Trie.from_docids(docids), targets, TableDecoder.random(seed, VOCAB, STEPS)


QUERIES = np.random.default_rng(5).normal(size=(2, D))


def run(decoder, constraint, beams, cache_beams=None, **options):
    cache = decoder.init_cache(QUERIES, cache_beams or beams, STEPS)
    return jax.tree.map(np.asarray, search(decoder, cache, constraint, beams=beams, max_len=STEPS, **options))


def found_of(beams, query):
    return [
        (float(beams.scores[query, i]), tuple(beams.sequences[query, i, : beams.lengths[query, i]].tolist()))
        for i in range(beams.scores.shape[1])
        if beams.valid[query, i]
    ]


def assert_same(actual, expected):
    assert [sequence for _, sequence in actual] == [sequence for _, sequence in expected]
    np.testing.assert_allclose([s for s, _ in actual], [s for s, _ in expected], atol=1e-4)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**20), how=st.sampled_from(["max", "sum"]), missing=st.sampled_from([0.0, 0.5, 1.0]))
def test_merging_leaves_the_best_of_each_text(seed, how, missing):
    rng = np.random.default_rng(seed)
    scores = np.where(rng.random((3, 40)) < missing, -np.inf, rng.integers(-9, 0, (3, 40))).astype(np.float32)
    keys = rng.integers(0, 4, (3, 40, 2)).astype(np.int32)
    merged = np.asarray(jax.jit(merge_equal, static_argnums=2)(scores, keys, how))
    for row in range(3):
        expected = np.full(40, -np.inf)
        for key in {tuple(key) for key in keys[row].tolist()}:
            same = [i for i in range(40) if tuple(keys[row, i]) == key]
            best = max(same, key=lambda i: (scores[row, i], -i))
            expected[best] = scores[row, best] if how == "max" else np.logaddexp.reduce(scores[row, same])
        np.testing.assert_allclose(merged[row], expected, atol=1e-5)


def some(default, *rest):
    """These by default, and all others with --slow."""
    every = itertools.product(*rest)
    return [*default, *(pytest.param(*one, marks=pytest.mark.slow) for one in every if one not in default)]


@pytest.mark.parametrize(
    ("how", "eos", "unroll", "alpha"),
    some([("max", True, 1, 0.7), ("sum", False, None, 0.0)], ("max", "sum"), (True, False), (None, 1), (0.0, 0.7)),
)
def test_hypotheses_of_the_same_text_are_merged(how, eos, unroll, alpha):
    trie, targets, decoder = make(eos)
    constraint = TextTrie(trie, jnp.asarray(LETTERS, jnp.int32))
    few = run(decoder, constraint, 4, merge=how, unroll=unroll, length_penalty=alpha)
    for query in range(2):
        reference = Reference(decoder, QUERIES[query], "vocabulary", targets)
        expected, _ = search_plainly(reference, targets, 4, STEPS, letters=LETTERS, merge=how, alpha=alpha)
        assert_same(found_of(few, query), expected)
        assert len({tuple(LETTERS[list(t)]) for _, t in expected}) == len(expected)


@pytest.mark.parametrize("how", ["sum", pytest.param("max", marks=pytest.mark.slow)])
def test_merged_texts_that_differ_in_their_last_letter_only_are_those_of_brute_force(how):
    """Where merged hypotheses are complete, nothing depends on which of them went on."""
    docids = Docids.build([(token,) for token in range(2, 12)], vocab_size=VOCAB)
    targets = [tuple(docids.target(row)) for row in range(len(docids))]
    constraint = TextTrie(Trie.from_docids(docids), jnp.asarray(LETTERS, jnp.int32))
    decoder = TableDecoder.random(3, VOCAB, STEPS)
    found = run(decoder, constraint, 10, merge=how)
    for query in range(2):
        reference = Reference(decoder, QUERIES[query], "vocabulary", targets)
        expected = brute_force_texts(reference, targets, LETTERS, how)
        assert_same(found_of(found, query), expected)
        assert len(expected) < len(targets)


@pytest.mark.parametrize(("eos", "unroll"), some([(True, 1), (False, None)], (True, False), (None, 1)))
def test_groups_avoid_what_groups_before_them_chose(eos, unroll):
    trie, targets, decoder = make(eos)
    for diversity in (0.0, 1.5):
        found = run(decoder, trie, 6, groups=3, diversity=diversity, unroll=unroll)
        forced = jax.jit(score_docids)(
            decoder, decoder.init_cache(QUERIES, 6, STEPS), jnp.asarray(found.sequences), jnp.asarray(found.lengths)
        )
        np.testing.assert_allclose(found.scores[found.valid], np.asarray(forced)[found.valid], atol=1e-4)
        for query in range(2):
            reference = Reference(decoder, QUERIES[query], "vocabulary", targets)
            expected, _ = search_plainly(reference, targets, 6, STEPS, groups=3, diversity=diversity)
            assert_same(found_of(found, query), expected)
            if diversity == 0.0:  # three times the same
                alone = plain_beam_search(reference, targets, 2, STEPS)
                assert sorted(t for _, t in expected) == sorted(t for _, t in alone * 3)


def test_docids_that_several_groups_found_are_merged():
    trie, targets, decoder = make(True)
    found = run(decoder, trie, 6, groups=3, merge="max")
    for query in range(2):
        reference = Reference(decoder, QUERIES[query], "vocabulary", targets)
        assert_same(found_of(found, query), plain_beam_search(reference, targets, 2, STEPS))


@pytest.mark.parametrize(("eos", "unroll"), some([(1, None), (None, 1)], (1, None), (None, 1)))
def test_groups_with_fewer_extensions_than_beams(eos, unroll):
    docids = Docids.build([[3, 4, 5], [3, 4, 6]], vocab_size=VOCAB, eos_id=eos)
    targets = [tuple(docids.target(row)) for row in range(2)]
    decoder = TableDecoder.random(0, VOCAB, STEPS)
    found = run(decoder, Trie.from_docids(docids), 6, groups=2, diversity=0.5, unroll=unroll)
    for query in range(2):
        reference = Reference(decoder, QUERIES[query], "vocabulary", targets)
        both = plain_beam_search(reference, targets, 3, STEPS)
        assert_same(found_of(found, query), [item for item in both for _ in range(2)])  # each group finds all there is


def test_what_several_groups_found_is_not_summed():
    trie, targets, decoder = make(True)
    found = run(decoder, TextTrie(trie, jnp.asarray(LETTERS, jnp.int32)), 6, groups=3, merge="sum", unroll=1)
    for query in range(2):  # three times the same group
        reference = Reference(decoder, QUERIES[query], "vocabulary", targets)
        alone, _ = search_plainly(reference, targets, 2, STEPS, letters=LETTERS, merge="sum")
        assert_same(found_of(found, query), alone)


def test_one_group_without_diversity_is_beam_search():
    scores = np.random.default_rng(0).normal(size=(2, 30)).astype(np.float32)
    tokens = np.zeros((2, 30), np.int32)
    index, kept = choose_by_group(scores, tokens, jnp.zeros((2, 30), jnp.int32), groups=1, k=5, diversity=0.0)
    np.testing.assert_array_equal(index, np.argsort(-scores)[:, :5])
    np.testing.assert_array_equal(kept, -np.sort(-scores)[:, :5])


@pytest.mark.parametrize(("threshold", "unroll"), some([(-2.0, 1), (0.0, None)], (-np.inf, -2.0, 0.0), (None, 1)))
def test_siblings_re_enter_after_an_unsure_prefix(threshold, unroll):
    trie, targets, decoder = make(True)
    backoff = Backoff(extra=3, threshold=threshold)
    found = run(decoder, trie, 2, cache_beams=5, backoff=backoff, unroll=unroll)
    for query in range(2):
        reference = Reference(decoder, QUERIES[query], "vocabulary", targets)
        expected, _ = search_plainly(reference, targets, 2, STEPS, backoff=backoff)
        assert_same(found_of(found, query), expected)
        if threshold == -np.inf:
            assert_same(expected, plain_beam_search(reference, targets, 2, STEPS))
        if threshold == 0.0:
            assert_same(expected, plain_beam_search(reference, targets, 5, STEPS)[:2])


@pytest.mark.parametrize(("eos", "unroll"), some([(True, 1), (False, None)], (True, False), (None, 1)))
def test_history_holds_every_hypothesis_that_was_kept(eos, unroll):
    trie, targets, decoder = make(eos)
    found = run(decoder, trie, 4, history=True, unroll=unroll, cache_beams=4)
    history, sequences = found.history, np.asarray(jax.jit(lambda history: history.sequences())(found.history))
    assert history.complete[1, 2].tolist() == [False] * 4 + [True] * 4
    plain = run(decoder, trie, 4, unroll=unroll) if unroll else found._replace(history=None)
    jax.tree.map(np.testing.assert_array_equal, found._replace(history=None), plain)
    states = jax.tree.map(lambda leaf: leaf.reshape(2, -1, *leaf.shape[3:]), history.states)
    documents = np.asarray(jax.jit(lambda trie, states: trie.documents(states, 99)[0])(trie, states)).reshape(
        2, STEPS, 8, 99
    )
    for query in range(2):
        reference = Reference(decoder, QUERIES[query], "vocabulary", targets)
        _, steps = search_plainly(reference, targets, 4, STEPS)
        for step, (going_on, ended) in enumerate(steps):
            for columns, expected in ((slice(0, 4), going_on), (slice(4, 8), ended)):
                valid = history.valid[query, step, columns]
                kept = sequences[query, step, columns][valid][:, : step + 1]
                assert_same(
                    list(zip(history.scores[query, step, columns][valid], map(tuple, kept.tolist()), strict=True)),
                    expected if step < STEPS - 1 or columns.start else [],
                )
            for column in np.flatnonzero(history.valid[query, step]):
                prefix = tuple(sequences[query, step, column, : step + 1].tolist())
                below = [row for row, target in enumerate(targets) if target[: step + 1] == prefix]
                assert [d for d in documents[query, step, column].tolist() if d >= 0] == below


def test_processors_change_what_is_searched():
    trie, targets, decoder = make(True)
    found = run(decoder, trie, 4, processors=(Temperature(2.0), Temperature(0.25)), unroll=1)
    plain = run(decoder, trie, 4, unroll=1)
    np.testing.assert_array_equal(found.sequences, plain.sequences)
    np.testing.assert_allclose(found.scores, plain.scores * 2.0, rtol=1e-5)


class Viewed:
    """Hands the trie's states out where the right view is asked for."""

    def __init__(self, trie):
        self.trie, self.open_ended = trie, False

    def __getattr__(self, name):
        return getattr(self.trie, name)

    def initial_state(self, batch, view=None):
        assert view == ("title", "body")
        return self.trie.initial_state(batch)


def test_the_view_reaches_the_constraint():
    trie, _, decoder = make(True)
    options = {"beams": 2, "max_len": 2, "view": ("title", "body")}
    cache = decoder.init_cache(QUERIES, 2, 2)
    found = jax.eval_shape(lambda cache: beam_search(decoder, cache, Viewed(trie), **options), cache)
    assert found.sequences.shape == (2, 2, 2)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"merge": "mean"}, "way to merge"),
        ({"groups": 0}, "equal groups"),
        ({"groups": 4}, "equal groups"),
        ({"groups": 3, "diversity": -1.0}, "diversity"),
        ({"groups": 3, "end_within_beams": True}, "neither"),
        ({"groups": 3, "backoff": Backoff(1, 0.0)}, "neither"),
        ({"normalize": "none", "backoff": Backoff(1, 0.0)}, "probability"),
    ],
)
def test_refuses(options, words):
    with pytest.raises(InputError, match=words):
        beam_search(None, None, None, beams=6, max_len=3, **options)
    with pytest.raises(InputError, match="needs siblings"):
        Backoff(0, 0.0)


def test_merging_plainly_is_what_it_says():
    items = [(-1.0, (2, 6)), (-2.0, (3, 6)), (-5.0, (4, 6))]
    assert merge_plainly(items, LETTERS, "max") == [(-1.0, (2, 6)), (-5.0, (4, 6))]
    assert merge_plainly(items, LETTERS, "sum")[0][0] == pytest.approx(np.log(np.exp(-1) + np.exp(-2)))
