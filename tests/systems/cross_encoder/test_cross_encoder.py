"""BM25 → cross-encoder from documents to an index, with networks that train in seconds."""

import dataclasses
import json

import pytest

from gr_jax.errors import InputError
from gr_jax.stages.documents import corpus as corpus_of
from gr_jax.stages.graph import in_order
from gr_jax.stages.negatives import Mining
from gr_jax.stages.sources import BeirFolder
from gr_jax.systems import BM25CrossEncoder
from gr_jax.systems.cross_encoder import Crossing
from gr_jax.systems.cross_encoder.network import CrossEncoder, CrossEncoderConfig
from gr_jax.systems.cross_encoder.training import FASTER
from tests.small_data import write_beir
from tests.systems import small_pairs
from tests.systems.small_pairs import COMMON, ENCODERS, FOUR_LAYERS, check_multipliers, training


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_beir(tmp_path_factory.mktemp("data") / "beir", count=24)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("shared")


def test_bm25_cross_encoder(folder, shared, tmp_path):
    system = BM25CrossEncoder(crossing=Crossing(depth=5), training=training(), **COMMON)
    searcher = system.run(folder, tmp_path / "run", shared_dir=shared, say=str)
    assert searcher is not None
    hits = searcher.search("where is the red cat", 5)
    first = searcher.retriever.first.retrieve(["where is the red cat"], 5).doc_index[0]
    assert {hit.doc_id for hit in hits} == {searcher.corpus.doc_ids[int(index)] for index in first if index >= 0}
    values = json.loads((tmp_path / "run" / "results" / "metrics.json").read_text())
    assert set(values["test"]) == {"BM25", "BM25 → cross-encoder"}


def test_keys_say_what_each_stage_reads(folder):
    """The depth is of the looks at dev and of the index; untrained, neither it nor the losses are of the network."""

    def keys(trained, **changes):
        system = BM25CrossEncoder(crossing=Crossing(**changes), training=training() if trained else None, **COMMON)
        return {one.name: one.key for one in in_order(system.stages(corpus_of(BeirFolder(str(folder)))))}

    for trained, changes, expected in (
        (True, {"depth": 7}, {"model", "index", "results"}),
        (False, {"depth": 7}, {"index", "results"}),
        (True, {"pointwise": 0.5}, {"model", "index", "results"}),
        (False, {"pointwise": 0.5}, set()),
        (False, {"pooling": "mean"}, {"model", "index", "results"}),
    ):
        before = keys(trained)
        assert {name for name, key in keys(trained, **changes).items() if before[name] != key} == expected


@pytest.mark.slow
def test_without_training_nothing_is_made_for_it(folder, shared, tmp_path):
    short = dataclasses.replace(ENCODERS, document_length=40)
    system = BM25CrossEncoder(**{**COMMON, "encoders": short}, training=None)
    searcher = system.run(folder, tmp_path / "run", shared_dir=shared, say=str, until="index")
    assert searcher is not None and len(searcher.search("where is the red cat", 3)) == 3
    manifest = json.loads((tmp_path / "run" / "model" / "manifest.json").read_text())
    assert set(manifest["meta"]["inputs"]) == {"vocabulary"}


@pytest.mark.slow
def test_an_interrupted_training_ends_with_the_same_bits(folder, tmp_path, monkeypatch):
    system = BM25CrossEncoder(training=training(steps=8), **COMMON)
    small_pairs.check_interrupted(system, folder, tmp_path, monkeypatch)


def test_multipliers_name_parameters_that_there_are():
    check_multipliers(CrossEncoder(CrossEncoderConfig(FOUR_LAYERS, similarity=True, pooling="pooler")), FASTER)


def test_bad_settings():
    with pytest.raises(InputError, match="negatives of the kinds"):
        BM25CrossEncoder(**{**COMMON, "mining": Mining(shares={"ance": 1.0}, refresh_every=4)})
    with pytest.raises(InputError, match="reads no prefixes"):
        BM25CrossEncoder(**{**COMMON, "encoders": dataclasses.replace(ENCODERS, document_prefix="text: ")})
    unread = {"projection": 8, "pooling": "cls", "shared": False, "similarity": "dot", "temperature": 0.1}
    for name, value in unread.items():
        encoders = {"encoders": dataclasses.replace(ENCODERS, **{name: value})}
        with pytest.raises(InputError, match=f"no use for Encoders.{name}"):
            BM25CrossEncoder(**{**COMMON, **encoders})
        if name != "temperature":  # negatives are mined with the rest
            BM25CrossEncoder(**{**COMMON, **encoders, "mining": Mining(shares={"model": 1.0})})
    with pytest.raises(InputError, match="chunks"):
        BM25CrossEncoder(training=training(chunks=2), **COMMON)
    with pytest.raises(InputError, match="own negatives alone"):
        BM25CrossEncoder(training=training(negatives=0), **COMMON)
    with pytest.raises(InputError, match="no loss"):
        Crossing(softmax=0.0)
    with pytest.raises(InputError, match="softmax"):
        Crossing(softmax=-1.0, pointwise=2.0)
