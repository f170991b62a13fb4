"""A network that is not trained yet ranks clusters as the document encoder ranks documents, however it pools."""

import dataclasses

import jax
import numpy as np
import pytest

from gr_jax import systems, text
from gr_jax.models import network_folder
from gr_jax.retrievers.dense_encoder import DenseEncoder
from gr_jax.stages import clusters, docids, documents, vectors
from gr_jax.stages.graph import in_order
from gr_jax.stages.runner import Runner
from gr_jax.stages.sources import BeirFolder
from tests.small_dsi import COUNT, network, quiet

QUERIES = ["where is the red cat", "who saw a grey goat", "a bee"]
ENCODERS = systems.Encoders(
    encoder="t5", vocabulary="byte", width=16, heads=2, mlp_width=16, layers=1, query_length=24, document_length=32
)


@pytest.mark.parametrize(
    ("kind", "pooling"),
    [
        (systems.GDR, "cls"),
        (systems.DSIClusters, "mean"),
        pytest.param(systems.GDR, "mean", marks=pytest.mark.slow),
        pytest.param(systems.DSIClusters, "cls", marks=pytest.mark.slow),
    ],
)
def test_an_untrained_network_orders_clusters_by_the_cosine(beir, tmp_path, kind, pooling):
    """Every document is a cluster, so that the tokens of the first level are documents."""
    system = kind(
        encoders=dataclasses.replace(ENCODERS, pooling=pooling),
        encoder_training=None,
        clusters=systems.Clusters(budget=COUNT),
        network=network(outputs="centroid", query_residual=True, width=16),
        training=None,
    )
    system.run(beir, tmp_path / "run", until="model", say=quiet)
    runner = Runner(tmp_path / "run")
    stages = in_order(system.stages(documents.corpus(BeirFolder(str(beir)))))
    made = {one.name: runner.folder(one) for one in stages}
    module, params = network_folder.load_network(made["model"])
    encoder = DenseEncoder.load(made["document_encoder"] / "encoder")
    cosines = encoder.encode(QUERIES, "query") @ np.asarray(vectors.load_vectors(made["vectors"])).T

    tokens, _ = text.encode_texts(encoder.vocabulary, QUERIES, ENCODERS.query_length)
    logits = jax.jit(module.apply)({"params": params}, tokens, np.zeros((len(QUERIES), 1), np.int32))
    of_clusters = kind is systems.GDR
    ids = clusters.load_clusters(made["clusters"]) if of_clusters else docids.load_docids(made["docids"])
    first = np.array([ids.sequence(ids.rows_of(document)[0])[0] for document in range(COUNT)])
    assert len(set(first.tolist())) == COUNT
    np.testing.assert_array_equal(np.argsort(-np.asarray(logits)[:, 0, first]), np.argsort(-cosines))
