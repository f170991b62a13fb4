"""A batch whose queries alone are read has the loss that it has with all of them padded to the most."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gr_jax import models
from gr_jax.stages import contrastive
from gr_jax.stages.contrastive import ContrastiveTraining
from gr_jax.systems.colbert.network import LateInteraction, LateInteractionConfig, LateInteractionModel
from gr_jax.training.negatives import random_negatives
from gr_jax.training.padding import pack_evenly
from gr_jax.training.token_store import TokenStore

DOCUMENTS, LONGEST, BATCH = 24, 48, 8
ENCODERS = {
    "BERT": models.BertConfig(
        vocab_size=40, emb_dim=16, num_heads=2, num_encoder_layers=1, mlp_dim=24, max_positions=64, dropout_rate=0.0
    ),
    "T5": models.T5Config(
        vocab_size=40, emb_dim=16, num_heads=2, head_dim=8, num_encoder_layers=1, num_decoder_layers=1, mlp_dim=24,
        dropout_rate=0.0,
    ),
}  # fmt: skip
SETTINGS = ContrastiveTraining(batch_size=BATCH, negatives=2, rates={"query": 1.0}, seed=3, mesh=(1, 1))


@given(longest=st.integers(1, 100), alone=st.booleans())
def test_lengths_of_rows_end_with_the_longest(longest, alone):
    lengths = contrastive.query_lengths(longest, alone=alone)
    assert lengths[-1] == longest
    assert list(lengths) == sorted(set(lengths))


@functools.cache
def stores():
    """Questions of 1 to 9 tokens, and one of 20; each document answers one."""
    random = np.random.default_rng(0)
    sizes = [20, *random.integers(1, 10, DOCUMENTS - 1)]
    queries = TokenStore.from_rows(
        {"inputs": random.integers(1, 40, size).tolist(), "targets": [n], "source": 0} for n, size in enumerate(sizes)
    )
    documents = TokenStore.from_rows(
        {"inputs": random.integers(1, 40, 6).tolist(), "targets": [0]} for _ in range(DOCUMENTS)
    )
    return queries, documents


@functools.cache
def batches(kind):
    """Six: two epochs, so that the long question is in two of them."""
    queries, documents = stores()
    table = random_negatives(queries.targets, DOCUMENTS, 2)
    if kind == "packed":
        made = contrastive.make_query_batches(queries, documents, table, SETTINGS, LONGEST)
    else:
        lengths = LONGEST if kind == "wide" else contrastive.query_lengths(LONGEST, alone=kind == "alone")
        made = contrastive.make_batches(queries, documents, table, SETTINGS, lengths, LONGEST)
    found = iter(made)
    return [next(found) for _ in range(6)]


@functools.cache
def model(kind, encoder):
    if kind == "bi-encoder":
        return contrastive.bi_encoder_model(models.BiEncoderConfig(encoder=ENCODERS[encoder]), SETTINGS)
    plain = LateInteractionConfig(
        encoder=ENCODERS[encoder], dimension=8, query_length=0, query_marker=None, document_marker=None
    )
    module = LateInteraction(plain)
    return LateInteractionModel(module, contrastive.loss_of(SETTINGS))


@pytest.mark.parametrize("alone", (False, True))
def test_rows_are_as_long_as_the_longest_query(alone):
    narrow = batches("alone" if alone else "with documents")
    assert {batch["query_tokens"].shape[1] for batch in narrow} == ({16, 24} if alone else {32})
    for less, more in zip(narrow, batches("wide"), strict=True):
        size = less["query_tokens"].shape[1]
        np.testing.assert_array_equal(less["query_tokens"], more["query_tokens"][:, :size])
        assert not more["query_tokens"][:, size:].any()


@pytest.mark.parametrize(("kind", "encoder"), [("bi-encoder", "BERT"), ("bi-encoder", "T5"), ("late", "BERT")])
def test_packed_queries_have_the_loss_and_the_gradients_of_padded_ones(kind, encoder):
    of_loss = model(kind, encoder)
    one = np.ones((1, 4), np.int32)
    params = jax.jit(of_loss.module.init)(jax.random.key(0), one, one)["params"]
    value = jax.jit(jax.value_and_grad(lambda params, batch: of_loss.loss_fn(params, batch)[0]))
    narrow, real = [], 0
    for packed, wide in zip(batches("packed"), batches("wide"), strict=True):
        narrow.append(packed["query_segment_ids"].shape)
        real += np.count_nonzero(wide["query_tokens"])
        own = {**packed, "document_tokens": wide["document_tokens"]}
        del own["document_position"]
        loss, gradients = value(params, own)
        expected, of_wide = value(params, wide)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), gradients, of_wide)
    assert {rows for rows, _ in narrow} == {BATCH // 4}
    assert real <= sum(rows * width for rows, width in narrow) < 6 * BATCH * 16


@given(st.lists(st.integers(0, 20), min_size=1, max_size=12), st.integers(1, 3), st.integers(1, 2))
def test_every_text_is_packed_whole_and_no_row_is_much_fuller_than_others(lengths, rows, processes):
    lengths = np.array(lengths * processes)
    found = pack_evenly(lengths, rows * processes, processes)
    assert found.shape[:2] == (processes, rows)
    for text, length in enumerate(lengths):
        process, row, place = np.nonzero(found == text + 1)
        assert len(place) == length
        if length:
            assert set(process) == {text * processes // len(lengths)}
            assert len(set(row)) == 1
            np.testing.assert_array_equal(place, place[0] + np.arange(length))
    used = np.count_nonzero(found, axis=-1)
    assert (used.max(axis=1) - used.min(axis=1) <= lengths.max()).all()


def test_rows_that_devices_or_chunks_cannot_share_evenly_are_not_packed():
    queries, documents = stores()
    table = random_negatives(queries.targets, DOCUMENTS, 2)
    for changes, packed in (({}, 2), ({"mesh": (2, 1)}, 2), ({"mesh": (8, 1)}, None), ({"chunks": 2}, None)):
        settings = ContrastiveTraining(**{**vars(SETTINGS), **changes})
        made = contrastive.make_query_batches(queries, documents, table, settings, LONGEST)
        assert made.packed_rows == packed, changes
