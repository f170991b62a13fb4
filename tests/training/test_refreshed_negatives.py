import itertools
import threading

import jax
import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.models import BiEncoder, BiEncoderConfig, BiEncoderModel
from gr_jax.models.text_encoder import mean_pool
from gr_jax.training import adamw
from gr_jax.training.contrastive_batches import ContrastiveBatches
from gr_jax.training.negatives import Negatives, random_negatives, ranked_negatives
from gr_jax.training.refreshed_negatives import RefreshedNegatives
from gr_jax.training.token_store import TokenStore
from tests.training import toy

DOCUMENTS = 12


class Bags:
    """A bi-encoder of word vectors alone, with noise where there would be dropout."""

    loss = BiEncoderModel(BiEncoder(BiEncoderConfig(similarity="dot", temperature=1.0)))

    def get_initial_variables(self, rng, input_shapes, input_types=None):
        return {"params": {"words": {"embedding": jax.random.normal(rng, (20, 4))}}}

    def loss_fn(self, params, batch, dropout_rng):
        table = params["words"]["embedding"]
        if dropout_rng is not None:
            table = table * jax.random.bernoulli(dropout_rng, 0.8, table.shape)
        vectors = (mean_pool(table[batch[f"{side}_tokens"]], batch[f"{side}_tokens"]) for side in ("query", "document"))
        queries, documents = vectors
        return self.loss.loss(queries @ documents.T, batch)


@pytest.fixture(scope="module")
def stores():
    random = np.random.default_rng(0)
    texts = [random.integers(1, 20, 5) for _ in range(DOCUMENTS)]
    answers = random.integers(0, DOCUMENTS, 30)
    queries = TokenStore.from_rows({"inputs": random.permutation(texts[a])[:3], "targets": [a]} for a in answers)
    return queries, TokenStore.from_rows({"inputs": text, "targets": [0]} for text in texts)


def mine(params, stores):
    """The documents that these parameters rank highest, for every query."""
    table = np.asarray(params["words"]["embedding"])
    queries, documents = (np.stack([table[store.inputs[n]].mean(0) for n in range(len(store))]) for store in stores)
    return ranked_negatives(np.argsort(-queries @ documents.T, kind="stable"), stores[0].targets, 3)


def batches_of(stores, negatives):
    return ContrastiveBatches(
        *stores, batch_size=4, negatives=negatives, num_negatives=2, query_lengths=3, document_lengths=5
    )


def learn(stores, negatives, steps, folder, **settings):
    hooks = [negatives.hook] if isinstance(negatives, RefreshedNegatives) else []
    return toy.learn(
        Bags(), batches_of(stores, negatives), steps=steps, optimizer=adamw(0.05), model_dir=folder, hooks=hooks,
        **settings,
    )  # fmt: skip


def same(one, other):
    return np.array_equal(one.params["words"]["embedding"], other.params["words"]["embedding"])


@pytest.mark.parametrize(
    ("every", "lag"),
    [
        (4, None),
        pytest.param(2, 0, marks=pytest.mark.slow),
        pytest.param(2, 5, marks=pytest.mark.slow),
        pytest.param(1, None, marks=pytest.mark.slow),
        pytest.param(1, 1, marks=pytest.mark.slow),
    ],
)
def test_mined_while_training_goes_on(stores, tmp_path, every, lag):
    """As if training stopped at every step that a table is due at; interrupted anywhere, the same comes out."""
    first, steps = random_negatives(stores[0].targets, DOCUMENTS, 3), 13

    def start(folder, steps):
        """As a process of its own would begin, or go on."""
        negatives = RefreshedNegatives(first, lambda params, due: mine(params, stores), every=every, lag=lag)
        return learn(stores, negatives, steps, folder, checkpoint_every=2)

    whole = start(tmp_path / "whole", steps)
    for stops in ((5, 9, 13), *([] if every == 4 else [(4, 13), (5, 8, 11, 13)])):
        results = [start(tmp_path / f"stopped at {stops}", stop) for stop in stops]
        assert same(results[-1], whole)
    assert not same(learn(stores, first, steps, tmp_path / "never refreshed"), whole)

    tables = {step: first for step in range(steps)}
    by_hand = Scripted(tables)
    for step in range(every, steps, every):  # one training up to every step that is mined at, with the tables so far
        table = mine(learn(stores, by_hand, step, None).params, stores)
        tables.update({later: table for later in range(step + (every if lag is None else lag), steps)})
    assert same(learn(stores, by_hand, steps, None), whole)


class Scripted:
    """Tables that somebody wrote down step by step."""

    settings = "scripted"

    def __init__(self, tables):
        self.tables = tables

    def __len__(self):
        return len(self.tables[0])

    width = 3

    def at(self, step):
        return self.tables.get(step, self.tables[0])


def test_training_goes_on_until_the_table_is_needed(stores):
    """The hook is held up until the step before its table is due was taken."""
    first, reached = random_negatives(stores[0].targets, DOCUMENTS, 3), threading.Event()

    def wait(params, due):
        assert due == 8 and reached.wait(60)
        return mine(params, stores)

    def look(params, step):
        if step == 7:
            reached.set()
        return {}

    negatives = RefreshedNegatives(first, wait, every=4)
    assert learn(stores, negatives, 9, None, evaluate=look, eval_every=1).last_step == 9


def test_which_table_a_batch_draws_from(stores):
    def only(document):
        return Negatives(np.full((30, 1), document, np.int32))

    mined, batches = [], []

    def number(params, due):
        mined.append(due)
        return only(len(mined) + 1)

    negatives = RefreshedNegatives(only(1), number, every=2)
    dataset = ContrastiveBatches(*stores, batch_size=4, negatives=negatives, query_lengths=3, document_lengths=5)
    complete = dataset.batch

    def seen(step, *arguments):
        batch = complete(step, *arguments)
        batches.append(set(batch["document_index"].reshape(4, 2)[:, 1].tolist()))
        return batch

    dataset.batch = seen
    toy.learn(Bags(), dataset, steps=10, optimizer=adamw(0.05), hooks=[negatives.hook])
    assert batches[:10] == [{1}] * 4 + [{2}] * 2 + [{3}] * 2 + [{4}] * 2
    assert mined == [4, 6, 8] and negatives.hook.used(10) == 3  # what would be used from 10 on is not mined


def test_batches_outside_of_training(stores):
    """The first tables are there; of later ones nobody waits for what will never be."""
    first = random_negatives(stores[0].targets, DOCUMENTS, 3)
    negatives = RefreshedNegatives(first, lambda params, due: mine(params, stores), every=2)
    iterator = iter(batches_of(stores, negatives))
    assert len(list(itertools.islice(iterator, 4))) == 4
    with pytest.raises(InputError, match="'negatives' that step 4 uses"):
        next(iterator)


def test_what_does_not_fit_is_refused(stores):
    first = random_negatives(stores[0].targets, DOCUMENTS, 3)
    for every, lag in ((0, None), (2, -1)):
        with pytest.raises(InputError, match="every ≥ 1 and lag ≥ 0"):
            RefreshedNegatives(first, lambda params, due: first, every=every, lag=lag)
    narrow = RefreshedNegatives(first, lambda params, due: Negatives(first.documents[:, :2]), every=2)
    with pytest.raises(InputError, match=r"'negatives', run at step 2, returned 'documents' as int32\(30, 2\)"):
        learn(stores, narrow, 9, None)
