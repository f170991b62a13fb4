import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax.constraints import Everything, Trie
from gr_jax.decoding import beam_search, sample, score_docids
from gr_jax.docids import Docids, atomic, hierarchical_kmeans
from gr_jax.errors import InputError
from tests.decoding.flat_trie import FlatTrie
from tests.decoding.table_decoder import Reference, TableDecoder, exhaustive, plain_beam_search

VOCAB, D = 13, 8
score = jax.jit(score_docids, static_argnames="normalize")
SETTINGS = ("beams", "max_len", "normalize", "length_penalty", "batch", "unroll", "end_within_beams")
search = jax.jit(beam_search, static_argnames=SETTINGS)
restrict = jax.jit(lambda trie, allowed: trie.restrict(allowed))


def make_docids(seed, count, max_len, *, eos, tokens=6):
    """Random docids of unequal lengths, with prefixes among them where there is EOS to end them."""
    rng = np.random.default_rng(seed)
    sequences = {tuple(rng.integers(2, 2 + tokens, rng.integers(1, max_len + 1)).tolist()) for _ in range(count)}
    if not eos:
        sequences = {s for s in sequences if not any(s != t and t[: len(s)] == s for t in sequences)}
    return Docids.build(sorted(sequences), vocab_size=VOCAB, eos_id=1 if eos else None)


def targets(docids):
    return [tuple(docids.target(row)) for row in range(len(docids))]


def found_of(beams, query=0):
    """(score, sequence) of the valid beams of a query."""
    beams = jax.tree.map(np.asarray, beams)
    return [
        (float(score), tuple(sequence[:length].tolist()))
        for score, sequence, length, valid in zip(
            beams.scores[query], beams.sequences[query], beams.lengths[query], beams.valid[query], strict=True
        )
        if valid
    ]


@functools.partial(jax.jit, static_argnums=2)
def _documents(trie, states, most):
    return trie.documents(states, most)


def documents_of(*arguments):
    return jax.tree.map(np.asarray, _documents(*arguments))


def assert_same(actual, expected):
    assert [sequence for _, sequence in actual] == [sequence for _, sequence in expected]
    np.testing.assert_allclose([s for s, _ in actual], [s for s, _ in expected], atol=1e-4)


def check_against_plain_beam_search(seed, count, eos, normalize, beams, unroll, alpha):
    docids = make_docids(seed, count, 4, eos=eos)
    trie, steps = Trie.from_docids(docids), docids.max_steps
    for network in (seed, seed + 1):
        decoder = TableDecoder.random(network, VOCAB, 5, eos_id=docids.eos_id)
        queries = query_vectors(2, network + 1)
        result = run(decoder, trie, queries, beams, steps, normalize=normalize, unroll=unroll, length_penalty=alpha)
        for query in range(2):
            reference = Reference(decoder, queries[query], normalize, targets(docids))
            assert_same(found_of(result, query), plain_beam_search(reference, targets(docids), beams, steps, alpha))
            if beams >= len(docids):
                assert_same(found_of(result, query), exhaustive(reference, targets(docids), alpha))
        assert result.valid.shape == (2, beams)
        assert np.all(np.isneginf(np.asarray(result.scores)[~np.asarray(result.valid)]))


@pytest.mark.parametrize(
    ("seed", "count", "eos", "normalize", "beams", "unroll", "alpha"),
    [
        # A complete docid is passed by what goes on: sums of logits need not fall.
        (12, 12, False, "none", 1, 1, 0.0),
        (0, 12, True, "vocabulary", 3, None, 0.8),
        (1, 12, True, "constraint", 30, 1, 0.0),
        (2, 12, False, "constraint", 3, None, 0.8),
    ],
)
def test_finds_what_plain_beam_search_finds(seed, count, eos, normalize, beams, unroll, alpha):
    check_against_plain_beam_search(seed, count, eos, normalize, beams, unroll, alpha)


@pytest.mark.slow
@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**20),
    count=st.sampled_from([1, 2, 12]),
    eos=st.booleans(),
    normalize=st.sampled_from(["vocabulary", "constraint", "none"]),
    beams=st.sampled_from([1, 3, 30]),
    unroll=st.sampled_from([None, 1]),
    alpha=st.sampled_from([0.0, 0.8]),
)
def test_finds_what_plain_beam_search_finds_whatever_the_docids(seed, count, eos, normalize, beams, unroll, alpha):
    check_against_plain_beam_search(seed, count, eos, normalize, beams, unroll, alpha)


def query_vectors(count, seed=5):
    return np.random.default_rng(seed).normal(size=(count, D))


def run(decoder, constraint, queries, beams, max_len, **settings):
    cache = decoder.init_cache(queries, beams, max_len)
    return jax.tree.map(np.asarray, search(decoder, cache, constraint, beams=beams, max_len=max_len, **settings))


def teacher_forced(decoder, found, queries, constraint, normalize):
    """Scores of the sequences that were found, given to the decoder instead."""
    cache = decoder.init_cache(queries, *found.sequences.shape[1:])
    return score(decoder, cache, found.sequences, found.lengths, normalize=normalize, constraint=constraint)


@pytest.mark.parametrize(
    "normalize, logits, unroll",
    [
        pytest.param("vocabulary", False, None, marks=pytest.mark.slow),
        ("level", False, None),
        pytest.param("level", False, 1, marks=pytest.mark.slow),
        ("level", True, 1),
        ("constraint", False, 1),
    ],
)
def test_on_hierarchical_docids_scores_are_teacher_forced_and_states_lead_to_documents(normalize, logits, unroll):
    points = np.random.default_rng(0).normal(size=(80, 8))
    docids = hierarchical_kmeans(points, branching=4, leaf_capacity=5)
    assert len(set(docids.lengths.tolist())) > 1
    trie = Trie.from_docids(docids)
    decoder = TableDecoder.random(0, docids.vocab_size, docids.max_steps, levels=docids.levels, logits=logits)
    queries = query_vectors(3)
    found = run(decoder, trie, queries, 6, docids.max_steps, normalize=normalize, unroll=unroll)
    assert found.valid.all()
    forced = teacher_forced(decoder, found, queries, trie, normalize)
    np.testing.assert_allclose(found.scores, forced, atol=1e-4)
    documents, counts = documents_of(trie, found.states, 2)
    for query in range(3):
        reference = Reference(decoder, queries[query], normalize, targets(docids))
        assert_same(
            found_list := found_of(found, query), plain_beam_search(reference, targets(docids), 6, docids.max_steps)
        )
        rows = [targets(docids).index(sequence) for _, sequence in found_list]
        assert documents[query, :, 0].tolist() == [docids.documents_of(row)[0] for row in rows]
    assert (counts == 1).all()


def test_a_query_does_not_depend_on_its_batch():
    docids = make_docids(3, 40, 4, eos=True)
    trie, steps = Trie.from_docids(docids), docids.max_steps
    decoder = TableDecoder.random(0, VOCAB, steps, eos_id=1)
    queries = query_vectors(4)
    together = run(decoder, trie, queries, 5, steps, unroll=1)
    for query in range(4):
        alone = run(decoder, trie, queries[query : query + 1], 5, steps, unroll=1)
        np.testing.assert_array_equal(alone.sequences[0], together.sequences[query])
        np.testing.assert_allclose(alone.scores[0], together.scores[query], atol=1e-5)


@pytest.mark.parametrize("unroll", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_more_steps_than_docids_need_change_nothing(unroll):
    docids = make_docids(3, 40, 4, eos=True)
    trie = Trie.from_docids(docids)
    decoder = TableDecoder.random(0, VOCAB, 12, eos_id=1)
    short = run(decoder, trie, query_vectors(2), 5, docids.max_steps, unroll=1)
    long = run(decoder, trie, query_vectors(2), 5, 12, unroll=unroll)
    np.testing.assert_array_equal(long.sequences[:, :, : docids.max_steps], short.sequences)
    np.testing.assert_allclose(long.scores, short.scores, atol=1e-5)
    np.testing.assert_array_equal(long.lengths, short.lengths)


@pytest.mark.parametrize(
    ("eos", "unroll"),
    [(True, 1), (False, None), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((True, None), (False, 1)))],
)
def test_fewer_docids_than_beams_are_flagged(eos, unroll):
    """With one document left the constraint leaves no doubt."""
    docids = Docids.build([[3, 4, 5]], vocab_size=VOCAB, eos_id=1 if eos else None)
    decoder, trie = TableDecoder.random(0, VOCAB, 4), Trie.from_docids(docids)
    found = run(decoder, trie, query_vectors(2), 4, docids.max_steps, unroll=unroll, normalize="constraint")
    assert found.valid.tolist() == [[True, False, False, False]] * 2
    assert found_of(found)[0][1] == tuple(docids.target(0))
    np.testing.assert_allclose(found.scores[:, 0], 0.0, atol=1e-6)
    assert np.isneginf(found.scores[:, 1:]).all() and not np.any(found.sequences[:, 1:])
    assert not np.any(found.lengths[:, 1:])


def test_docids_that_need_more_steps_than_there_are_are_not_found():
    docids = Docids.build([[3], [3, 4], [5, 4, 3]], vocab_size=VOCAB, eos_id=1)
    decoder = TableDecoder.random(0, VOCAB, 4)
    found = run(decoder, Trie.from_docids(docids), query_vectors(1), 3, 2)
    assert [sequence for _, sequence in found_of(found)] == [(3, 1)]
    assert not run(decoder, Trie.from_docids(docids), query_vectors(1), 3, 1).valid.any()


def test_a_root_of_a_thousand_children():
    docids = atomic(1000)
    decoder = TableDecoder.random(0, docids.vocab_size, 1)
    queries = query_vectors(2)
    for beams in (7, 1200):
        found = run(decoder, Trie.from_docids(docids), queries, beams, 1)
        for query in range(2):
            reference = Reference(decoder, queries[query], "vocabulary", targets(docids))
            assert_same(found_of(found, query), exhaustive(reference, targets(docids))[:beams])


@pytest.mark.parametrize(
    ("normalize", "eos"),
    [
        ("vocabulary", True),
        ("constraint", False),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (("vocabulary", False), ("constraint", True))),
    ],
)
def test_each_query_finds_what_a_trie_of_its_allowed_documents_gives(normalize, eos):
    docids = make_docids(4, 40, 4, eos=eos)
    trie, steps = Trie.from_docids(docids), docids.max_steps
    decoder = TableDecoder.random(0, VOCAB, steps)
    queries = query_vectors(3)
    allowed = np.random.default_rng(0).random((3, docids.num_documents)) < [[0.1], [0.5], [0.9]]
    restricted = restrict(trie, allowed)
    found = run(decoder, restricted, queries, 4, steps, normalize=normalize, unroll=1 if eos else None)
    documents, _ = documents_of(restricted, found.states, 1)
    for query in range(3):
        kept = [targets(docids)[row] for row in range(len(docids)) if allowed[query, docids.documents_of(row)[0]]]
        reference = Reference(decoder, queries[query], normalize, kept)
        assert_same(found_of(found, query), plain_beam_search(reference, kept, 4, steps))
        assert allowed[query, documents[query, found.valid[query], 0]].all()


FLAT = [
    (normalize, unroll, eos)
    for normalize, unroll in (("vocabulary", None), ("vocabulary", 1), ("constraint", None))
    for eos in (True, False)
]
FLAT_DEFAULT = {("vocabulary", 1, True), ("constraint", None, False)}


@pytest.mark.parametrize(
    ("normalize", "unroll", "eos"),
    [pytest.param(*one, marks=() if one in FLAT_DEFAULT else pytest.mark.slow) for one in FLAT],
)
def test_candidates_of_all_beams_in_one_list(normalize, unroll, eos):
    docids = make_docids(4, 40, 4, eos=eos)
    trie, steps = Trie.from_docids(docids), docids.max_steps
    decoder, queries = TableDecoder.random(0, VOCAB, steps), query_vectors(3)
    expected = run(decoder, trie, queries, 4, steps, normalize=normalize, unroll=unroll)
    found = run(decoder, FlatTrie(trie), queries, 4, steps, normalize=normalize, unroll=unroll)
    jax.tree.map(np.testing.assert_array_equal, found._replace(scores=0), expected._replace(scores=0))
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)


class FreeReference(Reference):
    """Every token may follow."""

    def __init__(self, decoder, query, vocab_size):
        super().__init__(decoder, query, "vocabulary", [])
        self.following = dict.fromkeys([()], set(range(vocab_size)))
        self.vocab_size = vocab_size

    def next(self, prefix):
        self.following[tuple(prefix)] = set(range(self.vocab_size))
        return super().next(prefix)


@pytest.mark.parametrize(
    ("eos_id", "unroll"),
    [(1, None), (None, 1), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((1, 1), (None, None)))],
)
def test_free_text(eos_id, unroll):
    decoder, beams, steps = TableDecoder.random(0, 7, 4, scale=1.0), 3, 4
    queries = query_vectors(2)
    found = run(decoder, Everything(7, eos_id), queries, beams, steps, unroll=unroll)
    for query in range(2):
        reference = FreeReference(decoder, queries[query], 7)
        live, complete = [(0.0, ())], []
        for _ in range(steps):
            extended = [(s + p, (*t, token)) for s, t in live for token, p in reference.next(t).items()]
            complete += [item for item in extended if item[1][-1] == eos_id]
            live = sorted([item for item in extended if item[1][-1] != eos_id], reverse=True)[:beams]
        assert_same(found_of(found, query), sorted(complete + live, reverse=True)[:beams])


@pytest.mark.parametrize(
    ("beams", "unroll"),
    [(1, 1), (3, None), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((1, None), (3, 1)))],
)
def test_free_text_that_may_end_only_within_the_beams(beams, unroll):
    """As transformers searches; with one beam that is greedy search."""
    decoder, steps, eos_id = TableDecoder.random(1, 5, 5, scale=1.0), 5, 1
    queries = query_vectors(3)
    found = run(decoder, Everything(5, eos_id), queries, beams, steps, unroll=unroll, end_within_beams=True)
    for number, query in enumerate(queries):
        reference = FreeReference(decoder, query, 5)
        live, complete = [(0.0, ())], []
        for _ in range(steps):
            extended = [(s + p, (*t, token)) for s, t in live for token, p in reference.next(t).items()]
            extended.sort(reverse=True)
            complete += [item for item in extended[:beams] if item[1][-1] == eos_id]
            live = [item for item in extended if item[1][-1] != eos_id][:beams]
        assert_same(found_of(found, number), sorted(complete + live, reverse=True)[:beams])


def test_is_compiled_with_the_trie_as_an_argument():
    docids = make_docids(3, 40, 4, eos=True)
    trie, decoder = Trie.from_docids(docids), TableDecoder.random(0, VOCAB, 5)
    settings = {"beams": 3, "max_len": 5, "unroll": 1}
    cache = decoder.init_cache(query_vectors(1), 3, 5)
    jaxpr = jax.make_jaxpr(lambda cache, trie: beam_search(decoder, cache, trie, **settings))(cache, trie)
    held = {const.shape for const in jaxpr.consts}
    assert held <= {decoder.embeddings.shape, decoder.places.shape, decoder.table.shape}


@pytest.mark.parametrize("decode", [beam_search, sample, score_docids])
def test_a_network_of_another_vocabulary_is_refused(decode):
    docids = Docids.build([[3, 4], [VOCAB]], vocab_size=VOCAB + 1, eos_id=1)
    trie, decoder = Trie.from_docids(docids), TableDecoder.random(0, VOCAB, 3)
    cache = decoder.init_cache(query_vectors(1), 2, 3)
    arguments, settings = (trie,), {"beams": 2, "max_len": 3}
    if decode is score_docids:
        arguments, settings = (jnp.ones((1, 2, 3), jnp.int32), jnp.ones((1, 2), jnp.int32)), {"constraint": trie}
    elif decode is sample:
        settings = {"samples": 2, "max_len": 3, "key": jax.random.key(0)}
    with pytest.raises(InputError, match="over 14 tokens, and a network that scores 13"):
        jax.eval_shape(lambda: decode(decoder, cache, *arguments, **settings))


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"beams": 0}, "at least one beam"),
        ({"max_len": 0}, "at least one step"),
        ({"normalize": "sum"}, "unknown normaliser"),
    ],
)
def test_refuses(settings, words):
    with pytest.raises(InputError, match=words):
        beam_search(None, None, None, **{"beams": 2, "max_len": 3, **settings})
