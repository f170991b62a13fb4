"""The trie against sets of tuples."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax.constraints import Trie
from gr_jax.decoding import LogitScores
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from tests.compiled import call

VOCAB, MAX_LEN, EOS = 9, 4, 1


def drawn(seed, count):
    """Sequences of 1 to 4 tokens, of which some are equal."""
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(2, 6, rng.integers(1, MAX_LEN + 1)).tolist()) for _ in range(count)]


# Tries of different docids have different shapes, so that each example is compiled: they are few, and most are large.
corpora = st.builds(drawn, st.integers(0, 2**20), st.sampled_from([36, 30, 3, 1]))


def build(sequences, eos):
    """Docids that several documents may share; without EOS those that are prefixes of others are left out."""
    if not eos:
        sequences = [s for s in sequences if not any(s != t and t[: len(s)] == s for t in sequences)]
    return sequences, Docids.build(sequences, vocab_size=VOCAB, eos_id=EOS if eos else None, duplicates="share")


@jax.jit
def step_where(trie, state, token, goes_on):
    moved = trie.advance(state, token)
    return jax.tree.map(lambda new, old: jnp.where(goes_on, new, old), moved, state)


def initial(trie, texts):
    return jax.tree.map(lambda leaf: np.repeat(leaf, texts, axis=1), call(trie, "initial_state", batch=1))


def walk(trie, *texts):
    """States [1, texts] after the tokens of each, in which a trailing EOS may stand."""
    state = initial(trie, len(texts))
    for i in range(max(map(len, texts))):
        token = np.asarray([[text[i] if i < len(text) else 0 for text in texts]], np.int32)
        state = step_where(trie, state, token, np.asarray([[i < len(text) for text in texts]]))
    return state


class Model:
    """The same automaton by its definition: whole texts, EOS included, and their documents."""

    def __init__(self, sequences, eos, allowed=None):
        self.documents = {}
        for document, tokens in enumerate(sequences):
            if allowed is None or allowed[document]:
                self.documents.setdefault((*tokens, *([EOS] if eos else [])), []).append(document)
        self.eos = eos
        self.prefixes = sorted({text[:i] for text in self.documents for i in range(len(text) + 1)} | {()})

    def next(self, prefix):
        return {
            text[len(prefix)] for text in self.documents if len(text) > len(prefix) and text[: len(prefix)] == prefix
        }

    def accepts(self, prefix):
        return prefix in self.documents or (self.eos and (*prefix, EOS) in self.documents)

    def below(self, prefix):
        texts = sorted(text for text in self.documents if text[: len(prefix)] == prefix)
        return [document for text in texts for document in self.documents[text]]


@jax.jit
def everything_about(trie, states, logits):
    candidates = trie.candidates(states, LogitScores(logits), 1)
    return candidates, trie.allowed(states), trie.accepts(states), trie.documents(states, 40), trie.key(states)


def assert_is(trie, model):
    """The states of all prefixes, as the beams of one query, do what the model does."""
    prefixes = model.prefixes
    states = walk(trie, *prefixes)
    logits = np.random.default_rng(0).normal(size=(1, len(prefixes), VOCAB)).astype(np.float32)
    found = jax.tree.map(lambda leaf: np.asarray(leaf)[0], everything_about(trie, states, logits))
    candidates, mask, accepts, (documents, counts), keys = found
    states = jax.tree.map(lambda leaf: np.asarray(leaf)[0], states)
    log_probs = scipy.special.log_softmax(logits, axis=-1)[0]
    assert len({tuple(key) for key in keys.tolist()}) == len(prefixes)
    width = candidates.token.shape[-1]
    for i, prefix in enumerate(prefixes):
        wanted = model.next(prefix)
        valid = np.flatnonzero(candidates.valid[i])
        tokens = candidates.token[i, valid].tolist()
        assert sorted(tokens) == sorted(wanted)
        np.testing.assert_allclose(candidates.log_prob[i, valid], log_probs[i, tokens], atol=1e-5)
        for column, token in zip(valid, tokens, strict=True):
            assert (column >= width - candidates.ending) == ((*prefix, token) in model.documents)
            child = prefixes.index((*prefix, token))
            for reached, walked in zip(candidates.next_state, states, strict=True):
                assert reached[i, column] == walked[child]
        assert set(np.flatnonzero(mask[i])) == wanted
        assert accepts[i] == model.accepts(prefix)
        assert counts[i] == len(model.below(prefix))
        assert documents[i].tolist() == (model.below(prefix) + [-1] * 40)[:40]


def candidates(trie, states, steps=None):
    """Of equal scores."""
    scores = LogitScores(jnp.zeros((*states.node.shape, trie.vocab_size)))
    found = jax.jit(lambda trie, states: trie.candidates(states, scores, 1, steps))(trie, states)
    return jax.tree.map(np.asarray, found)


@settings(max_examples=3)
@given(corpora, st.booleans())
def test_does_what_the_set_of_docids_says(sequences, eos):
    sequences, docids = build(sequences, eos)
    assert_is(Trie.from_docids(docids), Model(sequences, eos))


@settings(max_examples=3)
@given(corpora, st.booleans(), st.data())
def test_restricted_does_what_the_allowed_docids_say(sequences, eos, data):
    sequences, docids = build(sequences, eos)
    allowed = np.asarray(data.draw(st.lists(st.booleans(), min_size=len(sequences), max_size=len(sequences))))
    assert_is(Trie.from_docids(docids).restrict(allowed[None]), Model(sequences, eos, allowed))


@pytest.mark.parametrize("eos", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_knowing_the_step_changes_nothing_but_the_width(eos):
    sequences, docids = build(drawn(0, 36), eos)
    trie, model = Trie.from_docids(docids), Model(sequences, eos)
    look = jax.jit(
        lambda s, t, steps: t.candidates(s, LogitScores(jnp.zeros((1, 80, VOCAB))), 1, steps), static_argnums=2
    )
    for depth in range(MAX_LEN):
        prefixes = [p for p in model.prefixes if len(p) == depth and p not in model.documents]
        state = walk(trie, *prefixes, *[()] * (80 - len(prefixes)))
        seen = []
        for steps in (None, (depth, depth + 1), (max(depth - 1, 0), depth + 3)):
            found = jax.tree.map(np.asarray, look(state, trie, None if steps is None else range(*steps)))
            ending = np.arange(found.token.shape[-1]) >= found.token.shape[-1] - found.ending
            for row in range(len(prefixes)):
                valid = found.valid[0, row]
                columns = found.token[0, row], found.next_state.node[0, row], ending
                seen.append((row, sorted(zip(*(column[valid].tolist() for column in columns), strict=True))))
        assert prefixes and len(seen) == 3 * len(prefixes)
        for row in range(len(prefixes)):
            assert len({str(found) for place, found in seen if place == row}) == 1


def test_each_query_has_its_own_filter_and_none_is_compiled_anew():
    rng = np.random.default_rng(0)
    sequences = [tuple(row) for row in rng.integers(2, 6, (30, 3)).tolist()]
    sequences, docids = build(sequences, True)
    trie = Trie.from_docids(docids)
    traced = []

    @jax.jit
    def all_documents(trie):
        traced.append(1)
        return trie.documents(trie.initial_state(3), 30)

    for _ in range(3):
        allowed = rng.random((3, len(sequences))) < [[0.2], [0.8], [0.5]]
        documents, counts = map(np.asarray, all_documents(trie.restrict(allowed)))
        for query in range(3):
            assert set(documents[query, 0].tolist()) - {-1} == set(np.flatnonzero(allowed[query]).tolist())
            assert counts[query, 0] == allowed[query].sum()
    assert len(traced) == 1


def test_a_second_filter_allows_nothing_that_the_first_did_not():
    sequences = [(2, 3), (2, 4), (3, 2), (3, 2), (4,)]
    trie = Trie.from_docids(build(sequences, True)[1])
    first = np.array([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1]], bool)
    second = np.array([[0, 1, 1, 1, 1], [1, 0, 0, 1, 0]], bool)
    twice, once = trie.restrict(first).restrict(second), trie.restrict(first & second)
    jax.tree.map(np.testing.assert_array_equal, twice.filter, once.filter)
    with pytest.raises(InputError, match=r"Give booleans .2, 5."):
        twice.restrict(second[:1])


def test_the_last_token_of_the_vocabulary_as_the_rest_of_a_docid():
    """Where a level's window is larger than the vocabulary, several of its columns are given that token."""
    rng = np.random.default_rng(0)
    rows = {tuple(row) for row in rng.integers(6, 40, (900, 3)).tolist()} | {(5, 39, 7)}
    trie = Trie.from_docids(Docids.build(sorted(rows), vocab_size=40))
    assert sum(trie.levels[1].window) > 40 and trie.levels[1].tails
    found = candidates(trie, walk(trie, (5,)), range(1, 2))
    assert found.token[found.valid].tolist() == [39]


@pytest.mark.parametrize("eos", [True, False])
@pytest.mark.parametrize("normalize", ["vocabulary", "constraint"])
def test_one_list_for_all_beams_holds_what_a_row_for_each_does(normalize, eos):
    """States that are distinct, states that are not and so have more children than the list is long, and no mass."""
    vocab, k = 4000, 5
    sequences = [(50, 50 * x) for x in range(2, 80)] + [(50 * x, 100) for x in range(20, 32)] + [(50,)] * eos
    trie = Trie.from_docids(Docids.build(sequences, vocab_size=vocab, eos_id=1 if eos else None))
    logits = np.random.default_rng(0).normal(size=(1, 14, vocab)).astype(np.float32)
    distinct = [(50,), *[(50 * x,) for x in range(20, 32)], (7,)]
    cases = [(distinct, logits), ([(50,)] * 10 + distinct[1:5], logits)]
    if normalize == "constraint":
        cases.append((distinct, np.full_like(logits, -np.inf)))

    def look(trie, states, logits, k):
        return trie.candidates(states, LogitScores(jnp.asarray(logits), normalize), k, range(1, 2))

    look = jax.jit(look, static_argnums=3)
    for texts, values in cases:
        states = walk(trie, *texts)
        rows, flat = (jax.tree.map(np.asarray, look(trie, states, values, n)) for n in (1, k))
        assert rows.parent is None and flat.parent is not None
        node = rows.next_state.node
        for beam in range(len(texts)):
            wanted = sorted(
                zip(-rows.log_prob[0, beam], rows.token[0, beam], node[0, beam], rows.valid[0, beam], strict=True)
            )
            wanted = [row[:3] for row in wanted if row[3]]
            chosen = flat.valid[0] & (flat.parent[0] == beam)
            found = sorted(
                zip(-flat.log_prob[0, chosen], flat.token[0, chosen], flat.next_state.node[0, chosen], strict=True)
            )
            assert len(found) >= min(len(wanted), k)
            np.testing.assert_allclose(found[:k], wanted[:k], atol=1e-5)
        assert (flat.next_state.node[~flat.valid] == -1).all()


def test_nothing_allowed():
    trie = Trie.from_docids(build([(2, 3), (4,)], True)[1]).restrict(np.zeros((1, 2), bool))
    assert not candidates(trie, initial(trie, 1)).valid.any()


@pytest.mark.parametrize("eos", [True, False])
def test_after_a_token_that_is_not_allowed_nothing_is(eos):
    trie = Trie.from_docids(build([(2, 3), (4, 2), (4, 3, 2)], eos)[1])
    states = walk(trie, (3,), (2, 4), (4, 5), (2, 3, 2), (4, 3, 2, 2), (4, 3, 2, 1, 1), (3, 2), (1,))
    _, allowed, accepts, (_, counts), _ = everything_about(trie, states, np.zeros((1, 8, VOCAB), np.float32))
    assert not candidates(trie, states).valid.any() and not np.asarray(allowed).any() and not np.asarray(accepts).any()
    assert counts.tolist() == [[0] * 8]


def test_documents_beyond_the_limit_are_counted():
    trie = Trie.from_docids(build([(2, 3)] * 5 + [(2, 4)] * 2, False)[1])
    documents, counts = call(trie, "documents", walk(trie, (2,)), limit=3)
    assert documents.tolist() == [[[0, 1, 2]]] and counts.tolist() == [[7]]


@pytest.mark.parametrize("vocab_size, dtype", [(2**16, jnp.uint16), (2**16 + 1, jnp.uint32)])
def test_tokens_are_as_small_as_the_vocabulary_allows(vocab_size, dtype):
    top = vocab_size - 1
    trie = Trie.from_docids(Docids.build([[2, top], [2, 3], [top, 2]], vocab_size=vocab_size))
    assert trie.edge_tokens.dtype == trie.rests.dtype == dtype
    found = candidates(trie, walk(trie, (2,)), range(1, 2))
    assert found.token[0, 0].tolist() == [3, top]


def test_single_docids_below_a_node_store_no_nodes():
    rng = np.random.default_rng(0)
    docids = Docids.build(np.unique(rng.integers(1, 2048, (20_000, 8)), axis=0), vocab_size=2048)
    trie = Trie.from_docids(docids)
    # 2047 first tokens, then each docid is alone, give or take the few that share two tokens.
    assert trie.edge_tokens.shape[0] < 1.1 * (2047 + len(docids))
    assert [level.width > 0 for level in trie.levels[:2]] == [True, True]
    assert not any(level.width for level in trie.levels[4:])


def test_is_a_pytree_whose_arrays_are_arguments():
    trie = Trie.from_docids(build([(2, 3), (4,)], True)[1])
    leaves, structure = jax.tree.flatten(trie)
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    again = jax.tree.unflatten(structure, leaves)
    assert again.levels == trie.levels and again.eos_id == trie.eos_id
    jaxpr = jax.make_jaxpr(lambda trie: trie.allowed(trie.initial_state(2)))(trie)
    assert not jaxpr.consts


def test_many_states_of_any_shape():
    sequences, docids = build([(2, 3), (2, 4), (3,)], True)
    trie = Trie.from_docids(docids)
    state = jax.tree.map(
        lambda leaf: np.broadcast_to(np.asarray(leaf)[:, :, None], (2, 1, 5)), call(trie, "initial_state", batch=2)
    )
    assert jax.eval_shape(lambda state: trie.allowed(state), state).shape == (2, 1, 5, VOCAB)
    assert jax.eval_shape(lambda state: trie.documents(state, 2), state)[0].shape == (2, 1, 5, 2)
    restricted = trie.restrict(np.asarray([[True, True, True], [False, True, False]]))
    assert call(restricted, "documents", state, limit=2)[1][:, 0, 0].tolist() == [3, 1]
    assert call(restricted, "advance", state, np.full((2, 1, 5), 3)).node[:, 0, 0].tolist()[1] == -1


GOOD = Docids.build([[2], [3], [3, 4]], vocab_size=VOCAB, eos_id=EOS)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"tokens": GOOD.tokens[[1, 0, 2]]}, "docid 1 is sorted before"),
        ({"tokens": GOOD.tokens[[0, 0, 2]]}, "docids 0 and 1 are the same"),
        ({"tokens": np.asarray([[0, 0], [2, 0], [3, 4]]), "lengths": np.asarray([0, 1, 2])}, "docid 0 is empty"),
        ({"vocab_size": 4}, "docid 2 is outside"),
        ({"eos_id": None}, "prefix"),
        ({"eos_id": 4}, "contains EOS"),
    ],
)
def test_refuses_docids_that_were_not_built(change, words):
    with pytest.raises(InputError, match=words):
        Trie.from_docids(dataclasses.replace(GOOD, **change))


def test_refuses_a_filter_for_another_corpus():
    with pytest.raises(InputError, match="for 3 documents"):
        Trie.from_docids(GOOD).restrict(np.ones((2, 4), bool))
