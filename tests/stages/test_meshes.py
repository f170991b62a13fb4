"""A system gives the same answers however the devices are laid out."""

import json

import numpy as np
import pytest

from gr_jax import corpus, systems
from tests.small_dsi import dsi, network, quiet, training


def trained(beir, model_dir, mesh):
    """Losses, and the ten best documents of every query with their scores."""
    # Widths that four devices can share, and a vocabulary of outputs that they can.
    system = dsi(
        network=network(width=32, heads=4, mlp_width=32, dropout=0.0),
        training=training(steps=20, batch_size=8, mesh=mesh, dev_queries=4, keep_best="dev/RR@10"),
        decoding=systems.Decoding(beams=24),
    )
    searcher = system.run(beir, model_dir, until="index", say=quiet)
    lines = [json.loads(line) for line in (model_dir / "model" / "metrics.jsonl").read_text().splitlines()]
    (loss,) = [line["train/loss"] for line in lines if "train/loss" in line]
    dataset = corpus.read_beir(beir)
    return loss, searcher.retrieve(dataset.queries.texts, 10)


@pytest.fixture(scope="module")
def alone(beir, tmp_path_factory):
    return trained(beir, tmp_path_factory.mktemp("meshes") / "alone", (1, 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh", [pytest.param((8, 1), marks=pytest.mark.slow), (4, 2), pytest.param((2, 4), marks=pytest.mark.slow)]
)
def test_answers_do_not_depend_on_the_mesh(beir, tmp_path, alone, mesh):
    loss, ranking = trained(beir, tmp_path / "run", mesh)
    expected_loss, expected = alone
    assert loss == pytest.approx(expected_loss, abs=1e-5)
    np.testing.assert_allclose(ranking.score, expected.score, atol=1e-4)
    # Documents whose scores are closer than that may stand in either order.
    for found, wanted, scores in zip(ranking.doc_index, expected.doc_index, expected.score, strict=True):
        different = np.flatnonzero(found != wanted)
        assert all(np.sum(np.abs(scores - scores[place]) < 2e-4) > 1 or place == 9 for place in different)
    assert (ranking.doc_index == expected.doc_index).mean() > 0.9
