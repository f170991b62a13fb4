"""Batches of documents that were read once, and the loss of late interaction on them, against loops over tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gr_jax.dense.token_vectors import TokenRows
from gr_jax.errors import InputError
from gr_jax.losses import ContrastiveLoss
from gr_jax.models.bert import BertConfig
from gr_jax.systems.colbert import tiles
from gr_jax.systems.colbert.network import LateInteraction, LateInteractionConfig, LateInteractionModel
from gr_jax.systems.colbert.tiles import StateBatches
from tests import compiled
from tests.training.test_contrastive_batches import make, stores

DOCUMENTS, WIDTH, DIMENSION = 12, 16, 6
BERT = BertConfig(
    vocab_size=60, emb_dim=WIDTH, num_heads=2, num_encoder_layers=1, mlp_dim=24, max_positions=40, dropout_rate=0.0
)
_RANDOM = np.random.default_rng(0)
# Of one token, of a whole tile, of one token more than that, and so on.
LENGTHS = (1, 15, 16, 17, 32, 33, 40, 2, 5, 64, 31, 48)
STATES = TokenRows.of([_RANDOM.normal(size=(length, WIDTH)).astype(np.float32) for length in LENGTHS])


def model(layers: int = 2, *, in_batch: bool = False, **changes) -> tuple[LateInteractionModel, dict]:
    settings = {"dimension": DIMENSION if layers else WIDTH, "query_length": 0, "temperature": 0.7}
    config = LateInteractionConfig(
        BERT, projection_layers=layers, query_marker=None, document_marker=None, **(settings | changes)
    )
    tokens = np.ones((1, 4), np.int32)
    params = jax.jit(LateInteraction(config).init)(jax.random.key(1), tokens, tokens)["params"]
    return LateInteractionModel(LateInteraction(config), ContrastiveLoss(in_batch=in_batch)), params


def vectors_of(params: dict, states: np.ndarray) -> np.ndarray:
    """The projection, written out."""
    projection = jax.tree.map(lambda array: np.asarray(array, np.float64), params["projection"])
    if "kernel" in projection:
        found = states @ projection["kernel"]
    else:
        hidden = np.maximum(states @ projection["wi"]["kernel"] + projection["wi"]["bias"], 0)
        found = hidden @ projection["wo"]["kernel"] + projection["wo"]["bias"]
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def slow_score(query: np.ndarray, weights: np.ndarray, document: np.ndarray) -> float:
    """MaxSim, token by token."""
    total = 0.0
    for vector, weight in zip(query, weights, strict=True):
        total += weight * max(float(vector @ other) for other in document)
    return total


def slow_loss(asked, batch: dict, queries: np.ndarray, weights: np.ndarray, params: dict, every: bool) -> float:
    """The sum over queries of −log P(positive | the documents that count), of whole documents of the corpus."""
    documents = [vectors_of(params, np.asarray(STATES.vectors[STATES.rows(d)], np.float64)) for d in range(DOCUMENTS)]
    positions, size = batch["document_position"], len(batch["document_position"]) // len(queries)
    total = 0.0
    for row in range(len(queries)):
        if positions[row * size] < 0:  # fills up the last batch
            continue
        answers = set(asked.targets[int(batch["query_tokens"][row, 0]) - 1].tolist())
        same = {0: {0, 11}, 11: {0, 11}}  # these two have equal tokens
        excluded = set().union(*(same.get(answer, {answer}) for answer in answers))
        drawn = list(range(DOCUMENTS)) if every else positions[row * size + 1 : (row + 1) * size].tolist()
        counted = [positions[row * size], *(d for d in drawn if d not in excluded)]
        scores = [slow_score(queries[row], weights[row], documents[d]) / 0.7 for d in counted]
        total += np.log(np.exp(scores).sum()) - scores[0]
    return total


@pytest.mark.parametrize(
    ("layers", "negatives"),
    [(1, 3), (2, None), *(pytest.param(2, count, marks=pytest.mark.slow) for count in (1, 3, 7))],
)
def test_the_loss_is_that_of_loops_over_tokens(layers, negatives):
    """{positive} ∪ K drawn documents and nothing of the batch; or all documents."""
    every = negatives is None
    asked, documents = stores(queries=19)
    made = make(
        asked, documents, document_tokens=False, epochs=1, seed=3, every_document=every, num_negatives=negatives
    )
    network, params = model(layers, in_batch=every)
    loss = jax.jit(network.loss_fn)
    seen = 0
    for batch, plain in zip(StateBatches(made, STATES), made, strict=True):
        queries, weights = compiled.run(network.module, params, plain["query_tokens"], method="encode_query")
        total, metrics = loss(params, batch)
        expected = slow_loss(asked, plain, np.asarray(queries, np.float64), np.asarray(weights), params, every)
        np.testing.assert_allclose(float(total), expected, rtol=1e-5)
        seen += int(metrics["weight_sum"])
    assert seen == 19


def test_documents_stand_in_a_batch_once():
    asked, documents = stores(queries=16)
    made = make(asked, documents, document_tokens=False, num_negatives=5, epochs=1, seed=3)
    for batch, plain in zip(StateBatches(made, STATES), made, strict=True):
        chosen = sorted({*plain["document_position"].tolist()} - {-1})
        count = sum(-(-LENGTHS[document] // tiles.TILE) for document in chosen)
        assert batch["document_tiles"].max() == count - 1
        laid = batch["document_states"].reshape(-1, tiles.TILE, WIDTH)
        for position, row in zip(plain["document_position"], batch["document_tiles"], strict=True):
            if position >= 0:
                found = np.unique(laid[row].reshape(-1, WIDTH), axis=0)
                np.testing.assert_array_equal(found, np.unique(STATES.vectors[STATES.rows(position)], axis=0))


def test_batches_have_few_sizes():
    """Each size is compiled once."""
    sizes = [tiles._rounded(tokens) for tokens in range(1, 100 * tiles.BLOCK, tiles.BLOCK // 2)]
    assert all(size % tiles.BLOCK == 0 for size in sizes)
    for tokens, size in zip(range(1, 100 * tiles.BLOCK, tiles.BLOCK // 2), sizes, strict=True):
        assert tokens <= size < tokens * (1 + 1 / tiles.PARTS) + tiles.BLOCK
    for power in range(3, 6):
        between = {size for size in sizes if 2**power < size // tiles.BLOCK <= 2 ** (power + 1)}
        assert len(between) <= tiles.PARTS


def test_gradients_are_those_of_whole_rows():
    """Of the projection and of queries, against MaxSim of documents as rows of one length."""
    asked, documents = stores(queries=16)
    made = make(asked, documents, document_tokens=False, num_negatives=3, epochs=1, seed=3)
    network, params = model()
    plain = next(iter(made))
    batch = next(iter(StateBatches(made, STATES)))
    longest = max(LENGTHS)
    states = np.zeros((len(plain["document_position"]), longest, WIDTH), np.float32)
    mask = np.zeros(states.shape[:2], bool)
    for place, position in enumerate(plain["document_position"]):
        states[place, : LENGTHS[position]] = STATES.vectors[STATES.rows(position)]
        mask[place, : LENGTHS[position]] = True

    def whole(params):
        queries, weights = network.module.apply({"params": params}, plain["query_tokens"], method="encode_query")
        vectors = network.module.apply({"params": params}, states, method="project")
        products = jnp.where(mask, jnp.einsum("bqd,nsd->bqns", queries, vectors), -1e4)
        scores = jnp.einsum("bqn,bq->bn", products.max(axis=-1), weights) / 0.7
        return network.loss(scores, batch)[0]

    found = jax.jit(jax.grad(lambda params: network.loss_fn(params, batch)[0]))(params)
    expected = jax.jit(jax.grad(whole))(params)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5), found, expected)
    assert float(np.abs(found["projection"]["wi"]["kernel"]).max()) > 1e-3


def test_documents_of_their_own_encoder():
    """Documents are read by their own encoder, queries by the other, and one projection takes both to vectors."""
    network, params = model(shared=False)
    tokens = np.array([[5, 20, 21, 6]], np.int32)

    def encoded(params, side):
        return np.asarray(compiled.run(network.module, params, tokens, method=f"encode_{side}")[0])

    other = jax.tree.map(lambda array: np.asarray(array) + np.float32(0.1), params["encoder"])
    for moved, still in (("query", "document"), ("document", "query")):
        name = "encoder" if moved == "query" else "document_encoder"
        np.testing.assert_array_equal(encoded(params | {name: other}, still), encoded(params, still))
        assert np.abs(encoded(params | {name: other}, moved) - encoded(params, moved)).max() > 1e-3
    same = params | {f"document_{name}": params[name] for name in ("token_embedder", "encoder")}
    np.testing.assert_allclose(encoded(same, "query"), encoded(same, "document"), atol=1e-6)


def test_without_a_projection_vectors_are_states():
    network, params = model(0)
    assert "projection" not in params
    found = compiled.run(network.module, params, STATES.vectors[:3], method="project")
    np.testing.assert_array_equal(found, STATES.vectors[:3])
    with pytest.raises(InputError, match="dimension = 16"):
        LateInteractionConfig(BERT, dimension=8, projection_layers=0)
    with pytest.raises(InputError, match="0, 1 or 2"):
        LateInteractionConfig(BERT, projection_layers=3)


def test_bad_input():
    asked, documents = stores()
    batches = make(asked, documents, document_tokens=False, num_negatives=3)
    with pytest.raises(InputError, match="document_tokens=False"):
        StateBatches(make(asked, documents, num_negatives=3), STATES)
    with pytest.raises(InputError, match="states of 2 documents"):
        StateBatches(batches, TokenRows.of([STATES.vectors[:2], STATES.vectors[:3]]))
    with pytest.raises(InputError, match="float16"):
        rows = [STATES.vectors[STATES.rows(document)] for document in range(DOCUMENTS)]
        StateBatches(batches, TokenRows.of(rows, precision="int8"))
    with pytest.raises(InputError, match="one process"):
        StateBatches(make(asked, documents, document_tokens=False, num_negatives=3, process=(0, 2)), STATES)
