"""ColBERT whose documents are read once, from documents to an index."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

import gr_jax
from gr_jax.errors import InputError
from gr_jax.stages.negatives import Mining
from gr_jax.systems import ColBERT
from gr_jax.systems.colbert import Interaction
from gr_jax.systems.colbert.token_encoder import TokenEncoder
from tests.small_data import write_beir
from tests.systems import one_setting, small_pairs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_beir(tmp_path_factory.mktemp("data") / "beir", count=24)


def frozen(**changes: Any) -> ColBERT:
    """Documents that are read once, and all of them every query's negatives."""
    chosen = {
        **small_pairs.COMMON,
        "interaction": Interaction(dimension=12, projection="layers", precision="float32", augmentation=36),
        "mining": Mining(shares={"random": 1.0}),
        "training": small_pairs.training(steps=8, negatives=None, learning_rate=1e-2, seed=3),
        "frozen_documents": True,
    }
    return ColBERT(**(chosen | changes))


@pytest.mark.parametrize("negatives", [None, pytest.param(3, marks=pytest.mark.slow)])
def test_documents_that_are_read_once(folder, tmp_path, negatives):
    last = dataclasses.replace(frozen().training, keep_best=None, negatives=negatives, in_batch=negatives is None)
    whole = dataclasses.replace(frozen().interaction, whole_text=True)
    searcher = frozen(training=last, interaction=whole).run(
        folder, tmp_path / "run", shared_dir=tmp_path / "shared", until="index", say=lambda _: None
    )
    encoder = searcher.retriever.encoder
    again = encoder.encode_documents(searcher.corpus.contents, precision="float32")  # each read again, whole
    questions = list(gr_jax.corpus.read_beir(folder).queries.texts[:5])
    asked, weights = encoder.encode_queries(questions)
    found = searcher.retriever.retrieve(questions, len(searcher.corpus))
    for query, weight, index, scores in zip(asked, weights, found.doc_index, found.score, strict=True):
        expected = [float(weight @ (query @ again.document(int(d)).T).max(axis=1)) for d in index]
        np.testing.assert_allclose(scores, expected, atol=1e-2)  # states are kept in 16 bits
    first = TokenEncoder.load(tmp_path / "run" / "frozen_encoder" / "encoder").params
    trained = encoder.params
    for name in ("token_embedder", "encoder"):
        same = jax.tree.map(np.array_equal, first[name], trained[f"document_{name}"])
        assert all(jax.tree.leaves(same))  # documents are read as before
        assert not all(jax.tree.leaves(jax.tree.map(np.array_equal, first[name], trained[name])))
    loaded = gr_jax.load(tmp_path / "run" / "index").retriever
    np.testing.assert_array_equal(loaded.retrieve(questions, 5).doc_index, found.doc_index[:, :5])


@pytest.mark.slow
def test_a_training_on_documents_that_are_read_once_is_interrupted(folder, tmp_path, monkeypatch):
    small_pairs.check_interrupted(frozen(), folder, tmp_path, monkeypatch)


def test_what_only_training_reads_shares_the_states():
    def keys(**changes: Any) -> dict[str, str]:
        interaction = dataclasses.replace(frozen().interaction, **changes)
        return {name: one.key for name, one in one_setting.stages(frozen(interaction=interaction)).items()}

    before = keys()
    for changes in (
        {"dimension": 5}, {"projection": "principal"}, {"augmentation": None}, {"token_weights": "learned"},
        {"temperature": 0.5}, {"precision": "int8"},
    ):  # fmt: skip
        assert keys(**changes)["document_states"] == before["document_states"], changes
    for changes in ({"whole_text": True}, {"markers": True}, {"skip_punctuation": False}):
        assert keys(**changes)["document_states"] != before["document_states"], changes


def test_nothing_is_searched_for_where_every_query_has_all_documents():
    stages = one_setting.stages(frozen(mining=Mining(shares={"bm25": 1.0}, kept=4)))
    assert stages["negatives"].key == one_setting.stages(frozen())["negatives"].key
    few = dataclasses.replace(frozen().training, negatives=3)
    assert one_setting.stages(frozen(mining=Mining(), training=few))["negatives"].key != stages["negatives"].key


def test_what_documents_that_are_read_once_cannot_have():
    for changes, says in (
        ({"frozen_documents": False}, "frozen_documents of DPR or ColBERT"),
        ({"training": None}, "no training"),
        ({"interaction": Interaction(projection="none")}, "no projection"),
        ({"mining": Mining(shares={"ance": 1.0}, refresh_every=2)}, "of the kinds"),
    ):
        with pytest.raises(InputError, match=says):
            frozen(**changes)
