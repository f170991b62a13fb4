"""DSI on clusters: its docids are the clusters of GDR, and a place in each."""

import json
from typing import Any

import pytest

from gr_jax import docids as docids_lib
from gr_jax.errors import InputError
from gr_jax.stages.clusters import Clusters, load_clusters
from gr_jax.stages.docids import load_docids
from gr_jax.stages.encoders import Encoders
from gr_jax.stages.write_docids import Decoding, Training
from gr_jax.systems.cgr import CGR
from gr_jax.systems.dsi import DSI
from gr_jax.systems.dsi_clusters import DSIClusters
from gr_jax.systems.gdr import GDR
from tests import small_data
from tests.small_dsi import COUNT, Said, network
from tests.systems.gdr.small_run import settings


@pytest.mark.slow
def test_it_writes_the_clusters_of_gdr_and_a_place_in_them(tmp_path):
    source = small_data.write_beir(tmp_path / "mine", count=COUNT)
    told = settings()
    GDR(**told).run(source, tmp_path / "runs" / "gdr", until="clusters", say=lambda line: None)
    names = ("encoders", "encoder_training", "encoder_mining", "pseudo_queries", "clusters", "network")
    dsi = DSIClusters(
        **{name: told[name] for name in names},
        training=Training(steps=2, warmup_steps=0, batch_size=8, dev_queries=None, rdrop=0.1, seed=1),
        decoding=Decoding(beams=10),
    )
    said = Said()
    searcher = dsi.run(source, tmp_path / "runs" / "dsi", say=said.append)
    assert said.made() == ["docids", "examples", "model", "index", "hybrid", "results"]  # all else is GDR's
    docids = load_docids(next((tmp_path / "runs" / "shared").glob("numbered-*")))
    cids = load_clusters(next((tmp_path / "runs" / "shared").glob("clusters-*")))
    cluster_of = docids_lib.memberships(cids)[:, 0]
    path_of = {}
    for row in range(len(docids)):
        (document,) = docids.documents_of(row)
        path_of.setdefault(tuple(docids.sequence(row)[:-1]), set()).add(int(cluster_of[document]))
    assert len(path_of) == 6 and all(len(clusters) == 1 for clusters in path_of.values())
    assert searcher.retrieve(["where is the red cat"], 5).doc_index.min() >= 0
    metrics = json.loads((tmp_path / "runs" / "dsi" / "results" / "metrics.json").read_text())
    assert set(metrics["test"]) == {"BM25", "DSI on clusters", "BM25 + DSI on clusters"}


def test_flat_clusters_have_no_tree():
    with pytest.raises(InputError, match="hierarchical"):
        DSIClusters(clusters=Clusters(algorithm="kmeans"))


def test_networks_that_do_not_fit_the_document_encoder_are_refused_before_it_is_trained(tmp_path):
    """Their widths are known from configurations alone; documents have vectors of width 16."""
    told = {name: settings()[name] for name in ("encoders", "encoder_training", "encoder_mining")}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", "d_model": 32}))
    # Read with the document encoder, whatever `Network.encoder` is.
    wide = {"encoder": str(tmp_path), "vocabulary": "pretrained", "decoder": str(tmp_path), "outputs": "random"}
    with pytest.raises(InputError, match="decoder reads states of width 32, and those of queries are 16 wide"):
        DSIClusters(**told, network=network(**wide))
    with pytest.raises(InputError, match="document vectors are 16 wide, the decoder's features 32"):
        DSIClusters(**told, network=network(width=32, heads=4, outputs="centroid", query_residual=False))
    DSIClusters(**told, network=network(width=32, heads=4, outputs="centroid", query_residual=True))
    DSIClusters(**told, network=network(**wide), start="pretrained")
    DSIClusters(**told, network=network(**wide), trained="runs/dpr")  # of which nothing is known yet


def test_texts_that_are_longer_than_the_encoder_has_positions_are_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 16, "max_position_embeddings": 32}))
    reads = network(encoder=str(tmp_path), vocabulary="pretrained")
    for make in (
        lambda **changes: DSIClusters(start="pretrained", network=reads, **changes),
        lambda **changes: DSIClusters(encoders=Encoders(encoder=str(tmp_path)), network=network(), **changes),
        lambda **changes: DSI(network=reads, **changes),
        lambda **changes: CGR(network=reads, **changes),
    ):
        told: dict[str, Any] = {"rates": {"query": 1.0}, "normalize": "vocabulary"}
        with pytest.raises(InputError, match="max_input_length is above the 32 positions"):
            make(training=Training(max_input_length=33, **told))
        make(training=Training(max_input_length=32, **told))
