import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gr_jax.constraints import Everything, FMIndex, Trie
from gr_jax.constraints.mixed import Mixed
from gr_jax.decoding import beam_search
from gr_jax.decoding.sampling import sample
from gr_jax.docids import Docids
from gr_jax.docids.spans import TokenText
from gr_jax.errors import InputError
from tests.compiled import call
from tests.decoding.table_decoder import TableDecoder

VOCAB, D, MAX_LEN, BEAMS = 13, 8, 3, 6
VIEW = np.array([0, 1, 2, 0, 1, 3])
BATCH = len(VIEW)


def codes():
    return Docids.build(
        [[a, b, c] for a in (2, 3) for b in (4, 5, 6) for c in (2, 7) if a + b + c != 9], vocab_size=VOCAB
    )


def titles(eos_id=1):
    """Ten of one or two tokens."""
    rng = np.random.default_rng(0)
    texts = dict.fromkeys(tuple(rng.integers(2, 9, rng.integers(1, 3)).tolist()) for _ in range(20))
    return Docids.build(sorted(texts)[:10], vocab_size=VOCAB, eos_id=eos_id)


def fat():
    """A node that is much wider than its neighbours, far apart in the vocabulary: candidates in one list."""
    return Docids.build(
        [[2, x, 3] for x in range(3, 120)] + [[y, 3, 4] for y in range(3, 40)], vocab_size=VOCAB * 500, eos_id=None
    )


@pytest.fixture(scope="module")
def mixed():
    constraints = (Trie.from_docids(codes()), Trie.from_docids(titles()), Everything(VOCAB, eos_id=1))
    return Mixed((*constraints, Everything(VOCAB - 2)))


SETTINGS = ("beams", "max_len", "normalize", "unroll")
search = jax.jit(beam_search, static_argnames=SETTINGS)


def one_row(tree, row):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[row : row + 1], tree)


def assert_same(one, other, row):
    """One query's beams, found together with others and apart."""
    for name in ("sequences", "lengths", "valid"):
        np.testing.assert_array_equal(getattr(one, name)[row], getattr(other, name)[0], err_msg=name)
    np.testing.assert_allclose(one.scores[row], other.scores[0], atol=1e-5)


@pytest.mark.parametrize(
    ("normalize", "unroll", "max_len"),
    [
        ("constraint", 1, MAX_LEN),
        # 2: nothing fits into the first trie, and free text is cut
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (("vocabulary", None, MAX_LEN), ("constraint", 1, 2))),
    ],
)
def test_each_query_gets_what_its_constraint_alone_gives(mixed, normalize, unroll, max_len):
    decoder = TableDecoder.random(0, VOCAB, max_len)
    queries = np.random.default_rng(0).normal(size=(BATCH, D))
    arguments = {"beams": BEAMS, "max_len": max_len, "normalize": normalize, "unroll": unroll}
    together = search(decoder, decoder.init_cache(queries, BEAMS, max_len), mixed, view=jnp.asarray(VIEW), **arguments)
    for which, constraint in enumerate(mixed.constraints):
        rows = np.flatnonzero(VIEW == which)
        apart = search(decoder, decoder.init_cache(queries[rows], BEAMS, max_len), constraint, **arguments)
        for i, row in enumerate(rows):
            assert_same(together, one_row(apart, i), row)
        documents, count = call(constraint, "documents", apart.states, limit=2)
        all_documents, all_count = call(mixed, "documents", together.states, limit=2)
        valid = np.asarray(apart.valid)
        np.testing.assert_array_equal(np.asarray(all_documents)[rows][valid], np.asarray(documents)[valid])
        np.testing.assert_array_equal(np.asarray(all_count)[rows][valid], np.asarray(count)[valid])
    assert not together.valid[0].any() if max_len == 2 else together.valid[0].any()


def test_another_view_is_not_compiled_again(mixed):
    decoder = TableDecoder.random(0, VOCAB, MAX_LEN)
    queries = np.random.default_rng(0).normal(size=(BATCH, D))
    cache = decoder.init_cache(queries, BEAMS, MAX_LEN)
    arguments = {"beams": BEAMS, "max_len": MAX_LEN, "normalize": "constraint", "unroll": 1}
    one = search(decoder, cache, mixed, view=jnp.asarray(VIEW), **arguments)
    before = search._cache_size()
    other = search(decoder, cache, mixed, view=jnp.asarray(VIEW[::-1].copy()), **arguments)
    assert search._cache_size() == before
    assert (np.asarray(one.sequences) != other.sequences).any()


def test_steps_masks_and_keys(mixed):
    """Along random walks, against each constraint by itself."""
    rng = np.random.default_rng(1)
    step = jax.jit(lambda c, state, token: (c.advance(state, token), c.allowed(state), c.accepts(state), c.key(state)))
    twice = lambda state: jax.tree.map(lambda leaf: np.repeat(leaf, 2, axis=1), state)  # noqa: E731
    state = twice(mixed.initial_state(BATCH, VIEW))
    alone = [twice(call(c, "initial_state", batch=BATCH)) for c in mixed.constraints]
    for _ in range(MAX_LEN + 1):
        allowed = np.asarray(call(mixed, "allowed", state))
        token = np.array([[rng.choice(np.flatnonzero(a)) if a.any() else 9 for a in row] for row in allowed])
        token[rng.random(token.shape) < 0.1] = 12  # not allowed by most
        state, allowed, accepts, key = jax.tree.map(np.asarray, step(mixed, state, jnp.asarray(token)))
        expected = [step(c, s, jnp.asarray(token)) for c, s in zip(mixed.constraints, alone, strict=True)]
        for row, which in enumerate(VIEW):
            after, mask, accepted, own_key = jax.tree.map(lambda leaf, row=row: np.asarray(leaf)[row], expected[which])
            np.testing.assert_array_equal(allowed[row, :, : mask.shape[-1]], mask)
            assert not allowed[row, :, mask.shape[-1] :].any()
            np.testing.assert_array_equal(accepts[row], accepted)
            assert (key[row, :, 0] == which).all()
            np.testing.assert_array_equal(key[row, :, 1 : 1 + own_key.shape[-1]], own_key)
            jax.tree.map(lambda x, y, row=row: np.testing.assert_array_equal(x[row], y), state.states[which], after)
        alone = [after for after, *_ in expected]


def test_flat_lists_of_candidates():
    """One constraint lists the candidates of all beams, another has columns for each."""
    vocab = VOCAB * 500
    wide = Trie.from_docids(fat())
    narrow = Trie.from_docids(
        Docids.build([[7, 8], [7], [9, 8]], vocab_size=vocab, eos_id=1, documents=[0, 1, 2], num_documents=154)
    )
    decoder, queries = TableDecoder.random(2, vocab, 3), np.random.default_rng(2).normal(size=(2, D))
    arguments = {"beams": 20, "max_len": 3, "normalize": "vocabulary", "unroll": None}
    together = search(
        decoder, decoder.init_cache(queries, 20, 3), Mixed((wide, narrow)), view=jnp.array([1, 0]), **arguments
    )
    for row, constraint in enumerate((narrow, wide)):
        apart = search(decoder, decoder.init_cache(queries[row : row + 1], 20, 3), constraint, **arguments)
        assert_same(together, apart, row)
    assert np.asarray(together.valid).sum(axis=1).tolist() == [3, 20]


def test_with_an_fm_index():
    """Whose every n-gram is complete, beside docids that must be whole."""
    pytest.importorskip("pydivsufsort", reason="builds the FM-index")
    rng = np.random.default_rng(5)
    index = FMIndex.from_text(TokenText.of([rng.integers(2, 9, 12).tolist() for _ in range(4)], VOCAB))
    constraints = (Trie.from_docids(titles()), index)
    decoder, queries = TableDecoder.random(5, VOCAB, 2), rng.normal(size=(2, D))
    arguments = {"beams": BEAMS, "max_len": 2, "normalize": "vocabulary", "unroll": None}
    cache = decoder.init_cache(queries, BEAMS, 2)
    together = search(decoder, cache, Mixed(constraints), view=jnp.array([0, 1]), **arguments)
    for row, constraint in enumerate(constraints):
        cache = decoder.init_cache(queries[row : row + 1], BEAMS, 2)
        assert_same(together, search(decoder, cache, constraint, **arguments), row)
    assert together.valid[1].all() and not together.valid[0].all()  # few titles have one token


def test_filters(mixed):
    tries = Mixed(mixed.constraints[:2])
    counts = [constraint.num_documents for constraint in tries.constraints]
    assert counts[0] == counts[1] == 10
    allowed = np.random.default_rng(3).random((4, 10)) < 0.5
    decoder, queries = TableDecoder.random(3, VOCAB, MAX_LEN), np.random.default_rng(3).normal(size=(4, D))
    view = np.array([0, 1, 1, 0])
    found = search(
        decoder,
        decoder.init_cache(queries, 12, MAX_LEN),
        call(tries, "restrict", allowed),
        view=jnp.asarray(view),
        beams=12,
        max_len=MAX_LEN,
        normalize="vocabulary",
        unroll=1,
    )
    documents = np.asarray(call(tries, "documents", found.states, limit=1)[0])[..., 0]
    for row in range(4):
        assert sorted(documents[row][np.asarray(found.valid[row])]) == np.flatnonzero(allowed[row]).tolist()
    with pytest.raises(InputError, match="free text"):
        mixed.restrict(jnp.asarray(allowed))


@pytest.mark.slow
def test_samples(mixed):
    decoder = TableDecoder.random(4, VOCAB, 2)
    queries = np.random.default_rng(4).normal(size=(BATCH, D))
    drawn = jax.jit(sample, static_argnames=("samples", "max_len"))(
        decoder,
        decoder.init_cache(queries, 600, 2),
        mixed,
        samples=600,
        max_len=2,
        key=jax.random.key(0),
        view=jnp.asarray(VIEW),
    )
    valid, sequences = np.asarray(drawn.valid), np.asarray(drawn.sequences)
    docids = titles()
    short = {tuple(docids.target(row)) for row in range(10) if docids.lengths[row] < 2}
    for row, which in enumerate(VIEW):
        texts = {tuple(s[:n].tolist()) for s, n in zip(sequences[row], drawn.lengths[row], strict=True) if n}
        if which == 0:  # codes of three tokens
            assert not valid[row].any()
        elif which == 1:
            assert texts and texts <= short
        else:
            assert valid[row].all() and (which == 2 or 1 in sequences[row] or len(texts) > 3)


def test_bad_settings(mixed):
    with pytest.raises(InputError, match="no constraints"):
        Mixed(())
    with pytest.raises(InputError, match="which constraint"):
        mixed.initial_state(2)
    with pytest.raises(InputError, match="not there"):
        mixed.initial_state(2, np.array([0, 4]))
    with pytest.raises(InputError, match="shape"):
        mixed.initial_state(2, np.array([0, 1, 1]))
    with pytest.raises(InputError, match="views of 1 constraints"):
        mixed.initial_state(2, (np.array([0, 1]), (None,)))
    assert mixed.eos_id == 1 and Mixed((Trie.from_docids(codes()),)).eos_id is None
    assert Mixed(mixed.constraints[:2]).max_steps == MAX_LEN
    assert mixed.vocab_size == VOCAB and not hasattr(mixed, "max_steps")
    with pytest.raises(InputError, match="different tokens"):
        _ = Mixed((Everything(VOCAB, eos_id=1), Everything(VOCAB, eos_id=2))).eos_id
