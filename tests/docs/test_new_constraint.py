"""The page on adding a constraint: its example works as it stands, and finds what enumeration finds."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.table_model import TableModel
from gr_jax.constraints.mask import make_mask_fn
from gr_jax.decoding import LogitScores, beam_search
from gr_jax.errors import InputError
from tests.docs.modules import imported
from tests.docs.pages import python_blocks

AUTOMATON, SEARCH = python_blocks("how_to/new_constraint.md")
LEVELS, VOCABULARY = ((2, 3), (5, 4), (2, 2)), 12
TABLE = np.random.default_rng(0).normal(size=(VOCABULARY, VOCABULARY)).astype(np.float32)


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    with imported("codes", AUTOMATON, tmp_path_factory.mktemp("constraint")) as module:
        yield module


def best_by_hand(normalize):
    """Every code with its score, best first."""
    blocks = [range(start, start + size) for start, size in LEVELS]
    found = []
    for code in itertools.product(*blocks):
        score = 0.0
        for position, token in enumerate(code):
            logits = TABLE[code[position - 1] if position else 0].astype(np.float64)
            over = logits if normalize == "vocabulary" else logits[list(blocks[position])]
            score += logits[token] - np.log(np.exp(over).sum())
        found.append((score, code))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("normalize", ["vocabulary", "constraint"])
def test_beam_search_finds_what_enumeration_finds(example, normalize):
    constraint = example.Codes(LEVELS, VOCABULARY)
    found = jax.jit(
        lambda: beam_search(
            TableModel(jnp.asarray(TABLE)), None, constraint, beams=24, max_len=3, batch=1, normalize=normalize
        )
    )()
    expected = best_by_hand(normalize)
    assert np.asarray(found.valid).all()
    assert [tuple(row) for row in np.asarray(found.sequences)[0].tolist()] == [code for _, code in expected]
    np.testing.assert_allclose(np.asarray(found.scores)[0], [score for score, _ in expected], atol=1e-5)


def test_masks_candidates_and_steps_agree(example):
    constraint = example.Codes(LEVELS, VOCABULARY)
    state = constraint.initial_state(1)
    scores = LogitScores(jnp.zeros((1, 1, VOCABULARY)))
    about = jax.jit(lambda s: (constraint.allowed(s), constraint.accepts(s), constraint.candidates(s, scores, 2)))
    advance = jax.jit(constraint.advance)
    for start, size in LEVELS:
        block = set(range(start, start + size))
        allowed, _, offered = jax.tree.map(np.asarray, about(state))
        assert set(np.flatnonzero(allowed[0, 0]).tolist()) == block
        assert set(offered.token[offered.valid].tolist()) == block
        for token in range(VOCABULARY):
            allowed, accepts, _ = about(advance(state, np.array([[token]])))
            assert (np.asarray(allowed).any() or np.asarray(accepts).all()) == (token in block)
        state = advance(state, np.array([[start]]))
    allowed, accepts, _ = jax.tree.map(np.asarray, about(state))
    assert accepts.all() and not allowed.any()


def test_it_masks_other_loops(example):
    constraint = example.Codes(LEVELS, VOCABULARY)
    assert np.asarray(make_mask_fn(constraint)(np.array([[3, 0, 0]]), 1)).nonzero()[1].tolist() == [5, 6, 7, 8]


@pytest.mark.slow
def test_the_search_on_the_page_runs(example, capsys):
    exec(SEARCH, {})
    assert capsys.readouterr().out.strip()


def test_it_says_what_it_cannot(example):
    constraint = example.Codes(LEVELS, VOCABULARY)
    assert constraint.documents(constraint.initial_state(2), 3)[1].tolist() == [[0], [0]]
    with pytest.raises(InputError, match="no documents"):
        constraint.restrict(jnp.ones((1, 3), bool))
    with pytest.raises(InputError, match="level"):
        example.Codes(((2, 3), (10, 3)), VOCABULARY)


def test_equal_texts_have_equal_keys(example):
    constraint = example.Codes(LEVELS, VOCABULARY)
    state = jax.tree.map(lambda x: np.repeat(x, 3, axis=1), constraint.initial_state(1))
    for tokens in ([2, 3, 2], [5, 5, 5]):
        state = jax.jit(constraint.advance)(state, np.array([tokens]))
    keys = [tuple(key) for key in np.asarray(jax.jit(constraint.key)(state))[0].tolist()]
    assert keys[0] == keys[2] != keys[1]
