"""From texts to answers: a network that can learn its documents by heart does, on one device and on eight."""

import json

import jax
import numpy as np
import pytest

from gr_jax import retrievers, training
from tests.end_to_end import small_system


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    return small_system.build(tmp_path_factory.mktemp("system"))


@pytest.mark.slow  # the system learns as much by heart in tests/systems/dsi
def test_64_documents_are_learnt_by_heart(system):
    """The overfitting check: every training query finds its document first."""
    one = training.make_mesh(1, 1, devices=jax.devices()[:1])
    settings = training.TrainSettings(steps=250, optimizer=training.adamw(3e-3), mesh=one)
    trained = training.train(training.Task(system.model, system.batches(64)), settings)
    queries, qrels = system.dataset.split_queries("train"), system.dataset.split("train")
    retriever = system.retriever(trained.params, beams=8)
    run = retrievers.retrieve_run(retriever, queries, system.dataset.corpus, k=1)
    wrong = [query_id for query_id, hits in run.items() if hits[0][0] not in qrels[query_id]]
    assert len(queries.ids) == 64 and not wrong


@pytest.fixture(scope="module")
def on_meshes(system, tmp_path_factory):
    """Losses of every step, and answers, for each way to lay eight devices out."""
    results = {}
    for shape in [(8, 1), (2, 4)]:
        folder = tmp_path_factory.mktemp("mesh")
        mesh = training.make_mesh(*shape)
        settings = training.TrainSettings(steps=5, optimizer=training.adamw(1e-3), mesh=mesh, log_every=1)
        trained = training.train(training.Task(system.model, system.batches(16)), settings, model_dir=folder)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        losses = [line["train/loss"] for line in lines if "train/loss" in line]
        queries = system.dataset.split_queries("test").texts
        results[shape] = losses, system.retriever(trained.params, beams=64).retrieve(queries, 10)
    return results


@pytest.mark.slow  # losses are compared in tests/training, answers in tests/retrievers
def test_eight_devices_give_the_same_losses_and_answers_however_they_are_laid_out(on_meshes):
    losses, ranking = on_meshes[8, 1]
    other_losses, other_ranking = on_meshes[2, 4]
    assert len(losses) == 5 and losses[-1] < losses[0]
    np.testing.assert_allclose(other_losses, losses, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(other_ranking.score, ranking.score, atol=1e-3)
    # Scores that are equal to within rounding may change places.
    gaps = np.diff(ranking.score, axis=1) < -1e-3
    settled = np.pad(gaps, ((0, 0), (1, 0)), constant_values=True) & np.pad(gaps, ((0, 0), (0, 1)))
    assert settled.mean() > 0.8
    np.testing.assert_array_equal(other_ranking.doc_index[settled], ranking.doc_index[settled])
