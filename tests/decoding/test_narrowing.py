"""The loop of several widths, and beam search with it, against beam search that always takes all."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax.constraints import Trie
from gr_jax.decoding import Backoff, LogitScores, Lookahead, beam_search, narrowing
from gr_jax.decoding.narrowing import narrower_widths, narrowing_loop
from gr_jax.decoding.processors import Temperature
from gr_jax.docids import Docids
from tests.decoding.plain_search import TextTrie
from tests.decoding.table_decoder import Reference, TableDecoder, plain_beam_search

VOCAB, D, BEAMS = 13, 8, 20
# Of 20 hypotheses five go on for two steps, then all 20 are needed, then few.
PREFIXES = [(a, 2, b, *[3] * length) for a in range(2, 7) for b in range(2, 8) for length in range(4 if b == 2 else 1)]
DOCIDS = Docids.build(sorted([*PREFIXES, (2, 2, 2, 3, 3, 3, 3, 4, 4)]), vocab_size=VOCAB, eos_id=1)
QUERIES = np.random.default_rng(5).normal(size=(3, D))
LETTERS = np.asarray([0, 1, 2, 2, 3, 3, 4, 5, 5, 6, 7, 8, 9])


@pytest.mark.parametrize(
    "widest, widths", [(100, [100, 50, 12]), (64, [64, 32, 8]), (20, [20, 10]), (15, [15]), (1, [1])]
)
def test_widths(widest, widths):
    assert narrower_widths(widest) == widths


@jax.jit
def taken(needed):
    """How many steps there are, and the width of each, where so many are needed; int32[steps], ends in 0."""

    def body(carry, width):
        step, widths = carry
        return step + 1, widths.at[step].set(width)

    return narrowing_loop(
        (jnp.int32(0), jnp.zeros_like(needed)),
        narrower_widths(100),
        lambda carry, place: needed[carry[0]] > place,
        body,
    )


@settings(max_examples=20)
@given(needed=st.lists(st.integers(1, 100), min_size=1, max_size=12))
def test_each_step_is_the_narrowest_that_is_enough(needed):
    """What is needed can grow and shrink from step to step."""
    steps, widths = taken(jnp.pad(jnp.asarray(needed), (0, 13 - len(needed))))
    assert int(steps) == len(needed)
    assert widths.tolist()[:steps] == [min(width for width in (100, 50, 12) if width >= count) for count in needed]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Telling(TableDecoder):
    """Tells how many hypotheses each step has."""

    widths: list = dataclasses.field(default_factory=list, metadata={"static": True})

    def step(self, tokens, step, ancestors, cache):
        jax.debug.callback(lambda step, width=tokens.shape[1]: self.widths.append((int(step), width)), step)
        return super().step(tokens, step, ancestors, cache)


def searched(monkeypatch, narrowest, constraint=None, **options):
    """What is found with this NARROWEST, and the widths of its steps."""
    monkeypatch.setattr(narrowing, "NARROWEST", narrowest)
    decoder = Telling.random(7, VOCAB, DOCIDS.max_steps, eos_id=1)
    backoff = options.get("backoff")
    cache = decoder.init_cache(QUERIES, BEAMS + (backoff.extra if backoff else 0), DOCIDS.max_steps)
    run = functools.partial(beam_search, decoder, beams=BEAMS, max_len=DOCIDS.max_steps, unroll=1, **options)
    found = jax.jit(lambda cache, constraint: run(cache, constraint))(cache, constraint or Trie.from_docids(DOCIDS))
    jax.effects_barrier()
    return jax.tree.map(np.asarray, found), [width for _, width in sorted(decoder.widths)]


@pytest.mark.parametrize(
    "normalize, alpha",
    [("constraint", 0.8), *(pytest.param(one, 0.0, marks=pytest.mark.slow) for one in ("none", "vocabulary"))],
)
def test_a_beam_that_shrinks_and_grows_again(monkeypatch, normalize, alpha):
    found, widths = searched(monkeypatch, 8, normalize=normalize, length_penalty=alpha)
    assert widths[:5] == [1, 10, 10, 20, 10]
    targets = [tuple(DOCIDS.target(row)) for row in range(len(DOCIDS))]
    for query, vector in enumerate(QUERIES):
        reference = Reference(TableDecoder.random(7, VOCAB, DOCIDS.max_steps, eos_id=1), vector, normalize, targets)
        expected = plain_beam_search(reference, targets, BEAMS, DOCIDS.max_steps, alpha)
        lengths, valid = found.lengths[query], found.valid[query]
        own = [tuple(row[:n].tolist()) for row, n in zip(found.sequences[query], lengths, strict=True)]
        assert [row for row, kept in zip(own, valid, strict=True) if kept] == [row for _, row in expected]
        np.testing.assert_allclose(found.scores[query][valid], [score for score, _ in expected], atol=1e-4)


def lookahead():
    return Lookahead.of(DOCIDS, Trie.from_docids(DOCIDS))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"end_within_beams": True, "processors": (Temperature(0.7),), "history": True}, id="several"),
        pytest.param({"merge": "max"}, id="merge"),
        pytest.param({"backoff": Backoff(4, -0.5)}, id="backoff"),
        pytest.param({"lookahead": lookahead, "normalize": "none"}, id="lookahead"),
    ],
)
def test_what_is_found_does_not_depend_on_it(monkeypatch, options):
    options = {name: value() if callable(value) else value for name, value in options.items()}
    constraint = TextTrie(Trie.from_docids(DOCIDS), jnp.asarray(LETTERS)) if "merge" in options else None
    found, widths = searched(monkeypatch, 2, constraint, **options)
    expected, widest = searched(monkeypatch, 1000, constraint, **options)
    assert min(widths[1:]) < min(widest[1:]) == BEAMS
    for name in ("sequences", "lengths", "valid"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
    if found.history is not None:
        valid = found.history.valid
        np.testing.assert_array_equal(valid, expected.history.valid)
        for name in ("tokens", "parents"):
            np.testing.assert_array_equal(getattr(found.history, name)[valid], getattr(expected.history, name)[valid])


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"groups": 2, "diversity": 0.5}, id="groups"),
        pytest.param({"lookahead": lookahead}, id="lookahead", marks=pytest.mark.slow),
    ],
)
def test_every_step_has_all_beams(monkeypatch, options):
    """Where places say which group, and where what is left out could matter."""
    _, widths = searched(
        monkeypatch, 2, **{name: value() if callable(value) else value for name, value in options.items()}
    )
    assert set(widths[1:]) == {BEAMS}


class ByLastToken:
    """Scores that depend on the token before.

    Args:
      scores: float32[batch, max_len, vocab, vocab], of each step.
    """

    start_token, levels = 0, None

    def __init__(self, scores):
        self.table = scores

    def step(self, tokens, step, ancestors, cache):
        return self.table[jnp.arange(len(tokens))[:, None], step, tokens], cache

    def scores(self, features, level, normalize):
        return LogitScores(features, normalize)


def test_with_a_lookahead_a_query_does_not_depend_on_its_batch():
    """Hypotheses that can no longer become one of the best have better priorities than some that can."""
    vocab, steps, first, on, other = 80, 9, 2, 3, 4
    short, behind, hopeless = range(10, 26), range(30, 45), range(50, 69)
    docids = [(a,) for a in short] + [(first, *[on] * 8)] + [(b, *[on] * 8) for b in behind]
    docids = Docids.build(sorted(docids + [(first, c, *[other] * 7) for c in hopeless]), vocab_size=vocab, eos_id=None)
    begins, goes_on = np.full(vocab, 1e-6), np.full((vocab, vocab), 1e-6)
    begins[first], begins[on], begins[list(short)], begins[list(behind)] = 0.25, 0.7, 0.002, 0.0002
    goes_on[:, on], goes_on[first] = 1.0, 1e-6
    goes_on[first, [on, *hopeless]] = 0.05
    goes_on[[*hopeless, other]] = 1e-6
    goes_on[[*hopeless, other], other] = 1.0
    needs_all = begins.copy()
    needs_all[list(short)] = 1e-12

    def logits(start):
        share = np.stack([np.broadcast_to(start, (vocab, vocab)), *[goes_on] * 8])
        return jnp.asarray(np.log(share / share.sum(-1, keepdims=True)), jnp.float32)

    trie = Trie.from_docids(docids)
    ahead = Lookahead.of(docids, trie)

    @jax.jit
    def found(tables):
        return beam_search(ByLastToken(tables), None, trie, beams=16, max_len=steps, batch=len(tables), lookahead=ahead)

    alone, together = found(logits(begins)[None]), found(jnp.stack([logits(begins), logits(needs_all)]))
    np.testing.assert_array_equal(alone.sequences[0], together.sequences[0])
