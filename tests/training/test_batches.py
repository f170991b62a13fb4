import collections
import json

import jax
import numpy as np
import pytest
from flax.core import FrozenDict
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax.errors import InputError
from gr_jax.training.batches import make_batches
from gr_jax.training.packing import arrange, count_examples
from gr_jax.training.token_store import TokenStore
from tests.training.toy import ToyModel, toy_rows, toy_store

LENGTHS = {"inputs": 16, "targets": 6}


def store_of(lengths):
    """Row n has `lengths[n]` tokens, all n + 1: an example can be recognised by its tokens."""
    rows = [{"inputs": [n + 1] * i, "targets": [n + 1] * t, "source": n % 3} for n, (i, t) in enumerate(lengths)]
    return TokenStore.from_rows(rows)


def examples_of(batch):
    """Every (inputs, targets) of a batch, taken apart without the code that put them together."""
    found = []
    for row in range(len(batch["encoder_input_tokens"])):
        if "encoder_segment_ids" not in batch:
            tokens, weights = batch["encoder_input_tokens"][row], batch["decoder_loss_weights"][row]
            if weights.any():
                found.append((tuple(tokens[tokens != 0]), tuple(batch["decoder_target_tokens"][row][weights == 1])))
            continue
        for segment in range(1, batch["decoder_segment_ids"][row].max(initial=0) + 1):
            read = batch["encoder_segment_ids"][row] == segment
            written = batch["decoder_segment_ids"][row] == segment
            targets = batch["decoder_target_tokens"][row][written]
            assert batch["encoder_positions"][row][read].tolist() == list(range(read.sum()))
            assert batch["decoder_positions"][row][written].tolist() == list(range(written.sum()))
            assert batch["decoder_input_tokens"][row][written].tolist() == [0, *targets[:-1]]
            assert (batch["decoder_loss_weights"][row][written] == 1).all()
            found.append((tuple(batch["encoder_input_tokens"][row][read]), tuple(targets)))
    return found


lengths = st.lists(st.tuples(st.integers(1, 16), st.integers(1, 6)), min_size=1, max_size=40)


@settings(max_examples=25)
@given(lengths, st.integers(1, 6), st.booleans(), st.booleans(), st.integers(0, 3), st.integers(1, 3))
def test_an_epoch_has_every_example_once(lengths, batch_size, pack, shuffle, seed, epochs):
    store = store_of(lengths)
    sizes = LENGTHS if pack else {"inputs": (4, 9, 16), "targets": 6}
    batches = make_batches(
        store, batch_size=batch_size, lengths=sizes, pack=pack, shuffle=shuffle, seed=seed, epochs=epochs
    )
    seen = collections.Counter()
    for batch in batches:
        examples = examples_of(batch)
        assert count_examples(batch) == len(examples) > 0
        assert batch["decoder_loss_weights"].sum() == sum(len(targets) for _, targets in examples)
        seen.update(examples)
    assert seen == collections.Counter(
        (tuple(row["inputs"]), tuple(row["targets"])) for row in store for _ in range(epochs)
    )


@settings(max_examples=25)
@given(lengths, st.integers(1, 5), st.booleans(), st.integers(0, 6))
def test_going_on_from_a_state_gives_the_same_batches(lengths, batch_size, pack, stop):
    sizes = LENGTHS if pack else {"inputs": (4, 9, 16), "targets": 6}
    dataset = make_batches(store_of(lengths), batch_size=batch_size, lengths=sizes, pack=pack, seed=3)
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
@given(lengths, st.sampled_from([(1, 2), (2, 4), (4, 4)]), st.booleans())
def test_processes_together_read_the_batches_of_one(lengths, shape, pack):
    count, batch_size = shape
    sizes = LENGTHS if pack else {"inputs": (4, 9, 16), "targets": 6}
    common = dict(batch_size=batch_size, lengths=sizes, pack=pack, seed=1)
    whole = iter(make_batches(store_of(lengths), **common))
    parts = [iter(make_batches(store_of(lengths), process=(index, count), **common)) for index in range(count)]
    for _ in range(3):
        expected, pieces = next(whole), [next(part) for part in parts]
        for name, value in expected.items():
            np.testing.assert_array_equal(value, np.concatenate([piece[name] for piece in pieces]))


@settings(max_examples=30)
@given(lengths, st.integers(1, 6))
def test_without_packing_the_bucket_is_the_smallest_that_fits(lengths, batch_size):
    buckets = (4, 9, 16)
    batches = make_batches(
        store_of(lengths), batch_size=batch_size, lengths={"inputs": buckets, "targets": 6}, pack=False, epochs=1
    )
    for batch in batches:
        width = batch["encoder_input_tokens"].shape[1]
        assert batch["encoder_input_tokens"].shape == (batch_size, width) and width in buckets
        for inputs, _ in examples_of(batch):
            assert min(size for size in buckets if size >= len(inputs)) == width


def test_full_batches_have_one_shape_and_little_padding():
    random = np.random.default_rng(0)
    store = store_of(np.stack([random.integers(5, 40, 3000), random.integers(3, 7, 3000)], axis=1))
    iterator = iter(make_batches(store, batch_size=32, lengths={"inputs": 128, "targets": 32}))
    used, shapes = [], set()
    for _ in range(20):
        batch = next(iterator)
        used.append((batch["encoder_input_tokens"] != 0).mean())
        shapes.add(tuple((name, value.shape, value.dtype.str) for name, value in batch.items()))
    assert np.mean(used) > 0.93
    assert len(shapes) == 1


def test_sources_are_mixed_at_their_rates():
    store = TokenStore.from_rows(
        {"inputs": [number + 1], "targets": [1], "source": source}
        for number, source in enumerate([0] * 10 + [1] * 100 + [2] * 3)
    )
    batches = iter(
        make_batches(
            store, batch_size=50, lengths={"inputs": 2, "targets": 2}, pack=False, rates={"query": 1, "pseudo": 3}
        )
    )
    seen = np.concatenate([next(batches)["encoder_input_tokens"][:, 0] for _ in range(8)]) - 1
    source = np.array(store.source)[seen]
    assert np.bincount(source, minlength=3).tolist() == [100, 0, 300]
    # and each source goes through its rows evenly
    assert set(np.bincount(seen[source == 0], minlength=10)) == {10}
    assert set(np.bincount(seen[source == 2])[-3:]) == {100}


def test_named_sources_without_rows_are_passed_over_but_not_all():
    store = TokenStore.from_rows([{"inputs": [3], "targets": [1], "source": 2}])
    batch = next(iter(make_batches(store, batch_size=2, rates={"query": 1, "pseudo": 1})))
    assert set(batch["encoder_input_tokens"][batch["encoder_input_tokens"] != 0]) == {3}
    with pytest.raises(InputError, match="no row has a source with a rate"):
        make_batches(store, batch_size=2, rates={"query": 1, "pseudo": 0})


def order(store, **kwargs):
    batches = make_batches(store, batch_size=1, lengths={"inputs": 1, "targets": 1}, pack=False, **kwargs)
    return [int(batch["encoder_input_tokens"][0, 0]) - 1 for batch in batches]


def test_every_epoch_and_every_seed_have_another_order():
    store = store_of([(1, 1)] * 30)
    twice = order(store, epochs=2, seed=4)
    assert sorted(twice[:30]) == sorted(twice[30:]) == list(range(30))
    assert twice[:30] != twice[30:]
    assert twice[:30] != list(range(30)) != order(store, epochs=1, seed=5) != twice[:30]
    assert order(store, epochs=1, seed=4) == twice[:30]
    assert order(store, epochs=1, shuffle=False) == list(range(30))


def test_several_stores_are_one():
    a, b = toy_rows(7, seed=1), toy_rows(9, seed=2)
    together = make_batches(TokenStore.from_rows(a + b), batch_size=3, epochs=1, shuffle=False)
    separate = make_batches([TokenStore.from_rows(a), TokenStore.from_rows(b)], batch_size=3, epochs=1, shuffle=False)
    for left, right in zip(together, separate, strict=True):
        assert all(np.array_equal(left[name], right[name]) for name in left)


def test_settings_tell_other_data_apart():
    def settings_of(**changes):
        return make_batches(toy_store(**changes.pop("store", {})), **{"batch_size": 4, "seed": 0, **changes}).settings

    base = settings_of()
    assert base == settings_of() == json.loads(json.dumps(base))
    for change in ({"batch_size": 8}, {"seed": 1}, {"pack": False}, {"rates": {"query": 1}}, {"store": {"seed": 9}}):
        assert settings_of(**change) != base


def test_input_shapes_are_those_of_a_batch():
    for pack in (True, False):
        batches = make_batches(toy_store(), batch_size=4, pack=pack)
        assert {name: value.shape for name, value in next(iter(batches)).items()} == batches.input_shapes


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"lengths": {"inputs": 3, "targets": 8}}, "tokens of 'inputs'"),
        ({"lengths": {"inputs": 64, "targets": 1}}, "tokens of 'targets'"),
        ({"lengths": {"inputs": (32, 64), "targets": 8}}, "packed rows have one length"),
        ({"lengths": {"inputs": (64, 32), "targets": 8}, "pack": False}, "ascending"),
        ({"lengths": {"input": 64, "targets": 8}}, "must give 'inputs'"),
        ({"rates": {"question": 1}}, "not a rate"),
        ({"rates": {"query": -1}}, "not a rate"),
        ({"rates": {"query": 1}, "epochs": 1}, "not both"),
        ({"batch_size": 3, "process": (0, 2)}, "cannot be split over 2 processes"),
    ],
)
def test_contradictions_are_refused(change, problem):
    with pytest.raises(InputError, match=problem):
        make_batches(toy_store(), **{"batch_size": 4, **change})


def test_packing_does_not_change_the_loss():
    pairs = [(row["inputs"], row["targets"]) for row in toy_store(9)]
    model = ToyModel()
    alone = arrange([[pair] for pair in pairs], 16, 6, packed=False)
    packed = arrange([pairs[:5], pairs[5:]], 130, 60, packed=True)
    shapes = {name: value.shape for name, value in packed.items()}
    params = jax.jit(model.get_initial_variables, static_argnums=1)(jax.random.key(0), FrozenDict(shapes))["params"]
    results = [jax.jit(model.loss_fn)(params, batch, None) for batch in (alone, packed)]
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-5)
    assert results[0][1]["weight_sum"] == results[1][1]["weight_sum"] == sum(len(targets) for _, targets in pairs)
