"""The top-K of every scheme of docids, with random and trained networks."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import exactness
from gr_jax.constraints import Trie
from gr_jax.decoding import score_docids

DEFAULT = ("naive numeric", "hierarchical k-means, tokens by position")


@pytest.mark.parametrize(
    ("scheme", "trained"),
    [
        pytest.param(scheme, trained, marks=() if scheme in DEFAULT and not trained else pytest.mark.slow)
        for scheme in exactness.SCHEMES
        for trained in (False, True)
    ],
)
def test_top_k_is_that_of_enumeration_and_of_plain_beam_search(scheme, trained):
    settings = {"layers": 1, "steps": 60, "normalizers": ["level" if "position" in scheme else "vocabulary"]}
    found = exactness.measure(scheme, documents=60, trained=trained, few=5, count=2, **settings)
    assert found["wrong"] == 0
    assert found["difference"] <= exactness.TOLERANCE


@pytest.fixture
def optimised():
    """Compiled as users' programs are: the sums of unoptimised ones round to just beyond the tolerance."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "1")


@pytest.mark.slow
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("scheme", exactness.SCHEMES)
def test_top_k_of_a_thousand_docids(scheme, trained, optimised):
    found = exactness.measure(scheme, documents=1000, trained=trained, few=20, count=3)
    assert found["wrong"] == 0 and found["difference"] <= exactness.TOLERANCE
    if trained and scheme == "naive numeric":
        assert found["found"] > 0


def test_in_bfloat16_the_ranking_is_that_of_teacher_forcing_up_to_rounding():
    docids = exactness.SCHEMES["hierarchical k-means, tokens by position"](60, 0)
    model, params = exactness.network(docids, 1, 0, "bfloat16")
    source, settings = exactness.queries(np.arange(3)), {"beams": 60, "max_len": docids.max_steps}
    found = exactness.search(model.decoder(params), source, Trie.from_docids(docids), normalize="level", **settings)
    assert found.valid.all() and np.isfinite(found.scores).all() and found.scores.dtype == jnp.float32
    for one in np.asarray(found.sequences):  # every docid, since beams are as many
        assert {tuple(row) for row in one.tolist()} == {tuple(row) for row in exactness.targets(docids).tolist()}
    decoder = exactness.network(docids, 1, 0)[0].decoder(params)
    exact = jax.jit(score_docids, static_argnames="normalize")(
        decoder, decoder.start(source, **settings), found.sequences, found.lengths, normalize="level"
    )
    np.testing.assert_allclose(found.scores, exact, atol=0.1)


def test_wrong_ranks_are_counted():
    expected = [(-1.0, (3,)), (-2.0, (4,)), (-3.0, (5,))]
    scores = {docid: score for score, docid in expected}
    assert exactness.compare(expected, expected, scores) == (0, 0.0)
    assert exactness.compare(expected[::-1], expected, scores)[0] == 2
    assert exactness.compare(expected[:2], expected, scores)[0] == 1
    assert exactness.compare([(-1.5, (3,)), *expected[1:]], expected, scores) == (0, 0.5)
    assert exactness.compare([expected[0]] * 3, expected, scores)[0] > 0
