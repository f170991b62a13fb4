"""A network that is not trained yet ranks clusters as the document encoder ranks documents, however it pools."""

import dataclasses

import jax
import numpy as np
import pytest
from gr_jax.recipes import clusters, document_encoder, documents, networks

from gr_jax import recipes, text
from gr_jax.models import network_folder
from tests.recipes.conftest import COUNT, network

QUERIES = ["where is the red cat", "who saw a grey goat", "a bee"]
ENCODERS = recipes.Encoders(
    encoder="t5", vocabulary="byte", width=16, heads=2, mlp_width=16, layers=1, query_length=24, document_length=32
)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("recipe", ["gdr", "nci"])
def test_an_untrained_network_orders_clusters_by_the_cosine(beir, tmp_path, recipe, pooling):
    """Every document is a cluster, so that the tokens of the first level are documents."""
    untrained = recipes.ContrastiveTraining(steps=0)
    told = {
        "encoders": dataclasses.replace(ENCODERS, pooling=pooling),
        "encoder_training": untrained,
        "clusters": recipes.Clusters(budget=COUNT),
        "network": network(outputs="centroid", query_residual=True, width=16),
        "training": untrained if recipe == "gdr" else recipes.Training(steps=0),
    }
    run = tmp_path / "run"
    getattr(recipes, recipe)(beir, run, until="model", say=lambda line: None, **told)
    module, params = network_folder.load_network(run / "model")
    (made,), (vectors,) = ((tmp_path / "shared").glob(f"{name}-*") for name in ("document_encoder", "vectors"))
    encoder, vectors = document_encoder.load_encoder(made), documents.load_vectors(vectors)
    cosines = encoder.encode(QUERIES, "query") @ np.asarray(vectors).T

    tokens, _ = text.encode_texts(encoder.vocabulary, QUERIES, ENCODERS.query_length)
    logits = jax.jit(module.apply)({"params": params}, tokens, np.zeros((len(QUERIES), 1), np.int32))
    (named,) = (tmp_path / "shared").glob("clusters-*" if recipe == "gdr" else "docids-*")
    ids = documents.load_docids(named) if recipe == "nci" else clusters.load_clusters(named)
    first = np.array([ids.sequence(ids.rows_of(document)[0])[0] for document in range(COUNT)])
    assert len(set(first.tolist())) == COUNT
    np.testing.assert_array_equal(np.argsort(-np.asarray(logits)[:, 0, first]), np.argsort(-cosines))


def test_the_mean_is_not_named_in_keys():
    """Networks that were made before there was a choice stay what they are."""
    settings = network(query_residual=True)
    mean, first = (networks.network_config(settings, pooling) for pooling in ("mean", "cls"))
    assert mean == settings.as_config() | {"encoder": "t5"} and first == mean | {"query_pooling": "cls"}
    without = dataclasses.replace(settings, query_residual=False)  # nothing pooled is read
    assert networks.network_config(without, "mean") == networks.network_config(without, "cls")
