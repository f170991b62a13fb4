import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax.errors import InputError
from gr_jax.training import negatives as tables
from gr_jax.training.negatives import Negatives
from gr_jax.training.token_store import Ragged


def ragged(rows):
    offsets = np.cumsum([0, *map(len, rows)])
    return Ragged(np.array([x for row in rows for x in row], np.int32), offsets.astype(np.int64))


def draw_relevant(seed, queries, documents):
    random = np.random.default_rng(seed)
    most = min(3, documents)
    return ragged([random.choice(documents, random.integers(1, most + 1), replace=False) for _ in range(queries)])


def assert_sound(table, relevant, documents, available):
    """No relevant document, none twice, as many as there can be, filled from the left."""
    for row, (found, answers) in enumerate(zip(table.documents, relevant, strict=True)):
        kept = found[found >= 0]
        assert len(set(kept.tolist())) == len(kept)
        assert not set(kept.tolist()) & set(answers.tolist())
        assert kept.max(initial=0) < documents
        assert len(kept) == min(table.width, available(row, set(answers.tolist())))
        assert (found[: len(kept)] >= 0).all()


sizes = (st.integers(0, 1000), st.integers(1, 30), st.integers(1, 25), st.integers(0, 8))


@given(*sizes)
def test_random_negatives(seed, queries, documents, count):
    relevant = draw_relevant(seed, queries, documents)
    table = tables.random_negatives(relevant, documents, count, seed=seed)
    assert_sound(table, relevant, documents, lambda row, answers: documents - len(answers))
    again = tables.random_negatives(relevant, documents, count, seed=seed)
    np.testing.assert_array_equal(again.documents, table.documents)


def test_random_negatives_are_uniform():
    relevant = ragged([[3]] * 4000)
    found = tables.random_negatives(relevant, 20, 2).documents
    counts = np.bincount(found.ravel(), minlength=20)
    assert counts[3] == 0
    expected = 8000 / 19
    assert np.abs(np.delete(counts, 3) - expected).max() < 5 * np.sqrt(expected)
    assert (tables.random_negatives(relevant, 20, 2, seed=1).documents != found).any()


@given(*sizes, st.integers(1, 5))
def test_cluster_negatives(seed, queries, documents, count, clusters):
    relevant = draw_relevant(seed, queries, documents)
    cluster_of = np.random.default_rng(seed).integers(0, clusters, documents)
    table = tables.cluster_negatives(cluster_of, relevant, count, seed=seed)

    def available(row, answers):
        return sum(cluster_of[d] == cluster_of[relevant[row][0]] and d not in answers for d in range(documents))

    assert_sound(table, relevant, documents, available)
    for row, found in enumerate(table.documents):
        assert (cluster_of[found[found >= 0]] == cluster_of[relevant[row][0]]).all()


@given(*sizes, st.integers(1, 5))
def test_negatives_of_several_clusters(seed, queries, documents, count, clusters):
    relevant = draw_relevant(seed, queries, documents)
    random = np.random.default_rng(seed)
    clusters_of = np.stack([random.permutation(clusters + 2)[:3] for _ in range(documents)])
    clusters_of[random.random(documents) < 0.5, 1:] = -1

    def together(one, other):
        return bool(set(clusters_of[one].tolist()) & set(clusters_of[other].tolist()) - {-1})

    def available(row, answers):
        return sum(together(relevant[row][0], d) and d not in answers for d in range(documents))

    table = tables.cluster_negatives(clusters_of, relevant, count, seed=seed)
    assert_sound(table, relevant, documents, available)
    for row, found in enumerate(table.documents):
        assert all(together(relevant[row][0], d) for d in found[found >= 0].tolist())


@given(*sizes, st.integers(0, 3))
def test_ranked_negatives(seed, queries, documents, count, skip):
    random = np.random.default_rng(seed)
    relevant = draw_relevant(seed, queries, documents)
    ranking = np.stack([random.permutation(documents) for _ in range(queries)])[:, : 1 + documents // 2]
    ranking[random.random(ranking.shape) < 0.1] = -1
    table = tables.ranked_negatives(ranking, relevant, count, skip=skip)
    for row in range(queries):
        answers = set(relevant[row].tolist())
        expected = [d for d in ranking[row, skip:].tolist() if d >= 0 and d not in answers][:count]
        assert table.documents[row].tolist() == expected + [-1] * (count - len(expected))


def plain_mix(pools, quota, count):
    """One query: every source in turn, what it lacks is due from the next."""
    chosen, due = [], 0
    for pool, share in zip(pools, quota, strict=True):
        due += share
        for document in pool:
            if document >= 0 and document not in chosen and len(chosen) < due:
                chosen.append(document)
    return chosen + [-1] * (count - len(chosen))


# How many of `count` each source gives: whole parts first, then one more to the largest remainders, of equal ones to
# the first.
QUOTAS = (
    ((1, 1, 1), 6, (2, 2, 2)),
    ((1, 1, 1), 4, (2, 1, 1)),
    ((1, 1, 1), 5, (2, 2, 1)),
    ((4, 2, 1), 6, (3, 2, 1)),  # 3.43, 1.71, 0.86
    ((3, 2, 1), 2, (1, 1, 0)),  # 1, 0.67, 0.33
    ((1, 3, 4), 3, (0, 1, 2)),  # 0.38, 1.13, 1.5
    ((1, 4, 4), 1, (0, 1, 0)),  # 0.11, 0.44, 0.44
    ((0, 2, 3), 5, (0, 2, 3)),
    ((0, 0, 2), 3, (0, 0, 3)),
    ((0.1, 0.2, 0.7), 10, (1, 2, 7)),  # which 0.1 + 0.2 + 0.7 < 1 must not spoil
)


@settings(max_examples=60)
@given(st.integers(0, 1000), st.sampled_from(QUOTAS))
def test_mixing_keeps_ratios_and_fills_in_order(seed, ratio):
    shares, count, quota = ratio
    random = np.random.default_rng(seed)
    names = ("hard", "standard", "random")
    pools = {}
    for name in names:
        pool = np.stack([random.permutation(12)[:5] for _ in range(7)]).astype(np.int32)
        pool[np.arange(5) >= random.integers(0, 6, (7, 1))] = -1
        pools[name] = Negatives(pool)
    table = tables.mix(pools, dict(zip(names, shares, strict=True)), count)
    for row in range(7):
        assert table.documents[row].tolist() == plain_mix([pools[n].documents[row] for n in names], quota, count)


def test_ratio_of_a_mixture_by_hand():
    hard = Negatives(np.array([[0, 1, 2, 3], [0, -1, -1, -1]], np.int32))
    standard = Negatives(np.array([[4, 0, 5, 6], [0, 4, -1, -1]], np.int32))
    random = Negatives(np.array([[7, 8, 9, 1], [7, 8, 9, 1]], np.int32))
    sources = {"hard": hard, "standard": standard, "random": random}
    half = tables.mix(sources, {"hard": 0.5, "standard": 0.5}, 4)
    assert half.documents.tolist() == [[0, 1, 4, 5], [0, 4, 7, 8]]
    assert tables.mix(sources, {"hard": 1.0}, 4).documents.tolist() == [[0, 1, 2, 3], [0, 4, 7, 8]]
    assert tables.mix(sources, {"random": 1.0}, 2).documents.tolist() == [[7, 8], [7, 8]]


def test_tables_survive_their_folder(tmp_path):
    table = Negatives(np.array([[1, -1]], np.int32), np.array([[3, 2, np.nan]], np.float32))
    table.save(tmp_path / "negatives")
    found = Negatives.load(tmp_path / "negatives")
    for name in ("documents", "teacher_scores"):
        np.testing.assert_array_equal(getattr(found, name), getattr(table, name))
    assert found.fingerprint == table.fingerprint
    assert found.fingerprint != Negatives(table.documents).fingerprint
    Negatives(table.documents).save(tmp_path / "bare")
    assert Negatives.load(tmp_path / "bare").teacher_scores is None
    (tmp_path / "negatives" / "teacher_scores.npy").write_bytes(b"")
    with pytest.raises(InputError, match="teacher_scores.npy"):
        Negatives.load(tmp_path / "negatives")


def test_what_makes_no_sense_is_refused():
    one = Negatives(np.zeros((2, 1), np.int32))
    with pytest.raises(InputError, match="shares"):
        tables.mix({"hard": one}, {"soft": 1.0}, 1)
    with pytest.raises(InputError, match="no source"):
        tables.mix({"hard": one}, {"hard": 0.0}, 1)
    with pytest.raises(InputError, match="different queries"):
        tables.mix({"hard": one, "random": Negatives(np.zeros((3, 1), np.int32))}, {"hard": 1.0}, 1)
    with pytest.raises(InputError, match="no relevant document"):
        tables.cluster_negatives(np.zeros(4, int), ragged([[1], []]), 1)
    with pytest.raises(InputError, match=r"query 2 is answered by a document that is none of the 4 \(got 4\)"):
        tables.random_negatives(ragged([[1], [], [3, 4]]), 4, 1)
    with pytest.raises(InputError, match="rankings of 2"):
        tables.ranked_negatives(np.zeros((2, 3), int), ragged([[1]]), 1)
    with pytest.raises(InputError, match="shape"):
        Negatives(np.zeros((2, 1), np.int32), np.zeros((2, 1), np.float32))
