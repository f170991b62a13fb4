"""NCI, whole: its docids are positions in a tree, and its head starts from what is under each prefix."""

import json

import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.models import network_folder
from gr_jax.stages.docids import Identifiers
from gr_jax.stages.write_docids import Decoding, Training
from gr_jax.systems.nci import NCI
from tests.small_dsi import COUNT, network, quiet
from tests.systems.gdr.small_run import settings


@pytest.mark.slow
def test_it_trains_and_answers(beir, tmp_path):
    told = settings()
    names = ("encoders", "encoder_training", "encoder_mining", "pseudo_queries")
    nci = NCI(
        **{name: told[name] for name in names},
        identifiers=Identifiers(branching=3, leaf_capacity=3, tokens="position"),
        network=network(outputs="centroid", query_residual=True, pawa_layers=1),
        training=Training(steps=2, warmup_steps=0, batch_size=8, dev_queries=None, rdrop=0.1, seed=1),
        decoding=Decoding(beams=COUNT),
    )
    searcher = nci.run(beir, tmp_path / "run", say=quiet)
    _, params = network_folder.load_network(tmp_path / "run" / "model")
    assert np.any(params["pawa"]["kernel"])
    found = searcher.retrieve(["where is the red cat"], COUNT)
    assert sorted(found.doc_index[0].tolist()) == list(range(COUNT))
    metrics = json.loads((tmp_path / "run" / "results" / "metrics.json").read_text())
    assert set(metrics["test"]) == {"BM25", "NCI", "BM25 + NCI"}


def test_a_token_for_each_node_is_not_nci():
    with pytest.raises(InputError, match="positions among siblings"):
        NCI(identifiers=Identifiers(branching=30, leaf_capacity=30, tokens="node"))
