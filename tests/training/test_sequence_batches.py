"""Rows of one sequence: what is in them, against taking them apart by hand."""

import collections
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax.errors import InputError
from gr_jax.training.hooks import Hook
from gr_jax.training.packing import count_examples
from gr_jax.training.relabelling import Relabelled
from gr_jax.training.sequence_batches import make_sequence_batches
from gr_jax.training.token_store import TokenStore
from tests.training import hooked
from tests.training.toy import learn, toy_store

lengths = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6)), min_size=1, max_size=30)
prompts = st.lists(st.integers(1, 99), max_size=4)


def store_of(lengths):
    """Row n has tokens 100 n + 1, …: an example can be recognised by its tokens. Some of them are 0."""
    rows = [
        {"inputs": [0, *range(100 * n + 2, 100 * n + i + 1)], "targets": list(range(100 * n + 50, 100 * n + 50 + t))}
        for n, (i, t) in enumerate(lengths)
    ]
    return TokenStore.from_rows(row | {"source": n % 3} for n, row in enumerate(rows))


def examples_of(batch):
    """(prompt and inputs, targets) of every segment; checks the rest of the batch by the way, token by token."""
    found = []
    for tokens, weights, positions, segments in zip(
        *(batch[name].tolist() for name in ("tokens", "loss_weights", "positions", "segment_ids")), strict=True
    ):
        read = {}
        for place, (token, weight, position, segment) in enumerate(
            zip(tokens, weights, positions, segments, strict=True)
        ):
            if not segment:
                assert (token, weight, position) == (0, 0, 0) and not any(segments[place:])
                continue
            before, after = read.setdefault(segment, ([], []))
            assert position == len(before) + len(after) and weight in (0, 1)
            assert weight or not after  # nothing but targets after the first of them
            (after if weight else before).append(token)
        assert list(read) == list(range(1, len(read) + 1))
        found += [(tuple(before), tuple(after)) for before, after in read.values()]
    return found


@settings(max_examples=25)
@given(lengths, prompts, st.integers(1, 5), st.booleans(), st.integers(0, 2))
def test_an_epoch_has_every_example_once(lengths, prompt, batch_size, pack, seed):
    store = store_of(lengths)
    batches = make_sequence_batches(
        store, batch_size=batch_size, length=24 if pack else (8, 13, 24), prompt=prompt, pack=pack, seed=seed, epochs=2
    )
    seen = collections.Counter()
    for batch in batches:
        examples = examples_of(batch)
        assert count_examples(batch) == len(examples) > 0
        if pack:
            assert {name: array.shape for name, array in batch.items()} == batches.input_shapes
        else:
            longest = max(len(before) + len(after) for before, after in examples)
            assert batch["tokens"].shape == (batch_size, min(n for n in (8, 13, 24) if n >= longest))
        seen.update(examples)
    expected = [((*prompt, *row["inputs"].tolist()), tuple(row["targets"].tolist())) for row in store]
    assert seen == collections.Counter(expected * 2)
    assert json.loads(json.dumps(batches.settings)) == batches.settings


@settings(max_examples=25)
@given(lengths, st.integers(1, 4), st.booleans(), st.integers(0, 8))
def test_going_on_from_a_state_gives_the_same_batches(lengths, batch_size, pack, stop):
    batches = make_sequence_batches(store_of(lengths), batch_size=batch_size, length=20, pack=pack, epochs=4)
    one, other = iter(batches), iter(batches)
    for _, _ in zip(range(stop), one, strict=False):
        pass
    other.set_state(json.loads(json.dumps(one.get_state())))
    for left, right in zip(one, other, strict=True):
        np.testing.assert_equal(left, right)


@settings(max_examples=25)
@given(lengths, st.booleans())
def test_processes_together_read_the_batches_of_one(lengths, pack):
    def read(process):
        return list(
            make_sequence_batches(
                store_of(lengths), batch_size=4, length=20, pack=pack, epochs=1, process=process
            )
        )  # fmt: skip

    for whole, *parts in zip(read((0, 1)), read((0, 2)), read((1, 2)), strict=True):
        for name, array in whole.items():
            np.testing.assert_array_equal(array, np.concatenate([part[name] for part in parts]))


def test_packed_rows_are_nearly_full():
    random = np.random.default_rng(0)
    store = store_of([(int(i), int(t)) for i, t in random.integers(1, 10, (400, 2))])
    batches = make_sequence_batches(store, batch_size=8, length=40, prompt=[7, 8], epochs=1)
    filled = [(batch["segment_ids"] > 0).mean() for batch in batches]
    assert np.mean(filled[:-1]) > 0.9


def test_targets_may_be_relabelled():
    tables = {"targets": np.array([[5, -1], [6, 7]], np.int32)}
    hook = Hook("names", lambda params, step: tables, 1000, tables=tables)
    store = Relabelled(store_of([(2, 1), (3, 1), (1, 4)]), np.array([1, 0, -1]), hook)
    (batch,) = make_sequence_batches(store, batch_size=2, length=16, shuffle=False, epochs=1)
    assert [after for _, after in examples_of(batch)] == [(6, 7), (5,), (250, 251, 252, 253)]
    for labels, message in ((np.zeros(2, int), "labels of 2 examples"), (np.array([0, 2, 0]), "example 1 has a label")):
        with pytest.raises(InputError, match=message):
            Relabelled(store.store, labels, hook)
    with pytest.raises(InputError, match="no table 'codes'"):
        Relabelled(store.store, store.labels, hook, table="codes")


def test_they_can_be_trained_on(tmp_path):
    """The loop knows their shapes, their place and how many examples they hold."""
    from gr_jax.training.optimizers import adamw

    class Unigrams:
        def get_initial_variables(self, rng, input_shapes, input_types=None):
            assert set(input_shapes) == {"tokens", "loss_weights", "positions", "segment_ids"}
            return {"params": {"logits": np.zeros(64, np.float32)}}

        def loss_fn(self, params, batch, dropout_rng):
            import jax

            losses = -jax.nn.log_softmax(params["logits"])[batch["tokens"]] * batch["loss_weights"]
            return losses.sum(), {"weight_sum": batch["loss_weights"].sum()}

    batches = make_sequence_batches(toy_store(hooked.EXAMPLES), batch_size=8, length=32, prompt=[1])
    arguments = {"optimizer": adamw(0.1), "model_dir": tmp_path, "microbatches": 2}
    result = learn(Unigrams(), batches, steps=60, **arguments)
    targets = np.concatenate([row["targets"] for row in toy_store(hooked.EXAMPLES)])
    often = np.bincount(targets, minlength=64).argmax()
    assert result.params["logits"].argmax() == often and result.params["logits"][1] < 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 8}, "row 1 of the token store has 9 tokens, which with the prompt's 0"),
        ({"length": 10, "prompt": [1, 2]}, "with the prompt's 2 do not fit into the 10"),
        ({"length": (8, 16)}, "packed rows have one length"),
        ({"length": (16, 8), "pack": False}, "length must be one length"),
        ({"batch_size": 3, "process": (0, 2)}, "cannot be split over 2 processes"),
    ],
)
def test_contradictions_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        make_sequence_batches(store_of([(1, 2), (5, 4)]), **{"batch_size": 4, "length": 16, **change})


def test_a_first_target_needs_something_before_it():
    store = TokenStore.from_rows([{"inputs": [], "targets": [3, 4]}])
    with pytest.raises(InputError, match="start token as prompt"):
        make_sequence_batches(store, batch_size=1, length=8)
    (batch,) = make_sequence_batches(store, batch_size=1, length=8, prompt=[9], epochs=1)
    assert batch["tokens"][0, :3].tolist() == [9, 3, 4] and batch["loss_weights"][0, :3].tolist() == [0, 1, 1]
