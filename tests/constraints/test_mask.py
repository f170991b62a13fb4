import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gr_jax.constraints import Everything, FMIndex, Mixed, Trie
from gr_jax.constraints import mask as masks_module
from gr_jax.constraints.mask import MASKED, make_mask_fn, mask_logits, start, walk
from gr_jax.docids import Docids
from gr_jax.docids.spans import TokenText
from gr_jax.errors import InputError
from tests.compiled import call

VOCAB, MAX_LEN = 9, 4
DOCIDS = [[2], [2, 3], [2, 3, 4], [4, 5], [5], [6, 2], [6, 3, 2]]


@pytest.fixture(scope="module")
def trie():
    return Trie.from_docids(Docids.build(DOCIDS, vocab_size=VOCAB, eos_id=1))


TARGETS = [(*docid, 1) for docid in DOCIDS]


def following(prefix):
    """Tokens that may follow, by definition."""
    n = len(prefix)
    tokens = {target[n] for target in TARGETS if target[:n] == tuple(prefix) and len(target) > n}
    return np.isin(np.arange(VOCAB), list(tokens))


def test_mask_of_every_prefix(trie):
    prefixes = sorted({target[:n] for target in TARGETS for n in range(len(target) + 1)}) + [(3,), (2, 7), (2, 1, 3)]
    mask = make_mask_fn(trie, vocab_size=VOCAB + 3)
    for step in range(MAX_LEN + 1):
        rows = [p for p in prefixes if len(p) == step]
        if not rows:
            continue
        sequences = np.full((30, MAX_LEN), 8, np.int32)  # what was not written yet is arbitrary
        for row, prefix in zip(sequences, rows, strict=False):
            row[:step] = prefix
        actual = np.asarray(mask(sequences, step))
        assert actual.shape == (30, VOCAB + 3) and not actual[:, VOCAB:].any()
        for row, prefix in zip(actual, rows, strict=False):
            np.testing.assert_array_equal(row[:VOCAB], following(prefix), err_msg=str(prefix))
        beams = np.asarray(mask(sequences.reshape(10, 3, MAX_LEN), step))
        np.testing.assert_array_equal(beams.reshape(30, -1), actual)


def test_a_loop_of_one_s_own(trie):
    """Greedy decoding as the module's example has it, against the same by enumeration."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(3, MAX_LEN, VOCAB)).astype(np.float32)

    def decode(trie, table):
        state, tokens = start(trie, 3), jnp.zeros((3, MAX_LEN), jnp.int32)
        for step in range(trie.max_steps):
            token = jnp.argmax(mask_logits(trie, state, table[:, step]), axis=-1)
            done = ~jnp.any(trie.allowed(state), axis=-1)
            keep = lambda old, new, done=done: jnp.where(done, old, new)  # noqa: E731
            state = jax.tree.map(keep, state, trie.advance(state, token))
            tokens = tokens.at[:, step].set(keep(0, token))
        return tokens, trie.documents(state, 1)

    tokens, (documents, count) = jax.jit(decode)(trie, table)
    for query in range(3):
        written = []
        while following(written).any():
            logits = np.where(following(written), table[query, len(written)], -np.inf)
            written.append(int(np.argmax(logits)))
        assert tokens[query, : len(written)].tolist() == written
        assert TARGETS[int(documents[query, 0])] == tuple(written) and count[query] == 1


def test_masked_values_are_finite(trie):
    masking = jax.jit(
        lambda trie, logits, masked=MASKED: mask_logits(trie, start(trie, 2), logits, masked=masked), static_argnums=2
    )
    logits = np.ones((2, VOCAB + 2), np.float32)
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        masked = masking(trie, logits.astype(dtype))
        assert masked.dtype == dtype and np.isfinite(np.asarray(masked, np.float32)).all()
        np.testing.assert_array_equal(np.asarray(masked) == 1, np.pad(following([]), (0, 2))[None].repeat(2, 0))
        assert not np.isnan(jax.jit(jax.nn.log_softmax)(masked)).any()
    assert np.min(masking(trie, logits, -5.0)) == -5 > MASKED


def test_walking_gives_the_states_of_the_constraint(trie):
    sequences = np.asarray([[2, 3, 4, 1], [6, 3, 2, 1]])
    walked = jax.jit(walk)
    state = walked(trie, sequences, 4)
    assert np.asarray(call(trie, "accepts", state)).all()
    assert call(trie, "documents", state, limit=4)[1].tolist() == [1, 1]
    assert call(trie, "documents", walked(trie, sequences, 1), limit=4)[1].tolist() == [3, 2]
    assert np.asarray(walked(Everything(VOCAB, eos_id=1), sequences, 4).ended).all()


def test_one_program_serves_every_step_and_filter(trie):
    sequences = np.zeros((2, MAX_LEN), np.int32)
    sequences[:, 0] = 2
    masks = [make_mask_fn(trie.restrict(np.eye(7, dtype=bool)[[i, i + 1]])) for i in range(3)]
    masks[0](sequences, 0)
    before = masks_module._mask._cache_size()
    assert [[np.asarray(m(sequences, step))[0].any() for step in (0, 1)] for m in masks] == [[True, True]] * 3
    assert masks_module._mask._cache_size() == before


def test_views_by_name():
    pytest.importorskip("pydivsufsort", reason="builds the FM-index")
    text = TokenText.of([[1, 2], [3, 4]], VOCAB, views=[0, 1], view_names=("title", "body"))
    index = FMIndex.from_text(text)
    allowed = make_mask_fn(index, view="body")(np.zeros((1, 2), np.int32), 0)
    assert np.flatnonzero(np.asarray(allowed)[0]).tolist() == [3, 4]
    mixed = Mixed((index, index))
    allowed = make_mask_fn(mixed, view=(np.array([1, 0]), ("title", "^body")))(np.zeros((2, 2), np.int32), 0)
    assert [np.flatnonzero(row).tolist() for row in np.asarray(allowed)] == [[3], [1, 2]]


def test_what_does_not_fit_is_refused(trie):
    with pytest.raises(InputError, match="logits for the 9 tokens"):
        jax.eval_shape(lambda: mask_logits(trie, start(trie, 1), jnp.zeros((1, 5))))
    with pytest.raises(InputError, match="shape"):
        walk(trie, np.zeros(3, np.int32), 0)
