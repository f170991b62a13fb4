"""Cross-encoders against `transformers`, and the pieces that make one start from a sentence encoder."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.interop.huggingface_names import bert_entries
from gr_jax.models.bert import BertConfig
from gr_jax.models.t5 import T5Config
from gr_jax.models.text_encoder import TextEncoder
from gr_jax.systems.cross_encoder.network import (
    CrossEncoder,
    CrossEncoderConfig,
    CrossEncoderModel,
    load_cross_encoder,
    save_cross_encoder,
)
from gr_jax.systems.cross_encoder.network import join_pairs as _join_pairs
from gr_jax.systems.cross_encoder.network import split_pairs as _split_pairs

BERT = BertConfig(
    vocab_size=60, emb_dim=16, num_heads=2, num_encoder_layers=1, mlp_dim=24, max_positions=40, dropout_rate=0.0
)
CONFIG = CrossEncoderConfig(
    BERT, similarity=True, similarity_scale=20.0, max_sim_scale=5.0, query_length=6, dropout_rate=0.0
)
# [CLS] is 5 and [SEP] 6.
QUERIES = np.array([[5, 20, 21, 6, 0, 0], [5, 22, 6, 0, 0, 0]], np.int32)
DOCUMENTS = np.array([[5, 30, 31, 32, 6, 0, 0], [5, 33, 34, 35, 36, 37, 6]], np.int32)
join_pairs, split_pairs = jax.jit(_join_pairs, static_argnums=2), jax.jit(_split_pairs, static_argnums=(2, 3))


def test_joining_and_splitting():
    tokens, segments = join_pairs(QUERIES, DOCUMENTS, 1)
    np.testing.assert_array_equal(tokens[0], [5, 20, 21, 6, 30, 31, 32, 6, 0, 0, 0, 0])
    np.testing.assert_array_equal(segments[0], [1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0])
    np.testing.assert_array_equal(tokens[1], [5, 22, 6, 33, 34, 35, 36, 37, 6, 0, 0, 0])
    query, document = split_pairs(tokens, segments, 6, 1)
    np.testing.assert_array_equal(query, QUERIES)
    np.testing.assert_array_equal(document[:, :7], DOCUMENTS)
    assert not np.asarray(document[:, 7:]).any()


def test_joining_without_a_prefix_as_t5_does():
    query, document = np.array([[20, 1, 0]]), np.array([[30, 31, 1, 0]])
    tokens, segments = join_pairs(query, document, 0)
    np.testing.assert_array_equal(tokens, [[20, 1, 30, 31, 1, 0, 0]])
    again = split_pairs(tokens, segments, 3, 0)
    np.testing.assert_array_equal(again[0], query)
    np.testing.assert_array_equal(again[1][:, :4], document)


@pytest.fixture(scope="module")
def peer(tmp_path_factory):
    """A random `BertForSequenceClassification` with one label, and ours with its weights."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=16, num_attention_heads=2, num_hidden_layers=2, intermediate_size=24,
        max_position_embeddings=40, type_vocab_size=2, num_labels=1, initializer_range=0.3,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).eval()
    folder = tmp_path_factory.mktemp("peer")
    model.save_pretrained(folder)
    return model, folder


def test_parity_with_transformers(peer):
    import torch

    from gr_jax.systems.cross_encoder.huggingface import load_bert_cross_encoder

    model, folder = peer
    module, params = load_bert_cross_encoder(folder)
    assert module.config.pooling == "pooler" and not module.config.similarity
    tokens, segments = (np.array(array) for array in join_pairs(QUERIES, DOCUMENTS, 1))
    with torch.no_grad():
        expected = model(
            input_ids=torch.from_numpy(tokens).long(),
            attention_mask=torch.from_numpy(tokens != 0).long(),
            token_type_ids=torch.from_numpy(np.maximum(segments - 1, 0)).long(),
        ).logits[:, 0]
    found = _apply(module, params, tokens, segments)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)
    # Token types matter, or the test would not see them.
    one_type = _apply(module, params, tokens, np.minimum(segments, 1))
    assert np.abs(np.asarray(one_type) - expected.numpy()).max() > 1e-3


def test_more_labels_than_one_are_refused(peer, tmp_path):
    import transformers

    from gr_jax.systems.cross_encoder.huggingface import load_bert_cross_encoder

    model, _ = peer
    transformers.BertForSequenceClassification(transformers.BertConfig.from_dict(
        {**model.config.to_dict(), "num_labels": 2, "id2label": {0: "a", 1: "b"}}
    )).save_pretrained(tmp_path)  # fmt: skip
    with pytest.raises(InputError, match="one score"):
        load_bert_cross_encoder(tmp_path)


@pytest.fixture(scope="module")
def params():
    tokens, segments = join_pairs(QUERIES, DOCUMENTS, 1)
    return jax.jit(CrossEncoder(CONFIG).init)(jax.random.key(1), tokens, segments)["params"]


@functools.partial(jax.jit, static_argnums=0)
def _apply(module, params, tokens, segments):
    return module.apply({"params": params}, tokens, segments)


@functools.partial(jax.jit, static_argnums=0)
def _loss(model, params, batch):
    return model.loss_fn(params, batch, None)


@functools.partial(jax.jit, static_argnums=0)
def _own(model, params, batch):
    return model.score_batch(params, batch)


@jax.jit
def _encoded(params, tokens):
    return TextEncoder(BERT).apply({"params": params}, tokens)


def _states(params, row):
    """Of one text, padded: the same numbers, and one compilation."""
    encoder = {name: params[name] for name in ("token_embedder", "encoder")}
    return np.asarray(_encoded(encoder, np.pad(row, (0, 10 - len(row)))[None]))[0, : len(row)]


def _unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def test_it_starts_as_the_sentence_encoder_that_it_is_made_of(params):
    tokens, segments = join_pairs(QUERIES, DOCUMENTS, 1)
    found = _apply(CrossEncoder(CONFIG), params, tokens, segments)
    for number in range(2):
        q, d = (_states(params, rows[number][rows[number] != 0]) for rows in (QUERIES, DOCUMENTS))
        cosine = float(_unit(q.mean(axis=0)) @ _unit(d.mean(axis=0)))
        best = float((_unit(q) @ _unit(d).T).max(axis=1).mean())
        np.testing.assert_allclose(found[number], 20.0 * cosine + 5.0 * best, atol=1e-3)


def test_scores_do_not_depend_on_padding_or_shape(params):
    tokens, segments = (np.array(array) for array in join_pairs(QUERIES, DOCUMENTS, 1))
    module = CrossEncoder(CONFIG)
    found = _apply(module, params, tokens, segments)
    wide = (np.pad(array, ((0, 0), (0, 5)))[:, None] for array in (tokens, segments))
    np.testing.assert_allclose(_apply(module, params, *wide), np.asarray(found)[:, None], atol=1e-4)


@pytest.mark.parametrize("pooling", ["cls", "mean", "pooler"])
def test_pooling_of_a_t5_encoder(pooling):
    config = CrossEncoderConfig(
        T5Config(vocab_size=40, emb_dim=12, num_heads=2, head_dim=6, num_encoder_layers=1, mlp_dim=16),
        pooling=pooling, prefix_length=0,
    )  # fmt: skip
    tokens, segments = join_pairs(np.array([[20, 1, 0]]), np.array([[30, 31, 1, 0]]), 0)
    module = CrossEncoder(config)
    variables = jax.jit(module.init)(jax.random.key(0), tokens, segments)
    read = jax.jit(lambda variables: module.apply(variables, tokens, method="_states", deterministic=True))
    states = np.asarray(read(variables))[0]
    pooled = states[:5].mean(axis=0) if pooling == "mean" else states[0]
    params = variables["params"]
    if pooling == "pooler":
        pooled = np.tanh(pooled @ np.asarray(params["pooler"]["kernel"]) + np.asarray(params["pooler"]["bias"]))
    expected = pooled @ np.asarray(params["score"]["kernel"])[:, 0] + np.asarray(params["score"]["bias"])[0]
    np.testing.assert_allclose(_apply(module, params, tokens, segments)[0], expected, atol=1e-5)


def _batch(rng, queries, negatives=2):
    size = 1 + negatives

    def rows(count, width):
        body = np.where(
            np.arange(width) < rng.integers(3, width + 1, (count, 1)), rng.integers(10, 60, (count, width)), 0
        )
        body[:, 0] = 5
        return body.astype(np.int32)

    return {
        "query_tokens": rows(queries, 6),
        "document_tokens": rows(queries * size, 8),
        "document_index": np.arange(queries * size, dtype=np.int32),
    }


def test_losses_by_hand(params):
    batch = _batch(np.random.default_rng(0), 3)
    batch["document_index"] = np.array([0, 1, 0, 3, 4, -1, -1, -1, -1], np.int32)
    module = CrossEncoder(CONFIG)
    scores = np.asarray(_own(CrossEncoderModel(module), params, batch), np.float64)
    # Query 0's second negative is its positive, query 1's is padding, query 2 is padding.
    rows = [scores[0, :2], scores[1, :2]]
    softmax = sum(np.log(np.exp(row).sum()) - row[0] for row in rows)
    loss, metrics = _loss(CrossEncoderModel(module), params, batch)
    np.testing.assert_allclose(loss, softmax, rtol=1e-4, atol=1e-4)
    assert float(metrics["weight_sum"]) == 2
    pointwise = sum((np.log1p(np.exp(-row[0])) + np.log1p(np.exp(row[1]))) / 2 for row in rows)
    loss, _ = _loss(CrossEncoderModel(module, softmax=0.0, pointwise=1.0), params, batch)
    np.testing.assert_allclose(loss, pointwise, rtol=1e-4)


def test_pairs_are_joined_as_they_are_read(params):
    batch = _batch(np.random.default_rng(1), 2)
    repeated = np.repeat(batch["query_tokens"][:, None], 3, axis=1)
    tokens, segments = join_pairs(repeated, batch["document_tokens"].reshape(2, 3, -1), 1)
    found = _own(CrossEncoderModel(CrossEncoder(CONFIG)), params, batch)
    np.testing.assert_allclose(found, _apply(CrossEncoder(CONFIG), params, tokens, segments), atol=1e-5)


def test_a_similarity_is_computed_in_float32(params):
    """A text is exactly as similar to itself as the scales say, also where its states are in bfloat16."""
    half = dataclasses.replace(CONFIG, encoder=dataclasses.replace(BERT, dtype="bfloat16"))
    found = _apply(CrossEncoder(half), params, *join_pairs(QUERIES, QUERIES, 1))
    np.testing.assert_allclose(found, [20.0 + 5.0] * 2, atol=1e-3)


def test_the_longest_pair_may_fill_all_places():
    """Two texts of 6 and 8 tokens share a prefix: 13 tokens, as many as this encoder has places."""
    config = dataclasses.replace(CONFIG, encoder=dataclasses.replace(BERT, max_positions=13))
    model, shapes = CrossEncoderModel(CrossEncoder(config)), {"query_tokens": (2, 6), "document_tokens": (6, 8)}
    variables = jax.eval_shape(lambda: model.get_initial_variables(jax.random.key(0), shapes))
    assert variables["params"]["encoder"]["position_embedder"]["embedding"].shape[0] == 13
    batch = _batch(np.random.default_rng(0), 2)
    assert jax.eval_shape(lambda p: model.score_batch(p, batch), variables["params"]).shape == (2, 3)


def test_queries_without_negatives_are_refused(params):
    with pytest.raises(InputError, match="num_negatives"):
        _loss(CrossEncoderModel(CrossEncoder(CONFIG)), params, _batch(np.random.default_rng(0), 3, negatives=0))


@pytest.mark.parametrize(
    "settings",
    [{"softmax": -1.0}, {"pointwise": float("nan")}, {"margin_mse": float("inf")}, {"teacher_temperature": 0.0}],
)
def test_losses_that_make_no_sense_are_refused(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        CrossEncoderModel(CrossEncoder(CONFIG), **settings)


def test_distillation_is_measured_where_the_teacher_has_scored(params):
    batch = _batch(np.random.default_rng(5), 3, negatives=1)
    teacher = np.array([[2.0, 1.0], [np.nan, 0.0], [0.5, 1.5]], np.float32)
    model = CrossEncoderModel(CrossEncoder(CONFIG), softmax=0.0, margin_mse=0.5)
    loss, metrics = _loss(model, params, {**batch, "teacher_scores": teacher})
    own = np.asarray(_own(model, params, batch))
    expected = sum(((own[i, 0] - own[i, 1]) - (teacher[i, 0] - teacher[i, 1])) ** 2 for i in (0, 2))
    np.testing.assert_allclose(loss, 0.5 * expected, rtol=1e-3)
    np.testing.assert_allclose(metrics["margin_mse"], [expected, 2.0], rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"softmax": 0.0, "pointwise": 1.0}])
def test_ten_pairs_are_learned(params, changes):
    import optax

    batch = {name: jnp.asarray(array) for name, array in _batch(np.random.default_rng(4), 10).items()}
    model = CrossEncoderModel(CrossEncoder(CONFIG), **changes)
    optimizer = optax.adam(3e-3)

    @jax.jit
    def step(params, state):
        (_, metrics), gradient = jax.jit(jax.value_and_grad(model.loss_fn, has_aux=True))(params, batch, None)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, metrics["accuracy"][0]

    learned, state = params, jax.jit(optimizer.init)(params)
    for _ in range(80):
        learned, state, correct = step(learned, state)
    assert int(correct) == 10 > int(_loss(model, params, batch)[1]["accuracy"][0])


def test_saving_and_loading(params, tmp_path):
    save_cross_encoder(tmp_path, CrossEncoder(CONFIG), params)
    module, loaded = load_cross_encoder(tmp_path)
    assert module.config == CONFIG
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(loaded), strict=True):
        np.testing.assert_array_equal(a, b)


def test_bad_settings():
    with pytest.raises(InputError, match="pooling"):
        dataclasses.replace(CONFIG, pooling="max")


def test_names_of_the_encoder_are_those_of_bert(params):
    """So that a pretrained BERT's parameters fit as they are."""
    wanted = {entry.path for entry in bert_entries(BERT)}
    have = {tuple(key.key for key in path) for path, _ in jax.tree_util.tree_leaves_with_path(params)}
    assert wanted < have
