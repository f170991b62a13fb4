"""Batches whose negatives are the whole corpus: with them the loss of a batch is the softmax over all documents."""

import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.losses import ContrastiveLoss
from gr_jax.stages import contrastive
from gr_jax.stages.contrastive import ContrastiveTraining
from gr_jax.training import VectorBatches
from tests.training.test_contrastive_batches import make, stores

DOCUMENTS, WIDTH = 12, 5
VECTORS = np.random.default_rng(0).normal(size=(DOCUMENTS, WIDTH)).astype(np.float32)
ASKED = np.random.default_rng(1).normal(size=(21, WIDTH)).astype(np.float32)  # by a query's first token


@pytest.mark.parametrize("queries", [16, 19])  # whole batches, and a last one with an empty row
def test_the_loss_is_the_softmax_over_the_corpus(queries):
    asked, documents = stores(queries=queries)
    made = make(asked, documents, document_tokens=False, every_document=True, epochs=1, seed=3)
    seen = 0
    for batch in VectorBatches(made, VECTORS):
        found = batch["document_vectors"][batch["document_index"] >= 0]
        assert sorted(map(tuple, found)) == sorted(map(tuple, VECTORS))  # each document once
        rows = [int(tokens[0]) - 1 for tokens in batch["query_tokens"]]
        scores = ASKED[rows] @ batch["document_vectors"].T
        total, metrics = ContrastiveLoss()(scores, batch)
        expected = 0.0
        for row in rows:
            if row < 0:  # fills up the last batch
                continue
            seen += 1
            answers = asked.targets[row].tolist()
            first = answers[0]
            same = {0: {0, 11}, 11: {0, 11}}  # these two have equal tokens
            excluded = set().union(*(same.get(answer, {answer}) for answer in answers)) - {first}
            among = np.array([ASKED[row] @ VECTORS[d] for d in range(DOCUMENTS) if d not in excluded], np.float64)
            expected += np.log(np.exp(among).sum()) - float(ASKED[row] @ VECTORS[first])
        np.testing.assert_allclose(float(total), expected, rtol=1e-5)
        assert float(metrics["weight_sum"]) == sum(row >= 0 for row in rows)
    assert seen == queries
    assert made.settings != make(asked, documents, document_tokens=False, num_negatives=3, epochs=1, seed=3).settings


def test_a_querys_own_negatives_alone():
    """K drawn negatives and nothing of the batch, against a loop."""
    asked, documents = stores(queries=16, several=False)
    settings = ContrastiveTraining(batch_size=4, negatives=3, in_batch=False, rates={"query": 1.0})
    assert not contrastive.loss_of(settings).in_batch and contrastive.loss_of(ContrastiveTraining()).in_batch
    made = make(asked, documents, document_tokens=False, num_negatives=3, epochs=1, seed=3)
    for batch in VectorBatches(made, VECTORS):
        rows = [int(tokens[0]) - 1 for tokens in batch["query_tokens"]]
        scores = ASKED[rows] @ batch["document_vectors"].T
        total, _ = contrastive.loss_of(settings)(scores, batch)
        expected = 0.0
        for place, row in enumerate(rows):
            index = batch["document_index"][4 * place : 4 * place + 4]
            own = scores[place, 4 * place : 4 * place + 4].astype(np.float64)
            counted = [number for number in range(4) if number == 0 or index[number] != index[0]]
            expected += np.log(np.exp(own[counted]).sum()) - own[0]
            assert row >= 0
        np.testing.assert_allclose(float(total), expected, rtol=1e-5)


def test_bad_input():
    asked, documents = stores()
    for changes, tokens, says in (
        ({"negatives": 12, "in_batch": False}, False, "negatives to 11 at most"),
        ({"negatives": None}, True, "frozen_documents"),
    ):
        settings = ContrastiveTraining(batch_size=4, **changes)
        with pytest.raises(InputError, match=says):
            contrastive.make_batches(asked, documents, None, settings, 4, 8, document_tokens=tokens)
    for negatives in (0, None):
        with pytest.raises(InputError, match="in_batch = True"):
            ContrastiveTraining(negatives=negatives, in_batch=False)
