"""A batch whose queries alone are read has the loss that it has with all of them padded to the most."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gr_jax import models
from gr_jax.errors import InputError
from gr_jax.stages import contrastive
from gr_jax.stages.contrastive import ContrastiveTraining
from gr_jax.systems.colbert.network import LateInteraction, LateInteractionConfig, LateInteractionModel
from gr_jax.training import partitioning
from gr_jax.training.negatives import random_negatives
from gr_jax.training.token_store import TokenStore

DOCUMENTS, LONGEST, BATCH = 24, 48, 8
BERT = models.BertConfig(
    vocab_size=40, emb_dim=16, num_heads=2, num_encoder_layers=1, mlp_dim=24, max_positions=LONGEST, dropout_rate=0.0
)
T5 = models.T5Config(
    vocab_size=40, emb_dim=16, num_heads=2, head_dim=8, num_encoder_layers=1, num_decoder_layers=1, mlp_dim=24,
    dropout_rate=0.0,
)  # fmt: skip
LATE = LateInteractionConfig(encoder=BERT, dimension=8, query_length=0, query_marker=None, document_marker=None)
NETWORKS = {
    "bi-encoder": models.BiEncoderConfig(encoder=BERT),
    "two towers of T5": models.BiEncoderConfig(encoder=T5, pooling="cls", shared=False, projection=4),
    "late interaction": dataclasses.replace(LATE, token_weights="learned", whole_text=True),
}
SETTINGS = ContrastiveTraining(batch_size=BATCH, negatives=2, rates={"query": 1.0}, seed=3, mesh=(1, 1))


@given(st.integers(1, 100))
def test_lengths_of_rows_end_with_the_longest(longest):
    lengths = contrastive.query_row_lengths(longest)
    assert lengths[-1] == longest
    assert list(lengths) == sorted(set(lengths))


@functools.cache
def stores():
    """Questions of 1 to 9 tokens, and one of 33; each document answers one."""
    random = np.random.default_rng(0)
    sizes = [33, *random.integers(1, 10, DOCUMENTS - 1)]
    queries = TokenStore.from_rows(
        {"inputs": random.integers(1, 40, size).tolist(), "targets": [n], "source": 0} for n, size in enumerate(sizes)
    )
    documents = TokenStore.from_rows(
        {"inputs": random.integers(1, 40, 6).tolist(), "targets": [0]} for _ in range(DOCUMENTS)
    )
    return queries, documents


def packing(settings, **changes):
    queries, documents = stores()
    table = random_negatives(queries.targets, DOCUMENTS, 2)
    lengths = contrastive.query_row_lengths(LONGEST)
    return contrastive.make_query_batches(queries, documents, table, settings, lengths, **changes)


@functools.cache
def batches(data=1):
    """Six, (packed, padded): two epochs, so that the long question is in two of them."""
    queries, documents = stores()
    table = random_negatives(queries.targets, DOCUMENTS, 2)
    packed = iter(packing(dataclasses.replace(SETTINGS, mesh=(data, 1))))
    padded = iter(contrastive.make_batches(queries, documents, table, SETTINGS, LONGEST, LONGEST))
    return [(next(packed), next(padded)) for _ in range(6)]


def model(network):
    config = NETWORKS[network]
    if isinstance(config, LateInteractionConfig):
        return LateInteractionModel(LateInteraction(config), contrastive.loss_of(SETTINGS))
    return contrastive.bi_encoder_model(config, SETTINGS)


def with_documents(packed, padded):
    """A packed batch with tokens of documents, which a small network reads as they are."""
    own = {**packed, "document_tokens": padded["document_tokens"]}
    del own["document_position"]
    return own


def test_rows_are_as_long_as_the_longest_query():
    assert {packed["query_tokens"].shape[1] for packed, _ in batches()} == {32, LONGEST}
    for packed, padded in batches():
        size = packed["query_tokens"].shape[1]
        np.testing.assert_array_equal(packed["query_tokens"], padded["query_tokens"][:, :size])
        assert not padded["query_tokens"][:, size:].any()


# Of BERT alone, late interaction says as much.
@pytest.mark.parametrize(
    "network", [pytest.param(one, marks=[pytest.mark.slow] * (one == "bi-encoder")) for one in NETWORKS]
)
def test_packed_queries_have_the_loss_and_the_gradients_of_padded_ones(network):
    of_loss, one = model(network), np.ones((1, 4), np.int32)
    params = jax.jit(of_loss.module.init)(jax.random.key(0), one, one)["params"]
    value = jax.jit(jax.value_and_grad(lambda params, batch: of_loss.loss_fn(params, batch)[0]))
    for packed, padded in batches():
        assert len(packed["query_segment_ids"]) == BATCH // 4
        loss, gradients = value(params, with_documents(packed, padded))
        expected, of_padded = value(params, padded)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), gradients, of_padded)


def test_on_several_devices_it_is_the_same_loss():
    of_loss, one = model("bi-encoder"), np.ones((1, 4), np.int32)
    params = jax.device_get(jax.jit(of_loss.module.init)(jax.random.key(0), one, one)["params"])
    mesh = partitioning.make_mesh(8)
    packed, padded = batches(8)[0]
    assert len(packed["query_segment_ids"]) == 8  # one for each device
    with partitioning.on_mesh(mesh, partitioning.LOGICAL_AXIS_RULES):
        placed = jax.device_put(with_documents(packed, padded), partitioning.batch_sharding(mesh))
        loss = jax.jit(lambda batch: of_loss.loss_fn(params, batch)[0])(placed)
    np.testing.assert_allclose(loss, jax.jit(of_loss.loss_fn)(params, padded)[0], rtol=1e-5)


def test_devices_share_the_rows_evenly():
    for changes, expected in (
        ({}, (1, 2)), ({"mesh": (2, 1)}, (2, 1)), ({"mesh": (0, 1)}, (8, 1)), ({"mesh": (2, 4)}, (2, 1)),
        ({"mesh": (3, 1)}, None), ({"chunks": 2}, None), ({"batch_size": 2}, (1, 1)), ({"batch_size": 12}, (1, 3)),
    ):  # fmt: skip
        made = packing(dataclasses.replace(SETTINGS, **changes))
        assert made.packing == expected, changes
        assert "packing" not in made.settings  # it may go on with other devices
    assert packing(SETTINGS, packed=False).packing is None
    with pytest.raises(InputError, match="does not fit on 8 devices"):
        packing(dataclasses.replace(SETTINGS, mesh=(0, 16)))


def test_what_is_computed_in_chunks_is_not_packed():
    packed, padded = batches()[0]
    whole = model("bi-encoder")
    one = np.ones((1, 4), np.int32)
    params = jax.jit(whole.module.init)(jax.random.key(0), one, one)["params"]
    chunked = dataclasses.replace(whole, chunks=2)
    loss = jax.jit(lambda batch: chunked.loss_fn(params, batch)[0])(with_documents(packed, padded))
    np.testing.assert_allclose(loss, jax.jit(whole.loss_fn)(params, padded)[0], rtol=1e-5)


@pytest.mark.parametrize("changes", [{"query_length": 8}, {"query_marker": 1}])
def test_queries_that_are_marked_or_filled_up_are_not_packed(changes):
    config = dataclasses.replace(LATE, **changes)
    assert LATE.packs and not config.packs
    one = np.ones((1, 4), np.int32)
    with pytest.raises(InputError, match="not packed"):
        jax.eval_shape(
            lambda: LateInteraction(config).init(
                jax.random.key(0), one, np.ones((1, 16), np.int32), method="encode_query"
            )
        )
