"""The page on adding a loss: its example works as it stands, and equals a plain double loop."""

import jax
import numpy as np
import pytest

from gr_jax.errors import InputError
from tests.docs.modules import imported
from tests.docs.pages import python_blocks

LOSS, MODEL = python_blocks("how_to/new_loss.md")
QUERIES, GROUP = 4, 2
INDEX = np.array([7, 3, 5, 7, 7, 2, -1, -1], np.int32)  # 7 stands there often; the last query is padding
RELEVANT = np.array([[5, -1], [-1, -1], [2, 9], [-1, -1]], np.int32)


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    with imported("hinge", LOSS, tmp_path_factory.mktemp("loss")) as module:
        yield module


def by_hand(scores, margin):
    """Sum over real queries of the mean over their negatives."""
    total = 0.0
    for query in range(QUERIES):
        answer = INDEX[query * GROUP]
        if answer < 0:
            continue
        wrong = []
        for column, document in enumerate(INDEX):
            if document >= 0 and document != answer and document not in RELEVANT[query]:
                wrong.append(max(0.0, margin - scores[query, query * GROUP] + scores[query, column]))
        total += sum(wrong) / len(wrong) if wrong else 0.0
    return total


@pytest.mark.parametrize("margin", [0.25, 1.0, 5.0])
def test_it_equals_a_double_loop(example, margin):
    scores = np.random.default_rng(0).normal(size=(QUERIES, len(INDEX))).astype(np.float32)
    total, metrics = jax.jit(example.HingeLoss(margin).__call__)(
        scores, {"document_index": INDEX, "relevant_index": RELEVANT}
    )
    assert np.isclose(float(total), by_hand(scores, margin), atol=1e-5)
    assert float(metrics["weight_sum"]) == QUERIES - 1


def test_padding_and_answers_alone_have_no_gradient(example):
    def loss(scores, index):
        return example.HingeLoss()(scores, {"document_index": index})[0]

    scores = np.random.default_rng(1).normal(size=(QUERIES, len(INDEX))).astype(np.float32)
    gradient = np.asarray(jax.jit(jax.grad(loss))(scores, INDEX))
    assert not gradient[-1].any() and gradient[0].any()
    alone = np.asarray(jax.jit(jax.grad(loss))(scores[:1, :1], INDEX[:1]))
    assert not alone.any() and np.isfinite(alone).all()


def test_a_model_learns_by_it(example):
    namespace: dict = {}
    exec(MODEL, namespace)
    model = namespace["model"]
    assert model.loss == example.HingeLoss(margin=0.5)
    random = np.random.default_rng(2)
    batch = {
        "query_tokens": random.integers(1, 40, (QUERIES, 6)).astype(np.int32),
        "document_tokens": random.integers(1, 40, (len(INDEX), 6)).astype(np.int32),
        "document_index": np.arange(len(INDEX), dtype=np.int32),
    }
    shapes = {name: array.shape for name, array in batch.items()}
    params = jax.jit(lambda rng: model.get_initial_variables(rng, shapes))(jax.random.key(0))["params"]
    step = jax.jit(jax.value_and_grad(lambda params: model.loss_fn(params, batch)[0]))
    first, _ = step(params)
    for _ in range(20):
        _, gradient = step(params)
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, gradient)
    assert float(step(params)[0]) < 0.8 * float(first)


def test_a_margin_of_nothing_is_refused(example):
    with pytest.raises(InputError, match="margin"):
        example.HingeLoss(0.0)
