"""The encoder whose side of queries is trained alone: each side reads texts as it did before."""

import jax
import numpy as np
import pytest

from gr_jax.models import BiEncoder, BiEncoderConfig, T5Config
from gr_jax.retrievers import DenseEncoder
from gr_jax.systems.dpr import query_side
from gr_jax.text import ByteVocabulary

TEXTS = ["where is jax.lax.scan", "a much longer text about an owl, a river and a red cat"]


@pytest.mark.parametrize("shared", [True, False])
def test_separate_towers_give_the_vectors_that_there_were(shared):
    vocabulary = ByteVocabulary()
    stack = T5Config(
        vocab_size=vocabulary.size, dropout_rate=0.0, emb_dim=16, num_heads=2, head_dim=8, num_encoder_layers=1,
        mlp_dim=16,
    )  # fmt: skip
    config = BiEncoderConfig(encoder=stack, shared=shared)
    row = np.ones((1, 8), np.int32)
    params = jax.jit(BiEncoder(config).init)(jax.random.key(0), row, row)["params"]
    before = DenseEncoder(
        config, params, vocabulary, query_length=24, document_length=32, query_prefix="query: ",
        document_prefix="a passage: ", transform="split_identifiers",
    )  # fmt: skip
    separate = query_side._separate(before)
    assert not separate.config.shared and set(separate.params) == {"query", "document"}
    for side in ("query", "document"):
        np.testing.assert_allclose(separate.encode(TEXTS, side), before.encode(TEXTS, side), atol=1e-6)
    assert np.abs(before.encode(TEXTS, "query") - before.encode(TEXTS, "document")).max() > 1e-3
