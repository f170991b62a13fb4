import itertools
import time

import jax
import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.models import BiEncoder, BiEncoderConfig, BiEncoderModel
from gr_jax.models.text_encoder import mean_pool
from gr_jax.training import adamw, train
from gr_jax.training.contrastive_batches import ContrastiveBatches
from gr_jax.training.negatives import Negatives, random_negatives, ranked_negatives
from gr_jax.training.refreshed_negatives import RefreshedNegatives
from gr_jax.training.token_store import TokenStore

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
        return self.loss.loss_of_scores(queries @ documents.T, batch)


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


def learn(stores, negatives, steps, folder, evaluate=None, **settings):
    return train(
        Bags(), batches_of(stores, negatives), steps=steps, optimizer=adamw(0.05), model_dir=folder, evaluate=evaluate,
        **settings,
    )  # fmt: skip


def same(one, other):
    return np.array_equal(one.params["words"]["embedding"], other.params["words"]["embedding"])


def test_mined_while_training_goes_on(stores, tmp_path):
    """The table mined at step s is used from s + every on; interrupted anywhere, the same parameters come out."""
    first = random_negatives(stores[0].targets, DOCUMENTS, 3)

    def start(folder, steps):
        """As a process of its own would begin, or go on."""

        def ready(step):
            deadline = time.monotonic() + 60
            found = negatives.path(step) / "manifest.json"
            while step < steps and not found.exists() and time.monotonic() < deadline:
                time.sleep(0.01)

        def look(params, step):
            if step and step % 3 == 0:
                mine(params, stores).save(negatives.path(step + 3))
            return {}

        negatives = RefreshedNegatives(first, folder / "mined", every=3, start=6, ready=ready)
        return learn(stores, negatives, steps, folder, look, eval_every=3, checkpoint_every=2)

    whole = start(tmp_path / "whole", 13)
    folder = tmp_path / "whole"
    tables = [Negatives.load(folder / "mined" / f"step_{step:08d}").fingerprint for step in (6, 9, 12)]
    assert len(set(tables)) == 3  # training changes what is mined
    for stops in ((4, 13), (5, 8, 11, 13)):
        results = [start(tmp_path / f"stopped at {stops}", steps) for steps in stops]
        assert same(results[-1], whole)
    assert not same(learn(stores, first, 13, tmp_path / "never refreshed"), whole)


def test_tables_that_follow_closely(stores, tmp_path):
    """Batches are made several steps ahead, here of the parameters that their tables are mined with too."""
    first = random_negatives(stores[0].targets, DOCUMENTS, 3)

    def start(folder, every):
        negatives = RefreshedNegatives(first, folder / "mined", every=every, start=2 * every)

        def look(params, step):
            if step % every == 0:
                mine(params, stores).save(negatives.path(step + every))
            return {}

        return learn(stores, negatives, 7, folder, look, eval_every=1)

    for every in (1, 2):
        results = [start(tmp_path / f"{every} {number}", every) for number in range(2)]
        assert results[0].last_step == 7 and same(*results)
        assert len(list((tmp_path / f"{every} 0" / "mined").glob("step_*"))) == 7 // every


def test_mined_between_two_parts_of_training(stores, tmp_path):
    """Batches are read ahead of training; that a table is not there yet is no error before it is needed."""
    first = random_negatives(stores[0].targets, DOCUMENTS, 3)

    def start():
        return RefreshedNegatives(first, tmp_path / "mined", every=4)

    half = learn(stores, start(), 4, tmp_path / "run")
    with pytest.raises(InputError, match="step_00000004"):
        learn(stores, start(), 8, tmp_path / "run")
    mine(half.params, stores).save(start().path(4))
    assert learn(stores, start(), 8, tmp_path / "run").last_step == 8


def test_which_table_a_batch_draws_from(stores, tmp_path):
    def only(document):
        return Negatives(np.full((30, 1), document, np.int32))

    negatives = RefreshedNegatives(only(1), tmp_path, every=2, start=4)
    for step, document in ((4, 2), (6, 3), (8, 4)):
        only(document).save(negatives.path(step))
    dataset = ContrastiveBatches(*stores, batch_size=4, negatives=negatives, query_lengths=3, document_lengths=5)
    drawn = [set(batch["document_index"].reshape(4, 2)[:, 1].tolist()) for batch in itertools.islice(dataset, 10)]
    assert drawn == [{1}] * 4 + [{2}] * 2 + [{3}] * 2 + [{4}] * 2
    iterator = iter(dataset)
    iterator.set_state({"step": 7, "position": 0, "held": []})
    assert set(next(iterator)["document_index"].reshape(4, 2)[:, 1].tolist()) == {3}


def test_what_does_not_fit_is_refused(stores, tmp_path):
    first = random_negatives(stores[0].targets, DOCUMENTS, 3)
    for every, start in ((0, None), (2, 3), (2, 0)):
        with pytest.raises(InputError, match="every so many steps"):
            RefreshedNegatives(first, tmp_path, every=every, start=start)
    negatives = RefreshedNegatives(first, tmp_path, every=2)
    Negatives(first.documents[:, :2]).save(negatives.path(2))
    with pytest.raises(InputError, match="as many queries and columns"):
        negatives.at(3)
