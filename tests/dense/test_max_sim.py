"""MaxSim against the loop of its definition, and search by it against scoring everything."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from gr_jax.dense import max_sim as max_sim_lib
from gr_jax.dense.max_sim import MaxSimSearch, max_sim, max_sim_pairs
from gr_jax.dense.token_vectors import TokenVectors
from gr_jax.errors import InputError


def _unit(rows):
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


def _documents(rng, lengths, d=8):
    return [_unit(rng.normal(size=(length, d))) for length in lengths]


def _queries(rng, batch, tokens=5, d=8):
    vectors = _unit(rng.normal(size=(batch, tokens, d)))
    weights = (np.arange(tokens) < rng.integers(1, tokens + 1, (batch, 1))).astype(np.float32)
    return vectors, weights * rng.uniform(0.5, 2.0, weights.shape).astype(np.float32)


def _loop(queries, weights, documents):
    """The definition, one product at a time."""
    return np.array(
        [
            [
                sum(w * max(float(np.dot(q, d)) for d in document) for q, w in zip(query, weight, strict=True))
                for document in documents
            ]
            for query, weight in zip(queries, weights, strict=True)
        ]
    )


def _best(scores, k, allowed=None):
    """The k best columns of each row, equal ones in order; −1 beyond the allowed."""
    index = np.full((len(scores), k), -1)
    for row, values in enumerate(scores):
        columns = [c for c in range(len(values)) if allowed is None or allowed[row, c]]
        ranked = sorted(columns, key=lambda c: (-values[c], c))[:k]
        index[row, : len(ranked)] = ranked
    return index


def test_scores_are_those_of_the_loop():
    rng = np.random.default_rng(0)
    documents = _documents(rng, [3, 1, 6])
    padded, mask = np.zeros((3, 6, 8), np.float32), np.zeros((3, 6), bool)
    for row, document in enumerate(documents):
        padded[row, : len(document)], mask[row, : len(document)] = document, True
    padded[~mask] = 5.0  # what is masked must not be seen
    queries, weights = _queries(rng, 4)
    expected = _loop(queries, weights, documents)
    np.testing.assert_allclose(max_sim(queries, weights, padded, mask), expected, atol=1e-5)
    pairs = max_sim_pairs(queries[:3], weights[:3], padded, mask)
    np.testing.assert_allclose(pairs, np.diag(expected[:3]), atol=1e-5)


def test_gradients_go_to_the_best_vectors_alone():
    rng = np.random.default_rng(1)
    queries, weights = _queries(rng, 2)
    documents, mask = _unit(rng.normal(size=(3, 4, 8))), np.array([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]], bool)

    def total(documents):
        return jnp.sum(max_sim(queries, weights, documents, mask))

    found = jax.grad(total)(jnp.asarray(documents))
    expected = np.zeros_like(documents)
    for query, weight in zip(queries, weights, strict=True):
        for number, (document, keep) in enumerate(zip(documents, mask, strict=True)):
            if keep.any():
                for q, w in zip(query, weight, strict=True):
                    expected[number, int(np.argmax(np.where(keep, document @ q, -np.inf)))] += w * q
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.isfinite(max_sim(queries, weights, documents, mask)).all()


@hypothesis.given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 12), st.booleans(), st.booleans())
@hypothesis.settings(max_examples=25)
def test_search_finds_the_best(seed, count, k, filtered, resident):
    rng = np.random.default_rng(seed)
    # Few different documents, so that scores are equal now and then.
    kinds = _documents(rng, rng.integers(1, 70, 6))
    documents = [kinds[kind] for kind in rng.integers(0, 6, count)]
    queries, weights = _queries(rng, 3)
    allowed = rng.random((3, count)) < 0.4 if filtered else None
    search = MaxSimSearch(TokenVectors.of(documents), shard_documents=7, block_tokens=256, resident=resident)
    scores = _loop(queries, weights, documents)
    for _ in range(2):  # the second time from what is resident
        index, found = search.search(queries, weights, k, allowed=allowed)
        expected = _best(np.round(scores, 5), k, allowed)
        for row in range(3):
            here = expected[row] >= 0
            np.testing.assert_array_equal(index[row] >= 0, here)
            np.testing.assert_allclose(found[row][here], scores[row, expected[row][here]], atol=1e-4)
            np.testing.assert_allclose(scores[row, index[row][here]], found[row][here], atol=1e-4)
            assert (found[row][~here] == -np.inf).all()
            assert len(set(index[row][here])) == here.sum()


def test_equal_scores_keep_the_order_of_documents():
    rng = np.random.default_rng(2)
    one, other = _documents(rng, [4, 20])
    queries, weights = _queries(rng, 1)
    scores = _loop(queries, weights, [one, other])[0]
    documents = [one if number % 2 else other for number in range(20)]
    search = MaxSimSearch(TokenVectors.of(documents), shard_documents=6, block_tokens=64)
    better = int(scores[0] > scores[1])
    index, _ = search.search(queries, weights, 12)
    expected = [n for n in range(20) if n % 2 == better] + [n for n in range(20) if n % 2 != better]
    np.testing.assert_array_equal(index[0], expected[:12])


@pytest.mark.parametrize("batch", [None, 1, 6, 64])
def test_queries_of_any_lengths_are_asked_together(batch):
    """Each group of them is as wide as its longest, and finds the documents that it may."""
    rng = np.random.default_rng(4)
    documents = _documents(rng, rng.integers(1, 40, 30))
    queries, weights = _queries(rng, 21, tokens=40)
    weights[3], weights[17, 39] = 0, 1.5
    allowed = rng.random((21, 30)) < 0.7
    scores = _loop(queries, weights, documents)
    search = MaxSimSearch(TokenVectors.of(documents), shard_documents=16, batch=batch)
    index, found = search.search(queries, weights, 5, allowed=allowed)
    expected = _best(np.round(scores, 5), 5, allowed)
    np.testing.assert_allclose(found, np.take_along_axis(scores, expected, axis=1), atol=1e-4)
    np.testing.assert_allclose(found, np.take_along_axis(scores, index, axis=1), atol=1e-4)
    np.testing.assert_array_equal(index[3], np.flatnonzero(allowed[3])[:5])


@pytest.mark.parametrize("tokens, most, width", [(8, 32, 8), (17, 16, 24), (24, 16, 24), (64, 8, 64), (70, 8, 72)])
def test_long_questions_are_asked_fewer_at_a_time(monkeypatch, tokens, most, width):
    """On a CPU, whose cache their products fit; what is left over is made up to no more."""
    rng, asked = np.random.default_rng(5), []
    score_block = max_sim_lib._score_block

    def spy(queries, *others):
        asked.append(queries.shape)
        return score_block(queries, *others)

    monkeypatch.setattr(max_sim_lib, "_score_block", spy)
    documents = _documents(rng, [3, 5])
    queries = _unit(rng.normal(size=(most + most // 2 + 2, tokens, 8)))
    index, found = MaxSimSearch(TokenVectors.of(documents)).search(queries, np.ones(queries.shape[:2]), 1)
    assert {shape[0] for shape in asked} <= {most, max(8, most // 2)} and {shape[1] for shape in asked} == {width}
    scores = _loop(queries, np.ones(queries.shape[:2]), documents)
    np.testing.assert_allclose(found[:, 0], scores.max(axis=1), atol=1e-4)


def test_candidates_are_scored_for_their_own_query():
    rng = np.random.default_rng(3)
    documents = _documents(rng, rng.integers(1, 40, 15))
    queries, weights = _queries(rng, 4)
    candidates = rng.integers(0, 15, (4, 6))
    candidates[1, 2] = candidates[3, 0] = -1
    scores = _loop(queries, weights, documents)
    expected = np.where(candidates < 0, -np.inf, np.take_along_axis(scores, np.maximum(candidates, 0), axis=1))
    found = MaxSimSearch(TokenVectors.of(documents), block_tokens=128).score(queries, weights, candidates)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_devices_share_the_documents():
    rng = np.random.default_rng(4)
    documents = _documents(rng, rng.integers(1, 40, 50))
    queries, weights = _queries(rng, 3)
    mesh = Mesh(np.array(jax.devices()).reshape(-1), ("data",))
    one, all_devices = (
        MaxSimSearch(TokenVectors.of(documents), block_tokens=256, mesh=used).search(queries, weights, 10)
        for used in (None, mesh)
    )
    assert len(jax.devices()) == 8
    np.testing.assert_array_equal(one[0], all_devices[0])
    np.testing.assert_allclose(one[1], all_devices[1], atol=1e-5)


@pytest.mark.parametrize("precision, error", [("float16", 2e-3), ("int8", 2e-2)])
def test_fewer_bits_change_little(precision, error):
    rng = np.random.default_rng(5)
    documents = _documents(rng, rng.integers(1, 30, 60), d=128)
    queries, weights = _queries(rng, 6, d=128)
    exact = _loop(queries, weights, documents)
    _, found = MaxSimSearch(TokenVectors.of(documents, precision=precision)).search(queries, weights, 10)
    np.testing.assert_allclose(found, -np.sort(-exact, axis=1)[:, :10], atol=error * weights.sum(axis=1).max())


@pytest.mark.parametrize("resident", (False, True))
def test_documents_come_and_go(resident):
    """After any changes search and scores are those of the documents that are there, at their positions."""
    rng = np.random.default_rng(8)
    documents = _documents(rng, rng.integers(1, 40, 40))
    queries, weights = _queries(rng, 3)
    vectors = TokenVectors.of(documents[:25])
    search = MaxSimSearch(vectors, shard_documents=10, block_tokens=256, resident=resident)
    scores, gone = _loop(queries, weights, documents), set()
    for start, stop, removed in ((25, 25, [0, 3]), (25, 28, [3, 26]), (28, 40, []), (40, 40, [39, 11, 12])):
        if stop > start:
            vectors.add(TokenVectors.of(documents[start:stop]))
        vectors.remove(removed)
        gone |= set(removed)
        living = np.array([number not in gone for number in range(stop)])
        index, found = search.search(queries, weights, stop)
        expected = _best(scores[:, :stop], stop, np.tile(living, (3, 1)))
        np.testing.assert_array_equal(index, expected)
        here = expected[0] >= 0
        np.testing.assert_allclose(found[:, here], np.take_along_axis(scores, expected[:, here], 1), atol=1e-4)
        # One filter for all queries beside it.
        index, _ = search.search(queries, weights, stop, allowed=np.arange(stop) % 2 == 0)
        assert set(index[0]) - {-1} == {number for number in range(0, stop, 2) if number not in gone}
        candidates = np.tile(np.arange(-1, stop), (3, 1))
        there = np.concatenate([[False], living])
        expected = np.where(there, np.concatenate([scores[:, :1], scores[:, :stop]], axis=1), -np.inf)
        np.testing.assert_allclose(search.score(queries, weights, candidates), expected, atol=1e-4)


def test_products_are_those_of_float32():
    """Whatever a device takes for products by default: scores decide ranks."""
    rng = np.random.default_rng(9)
    queries, weights = _queries(rng, 2)
    vectors = rng.normal(size=(2, 4, 8)).astype(np.float32)
    for score in (max_sim_lib._score_block, max_sim_lib._score_pairs):
        program = str(jax.make_jaxpr(score)(queries, weights, vectors, None))
        count = program.count("dot_general[")
        assert count and program.count("Precision.HIGHEST, Precision.HIGHEST") == count


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("method", ["search", "score"])
def test_queries_that_are_not_finite_are_refused(value, method):
    """In any of their tokens."""
    rng = np.random.default_rng(7)
    search = MaxSimSearch(TokenVectors.of(_documents(rng, [2, 3])))
    ask = {
        "search": lambda q, w: search.search(q, w, 1),
        "score": lambda q, w: search.score(q, w, np.zeros((2, 1), int)),
    }
    queries, weights = _queries(rng, 2)
    for number, place in ((0, (1, 3, 2)), (1, (1, 3))):
        bad = [queries.copy(), weights.copy()]
        bad[number][place] = value
        with pytest.raises(InputError, match="query 1, token 3"):
            ask[method](*bad)
    with pytest.raises(InputError, match="a token at least"):
        ask[method](queries[:, :0], weights[:, :0])


def test_bad_input():
    rng = np.random.default_rng(7)
    vectors = TokenVectors.of(_documents(rng, [2, 3]))
    queries, weights = _queries(rng, 2)
    with pytest.raises(InputError, match="queries of shape"):
        MaxSimSearch(vectors).search(queries[:, :, :4], weights, 1)
    with pytest.raises(InputError, match="candidates"):
        MaxSimSearch(vectors).score(queries, weights, np.array([[0], [2]]))
    with pytest.raises(InputError, match="filter"):
        MaxSimSearch(vectors).search(queries, weights, 1, allowed=np.ones((3, 2), bool))
    with pytest.raises(InputError, match="batches hold at least one vector"):
        MaxSimSearch(vectors, batch=0)
    with pytest.raises(InputError, match="k ≥ 1"):
        MaxSimSearch(vectors).search(queries, weights, 0)


def test_an_accelerator_keeps_the_vectors_that_fit(monkeypatch):
    rng = np.random.default_rng(9)
    documents = _documents(rng, rng.integers(1, 40, 30))
    queries, weights = _queries(rng, 5)
    expected = MaxSimSearch(TokenVectors.of(documents)).search(queries, weights, 7)
    for limit, kept in ((1 << 32, True), (10, False)):
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        monkeypatch.setattr(max_sim_lib, "_KEPT", limit)
        search = MaxSimSearch(TokenVectors.of(documents))
        monkeypatch.undo()
        assert search.resident == kept
        for one, other in zip(search.search(queries, weights, 7), expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
