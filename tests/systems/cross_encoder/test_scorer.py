"""A cross-encoder as a scorer of texts, against scoring every pair alone."""

import jax
import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.models.bert import BertConfig
from gr_jax.systems.cross_encoder.network import CrossEncoder, CrossEncoderConfig
from gr_jax.systems.cross_encoder.scorer import CrossEncoderScorer
from gr_jax.text import ByteVocabulary

VOCABULARY = ByteVocabulary()
BERT = BertConfig(
    vocab_size=VOCABULARY.size, emb_dim=16, num_heads=2, num_encoder_layers=1, mlp_dim=24, max_positions=80,
    dropout_rate=0.0,
)  # fmt: skip
CONFIG = CrossEncoderConfig(BERT, similarity=True, max_sim_scale=2.0, query_length=16, prefix_length=0)
PAIRS = [("what is red", "Cats: some are red."), ("who", "a" * 200), ("what is red", "x"), ("very " * 9, "Dogs: no.")]


@pytest.fixture(scope="module")
def scorer():
    row = np.ones((1, 8), np.int32)
    params = jax.jit(CrossEncoder(CONFIG).init)(jax.random.key(0), row, row)["params"]
    params["score"]["kernel"] = params["score"]["kernel"] + 0.3
    return CrossEncoderScorer(CrossEncoder(CONFIG), params, VOCABULARY, query_length=16, max_length=64, batch_size=2)


def test_rows_hold_both_texts_and_their_ends(scorer):
    (suffix,) = VOCABULARY.suffix
    for (query, document), (tokens, segments) in zip(PAIRS, scorer.tokenize(PAIRS), strict=True):
        first = [*VOCABULARY.encode(query)[:15], suffix]
        second = [*VOCABULARY.encode(document)[: 64 - len(first) - 1], suffix]
        np.testing.assert_array_equal(tokens, [*first, *second])
        np.testing.assert_array_equal(segments, [1] * len(first) + [2] * len(second))


def test_scores_do_not_depend_on_company(scorer):
    expected = []
    apply = jax.jit(scorer.module.apply)
    for tokens, segments in scorer.tokenize(PAIRS):
        rows = (np.pad(array, (0, 64 - len(array)))[None] for array in (tokens, segments))
        expected.append(float(apply({"params": scorer.params}, *rows)[0]))
    np.testing.assert_allclose(scorer(PAIRS), expected, atol=1e-4)
    np.testing.assert_allclose(scorer.score_pairs(*zip(*PAIRS, strict=True)), expected, atol=1e-4)
    assert scorer([]).shape == (0,)


def test_saving_and_loading(scorer, tmp_path):
    scorer.save(tmp_path / "scorer")
    loaded = CrossEncoderScorer.load(tmp_path / "scorer")
    assert (loaded.query_length, loaded.max_length) == (16, 64)
    np.testing.assert_allclose(loaded(PAIRS), scorer(PAIRS), rtol=1e-6)


def test_other_parameters(scorer):
    doubled = jax.tree.map(np.zeros_like, scorer.params)
    other = scorer.with_parameters(doubled)
    np.testing.assert_array_equal(other(PAIRS), np.zeros(4))
    assert np.abs(scorer(PAIRS)).min() > 0


def test_bad_lengths(scorer):
    for lengths in ({"query_length": 1}, {"max_length": 17}, {"max_length": 81}):
        with pytest.raises(InputError, match="room"):
            CrossEncoderScorer(scorer.module, scorer.params, VOCABULARY, **{"query_length": 16, **lengths})
    with pytest.raises(InputError, match="reads queries of 16"):
        CrossEncoderScorer(scorer.module, scorer.params, VOCABULARY, query_length=17, max_length=64)
