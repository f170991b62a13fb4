"""ColBERT's encoder against its definition, written out in NumPy on the states of the same BERT."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.losses import ContrastiveLoss
from gr_jax.models.bert import BertConfig
from gr_jax.models.t5 import T5Config
from gr_jax.models.text_encoder import TextEncoder
from gr_jax.systems.colbert.network import (
    LateInteraction,
    LateInteractionConfig,
    LateInteractionModel,
    kept_tokens,
    load_late_interaction,
    principal_projection,
    save_late_interaction,
)

BERT = BertConfig(
    vocab_size=60, emb_dim=16, num_heads=2, num_encoder_layers=1, mlp_dim=24, max_positions=40, dropout_rate=0.0
)
CONFIG = LateInteractionConfig(
    BERT, dimension=8, query_length=10, mask_token=4, query_marker=1, document_marker=2, skipped_tokens=(7, 9)
)


def _rows(*rows, width):
    tokens = np.zeros((len(rows), width), np.int32)
    for place, row in zip(tokens, rows, strict=True):
        place[: len(row)] = row
    return tokens


QUERIES = _rows([5, 20, 21, 6], [5, 22, 6], width=6)
DOCUMENTS = _rows([5, 20, 7, 30, 6], [5, 22, 9, 7, 31, 32, 6], [5, 40, 6], width=9)


@pytest.fixture(scope="module")
def params():
    return jax.jit(LateInteraction(CONFIG).init)(jax.random.key(3), QUERIES, DOCUMENTS[:2])["params"]


@functools.partial(jax.jit, static_argnums=(0, 3))
def _compiled(config, params, tokens, side):
    return LateInteraction(config).apply({"params": params}, tokens, method=f"encode_{side}")


def _apply(config, params, tokens, side):
    return tuple(np.asarray(array) for array in _compiled(config, params, tokens, side))


@functools.partial(jax.jit, static_argnums=0)
def _scores(config, params, queries, documents):
    return LateInteraction(config).apply({"params": params}, queries, documents)


@functools.partial(jax.jit, static_argnums=0)
def _loss(model, params, batch):
    return model.loss_fn(params, batch, None)


@functools.partial(jax.jit, static_argnums=0)
def _own(model, params, batch):
    return model.score_batch(params, batch)


def _unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@jax.jit
def _encoded(params, tokens):
    return TextEncoder(BERT).apply({"params": params}, tokens)


def _states(params, row):
    """Of one text, padded: the same numbers, and one compilation."""
    encoder = {name: params[name] for name in ("token_embedder", "encoder")}
    return np.asarray(_encoded(encoder, np.pad(row, (0, 10 - len(row)))[None]))[0, : len(row)]


def test_documents_have_a_marker_and_no_vector_for_punctuation(params):
    vectors, mask = _apply(CONFIG, params, DOCUMENTS, "document")
    for number, row in enumerate(([5, 2, 20, 7, 30, 6], [5, 2, 22, 9, 7, 31, 32, 6], [5, 2, 40, 6])):
        kept = [place for place, token in enumerate(row) if token not in (7, 9)]
        expected = _unit(_states(params, row) @ np.asarray(params["projection"]["kernel"]))[kept]
        np.testing.assert_allclose(vectors[number][mask[number]], expected, atol=1e-5)
        plain = DOCUMENTS[number][DOCUMENTS[number] != 0]
        np.testing.assert_array_equal(kept_tokens(CONFIG, plain), np.array(row)[kept])


def test_queries_are_filled_up_with_masks_that_nothing_looks_at(params):
    vectors, weights = _apply(CONFIG, params, QUERIES, "query")
    assert vectors.shape == (2, 10, 8)
    np.testing.assert_array_equal(weights, np.ones((2, 10)))
    kernel = np.asarray(params["projection"]["kernel"])
    for number, row in enumerate(([5, 1, 20, 21, 6], [5, 1, 22, 6])):
        expected = _unit(_states(params, row) @ kernel)
        np.testing.assert_allclose(vectors[number, : len(row)], expected, atol=1e-5)
    # What fills a query up is [MASK]: padding in its place has other vectors, and leaves the others as they are.
    padded, _ = _apply(dataclasses.replace(CONFIG, mask_token=0), params, QUERIES, "query")
    for number, length in enumerate((5, 4)):
        np.testing.assert_allclose(vectors[number, :length], padded[number, :length], atol=1e-6)
        assert (np.abs(vectors[number, length:] - padded[number, length:]).max(axis=1) > 1e-3).all()


def test_masks_that_are_attended(params):
    """The query is then read as if [MASK] were words of it."""
    attended = dataclasses.replace(CONFIG, mask_attended=True)
    vectors, weights = _apply(attended, params, np.pad(QUERIES, ((0, 0), (0, 11))), "query")
    np.testing.assert_array_equal(weights, np.arange(18) < np.full((2, 1), 10))
    kernel = np.asarray(params["projection"]["kernel"])
    for number, row in enumerate(([5, 1, 20, 21, 6], [5, 1, 22, 6])):
        expected = _unit(_states(params, [*row, *[4] * (10 - len(row))]) @ kernel)
        np.testing.assert_allclose(vectors[number, :10], expected, atol=1e-5)


@pytest.mark.parametrize("attended", (False, True))
def test_scores_do_not_depend_on_the_width_of_rows(params, attended):
    config = dataclasses.replace(CONFIG, mask_attended=attended)
    wide = np.pad(QUERIES, ((0, 0), (0, 11)))
    scores = [
        _scores(config, params, query, documents)
        for query, documents in ((QUERIES, DOCUMENTS[:2]), (wide, np.pad(DOCUMENTS[:2], ((0, 0), (0, 5)))))
    ]
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-4)


def test_the_score_is_the_sum_of_maxima(params):
    queries, weights = _apply(CONFIG, params, QUERIES, "query")
    documents, mask = _apply(CONFIG, params, DOCUMENTS[:2], "document")
    expected = [
        sum(w * max(float(q @ d) for d in row[keep]) for q, w in zip(query, weight, strict=True))
        for query, weight, row, keep in zip(queries, weights, documents, mask, strict=True)
    ]
    found = _scores(CONFIG, params, QUERIES, DOCUMENTS[:2])
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_plain_tokens_without_augmentation_markers_and_skipping(params):
    plain = dataclasses.replace(CONFIG, query_length=0, query_marker=None, document_marker=None, skipped_tokens=())
    vectors, weights = _apply(plain, params, QUERIES, "query")
    np.testing.assert_array_equal(weights, QUERIES != 0)
    expected = _unit(_states(params, [5, 22, 6]) @ np.asarray(params["projection"]["kernel"]))
    np.testing.assert_allclose(vectors[1, :3], expected, atol=1e-5)
    _, mask = _apply(plain, params, DOCUMENTS, "document")
    np.testing.assert_array_equal(mask, DOCUMENTS != 0)


def test_a_vector_of_the_whole_text_is_the_mean_state(params):
    config = dataclasses.replace(CONFIG, whole_text=True, whole_text_weight=3.0, token_weights="learned")
    more = jax.jit(LateInteraction(config).init)(jax.random.key(0), QUERIES, DOCUMENTS[:2])["params"]
    assert set(more) - set(params) == {"whole_text_weight", "token_weight"}
    merged = {**more, **params}
    vectors, weights = _apply(config, merged, QUERIES, "query")
    expected = _unit(_states(params, [5, 1, 22, 6]).mean(axis=0) @ np.asarray(params["projection"]["kernel"]))
    np.testing.assert_allclose(vectors[1, 0], expected, atol=1e-5)
    np.testing.assert_allclose(weights, [[3.0] + [1.0] * 10] * 2)  # learned weights start at 1
    documents, mask = _apply(config, merged, DOCUMENTS, "document")
    assert mask[:, 0].all() and documents.shape[1] == mask.shape[1] == DOCUMENTS.shape[1] + 2
    np.testing.assert_array_equal(kept_tokens(config, [5, 20, 7, 6]), [-1, 5, 2, 20, 6])


def test_a_t5_encoder():
    config = LateInteractionConfig(
        T5Config(vocab_size=40, emb_dim=12, num_heads=2, head_dim=6, num_encoder_layers=1, mlp_dim=16),
        dimension=4, query_length=8, mask_token=39, query_marker=38, document_marker=37, prefix_length=0,
    )  # fmt: skip
    module = LateInteraction(config)
    queries, documents = _rows([10, 11, 1], width=4), _rows([12, 13, 1], width=5)
    variables = jax.jit(module.init)(jax.random.key(0), queries, documents)
    vectors, mask = _apply(config, variables["params"], documents, "document")
    assert vectors.shape == (1, 6, 4) and mask.sum() == 4
    row = _rows([37, 12, 13, 1], width=6)
    marked = jax.jit(lambda v: module.apply(v, row, method="_states", deterministic=True, read=row))(variables)
    expected = _unit(np.asarray(marked)[0, :4] @ np.asarray(variables["params"]["projection"]["kernel"]))
    np.testing.assert_allclose(vectors[0, :4], expected, atol=1e-5)


def test_principal_axes_keep_products_best():
    rng = np.random.default_rng(0)
    states = rng.normal(size=(300, 5)) @ rng.normal(size=(5, 12)) + 1e-3 * rng.normal(size=(300, 12))
    projection = principal_projection(states.astype(np.float32), 5)
    np.testing.assert_allclose(projection.T @ projection, np.eye(5), atol=1e-5)
    unit = _unit(states)
    np.testing.assert_allclose((unit @ projection) @ (unit @ projection).T, unit @ unit.T, atol=1e-3)
    whole = principal_projection(states.astype(np.float32), 12)
    np.testing.assert_allclose(whole @ whole.T, np.eye(12), atol=1e-5)
    with pytest.raises(InputError, match="principal axes"):
        principal_projection(states, 13)


def _batch(rng, queries, negatives=1):
    size = 1 + negatives
    return {
        "query_tokens": np.where(np.arange(6) < 4, rng.integers(10, 60, (queries, 6)), 0).astype(np.int32),
        "document_tokens": np.where(
            np.arange(9) < rng.integers(4, 10, (queries * size, 1)), rng.integers(10, 60, (queries * size, 9)), 0
        ).astype(np.int32),
        "document_index": np.arange(queries * size, dtype=np.int32),
    }


def _reference_loss(scores, index, temperature, size):
    """Softmax over all documents but those that equal the positive."""
    losses = []
    for number, row in enumerate(scores / temperature):
        positive = number * size
        if index[positive] < 0:
            continue
        counted = [c for c in range(len(row)) if c == positive or index[c] not in (-1, index[positive])]
        losses.append(np.log(np.exp(row[counted] - row[positive]).sum()))
    return losses


def test_loss_is_a_softmax_over_the_batch(params):
    config = dataclasses.replace(CONFIG, temperature=0.5)
    batch = _batch(np.random.default_rng(1), 4)
    batch["document_index"] = np.array([0, 1, 2, 0, 4, 5, -1, -1], np.int32)
    model = LateInteractionModel(LateInteraction(config))
    queries, weights = _apply(config, params, batch["query_tokens"], "query")
    documents, mask = _apply(config, params, batch["document_tokens"], "document")
    products = np.where(mask, np.einsum("bqd,nsd->bqns", queries, documents), -np.inf)
    scores = np.einsum("bqn,bq->bn", products.max(axis=-1), weights)
    expected = _reference_loss(scores, batch["document_index"], 0.5, 2)
    loss, metrics = _loss(model, params, batch)
    assert float(metrics["weight_sum"]) == len(expected) == 3
    np.testing.assert_allclose(loss, sum(expected), rtol=1e-4)
    own = _own(model, params, batch)
    np.testing.assert_allclose(own[1], scores[1, 2:4], rtol=1e-4)


@functools.partial(jax.jit, static_argnums=0)
def _gradient(model, params, batch):
    return jax.jit(jax.grad(lambda p: model.loss_fn(p, batch, None)[0]))(params)


def test_chunks_give_the_same_gradient(params):
    batch = _batch(np.random.default_rng(2), 4)
    whole = _gradient(LateInteractionModel(LateInteraction(CONFIG)), params, batch)
    parts = _gradient(LateInteractionModel(LateInteraction(CONFIG), chunks=2), params, batch)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_a_teacher_counts_where_it_has_scored(params):
    batch = _batch(np.random.default_rng(3), 3)
    teacher = np.array([[2.0, 1.0], [np.nan, 0.0], [0.5, 1.5]], np.float32)
    model = LateInteractionModel(LateInteraction(CONFIG), ContrastiveLoss(contrastive=0.0, margin_mse=1.0))
    with pytest.raises(InputError, match="teacher_scores"):
        model.loss_fn(params, batch)
    loss, _ = _loss(model, params, {**batch, "teacher_scores": teacher})
    own = np.asarray(_own(model, params, batch))
    expected = sum(((own[i, 0] - own[i, 1]) - (teacher[i, 0] - teacher[i, 1])) ** 2 for i in (0, 2))
    np.testing.assert_allclose(loss, expected, rtol=1e-3)


@pytest.mark.slow
def test_ten_pairs_are_learned(params):
    import optax

    batch = {name: jnp.asarray(array) for name, array in _batch(np.random.default_rng(4), 10).items()}
    model = LateInteractionModel(LateInteraction(CONFIG))
    optimizer = optax.adam(3e-3)

    @jax.jit
    def step(params, state):
        (_, metrics), gradient = jax.jit(jax.value_and_grad(model.loss_fn, has_aux=True))(params, batch, None)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, metrics["accuracy"][0]

    learned, state = params, jax.jit(optimizer.init)(params)
    for _ in range(60):
        learned, state, correct = step(learned, state)
    assert int(correct) == 10 > int(_loss(model, params, batch)[1]["accuracy"][0])


def test_saving_and_loading(params, tmp_path):
    save_late_interaction(tmp_path, LateInteraction(CONFIG), params)
    module, loaded = load_late_interaction(tmp_path)
    assert module.config == CONFIG
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(loaded), strict=True):
        np.testing.assert_array_equal(a, b)


def test_bad_settings():
    with pytest.raises(InputError, match="token_weights"):
        dataclasses.replace(CONFIG, token_weights="idf")
    with pytest.raises(InputError, match="temperature"):
        dataclasses.replace(CONFIG, temperature=0.0)
    with pytest.raises(InputError, match=r"dimension .* \(got 0\). Give 1"):
        dataclasses.replace(CONFIG, dimension=0)
    with pytest.raises(InputError, match=r"prefix_length .* \(got -1\). Give 0"):
        dataclasses.replace(CONFIG, prefix_length=-1)
