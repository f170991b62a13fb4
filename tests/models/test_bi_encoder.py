import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from jax.sharding import NamedSharding, PartitionSpec

from gr_jax.errors import InputError
from gr_jax.losses import ContrastiveLoss
from gr_jax.models import BertConfig, BiEncoder, BiEncoderConfig, BiEncoderModel, T5Config, TextEncoder
from gr_jax.models.bi_encoder import load_bi_encoder, save_bi_encoder, sentence_encoders
from gr_jax.training import Task, TrainSettings, adamw, make_mesh, train
from gr_jax.training.contrastive_batches import ContrastiveBatches
from gr_jax.training.negatives import random_negatives
from gr_jax.training.partitioning import LOGICAL_AXIS_RULES, batch_sharding, on_mesh
from gr_jax.training.token_store import TokenStore
from tests import compiled

BERT = BertConfig(
    vocab_size=40, emb_dim=16, num_heads=2, num_encoder_layers=1, mlp_dim=24, max_positions=16, dropout_rate=0.0
)
T5 = T5Config(
    vocab_size=40, emb_dim=16, num_heads=2, head_dim=8, num_encoder_layers=1, num_decoder_layers=1, mlp_dim=24,
    dropout_rate=0.0,
)  # fmt: skip
BATCH, NEGATIVES = 16, 1


@functools.cache
def parameters(config):
    tokens = jnp.ones((1, 4), jnp.int32)
    params = jax.jit(BiEncoder(config).init)(jax.random.key(0), tokens, tokens)["params"]
    return jax.device_get(params)  # so that they belong to no mesh


@functools.partial(jax.jit, static_argnums=(0, 3))
def encode(config, params, tokens, side):
    return compiled.run(BiEncoder(config), params, tokens, method=f"encode_{side}")


@functools.partial(jax.jit, static_argnums=0)
def encoder_states(config, params, tokens):
    return compiled.run(TextEncoder(config), params, tokens)


def draw_tokens(random, rows, length=8):
    tokens = random.integers(1, 40, (rows, length)).astype(np.int32)
    return np.where(np.arange(length) < random.integers(2, length + 1, (rows, 1)), tokens, 0)


def draw_batch(seed=0):
    random = np.random.default_rng(seed)
    documents = BATCH * (1 + NEGATIVES)
    index = random.integers(0, 30, documents).astype(np.int32)  # some documents stand in the batch more than once
    index[-2:] = -1  # the last query is padding
    return {
        "query_tokens": draw_tokens(random, BATCH),
        "document_tokens": draw_tokens(random, documents),
        "document_index": index,
        "relevant_index": random.integers(-1, 30, (BATCH, 2)).astype(np.int32),
        "teacher_scores": random.normal(size=(BATCH, 1 + NEGATIVES)).astype(np.float32),
    }


@pytest.mark.parametrize("pooling", ("mean", "pooler", pytest.param("cls", marks=pytest.mark.slow)))
def test_vectors_from_the_definition(pooling):
    config = BiEncoderConfig(encoder=BERT, pooling=pooling, projection=5, similarity="cosine")
    params = parameters(config)["query"]
    tokens = draw_tokens(np.random.default_rng(1), 3)
    encoder = {name: params[name] for name in ("token_embedder", "encoder")}
    states = np.asarray(encoder_states(BERT, encoder, tokens))
    if pooling == "mean":
        x = np.stack([row[: np.count_nonzero(t)].mean(0) for row, t in zip(states, tokens, strict=True)])
    else:
        x = states[:, 0]
    if pooling == "pooler":
        x = np.tanh(x @ params["pooler"]["kernel"] + params["pooler"]["bias"])
    x = np.maximum(x @ params["projection"]["wi"]["kernel"] + params["projection"]["wi"]["bias"], 0)
    x = x @ params["projection"]["wo"]["kernel"] + params["projection"]["wo"]["bias"]
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    found = encode(config, parameters(config), tokens, "document")
    np.testing.assert_allclose(found, x, atol=1e-5)


def test_towers_shared_and_separate():
    assert set(parameters(BiEncoderConfig(encoder=BERT))) == {"query"}
    separate = BiEncoderConfig(encoder=T5, document_encoder=BERT, shared=False, pooling="cls", document_pooling="mean")
    params = parameters(separate)
    assert set(params) == {"query", "document"}
    assert "relpos_bias" in params["query"]["encoder"] and "position_embedder" in params["document"]["encoder"]
    tokens = draw_tokens(np.random.default_rng(2), 3)
    for side, config in (("query", T5), ("document", BERT)):
        found = encode(separate, params, tokens, side)
        states = np.asarray(encoder_states(config, params[side], tokens))
        counted = (tokens != 0)[..., None]
        pooled = states[:, 0] if side == "query" else (states * counted).sum(1) / counted.sum(1)
        np.testing.assert_allclose(found, pooled / np.linalg.norm(pooled, axis=1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize("similarity", ("tanh", "cosine", pytest.param("dot", marks=pytest.mark.slow)))
def test_loss_of_a_batch_by_hand(similarity, monkeypatch):
    config = BiEncoderConfig(encoder=BERT, similarity=similarity, temperature=0.5)
    model = BiEncoderModel(BiEncoder(config))
    random = np.random.default_rng(3)
    queries, documents = random.normal(size=(2, 4)), random.normal(size=(4, 4))
    if similarity == "cosine":
        queries, documents = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, documents))
    batch = {"document_index": np.array([0, 1, 2, 0])}  # the second query's negative is the first one's answer
    monkeypatch.setattr(BiEncoderModel, "_vectors", lambda self, params, batch, side, rng: batch[side])
    batch |= {"query": jnp.asarray(queries, jnp.float32), "document": jnp.asarray(documents, jnp.float32)}
    loss, metrics = jax.jit(model.loss_fn)({}, batch)
    scores = queries @ documents.T
    exp = np.exp((np.tanh(scores) if similarity == "tanh" else scores) / 0.5)
    first = -np.log(exp[0, 0] / (exp[0, 0] + exp[0, 1] + exp[0, 2]))
    second = -np.log(exp[1, 2] / exp[1].sum())
    assert loss == pytest.approx(first + second, rel=1e-4)
    assert metrics["weight_sum"] == 2
    assert model.summarize(metrics)["loss"] == pytest.approx((first + second) / 2, rel=1e-4)


def full_model(**changes):
    config = BiEncoderConfig(encoder=BERT, projection=8, similarity="tanh", temperature=0.1)
    loss = ContrastiveLoss(positive_weight=2.0, margin_mse=0.1, teacher_kl=0.3)
    return BiEncoderModel(BiEncoder(config), loss, **changes)


@functools.cache
def compiled_gradient(devices, chunks):
    """Of the whole loss with everything in it, on a mesh of so many devices: (the program, its arguments)."""
    model, batch, mesh = full_model(chunks=chunks), draw_batch(), make_mesh(devices)
    params = parameters(model.module.config)
    with on_mesh(mesh, LOGICAL_AXIS_RULES):
        placed = jax.device_put(batch, batch_sharding(mesh))
        params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
        loss = jax.jit(jax.value_and_grad(lambda p, b: model.loss_fn(p, b)[0]))
        return loss.lower(params, placed).compile(), (params, placed)


@functools.cache
def loss_and_gradient(devices=1, chunks=1):
    program, arguments = compiled_gradient(devices, chunks)
    return jax.device_get(program(*arguments))


def assert_same(found, expected, tolerance):
    assert found[0] == pytest.approx(expected[0], rel=tolerance)
    scale = max(np.abs(x).max() for x in jax.tree.leaves(expected[1]))
    assert scale > 0.1
    for one, other in zip(jax.tree.leaves(found[1]), jax.tree.leaves(expected[1]), strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance * scale)


def test_negatives_of_all_devices_give_the_loss_and_gradient_of_one():
    assert jax.device_count() == 8
    assert_same(loss_and_gradient(devices=8), loss_and_gradient(devices=1), 1e-5)


def test_a_device_alone_would_have_another_loss():
    """So that the test above cannot pass by luck: without the others' documents the loss is smaller."""
    model, batch = full_model(), draw_batch()
    half = {name: array[: len(array) // 2] for name, array in batch.items()}
    rest = {name: array[len(array) // 2 :] for name, array in batch.items()}
    params = parameters(model.module.config)
    loss = jax.jit(model.loss_fn)
    alone = sum(float(loss(params, part)[0]) for part in (half, rest))
    assert alone < 0.95 * float(loss_and_gradient()[0])


def test_gradient_caching_gives_the_same_gradient():
    assert_same(loss_and_gradient(chunks=8), loss_and_gradient(), 1e-6)


@pytest.mark.slow
def test_gradient_caching_on_devices():
    assert_same(loss_and_gradient(devices=8, chunks=2), loss_and_gradient(), 1e-5)


def test_gradient_caching_needs_less_memory():
    def temporary(chunks):
        return compiled_gradient(1, chunks)[0].memory_analysis().temp_size_in_bytes

    assert temporary(8) < 0.5 * temporary(1)


def test_chunks_that_do_not_divide_the_batch_are_refused():
    with pytest.raises(InputError, match="chunks"):
        jax.eval_shape(full_model(chunks=3).loss_fn, parameters(full_model().module.config), draw_batch())


def test_own_scores_are_similarities():
    model, batch = full_model(), draw_batch()
    params = parameters(model.module.config)
    found = np.asarray(jax.jit(model.score_batch)(params, batch))
    queries, aux = jax.device_get(jax.jit(model.predict_batch_with_aux)(params, batch))
    for i in (0, 5):
        for j in range(2):
            expected = np.tanh(queries[i] @ aux["documents"][2 * i + j])
            assert found[i, j] == pytest.approx(float(expected), abs=1e-5)


def stores(count=30, queries=48):
    """Every query is some words of its document."""
    random = np.random.default_rng(5)
    documents = [random.integers(1, 40, 8) for _ in range(count)]
    answers = random.integers(0, count, queries)
    rows = ({"inputs": random.permutation(documents[a])[:4], "targets": [a]} for a in answers)
    return TokenStore.from_rows(rows), TokenStore.from_rows({"inputs": d, "targets": [0]} for d in documents)


FROZEN = ("token_embedder", *(f"encoder/{x}_embedder" for x in ("position", "token_type")), "encoder/layers_0")


def learn(devices, steps):
    """A network of two layers, the lower one frozen: (model, its batches, parameters before, after)."""
    queries, documents = stores()
    batches = ContrastiveBatches(
        queries, documents, batch_size=16, negatives=random_negatives(queries.targets, 30, 1), query_lengths=4,
        document_lengths=8,
    )  # fmt: skip
    config = BiEncoderConfig(encoder=dataclasses.replace(BERT, num_encoder_layers=2, dropout_rate=0.1), temperature=0.1)
    model, start = BiEncoderModel(BiEncoder(config)), parameters(config)
    optimizer = adamw(5e-3, multipliers={f"query/{name}": 0.0 for name in FROZEN})
    settings = TrainSettings(steps=steps, optimizer=optimizer, mesh=make_mesh(devices))
    result = train(Task(model, batches, initial_params=start), settings)
    return model, batches, start, result.params


@pytest.mark.slow
def test_training_with_frozen_layers():
    model, batches, start, params = learn(1, 30)
    before, after = (flatten_dict(p["query"], sep="/") for p in (start, params))
    for path, value in after.items():
        assert np.array_equal(value, before[path]) == path.startswith(FROZEN), path
    batch = next(iter(batches))
    assert float(model.eval_fn(params, batch)[0]) < 0.6 * float(model.eval_fn(start, batch)[0])


@pytest.mark.slow
def test_training_on_devices():
    one, eight = learn(1, 3)[-1], learn(8, 3)[-1]
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(eight), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("negatives", (1, pytest.param(0, marks=pytest.mark.slow)))
def test_microbatches_would_tear_documents_from_other_queries(negatives):
    batches = ContrastiveBatches(*stores(), batch_size=16, num_negatives=negatives, query_lengths=4, document_lengths=8)
    model = BiEncoderModel(BiEncoder(BiEncoderConfig(encoder=BERT)))
    with pytest.raises(InputError, match="microbatches=1.*`chunks`.*cross-encoder"):
        train(Task(model, batches), TrainSettings(steps=1, optimizer=adamw(1e-3), microbatches=2))


def test_a_folder_gives_the_same_network_back(tmp_path):
    config = BiEncoderConfig(
        encoder=T5, document_encoder=BERT, shared=False, projection=4, pooling="mean", document_pooling="pooler",
        similarity="tanh", temperature=0.7,
    )  # fmt: skip
    save_bi_encoder(tmp_path, config, parameters(config))
    loaded, params = load_bi_encoder(tmp_path)
    assert loaded == config
    assert jax.tree.structure(params) == jax.tree.structure(dict(parameters(config)))
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, params, dict(parameters(config)))))
    (tmp_path / "network.json").write_text('{"encoder": {}}')
    with pytest.raises(InputError, match="network.json"):
        load_bi_encoder(tmp_path)


def test_vectors_of_documents_stand_for_their_tokens():
    """The same loss; the gradient of the side of queries is that of the loss with documents held still."""
    config = BiEncoderConfig(encoder=BERT, shared=False, similarity="cosine", temperature=0.1)
    model, params = BiEncoderModel(BiEncoder(config)), parameters(config)
    random = np.random.default_rng(0)
    batch = {
        "query_tokens": random.integers(1, 40, (4, 6)).astype(np.int32),
        "document_tokens": random.integers(1, 40, (8, 7)).astype(np.int32),
        "document_index": np.arange(8, dtype=np.int32),
    }
    vectors = encode(config, params, batch["document_tokens"], "document")
    fixed = {name: array for name, array in batch.items() if name != "document_tokens"} | {"document_vectors": vectors}
    learn = jax.jit(jax.value_and_grad(lambda params, batch: model.loss_fn(params, batch)[0]))
    (loss_of_tokens, with_tokens), (loss_of_vectors, with_vectors) = learn(params, batch), learn(params, fixed)
    np.testing.assert_allclose(loss_of_vectors, loss_of_tokens, rtol=1e-5)
    close = functools.partial(np.testing.assert_allclose, atol=1e-5)
    jax.tree.map(close, with_vectors["query"], with_tokens["query"])
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(with_vectors["document"]))
    assert any(np.any(leaf) for leaf in jax.tree.leaves(with_tokens["document"]))
    score, predict = jax.jit(model.score_batch), jax.jit(model.predict_batch_with_aux)
    np.testing.assert_allclose(score(params, fixed), score(params, batch), atol=1e-5)
    (one, others), (same, made) = (predict(params, b) for b in (fixed, batch))
    np.testing.assert_array_equal(one, same)
    np.testing.assert_allclose(others["documents"], made["documents"], atol=1e-5)


class Words:
    """Token id = length of the word + 4, between two special tokens."""

    prefix, suffix = (2,), (3,)

    def encode_batch(self, texts):
        return [[len(word) + 4 for word in text.split()] for text in texts]


def test_texts_with_prompts():
    config = BiEncoderConfig(encoder=BERT, projection=8, similarity="dot")
    params = parameters(config)
    query, document = sentence_encoders(config, params, Words(), query_prompt="ask ", document_prompt="passage: ")
    assert query.dimension == document.dimension == 8
    for encoder, tokens in ((query, [[2, 7, 5, 6, 3]]), (document, [[2, 12, 5, 6, 3]])):
        expected = encode(config, params, np.array(tokens, np.int32), "query")
        np.testing.assert_allclose(encoder.encode(["a bb"], max_length=16), expected, atol=1e-5)


@pytest.mark.parametrize(
    "settings, match",
    (
        ({"pooling": "max"}, "pooling"),
        ({"similarity": "l2"}, "similarity"),
        ({"temperature": 0.0}, "temperature"),
        ({"projection": 0}, "width"),
        ({"document_encoder": T5}, "shared"),
        ({"shared": False, "document_encoder": dataclasses.replace(T5, emb_dim=8)}, "widths"),
    ),
)
def test_settings_that_make_no_sense_are_refused(settings, match):
    with pytest.raises(InputError, match=match):
        BiEncoderConfig(encoder=BERT, **settings)


@pytest.mark.parametrize(
    "settings",
    (
        {"positive_weight": 0.0}, {"teacher_temperature": -1.0}, {"margin_mse": -1.0}, {"contrastive": float("nan")},
        {"teacher_kl": float("inf")},
    ),
)  # fmt: skip
def test_losses_that_make_no_sense_are_refused(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        ContrastiveLoss(**settings)


def test_rows_longer_than_the_positions_are_refused():
    module, params = full_model().module, parameters(full_model().module.config)

    def shape(length):
        tokens = np.ones((2, length), np.int32)
        return jax.eval_shape(lambda: module.apply({"params": params}, tokens, method="encode_query")).shape

    assert shape(16) == (2, 8)
    with pytest.raises(InputError, match="17 tokens, and BERT has 16 positions"):
        shape(17)


def test_a_teacher_must_have_scored():
    batch = draw_batch()
    del batch["teacher_scores"]
    with pytest.raises(InputError, match="teacher_scores"):
        jax.eval_shape(full_model().loss_fn, parameters(full_model().module.config), batch)


def test_a_loss_without_any_negative_is_refused():
    """It would be the same number whatever the parameters are."""
    model = BiEncoderModel(BiEncoder(BiEncoderConfig(encoder=BERT)), ContrastiveLoss(in_batch=False))
    batch = {"document_index": jnp.arange(4)}
    with pytest.raises(InputError, match="negatives, or set in_batch"):
        jax.eval_shape(lambda: model.loss(jnp.ones((4, 4)), batch))
    jax.eval_shape(lambda: (model.loss(jnp.ones((2, 4)), batch), ContrastiveLoss()(jnp.ones((4, 4)), batch)))


def test_distillation_is_measured_where_the_teacher_has_scored():
    """Of four queries the second has no teacher, the third no score of its positive, the last is padding."""
    loss = ContrastiveLoss(contrastive=0.0, margin_mse=1.0, teacher_kl=2.0)
    model = BiEncoderModel(BiEncoder(BiEncoderConfig(encoder=BERT)), loss)
    own = np.array([[3.0, 1.0, 0.5], [9.0, 2.0, 1.0], [4.0, 1.0, 3.0], [0.0, 7.0, 7.0]])
    nan = np.nan
    teacher = np.array([[1.0, 2.0, nan], [nan] * 3, [nan, 1.0, 1.0], [5.0, 4.0, 4.0]], np.float32)
    scores = np.zeros((4, 12), np.float32)
    for row in range(4):
        scores[row, 3 * row : 3 * row + 3] = own[row]
    index = np.arange(12)
    index[9:] = -1
    loss, metrics = jax.jit(model.loss)(scores, {"document_index": index, "teacher_scores": teacher})

    def kl(student, target):
        p, q = (np.exp(np.array(x)) / np.exp(x).sum() for x in (target, student))
        return float((p * np.log(p / q)).sum())

    mse, both = 9.0, kl([3.0, 1.0], [1.0, 2.0]) + kl([1.0, 3.0], [1.0, 1.0])
    assert model.summarize(metrics)["margin_mse"] == pytest.approx(mse, rel=1e-4)
    assert model.summarize(metrics)["teacher_kl"] == pytest.approx(both / 2, rel=1e-4)
    assert float(loss) == pytest.approx(mse + 2 * both, rel=1e-4)
