"""Rows of one source and its targets: what is in them, and that they can go on anywhere."""

import itertools

import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.training.source_batches import SourceTargets, TargetBatches

EOS = 99
ASKED, MADE = 0, 1  # two kinds of targets
DOCUMENTS = np.arange(1, 29, dtype=np.int32).reshape(7, 4)
ASKED_OF = [[[10 * d + q + 1] * (q + 1) for q in range(d % 3)] for d in range(7)]
MADE_OF = [[[50 + d, 60 + d]] if d not in (3, 6) else [] for d in range(7)]  # nothing at all leads to 3 and 6


def batches(**changes):
    data = SourceTargets(DOCUMENTS, [ASKED_OF, MADE_OF], changes.pop("encoded", None))
    return TargetBatches(data, **{"batch_size": 2, "targets": 8, "eos_id": EOS, "seed": 1, **changes})


def queries_of(batch, row):
    """(kind, tokens) of the queries in a row, by their segments."""
    found = []
    for segment in range(1, batch["decoder_segment_ids"][row].max() + 1):
        here = batch["decoder_segment_ids"][row] == segment
        inputs, targets = batch["decoder_input_tokens"][row][here], batch["decoder_target_tokens"][row][here]
        assert targets[-1] == EOS and (inputs[1:] == targets[:-1]).all()
        found.append((int(inputs[0]), targets[:-1].tolist()))
    return found


def test_an_epoch_has_every_query_once():
    once = batches(epochs=1)
    found = {}
    for batch in once:
        assert {name: array.shape for name, array in batch.items()} == once.input_shapes
        np.testing.assert_array_equal(batch["decoder_loss_weights"], batch["decoder_segment_ids"] > 0)
        for row, tokens in enumerate(batch["encoder_input_tokens"]):
            if tokens.any():
                found[(int(tokens[0]) - 1) // 4] = queries_of(batch, row)
    assert sorted(found) == [0, 1, 2, 4, 5]
    for document, queries in found.items():
        kinds = [kind for kind, _ in queries]
        assert kinds == sorted(kinds, key=(ASKED, MADE).index)  # asked ones first
        expected = [(ASKED, q) for q in ASKED_OF[document]] + [(MADE, q) for q in MADE_OF[document]]
        assert sorted(queries) == sorted(expected)


def test_rows_take_what_fits():
    for batch in batches(targets=5, epochs=1):
        for row, tokens in enumerate(batch["encoder_input_tokens"]):
            queries = queries_of(batch, row)
            assert sum(len(query) + 1 for _, query in queries) <= 5
            if tokens[0] == 21:  # the sixth document: [51] and [52, 52] leave no room for the third
                assert sorted(queries) == [(ASKED, [51]), (ASKED, [52, 52])]


def test_the_same_seed_gives_the_same_batches_and_goes_on_anywhere():
    first, second = (list(itertools.islice(batches(), 12)) for _ in range(2))
    other = list(itertools.islice(batches(seed=2), 12))
    iterator = iter(batches())
    for _ in range(5):
        next(iterator)
    state = iterator.get_state()
    iterator = iter(batches())
    iterator.set_state(state)
    for place, (one, two) in enumerate(zip(first, second, strict=True)):
        three = next(iterator) if place >= 5 else one
        for name in one:
            np.testing.assert_array_equal(one[name], two[name])
            np.testing.assert_array_equal(one[name], three[name])
    assert any(
        (one["encoder_input_tokens"] != two["encoder_input_tokens"]).any()
        for one, two in zip(first, other, strict=True)
    )
    assert batches().settings == batches().settings != batches(seed=2).settings


def test_states_come_with_their_documents():
    encoded = DOCUMENTS[:, :, None].astype(np.float16) * np.ones(3, np.float16)
    for batch in batches(encoded=encoded, epochs=1):
        np.testing.assert_array_equal(batch["encoded"][..., 0], batch["encoder_input_tokens"])
        assert batch["encoded"].shape == (2, 4, 3) and batch["encoded"].dtype == np.float16


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_which_sources_are_drawn(number):
    there = batches()
    drawn = there.drawn(number)
    seen = {int(row[0] - 1) // 4 for n in range(number) for row in there.batch(n)["encoder_input_tokens"] if row.any()}
    assert drawn.tolist() == sorted(seen)
    states = np.zeros((7, 4, 3), np.float16)
    states[drawn] = 1.0 + drawn[:, None, None]  # of no other source
    for n in range(number):
        batch = there.with_states(states).batch(n)
        expected = np.where(batch["encoder_input_tokens"] > 0, (batch["encoder_input_tokens"] - 1) // 4 + 1, 0)
        np.testing.assert_array_equal(batch["encoded"], np.broadcast_to(expected[..., None], batch["encoded"].shape))
    assert there.settings == there.with_states(states).settings and "encoded" not in there.batch(0)


def test_nothing_to_learn_from():
    with pytest.raises(InputError, match="nothing to learn"):
        TargetBatches(SourceTargets(DOCUMENTS, [[[]] * 7, [[]] * 7]), batch_size=2, targets=8, eos_id=EOS)


def test_a_query_that_fits_no_row_is_refused():
    assert batches(targets=3)
    with pytest.raises(InputError, match="source 2 has 3 tokens with its end, and a row 2"):
        batches(targets=2)


def test_a_batch_of_nothing_is_refused():
    with pytest.raises(InputError, match="batch_size ≥ 1"):
        batches(batch_size=0)


def test_sources_behind_others():
    data = SourceTargets(DOCUMENTS, [ASKED_OF, MADE_OF])
    joined = data.subset([0, 1, 2]).joined(data.subset([3, 4, 5, 6]))
    assert joined.fingerprint == data.fingerprint
    np.testing.assert_array_equal(joined.sources, DOCUMENTS)


def test_processes_share_out_the_sources_of_a_batch():
    states = np.random.default_rng(0).normal(size=(7, 4, 3)).astype(np.float16)
    every = [dict(encoded=states, batch_size=4, epochs=2, process=(index, 2)) for index in range(2)]
    whole, parts = batches(**{**every[0], "process": (0, 1)}), [batches(**one) for one in every]
    assert all(part.input_shapes == whole.input_shapes and part.settings == whole.settings for part in parts)
    for expected, *shares in zip(whole, *parts, strict=True):
        for name, array in expected.items():
            assert all(len(share[name]) == 2 for share in shares)
            np.testing.assert_array_equal(np.concatenate([share[name] for share in shares]), array)
    with pytest.raises(InputError, match="a batch of 4 sources cannot be split over 3 processes"):
        batches(**{**every[0], "process": (0, 3)})
