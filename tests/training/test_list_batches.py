"""Lists of graded candidates: what a batch holds, against reading the lists row by row."""

import json
import math
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax.errors import InputError
from gr_jax.training.candidate_lists import Candidate, CandidateLists
from gr_jax.training.list_batches import ListBatches
from gr_jax.training.negatives import Negatives
from gr_jax.training.packing import count_examples
from gr_jax.training.token_store import TokenStore

DOCUMENTS = 15


def rows_of(seed, count):
    """Lists of 0 to 5 candidates: several relevant ones, of several grades, or none; some have scores."""
    random = np.random.default_rng(seed)
    return [
        [
            Candidate(int(d), int(random.integers(0, 4)), float(random.normal()) if random.random() < 0.6 else math.nan)
            for d in random.permutation(DOCUMENTS)[: random.integers(0, 6)]
        ]
        for _ in range(count)
    ]


def queries_of(rows):
    """Query n has tokens n + 1; what is relevant for it are the candidates of a grade above 0, of some queries none."""
    return TokenStore.from_rows(
        {"inputs": [n + 1] * (1 + n % 3), "targets": [c.document for c in row if c.grade > 0], "source": n % 2}
        for n, row in enumerate(rows)
    )


def documents():
    return TokenStore.from_rows({"inputs": [100 + n] * (1 + n % 4), "targets": [0]} for n in range(DOCUMENTS))


def lists_of(batch):
    """query → list of candidates, of the rows that are not empty."""
    found = []
    for n in range(len(batch["query_tokens"])):
        read = zip(*(batch[name][n].tolist() for name in ("candidate_index", "grades", "teacher_scores")), strict=True)
        valid = batch["valid"][n].tolist()
        there = [Candidate(*fields) for fields, ok in zip(read, valid, strict=True) if ok]
        query = int(batch["query_tokens"][n, 0])
        for name, padding in (("candidate_index", -1), ("grades", 0), ("teacher_scores", np.nan)):
            np.testing.assert_array_equal(batch[name][n][~batch["valid"][n]], padding)
        assert query or not there
        if query:
            found.append((query - 1, there))
    return found


def key(candidates):
    return [
        (c.document, c.grade, None if math.isnan(c.teacher_score) else np.float32(c.teacher_score)) for c in candidates
    ]


counts = st.integers(4, 20)


@settings(max_examples=25)
@given(st.integers(0, 5), counts, st.integers(1, 6), st.booleans())
def test_lists_as_they_are(seed, count, batch_size, shuffle):
    rows = rows_of(seed, count)
    lists = CandidateLists.from_rows([*rows, rows_of(9, 40)[3]])  # one more, so that some list has candidates
    rows = [*rows, rows_of(9, 40)[3]]
    batches = ListBatches(
        queries_of(rows), lists, batch_size=batch_size, query_lengths=3, seed=seed, shuffle=shuffle, epochs=1
    )
    seen = []
    for batch in batches:
        assert {name: array.shape for name, array in batch.items()} == batches.input_shapes
        assert count_examples(batch) == len(lists_of(batch)) > 0
        seen += lists_of(batch)
    assert sorted(query for query, _ in seen) == list(range(len(rows)))
    for query, found in seen:
        assert key(found) == key(rows[query])
    assert shuffle or [query for query, _ in seen] == list(range(len(rows)))


def test_first_and_sampled_candidates():
    rows = rows_of(1, 30)
    queries, lists = queries_of(rows), CandidateLists.from_rows(rows)
    first = ListBatches(queries, lists, batch_size=5, candidates=2, query_lengths=3, epochs=1)
    for query, found in (pair for batch in first for pair in lists_of(batch)):
        assert key(found) == key(rows[query][:2])

    drawn = {}
    sampled = ListBatches(queries, lists, batch_size=5, candidates=2, sampled=True, query_lengths=3, epochs=200)
    for query, found in (pair for batch in sampled for pair in lists_of(batch)):
        places = [[c.document for c in rows[query]].index(c.document) for c in found]
        assert places == sorted(places) and len(places) == min(2, len(rows[query]))
        assert key(found) == key([rows[query][place] for place in places])
        drawn.setdefault(query, []).append(tuple(places))
    for query, places in drawn.items():  # all pairs, equally often: chi-squared with 1 − 1e-6 of 10 − 1 degrees at most
        n = len(rows[query])
        pairs = n * (n - 1) // 2
        if n > 2:
            _, often = np.unique(places, axis=0, return_counts=True)
            assert len(often) == pairs
            assert ((often - 200 / pairs) ** 2 / (200 / pairs)).sum() < 48


@pytest.mark.parametrize("table", [False, True])
def test_negatives_stand_beside_candidates(table):
    rows = rows_of(2, 25)
    queries, lists = queries_of(rows), CandidateLists.from_rows(rows)
    known = Negatives(
        np.random.default_rng(0).permuted(np.tile(np.arange(DOCUMENTS), (25, 1)), axis=1)[:, :6].astype(np.int32)
    )
    batches = ListBatches(
        queries, lists, batch_size=4, candidates=3, sampled=True, documents=documents(), num_negatives=2,
        negatives=known if table else None, query_lengths=3, document_lengths=(2, 4), epochs=20,
    )  # fmt: skip
    texts, drawn = documents(), set()
    for batch in batches:
        groups = batch["document_tokens"].reshape(4, 5, -1)
        for n, query in enumerate(int(tokens[0]) - 1 for tokens in batch["query_tokens"]):
            negatives = batch["negative_index"][n].tolist()
            if query < 0:
                assert negatives == [-1, -1] and not groups[n].any()
                continue
            candidates = set(batch["candidate_index"][n][batch["valid"][n]].tolist())
            assert len(set(negatives)) == 2 and not candidates & set(negatives)
            from_table = set(known.documents[query].tolist()) - candidates
            if table and len(from_table) >= 2:
                assert set(negatives) <= from_table
            elif not table:
                assert not set(negatives) & set(queries.targets[query].tolist())
            drawn.add((query, *negatives))
            for document, tokens in zip([*batch["candidate_index"][n].tolist(), *negatives], groups[n], strict=True):
                expected = texts.inputs[document].tolist() if document >= 0 else []
                assert tokens[tokens != 0].tolist() == expected
    assert len(drawn) > 150


@settings(max_examples=25)
@given(st.integers(0, 3), st.integers(0, 9), st.booleans())
def test_going_on_from_a_state_gives_the_same_batches(seed, stop, sampled):
    rows = rows_of(3, 17)
    batches = ListBatches(
        queries_of(rows), CandidateLists.from_rows(rows), batch_size=4, candidates=3, sampled=sampled, seed=seed,
        num_negatives=2, num_documents=DOCUMENTS, query_lengths=3, epochs=3,
    )  # fmt: skip
    one, other = iter(batches), iter(batches)
    for _, _ in zip(range(stop), one, strict=False):
        pass
    other.set_state(json.loads(json.dumps(one.get_state())))
    for left, right in zip(one, other, strict=True):
        np.testing.assert_equal(left, right)
    assert json.loads(json.dumps(batches.settings)) == batches.settings


def test_processes_together_read_the_batches_of_one():
    rows = rows_of(4, 22)

    def read(process):
        return list(
            ListBatches(
                queries_of(rows), CandidateLists.from_rows(rows), batch_size=4, candidates=3, documents=documents(),
                num_negatives=1, query_lengths=(1, 3), document_lengths=(2, 4), epochs=1, process=process,
            )
        )  # fmt: skip

    for whole, *parts in zip(read((0, 1)), read((0, 2)), read((1, 2)), strict=True):
        for name, array in whole.items():
            np.testing.assert_array_equal(array, np.concatenate([part[name] for part in parts]))


def test_on_disk_and_back(tmp_path):
    for number, rows in enumerate((rows_of(5, 8), [[Candidate(3, 1), Candidate(2)], []])):
        lists = CandidateLists.from_rows(rows)
        lists.save(tmp_path / str(number))
        found = CandidateLists.load(tmp_path / str(number))
        assert found.fingerprint == lists.fingerprint and (found.teacher_scores is None) == bool(number)
        np.testing.assert_array_equal(found.grades, lists.grades)
    shutil.copytree(tmp_path / "1", tmp_path / "cut")
    (tmp_path / "cut" / "grades.npy").write_bytes(b"")
    with pytest.raises(InputError, match="truncated"):
        CandidateLists.load(tmp_path / "cut")
    others = [[[Candidate(3, 2), Candidate(2)], []], [[Candidate(3, 1), Candidate(2, 0, 0.5)], []]]
    assert (
        len({CandidateLists.from_rows(rows).fingerprint for rows in (*others, [[Candidate(3, 1), Candidate(2)], []])})
        == 3
    )


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match="a document twice.*query 1"):
        CandidateLists.from_rows([[], [Candidate(2), Candidate(2)]])
    with pytest.raises(InputError, match=r"grades of candidates must have the shape \(2, 3\)"):
        CandidateLists(np.full((2, 3), -1, np.int32), np.zeros((2, 2), np.int32))
    rows = rows_of(6, 6)
    queries, lists = queries_of(rows), CandidateLists.from_rows(rows)
    for changes, message in (
        ({"candidates": 9}, "Draw 1 to"),
        ({"candidates": 0}, "Draw 1 to"),
        ({"num_negatives": 2}, "num_documents or documents"),
        ({"negatives": Negatives(np.zeros((6, 1), np.int32))}, "num_negatives"),
        ({"negatives": Negatives(np.zeros((5, 1), np.int32)), "num_negatives": 1}, "negatives of 5 queries"),
        ({"num_documents": 3}, "none of the 3 documents"),
        ({"num_documents": 3, "documents": documents()}, "15 documents, where there are 3"),
        ({"lists": CandidateLists.from_rows(rows[:5])}, "candidates of 5 queries"),
        ({"query_lengths": 2}, "query 2 has 3 tokens"),
        ({"batch_size": 3, "process": (0, 2)}, "cannot be split over 2 processes"),
    ):
        arguments = {"lists": lists, "batch_size": 2, "query_lengths": 3, **changes}
        with pytest.raises(InputError, match=message):
            ListBatches(queries, **arguments)
