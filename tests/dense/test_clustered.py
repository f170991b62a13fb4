import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax.dense import ClusteredSearch, base, gathering, kernels, scorers
from gr_jax.dense import tiles as tiles_lib
from gr_jax.errors import InputError
from tests.dense import brute_force
from tests.dense.brute_force import assert_same, whole_numbers

BACKENDS = ["numba", "xla", "scann"]
DOCUMENTS, CLUSTERS, WIDTH = 1500, 23, 11


@pytest.fixture(params=BACKENDS)
def backend(request):
    if request.param != "xla":
        pytest.importorskip(base.SCANN if request.param == "scann" else request.param)
    return request.param


def _setting(seed=0, several=1, queries=6, chosen=5):
    """Vectors, the clusters of each document, queries, their clusters with −1 here and there."""
    rng = np.random.default_rng(seed)
    clusters = np.stack([rng.permutation(CLUSTERS)[:several] for _ in range(DOCUMENTS)])
    clusters[clusters == 4] = 5  # 4 stays empty
    for row in clusters:
        for place in range(1, several):
            if row[place] in row[:place] or rng.random() < 0.3:
                row[place] = -1
    picked = np.stack([rng.permutation(CLUSTERS)[:chosen] for _ in range(queries)])
    picked[0, 1], picked[2] = -1, -1
    return whole_numbers(rng, DOCUMENTS, WIDTH), clusters, whole_numbers(rng, queries, WIDTH), picked


def _expected(vectors, clusters, queries, picked, k, keep=True, bonus=None, tanh=False):
    """By a loop over the chosen clusters."""
    products = (queries @ vectors.T).astype(np.float32)
    products = np.tanh(products) if tanh else products
    scores = np.full(products.shape, -np.inf, np.float32)
    for b, row in enumerate(picked):
        for j, cluster in enumerate(row):
            inside = (clusters == cluster).any(axis=1) if cluster >= 0 else np.zeros(len(vectors), bool)
            extra = np.float32(0) if bonus is None else bonus[b, j]
            scores[b, inside] = np.maximum(scores[b], products[b] + extra)[inside]
    return brute_force.search(queries, vectors, k, keep, np.where(keep, scores, -np.inf))


@pytest.mark.parametrize("plan", ["tiles", "full"])
@pytest.mark.parametrize("several", [1, 3])
def test_only_documents_of_chosen_clusters_are_found(backend, several, plan):
    vectors, clusters, queries, picked = _setting(several=several)
    search = ClusteredSearch(vectors, clusters if several > 1 else clusters[:, 0], backend=backend)
    for k in (40, 1600):
        found = search.search_clusters(queries, picked, k, plan=plan)
        assert_same(found, _expected(vectors, clusters, queries, picked, k))


def test_cluster_scores_are_added_and_a_document_of_two_gets_the_better(backend):
    vectors, clusters, queries, picked = _setting(several=2)
    bonus = np.random.default_rng(5).integers(-4, 5, picked.shape).astype(np.float32)
    search = ClusteredSearch(vectors, clusters, backend=backend)
    found = search.search_clusters(queries, picked, 30, cluster_scores=bonus)
    assert_same(found, _expected(vectors, clusters, queries, picked, 30, bonus=bonus))


@pytest.mark.parametrize("plan", ["tiles", "full"])
def test_tanh_of_the_product_plus_the_cluster_score(backend, plan):
    vectors, clusters, queries, picked = _setting(seed=3)
    vectors, queries = vectors / 7 + 0.01, queries / 3 + 0.02
    bonus = np.random.default_rng(5).random(picked.shape).astype(np.float32)
    search = ClusteredSearch(vectors, clusters, backend=backend)
    found = search.search_clusters(queries, picked, 60, cluster_scores=bonus, similarity="tanh", plan=plan)
    expected = _expected(vectors, clusters, queries, picked, 60, bonus=bonus, tanh=True)
    np.testing.assert_allclose(found[1], expected[1], atol=1e-6)
    assert (found[0] == expected[0]).mean() > 0.98  # scores that differ in the last bit may change places


@pytest.mark.parametrize("at_once", [300, 1 << 24], ids=["in_parts", "at_once"])
@pytest.mark.parametrize("rows", [1, 6])
def test_filters_and_removed_documents(backend, rows, at_once, monkeypatch):
    for module in (kernels, scorers):
        monkeypatch.setattr(module, "_MOST_SCORES", at_once)
    vectors, clusters, queries, picked = _setting(several=2)
    rng = np.random.default_rng(1)
    allowed = rng.random((rows, DOCUMENTS)) < 0.2
    gone = rng.permutation(DOCUMENTS)[:300]
    search = ClusteredSearch(vectors, clusters, backend=backend)
    search.remove(gone)
    keep = allowed.copy()
    keep[:, gone] = False
    found = search.search_clusters(queries, picked, 50, allowed=allowed if rows > 1 else allowed[0])
    assert_same(found, _expected(vectors, clusters, queries, picked, 50, keep))


@pytest.mark.parametrize("codes", ["row", "dimension"])
@pytest.mark.parametrize("plan", ["tiles", "full"])
def test_int8_codes_with_exact_scores(backend, codes, plan):
    if backend == "scann":
        with pytest.raises(InputError, match="cannot search int8 codes"):
            ClusteredSearch(_VECTORS, _OF, codes=codes, backend=backend)
        return
    rng = np.random.default_rng(0)
    _, clusters, _, picked = _setting(several=2)
    vectors = (rng.standard_normal((DOCUMENTS, 32)) * rng.random(32) * 3).astype(np.float32)
    queries = rng.standard_normal((6, 32)).astype(np.float32)
    bonus = rng.random(picked.shape).astype(np.float32)
    search = ClusteredSearch(vectors, clusters, codes=codes, backend=backend)
    found = search.search_clusters(queries, picked, 50, cluster_scores=bonus, plan=plan)
    expected = _expected(vectors, clusters, queries, picked, 50, bonus=bonus)
    filled = expected[0][:, 0] >= 0
    assert (found[0][filled, :, None] == expected[0][filled, None, :]).any(-1).mean() > 0.995
    same = found[0] == expected[0]
    np.testing.assert_allclose(found[1][same], expected[1][same], rtol=1e-5)
    assert (found[0][~filled] == -1).all()


@pytest.mark.parametrize("width", [32, 600])  # of a query's numbers fewer bits fit beside many others
@pytest.mark.parametrize("codes", ["row", "dimension"])
@pytest.mark.parametrize("plan", ["tiles", "full"])
@pytest.mark.parametrize("backend", ["numba", "xla"])
def test_the_scores_of_the_codes_stand_where_nothing_is_scored_again(backend, plan, codes, width, tmp_path):
    if backend == "numba":
        pytest.importorskip("numba")
    rng = np.random.default_rng(0)
    _, clusters, _, picked = _setting(several=2)
    vectors = (rng.standard_normal((DOCUMENTS, width)) * rng.random(width) * 3).astype(np.float32)
    queries = rng.standard_normal((6, width)).astype(np.float32)
    queries[0] = 127  # every product as large as it gets
    vectors[0] = 127
    bonus = rng.random(picked.shape).astype(np.float32)
    made = ClusteredSearch(vectors, clusters, codes=codes, overfetch=None, backend=backend)
    made.save(tmp_path / "search")
    search = ClusteredSearch.load(tmp_path / "search", backend=backend)
    kept = tiles_lib.encode(vectors, codes, block=16)
    decoded = (kept.codes * kept.row_scales[:, None] * kept.dimension_scales).astype(np.float32)
    expected = _expected(decoded, clusters, queries, picked, 50, bonus=bonus)
    together = search.search_clusters(queries, picked, 50, cluster_scores=bonus, plan=plan)
    alone = [
        search.search_clusters(queries[b : b + 1], picked[b : b + 1], 50, cluster_scores=bonus[b : b + 1])
        for b in range(6)
    ]
    for found in (together, tuple(np.concatenate(part) for part in zip(*alone, strict=True))):
        filled = expected[0] >= 0
        lengths = np.linalg.norm(queries, axis=1) * np.linalg.norm(decoded, axis=1).max()
        np.testing.assert_array_equal(found[0] >= 0, filled)
        difference = np.abs(np.where(filled, found[1], 0) - np.where(filled, expected[1], 0))
        assert (difference <= 1e-4 * lengths[:, None]).all()
        assert (found[0] == expected[0]).mean() > 0.97  # near ties may change places


@pytest.mark.parametrize("scale", ["row", "dimension"])
def test_codes_round_to_the_nearest_step(scale):
    rows = np.random.default_rng(0).standard_normal((100, 7)).astype(np.float32)
    rows[3] = 0
    codes = tiles_lib.encode(rows, scale, block=16)
    decoded = codes.codes * codes.row_scales[:, None] * codes.dimension_scales
    step = np.abs(rows).max(axis=1 if scale == "row" else 0, keepdims=True) / 127
    assert (np.abs(decoded - rows) <= step / 2 + 1e-6).all()
    assert np.abs(codes.codes).max() == 127


def test_a_score_does_not_depend_on_the_batch(backend):
    """Bit for bit where loops are compiled; to rounding in XLA, where another shape may sum in another order."""
    rng = np.random.default_rng(0)
    vectors, queries = rng.standard_normal((DOCUMENTS, 50)), rng.standard_normal((6, 50))
    _, clusters, _, picked = _setting()
    search = ClusteredSearch(vectors, clusters, backend=backend)
    together = search.search_clusters(queries, picked, 20, plan="tiles")
    alone = [search.search_clusters(queries[b : b + 1], picked[b : b + 1], 20, plan="tiles") for b in range(6)]
    if backend == "numba":
        np.testing.assert_array_equal(together[1], np.concatenate([scores for _, scores in alone]))
    np.testing.assert_allclose(together[1], np.concatenate([scores for _, scores in alone]), rtol=1e-5)
    np.testing.assert_array_equal(together[0], np.concatenate([positions for positions, _ in alone]))


@pytest.mark.parametrize("similarity", ["dot", "tanh"])
@pytest.mark.parametrize("k", [1, 7, 60, 2 * DOCUMENTS])
@pytest.mark.parametrize("codes", [None, "row", "dimension"])
@pytest.mark.parametrize("together", [False, True])
def test_one_query_at_a_time(codes, k, similarity, together, monkeypatch):
    """One query takes a way of its own, on one thread or all: ties, filters, removed documents, empty clusters, none at
    all, k of more than there are."""
    pytest.importorskip("numba")
    monkeypatch.setattr(kernels, "_TOGETHER", 0 if together else 1 << 60)
    vectors, clusters, queries, picked = _setting(several=3)
    vectors, queries = vectors / 4, queries / 4  # exact still, and tanh does not make everything one
    rng = np.random.default_rng(2)
    bonus = rng.integers(-2, 3, picked.shape).astype(np.float32)
    allowed = rng.random(DOCUMENTS) < 0.6
    gone = rng.permutation(DOCUMENTS)[:200]
    search = ClusteredSearch(vectors, clusters, codes=codes, overfetch=30, backend="numba")
    search.remove(gone)
    keep = allowed.copy()
    keep[gone] = False
    asked = {"similarity": similarity, "allowed": allowed}
    expected = _expected(vectors, clusters, queries, picked, k, keep, bonus, similarity == "tanh")
    called = []
    alone = kernels._search_one
    monkeypatch.setattr(kernels, "_search_one", lambda *arguments: called.append(1) or alone(*arguments))
    of_batch = search.search_clusters(queries, picked, k, cluster_scores=bonus, **asked)
    for b in range(len(queries)):
        one = slice(b, b + 1)
        found = search.search_clusters(queries[one], picked[one], k, cluster_scores=bonus[one], **asked)
        if similarity == "dot":
            assert_same(found, tuple(part[one] for part in expected))
        np.testing.assert_allclose(found[1], expected[1][one], atol=1e-6)
        for part, whole in zip(found, of_batch, strict=True):
            np.testing.assert_array_equal(part, whole[one])
    assert len(called) == len(queries)
    monkeypatch.setattr(kernels, "_ALONE", 0)  # more scores than are held in fresh memory: as of many queries
    found = search.search_clusters(queries[:1], picked[:1], k, cluster_scores=bonus[:1], **asked)
    assert len(called) == len(queries)
    for part, whole in zip(found, of_batch, strict=True):
        np.testing.assert_array_equal(part, whole[:1])


@settings(max_examples=20)
@given(data=st.data())
def test_any_sequence_of_adds_removes_and_saves_is_a_rebuild(data, tmp_path_factory):
    pytest.importorskip("numba")
    codes, mmap = data.draw(st.sampled_from([None, "row"])), data.draw(st.booleans())
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    vectors, clusters = whole_numbers(rng, 30, 4, 2), rng.integers(0, 5, 30)
    search = ClusteredSearch(vectors, clusters, num_clusters=5, codes=codes, overfetch=5, backend="numba")
    live = np.ones(30, bool)
    queries = whole_numbers(rng, 3, 4, 2)
    for _ in range(data.draw(st.integers(1, 4))):
        step = data.draw(st.sampled_from(["add", "remove", "search", "save"]))
        if step == "add":
            count = data.draw(st.integers(0, 12))
            more, where = whole_numbers(rng, count, 4, 2), rng.integers(0, 5, count)
            search.add(more, where)
            vectors, clusters = np.concatenate([vectors, more]), np.concatenate([clusters, where])
            live = np.concatenate([live, np.ones(count, bool)])
        elif step == "remove":
            gone = rng.integers(0, len(vectors), data.draw(st.integers(0, 10)))
            search.remove(gone)
            live[gone] = False
        elif step == "save":
            folder = tmp_path_factory.mktemp("clustered") / "search"
            search.save(folder)
            search = ClusteredSearch.load(folder, mmap=mmap, backend="numba")
        picked = np.stack([rng.permutation(5)[:3] for _ in range(3)])
        keep = live & (rng.random((3, len(vectors))) < 0.7)
        found = search.search_clusters(queries, picked, 10, allowed=keep & live)
        assert search.num_documents == len(vectors)
        assert_same(found, _expected(vectors, clusters[:, None], queries, picked, 10, keep))


def test_a_new_document_goes_to_the_cluster_of_the_largest_product(backend):
    vectors, clusters, queries, _ = _setting()
    search = ClusteredSearch(vectors, clusters, backend=backend)
    means = np.stack(
        [vectors[clusters[:, 0] == c].mean(axis=0) if c != 4 else np.zeros(WIDTH) for c in range(CLUSTERS)]
    )
    products = queries @ means.T
    products[:, 4] = -np.inf
    nearest = products.argmax(axis=1)
    np.testing.assert_array_equal(search.choose_clusters(queries, 1)[:, 0], nearest)
    search.add(queries)
    for b, cluster in enumerate(nearest):
        only = np.zeros(search.num_documents, bool)
        only[DOCUMENTS + b] = True
        found = search.search_clusters(queries[b : b + 1], np.array([[cluster]]), 1, allowed=only)
        assert found[0].tolist() == [[DOCUMENTS + b]]


def test_added_documents_move_the_means_and_fill_empty_clusters():
    rng = np.random.default_rng(0)
    vectors, queries = whole_numbers(rng, 40, 6), whole_numbers(rng, 9, 6)
    clusters = rng.integers(0, 4, 40)
    first = clusters < 3
    first[30:] = False
    search = ClusteredSearch(vectors[first], clusters[first], num_clusters=4, chosen=2, backend="xla")
    search.choose_clusters(queries)  # what was computed before is not what counts
    search.add(vectors[~first], clusters[~first])
    whole = ClusteredSearch(vectors, clusters, num_clusters=4, chosen=2, backend="xla")
    np.testing.assert_array_equal(search.choose_clusters(queries), whole.choose_clusters(queries))


def test_removed_documents_are_in_no_mean():
    rng = np.random.default_rng(1)
    vectors, queries = whole_numbers(rng, 60, 6), whole_numbers(rng, 9, 6)
    clusters = rng.integers(0, 5, 60)
    gone = np.flatnonzero((clusters == 2) | (rng.random(60) < 0.3))
    search = ClusteredSearch(vectors[:50], clusters[:50], num_clusters=5, chosen=5, backend="xla")
    search.add(vectors[50:], clusters[50:])
    search.choose_clusters(queries)  # what was computed before is not what counts
    search.remove(gone)
    kept = np.delete(np.arange(60), gone)
    rest = ClusteredSearch(vectors[kept], clusters[kept], num_clusters=5, chosen=5, backend="xla")
    found = search.choose_clusters(queries)
    np.testing.assert_array_equal(found, rest.choose_clusters(queries))
    assert not (found == 2).any()  # nobody is left there


@pytest.mark.parametrize("plan", ["tiles", "full"])
def test_nothing_to_find(backend, plan):
    queries = np.ones((3, 2), np.float32)
    nowhere = ClusteredSearch(np.ones((4, 2)), np.full(4, -1), num_clusters=3, backend=backend)
    for search in (ClusteredSearch(np.zeros((0, 2)), num_clusters=3, backend=backend), nowhere):
        for found in (search.search(queries, 5), search.search_clusters(queries, [[0, 2]] * 3, 5, plan=plan)):
            assert_same(found, base.nothing_found(3, 5))
        first = search.num_documents
        search.add(queries[:1], [2])
        assert search.search(queries, 1)[0].tolist() == [[first]] * 3


def test_search_looks_into_the_best_clusters(backend):
    vectors, clusters, queries, _ = _setting()
    search = ClusteredSearch(vectors, clusters, chosen=4, backend=backend)
    picked = search.choose_clusters(queries)
    assert picked.shape == (6, 4) and not (picked == 4).any()
    assert_same(search.search(queries, 15), _expected(vectors, clusters, queries, picked, 15))
    every = ClusteredSearch(vectors, clusters, chosen=CLUSTERS, backend=backend)
    assert_same(every.search(queries, 15), brute_force.search(queries, vectors, 15))


def test_clusters_without_a_document_that_is_allowed_are_passed_over(backend):
    vectors, clusters = np.array([[1, 0], [0.9, 0], [0.1, 1], [0.2, 1]], np.float32), np.array([0, 0, 1, 1])
    search = ClusteredSearch(vectors, clusters, chosen=1, backend=backend)
    found = search.search(np.array([[1, 0]], np.float32), 2, allowed=np.array([False, False, True, True]))
    assert found[0].tolist() == [[3, 2]]


@pytest.mark.parametrize("rows", [1, 6])
def test_few_documents_that_are_allowed_are_all_looked_at(backend, rows):
    """Wherever they are; of many, those in the best clusters that have one."""
    vectors, clusters, queries, _ = _setting()
    search = ClusteredSearch(vectors, clusters[:, 0], chosen=3, backend=backend)
    rng = np.random.default_rng(1)
    few = np.zeros((rows, DOCUMENTS), bool)
    for row in few:
        row[rng.permutation(DOCUMENTS)[:40]] = True
    assert_same(search.search(queries, 15, allowed=few), brute_force.search(queries, vectors, 15, few))
    many = rng.random((rows, DOCUMENTS)) < 0.5
    many[:, np.isin(clusters[:, 0], search.choose_clusters(queries)[:, 0])] = False
    picked = search.choose_clusters(queries, among=search.holding(many))
    assert_same(
        search.search(queries, 15, allowed=many), _expected(vectors, clusters[:, :1], queries, picked, 15, keep=many)
    )


def test_documents_that_are_added_compile_nothing_anew():
    vectors, clusters, queries, picked = _setting()
    search = ClusteredSearch(vectors, clusters[:, 0], backend="xla")
    search.add(vectors[:1], [2])
    search.search_clusters(queries, picked, 5, plan="full")
    programs = gathering.search_full._cache_size()
    for _ in range(3):
        search.add(vectors[:1], [2])
        search.search_clusters(queries, picked, 5, plan="full")
    assert gathering.search_full._cache_size() == programs


def test_clusters_are_made_where_none_are_given():
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((8, 16)) * 5
    vectors = (centers[rng.integers(0, 8, 400)] + rng.standard_normal((400, 16))).astype(np.float32)
    search = ClusteredSearch(vectors, num_clusters=8, chosen=2, backend="xla")
    expected = brute_force.search(vectors[:20], vectors, 10)
    assert (search.search(vectors[:20], 10)[0] == expected[0]).mean() > 0.9


@pytest.mark.parametrize("codes", [None, "row"])
def test_saved_and_loaded(backend, codes, tmp_path):
    codes = None if backend == "scann" else codes
    vectors, clusters, queries, picked = _setting(several=2)
    search = ClusteredSearch(vectors[:1000], clusters[:1000], num_clusters=CLUSTERS, codes=codes, backend=backend)
    search.add(vectors[1000:], clusters[1000:])
    search.remove([3, 1400])
    before = search.search_clusters(queries, picked, 20)
    search.save(tmp_path / "search")
    loaded = ClusteredSearch.load(tmp_path / "search", backend=backend)
    assert loaded.num_documents == DOCUMENTS
    assert loaded.nbytes <= search.nbytes - search._main.rows.nbytes  # the rows stay on disk
    for k in (5, 20):
        assert_same(loaded.search_clusters(queries, picked, k), tuple(part[:, :k] for part in before))
    loaded.add(vectors[:2], clusters[:2])
    loaded.save(tmp_path / "search")
    assert ClusteredSearch.load(tmp_path / "search", backend=backend).num_documents == DOCUMENTS + 2


def test_is_faiss_on_the_same_clusters(backend):
    faiss = pytest.importorskip("faiss")
    rng = np.random.default_rng(0)
    vectors, queries = rng.standard_normal((2000, 32), np.float32), rng.standard_normal((9, 32), np.float32)
    quantizer = faiss.IndexFlatIP(32)
    index = faiss.IndexIVFFlat(quantizer, 32, 20, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    index.nprobe = 6
    nearness, picked = quantizer.search(queries, 6)
    scores, positions = index.search_preassigned(queries, 50, picked, nearness)
    _, clusters = quantizer.search(vectors, 1)
    search = ClusteredSearch(vectors, clusters, num_clusters=20, backend=backend)
    found = search.search_clusters(queries, picked, 50)
    np.testing.assert_allclose(found[1], scores, rtol=1e-4, atol=1e-5)
    assert (found[0] == positions).mean() > 0.99


def test_the_full_product_is_taken_where_fewer_numbers_move():
    assert gathering.choose_plan(128, 2000, 1_000_000) == "tiles"
    assert gathering.choose_plan(128, 20_000, 1_000_000) == "full"
    assert gathering.choose_plan(1, 999, 1000) == "tiles"


def test_loops_are_compiled_once_on_a_machine():
    pytest.importorskip("numba")
    from gr_jax.dense import loops

    names = (
        "group", "rounded", "score", "score_codes", "select", "rescore", "score_alone", "score_together",
        "score_codes_alone", "score_codes_together", "select_alone", "select_codes_alone",
    )  # fmt: skip
    assert all(len(getattr(loops, name).signatures) == 1 for name in names)  # writable and read-only arrays share one
    code = f"from gr_jax.dense import loops; print([bool(getattr(loops, n).stats.cache_hits) for n in {names}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([True] * len(names))


def test_loops_are_compiled_where_no_folder_may_be_written(monkeypatch):
    numba = pytest.importorskip("numba")
    from gr_jax.dense import compiled

    monkeypatch.setattr(numba.core.caching.CacheImpl, "_locator_classes", [])
    double = compiled.loop(numba.int64)(lambda x: 2 * x)
    assert double(21) == 42 and not double.stats.cache_hits


_VECTORS, _OF = np.ones((4, 2), np.float32), np.array([0, 0, 1, 2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.search_clusters(np.ones((2, 2)), [[0], [3]], 1), "no such cluster .got .3 of query 1"),
        (lambda s: s.search_clusters(np.ones((2, 2)), [[2], [-2]], 1), "no such cluster .got .-2 of query 1"),
        (lambda s: s.search_clusters(np.ones((2, 2)), [[0, 1], [1, 1]], 1), "twice .got .1 of query 1"),
        (lambda s: s.search_clusters(np.ones((2, 2)), [[1]], 1), "do not fit the queries"),
        (lambda s: s.search_clusters(np.ones((1, 2)), [[1.0]], 1), "do not fit the queries"),
        (lambda s: s.search_clusters(np.ones((1, 2)), [[1]], 1, cluster_scores=[[1.0, 2.0]]), "scores"),
        (
            lambda s: s.search_clusters(np.ones((1, 2)), [[1]], 1, cluster_scores=[[np.nan]]),
            "nan for cluster 1 of query 0",
        ),
        (lambda s: s.choose_clusters(np.ones((1, 3))), "n, 2"),
        (lambda s: s.choose_clusters(np.full((1, 2), np.nan)), "not finite"),
        (lambda s: s.choose_clusters(np.ones((1, 2)), 0), "chosen ≥ 1"),
        (lambda s: s.choose_clusters(np.ones((1, 2)), -1), "chosen ≥ 1"),
        (lambda s: s.search_clusters(np.ones((1, 2)), [[1]], 1, similarity="cosine"), "similarity"),
        (lambda s: s.add(np.ones((1, 2)), [7]), "no such cluster .got .7 of document 0"),
        (lambda s: ClusteredSearch(_VECTORS, [2, 1, -3, 0]), "no such cluster .got .-3 of document 2"),
        (lambda s: s.remove([4]), "no such document"),
        (lambda s: ClusteredSearch(_VECTORS, [0, 1]), "do not fit the vectors"),
        (lambda s: ClusteredSearch(_VECTORS, [[0, 1], [2, 2]] * 2), "twice .got .2 of document 1"),
        (lambda s: ClusteredSearch(_VECTORS, _OF, num_clusters=2), "no such cluster"),
        (lambda s: ClusteredSearch(_VECTORS, _OF, codes="column"), "unknown scale"),
        (lambda s: ClusteredSearch(_VECTORS, _OF, backend="cuda"), "unknown backend"),
        (lambda s: ClusteredSearch(_VECTORS, _OF, chosen=0), "chosen ≥ 1"),
    ],
)
def test_what_cannot_be_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call(ClusteredSearch(_VECTORS, _OF, backend="xla"))
