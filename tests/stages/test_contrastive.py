"""A batch is padded to its longest query; it has the tokens and the loss that it has when it is padded to the most."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gr_jax import models
from gr_jax.stages import contrastive
from gr_jax.stages.contrastive import ContrastiveTraining
from gr_jax.training.negatives import random_negatives
from gr_jax.training.token_store import TokenStore

DOCUMENTS, LONGEST = 12, 48
BERT = models.BertConfig(
    vocab_size=40, emb_dim=16, num_heads=2, num_encoder_layers=1, mlp_dim=24, max_positions=LONGEST, dropout_rate=0.0
)
SETTINGS = ContrastiveTraining(batch_size=4, negatives=2, rates={"query": 1.0}, seed=3)


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


def batches(lengths, document_tokens):
    queries, documents = stores()
    table = random_negatives(queries.targets, DOCUMENTS, 2)
    made = contrastive.make_batches(
        queries, documents, table, SETTINGS, lengths, LONGEST, document_tokens=document_tokens
    )
    found = iter(made)
    return [next(found) for _ in range(6)]  # both epochs: the long question is in two batches


@pytest.mark.parametrize("alone", (False, True))
def test_narrow_batches_have_the_loss_of_wide_ones(alone):
    narrow = batches(contrastive.query_lengths(LONGEST, alone=alone), True)
    wide = batches(LONGEST, True)
    widths = [batch["query_tokens"].shape[1] for batch in narrow]
    assert set(widths) == ({16, 24} if alone else {32})
    model = contrastive.bi_encoder_model(models.BiEncoderConfig(encoder=BERT), SETTINGS)
    one = np.ones((1, 4), np.int32)
    params = jax.jit(model.module.init)(jax.random.key(0), one, one)["params"]
    loss = jax.jit(lambda batch: model.loss_fn(params, batch)[0])
    for less, more in zip(narrow, wide, strict=True):
        size = less["query_tokens"].shape[1]
        np.testing.assert_array_equal(less["query_tokens"], more["query_tokens"][:, :size])
        assert not more["query_tokens"][:, size:].any()
        np.testing.assert_allclose(loss(less), loss(more), rtol=1e-5)
