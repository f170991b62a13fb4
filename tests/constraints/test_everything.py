import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gr_jax.constraints import Everything
from gr_jax.decoding import LogitScores
from gr_jax.errors import InputError
from tests.compiled import call

LOGITS = np.random.default_rng(0).normal(size=(2, 3, 12)).astype(np.float32)


def state_of(constraint, batch=2, beams=3):
    state = constraint.initial_state(batch)
    return type(state)(*(np.repeat(leaf, beams, axis=1) for leaf in state))


def candidates(constraint, state, normalize="vocabulary"):
    look = jax.jit(lambda state: constraint.candidates(state, LogitScores(jnp.asarray(LOGITS), normalize), 4))
    return jax.tree.map(np.asarray, look(state))


@pytest.mark.parametrize("normalize", ["vocabulary", "constraint"])
@pytest.mark.parametrize("eos_id", [None, 1])
def test_candidates_hold_the_best_tokens_and_eos_apart(normalize, eos_id):
    constraint = Everything(10, eos_id)
    found = candidates(constraint, state_of(constraint), normalize)
    log_probs = LOGITS - np.log(np.exp(LOGITS).sum(-1, keepdims=True))
    going_on = found.token.shape[-1] - found.ending
    for query in range(2):
        for beam in range(3):
            valid = np.asarray(found.valid)[query, beam, :going_on]
            tokens = np.asarray(found.token)[query, beam, :going_on][valid].tolist()
            # Only tokens below 10 exist, and EOS is no token to go on with.
            best = [t for t in np.argsort(-log_probs[query, beam]).tolist() if t < 10 and t != eos_id]
            assert tokens[:4] == best[:4] and tokens == best[: len(tokens)]
            np.testing.assert_allclose(
                np.asarray(found.log_prob)[query, beam, :going_on][valid], log_probs[query, beam, tokens], atol=1e-5
            )
            if eos_id is not None:
                assert found.token[query, beam, -1] == eos_id and found.valid[query, beam, -1]
                np.testing.assert_allclose(found.log_prob[query, beam, -1], log_probs[query, beam, eos_id], atol=1e-5)


def test_after_eos_nothing_follows():
    constraint = Everything(10, eos_id=1)
    state = state_of(constraint)
    ended = call(constraint, "advance", state, np.asarray([[1, 2, 3], [4, 1, 1]]))
    assert ended.ended.tolist() == [[True, False, False], [False, True, True]]
    found = candidates(constraint, ended)
    assert (np.asarray(found.valid).any(-1) == ~np.asarray(ended.ended)).all()
    assert (np.asarray(call(constraint, "allowed", ended)).all(-1) == ~np.asarray(ended.ended)).all()


def test_keys_tell_texts_apart():
    constraint = Everything(10)
    state = state_of(constraint, 1, 4)
    for tokens in ([2, 2, 3, 2], [3, 3, 2, 3], [4, 5, 4, 4]):
        state = call(constraint, "advance", state, np.asarray([tokens]))
    keys = [tuple(key) for key in np.asarray(call(constraint, "key", state))[0].tolist()]
    assert keys[0] == keys[3] and len(set(keys)) == 3


def test_keys_tell_texts_of_large_vocabularies_apart():
    """Pairs that one polynomial hash with the multiplier 1,000,003 takes for equal."""
    for one, other in (([100, 50_000], [4395, 4411]), ([100, 100, 3000], [196, 633, 729])):
        constraint = Everything(250_112)
        state = state_of(constraint, 1, 2)
        for tokens in zip(one, other, strict=True):
            state = call(constraint, "advance", state, np.asarray([tokens]))
        keys = np.asarray(call(constraint, "key", state))[0].tolist()
        assert keys[0] != keys[1]


def test_behind_what_is_no_token_nothing_follows_and_nothing_is_whole():
    constraint = Everything(10, eos_id=1)
    state = call(constraint, "advance", state_of(constraint), np.asarray([[-7, 10, 3], [1, 2, 1]]))
    assert call(constraint, "accepts", state).tolist() == [[False, False, True], [True, True, True]]
    assert np.asarray(call(constraint, "allowed", state)).any(-1).tolist() == [
        [False, False, True],
        [False, True, False],
    ]
    behind = call(constraint, "advance", state, np.asarray([[2, 2, 2], [2, 2, 2]]))
    assert call(constraint, "accepts", behind).tolist() == [[False, False, True], [False, True, False]]


def test_leads_to_no_documents_and_cannot_be_filtered():
    constraint = Everything(10)
    documents, counts = constraint.documents(constraint.initial_state(2), 3)
    assert documents.tolist() == [[[-1] * 3]] * 2 and counts.tolist() == [[0], [0]]
    with pytest.raises(InputError, match="no documents"):
        constraint.restrict(jnp.ones((2, 3), bool))


@pytest.mark.parametrize("settings", [(0,), (5, 5), (5, -1)])
def test_refuses(settings):
    with pytest.raises(InputError):
        Everything(*settings)
