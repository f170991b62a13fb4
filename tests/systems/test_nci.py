"""NCI, whole: its docids are positions in a tree, and its head starts from what is under each prefix."""

import dataclasses
import json

import numpy as np
import pytest
from flax.traverse_util import flatten_dict

import gr_jax
from benchmarks import small_systems
from gr_jax.corpus import read_beir
from gr_jax.errors import InputError
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
        training=Training(
            steps=8, learning_rate=1e-2, warmup_steps=0, batch_size=8, dev_queries=None, rdrop=0.1, seed=0
        ),
        decoding=Decoding(beams=COUNT, normalize="vocabulary"),
    )
    nci.run(beir, tmp_path / "after", say=quiet)
    dataclasses.replace(nci, training=None).run(beir, tmp_path / "before", until="index", say=quiet)
    dataset = read_beir(beir)
    queries, right = dataset.split_queries("train"), dataset.split("train")
    params, likelihood = [], []
    for name in ("before", "after"):
        retriever = gr_jax.load(tmp_path / name / "index").retriever
        forced = small_systems.enumerate_docids(retriever, dataset.corpus, queries.texts[:8])
        assert small_systems.agreement(retriever.retrieve(queries.texts[:8], COUNT), forced) == 1
        rows = zip(queries.ids, forced, strict=False)
        likelihood.append(np.mean([scores[dataset.corpus.index_of(d)] for q, scores in rows for d in right[q]]))
        params.append(flatten_dict(retriever.model.params, sep="/"))
    same = {name for name in params[0] if np.array_equal(params[0][name], params[1][name])}
    # Word embeddings are kept; attention to one vector is the same whatever query and key are.
    assert "pawa/kernel" not in same
    assert {name for name in same if not name.startswith("pawa/decoder/layers_0")} == {"token_embedder/embedding"}
    assert likelihood[1] > likelihood[0]
    metrics = json.loads((tmp_path / "after" / "results" / "metrics.json").read_text())
    assert set(metrics["test"]) == {"BM25", "NCI", "BM25 + NCI"}


def test_a_token_for_each_node_is_not_nci():
    with pytest.raises(InputError, match="positions among siblings"):
        NCI(identifiers=Identifiers(branching=30, leaf_capacity=30, tokens="node"))
