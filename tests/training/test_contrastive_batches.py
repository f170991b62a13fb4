import collections
import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax.errors import InputError
from gr_jax.training import contrastive_batches
from gr_jax.training.contrastive_batches import ContrastiveBatches, first_equal
from gr_jax.training.negatives import Negatives, random_negatives
from gr_jax.training.packing import count_examples
from gr_jax.training.token_store import TokenStore


def stores(seed=0, queries=20, documents=12, several=True, equal=True):
    """Query n is tokens of n + 1, document n of n + 1 (the last one equals the first): texts can be told by them."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 9, documents)
    texts = [[n + 1] * lengths[n] for n in range(documents)]
    if equal:
        texts[-1] = texts[0]
    answers = [random.choice(documents, random.integers(1, 3 if several else 2), replace=False) for _ in range(queries)]
    asked = [{"inputs": [n + 1] * random.integers(1, 5), "targets": a, "source": n % 3} for n, a in enumerate(answers)]
    return (
        TokenStore.from_rows(asked),
        TokenStore.from_rows({"inputs": text, "targets": [0]} for text in texts),
    )


def make(queries, documents, **settings):
    return ContrastiveBatches(
        queries, documents, **{"batch_size": 4, "query_lengths": (2, 4), "document_lengths": (4, 8), **settings}
    )


def check(batch, queries, documents, count):
    """A batch is what the class says; gives the rows of the queries in it."""
    size = 1 + count
    rows = []
    index = batch["document_index"].reshape(-1, size)
    tokens = batch["document_tokens"].reshape(len(index), size, -1)
    for i, query in enumerate(batch["query_tokens"]):
        if not query.any():
            assert (index[i] == -1).all() and not tokens[i].any()
            continue
        row = int(query[0]) - 1
        rows.append(row)
        np.testing.assert_array_equal(query[query != 0], queries.inputs[row])
        relevant = queries.targets[row].tolist()
        for k in range(size):
            text = tokens[i, k][tokens[i, k] != 0]
            if index[i, k] < 0:
                assert k and not len(text)
                continue
            np.testing.assert_array_equal(text, documents.inputs[int(index[i, k])])
            first = next(d for d in range(len(documents)) if np.array_equal(documents.inputs[d], text))
            assert index[i, k] == first
            if k == 0:
                np.testing.assert_array_equal(text, documents.inputs[relevant[0]])
        others = [first_equal(documents.inputs)[d] for d in relevant[1:]]
        if "relevant_index" in batch:
            kept = batch["relevant_index"][i]
            assert kept[kept >= 0].tolist() == others
        else:
            assert not others
    longest = {"query": (2, 4), "document": (4, 8)}
    for side, buckets in longest.items():
        width = batch[f"{side}_tokens"].shape[1]
        real = int((batch[f"{side}_tokens"] != 0).sum(1).max())
        assert width == next(b for b in buckets if b >= real)
    return rows


@settings(max_examples=25)
@given(st.integers(0, 500), st.integers(1, 6), st.integers(0, 3), st.booleans(), st.integers(1, 2))
def test_an_epoch_asks_every_query_once(seed, batch_size, count, shuffle, epochs):
    queries, documents = stores(seed)
    batches = make(
        queries, documents, batch_size=batch_size, num_negatives=count, shuffle=shuffle, epochs=epochs, seed=seed
    )
    seen = collections.Counter()
    for batch in batches:
        rows = check(batch, queries, documents, count)
        assert count_examples(batch) == len(rows) > 0
        seen.update(rows)
        assert {name: len(array) for name, array in batch.items() if name in batches.input_shapes} == {
            name: shape[0] for name, shape in batches.input_shapes.items()
        }
    assert seen == collections.Counter({row: epochs for row in range(len(queries))})


@settings(max_examples=25)
@given(st.integers(0, 500), st.integers(0, 5), st.integers(0, 4))
def test_going_on_from_a_state_gives_the_same_batches(seed, stop, count):
    queries, documents = stores(seed)
    table = random_negatives(queries.targets, len(documents), 4)
    dataset = make(queries, documents, negatives=table, num_negatives=count, seed=seed)
    iterator = iter(dataset)
    for _ in range(stop):
        next(iterator)
    state = json.loads(json.dumps(iterator.get_state()))
    expected = [next(iterator) for _ in range(4)]
    resumed = iter(dataset)
    resumed.set_state(state)
    for batch in expected:
        again = next(resumed)
        assert batch.keys() == again.keys()
        assert all(np.array_equal(batch[name], again[name]) for name in batch)
    assert resumed.get_state() == iterator.get_state()


@settings(max_examples=25)
@given(st.integers(0, 500), st.sampled_from([(1, 2), (2, 4), (4, 4)]), st.integers(0, 2))
def test_processes_together_read_the_batches_of_one(seed, shape, count):
    processes, batch_size = shape
    queries, documents = stores(seed)
    common = dict(batch_size=batch_size, num_negatives=count, seed=seed)
    whole = iter(make(queries, documents, **common))
    parts = [iter(make(queries, documents, process=(i, processes), **common)) for i in range(processes)]
    for _ in range(3):
        expected, pieces = next(whole), [next(part) for part in parts]
        for name, value in expected.items():
            np.testing.assert_array_equal(value, np.concatenate([piece[name] for piece in pieces]))


def test_packed_queries_have_their_numbers_of_the_whole_batch():
    """Whatever processes there are, and with empty rows at the end."""
    queries, documents = stores(0, queries=18)
    common = dict(batch_size=8, epochs=1, packing=(4, 2))
    parts = [make(queries, documents, process=(i, 2), **common) for i in range(2)]
    whole = list(make(queries, documents, **common))
    assert not whole[-1]["query_tokens"][-1].any()
    for expected, *pieces in zip(whole, *parts, strict=True):
        found = expected["query_segment_ids"]
        assert len(found) == 8
        np.testing.assert_array_equal(found, np.concatenate([piece["query_segment_ids"] for piece in pieces]))
        lengths = np.count_nonzero(expected["query_tokens"], axis=1)
        np.testing.assert_array_equal([np.count_nonzero(found == n + 1) for n in range(8)], lengths)


@settings(max_examples=25)
@given(st.integers(0, 50), st.integers(0, 6), st.integers(0, 6), st.sampled_from([None, 1]))
def test_the_rows_of_batches_are_known_before(seed, start, count, epochs):
    batches = make(*stores(seed), seed=seed, epochs=epochs)
    read = [check(batch, batches.queries, batches.documents, 0) for batch in itertools.islice(batches, start + count)]
    assert batches.rows_of(start, start + count).tolist() == sorted({row for rows in read[start:] for row in rows})


def test_answers_of_a_batch_differ_where_they_can():
    queries, documents = stores(3, queries=40, documents=10)
    for batch in itertools.islice(make(queries, documents, batch_size=4), 30):
        answers = batch["document_index"]
        assert len(set(answers.tolist())) == len(answers)
    lonely = TokenStore.from_rows([{"inputs": [n + 1], "targets": [0]} for n in range(6)])
    batch = next(iter(make(lonely, documents, batch_size=4)))  # there is only one answer
    assert (batch["document_index"] == 0).all()


def test_negatives_are_drawn_from_the_table_anew_every_time():
    queries, documents = stores(1, documents=30, equal=False)
    table = random_negatives(queries.targets, 30, 8)
    drawn = collections.defaultdict(list)
    for batch in make(queries, documents, negatives=table, num_negatives=2, epochs=12):
        for query, own in zip(batch["query_tokens"], batch["document_index"].reshape(-1, 3), strict=True):
            row = int(query[0]) - 1
            assert set(own[1:].tolist()) <= set(table.documents[row].tolist())
            drawn[row] += own[1:].tolist()
    assert all(len(set(found)) >= 6 for found in drawn.values())  # 24 draws of 8


@settings(max_examples=25)
@given(st.integers(0, 500), st.integers(1, 14))
def test_random_documents_take_the_place_of_missing_ones(seed, count):
    queries, documents = stores(seed, equal=False)
    short = Negatives(np.full((len(queries), 2), -1, np.int32))
    answers = [set(queries.targets[row].tolist()) for row in range(len(queries))]
    for row, own in enumerate(answers):
        short.documents[row, 1] = next(d for d in range(12) if d not in own)
    for batch in itertools.islice(make(queries, documents, negatives=short, num_negatives=count), 6):
        for query, own in zip(batch["query_tokens"], batch["document_index"].reshape(4, -1), strict=True):
            row = int(query[0]) - 1
            kept = own[1:][own[1:] >= 0].tolist()
            assert len(set(kept)) == len(kept) == min(count, 12 - len(answers[row]))
            assert not set(kept) & answers[row]
            assert short.documents[row, 1] in kept


def test_a_teachers_scores_go_with_their_documents():
    queries, documents = stores(2, equal=False)
    columns = random_negatives(queries.targets, 12, 5).documents
    columns[:, -1] = -1
    table = Negatives(
        columns,
        np.concatenate([queries.targets.tokens[queries.targets.offsets[:-1], None], columns], 1).astype(np.float32),
    )
    for count in (2, 6):
        for batch in itertools.islice(make(queries, documents, negatives=table, num_negatives=count), 8):
            own = batch["document_index"].reshape(4, -1)
            for i, query in enumerate(batch["query_tokens"]):
                listed = set(columns[int(query[0]) - 1].tolist()) - {-1}
                assert batch["teacher_scores"][i, 0] == own[i, 0]
                for k in range(count):
                    document = int(own[i, 1 + k])
                    score = batch["teacher_scores"][i, 1 + k]
                    assert score == document if document in listed else np.isnan(score)


def test_rates_choose_the_sources():
    queries, documents = stores(4)
    rows = [
        row
        for batch in itertools.islice(make(queries, documents, rates={"query": 1, "pseudo": 3}), 20)
        for row in check(batch, queries, documents, 0)
    ]
    share = np.bincount([row % 3 for row in rows], minlength=3) / len(rows)
    np.testing.assert_allclose(share, [0.25, 0, 0.75], atol=0.06)


@given(st.lists(st.lists(st.integers(1, 3), max_size=4), max_size=30))
def test_first_equal(texts):
    store = TokenStore.from_rows({"inputs": text, "targets": [0]} for text in texts)
    assert first_equal(store.inputs).tolist() == [texts.index(text) for text in texts]


def test_first_equal_of_more_than_is_hashed_at_once(monkeypatch):
    monkeypatch.setattr(contrastive_batches, "_HASHED", 130)
    texts = [np.random.default_rng(n % 50).integers(1, 30000, 20) for n in range(300)]
    store = TokenStore.from_rows({"inputs": text, "targets": [0]} for text in texts)
    assert first_equal(store.inputs).tolist() == [n % 50 for n in range(300)]


@pytest.mark.parametrize(
    "changes, match",
    (
        ({"batch_size": 0}, "split"),
        ({"batch_size": 3, "process": (0, 2)}, "split"),
        ({"num_negatives": -1}, "is negative"),
        ({"query_lengths": 2}, r"query \d+ has 4 tokens.*query_lengths ≥ 4"),
        ({"document_lengths": (8, 4)}, "ascending"),
        ({"negatives": Negatives(np.zeros((3, 1), np.int32))}, "negatives of 3 queries"),
        ({"packing": (3, 1)}, "cannot be packed"),
        ({"packing": (1, 1), "process": (0, 2)}, "cannot be packed"),
        ({"packing": (1, 0)}, "cannot be packed"),
    ),
)
def test_what_does_not_fit_is_refused(changes, match):
    queries, documents = stores()
    with pytest.raises(InputError, match=match):
        make(queries, documents, **changes)


def test_answers_outside_the_corpus_are_refused():
    queries, documents = stores()
    far = TokenStore.from_rows([{"inputs": [1], "targets": [3]}, {"inputs": [1], "targets": [12]}])
    with pytest.raises(InputError, match=r"query 1 is answered by a document that is none of the 12 \(got 12\)"):
        make(far, documents)
    none = TokenStore.from_rows([{"inputs": [1], "targets": []}])
    with pytest.raises(InputError, match="no relevant document"):
        make(none, documents)
