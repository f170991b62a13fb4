"""ColBERT from documents to an index, with networks that train in seconds."""

import dataclasses
import json
import string

import jax
import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.stages.documents import corpus as corpus_of
from gr_jax.stages.graph import in_order
from gr_jax.stages.negatives import Mining
from gr_jax.stages.sources import BeirFolder
from gr_jax.systems import ColBERT
from gr_jax.systems.colbert import Interaction
from gr_jax.systems.colbert.interaction import make_network, with_principal_axes
from gr_jax.systems.colbert.network import LateInteraction, LateInteractionConfig
from gr_jax.systems.colbert.token_encoder import TokenEncoder
from gr_jax.systems.colbert.training import FASTER
from gr_jax.text import ByteVocabulary
from tests.small_data import write_beir
from tests.systems import small_pairs
from tests.systems.small_pairs import COMMON, ENCODERS, FOUR_LAYERS, check_multipliers, training


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_beir(tmp_path_factory.mktemp("data") / "beir", count=24)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("shared")


def test_colbert(folder, shared, tmp_path):
    said: list[str] = []
    settings = Interaction(dimension=8, augmentation=36, precision="int8")
    system = ColBERT(interaction=settings, training=training(), **COMMON)
    searcher = system.run(folder, tmp_path / "run", shared_dir=shared, say=said.append)
    assert searcher is not None and len(searcher.search("where is the red cat", 5)) == 5
    assert searcher.retriever.vectors.precision == "int8"
    values = json.loads((tmp_path / "run" / "results" / "metrics.json").read_text())
    assert set(values["test"]) == {"BM25", "ColBERT", "BM25 + ColBERT"}
    # What a first stage would change comes after training, and nothing else is made again.
    said.clear()
    system = dataclasses.replace(system, interaction=dataclasses.replace(settings, first="bm25"))
    searcher = system.run(folder, tmp_path / "run", shared_dir=shared, say=said.append, until="index")
    assert any("model: already made" in line for line in said)
    assert searcher is not None and searcher.retriever.first is not None
    assert searcher.search("where is the red cat", 5)


def test_keys_say_what_each_stage_reads(folder):
    """Of the index are precision, first stage and depth; all else is of the network."""

    def keys(**changes):
        system = ColBERT(interaction=Interaction(**{"dimension": 8, **changes}), training=training(), **COMMON)
        return {one.name: one.key for one in in_order(system.stages(corpus_of(BeirFolder(str(folder)))))}

    before = keys()
    for changes, expected in (
        ({"precision": "int8"}, {"token_vectors", "index", "hybrid", "results"}),
        ({"first": "bm25"}, {"index", "hybrid", "results"}),
        ({"depth": 7}, {"index", "hybrid", "results"}),
        ({"whole_text": True}, {"model", "token_vectors", "index", "hybrid", "results"}),
    ):
        assert {name for name, key in keys(**changes).items() if before[name] != key} == expected


@pytest.mark.slow
def test_without_training_nothing_is_made_for_it(folder, shared, tmp_path):
    short = dataclasses.replace(ENCODERS, document_length=40)
    system = ColBERT(**{**COMMON, "encoders": short}, interaction=Interaction(dimension=8), training=None)
    searcher = system.run(folder, tmp_path / "run", shared_dir=shared, say=str, until="index")
    assert searcher is not None and len(searcher.search("where is the red cat", 3)) == 3
    manifest = json.loads((tmp_path / "run" / "model" / "manifest.json").read_text())
    assert set(manifest["meta"]["inputs"]) == {"corpus", "vocabulary"}


@pytest.mark.slow
def test_an_interrupted_training_ends_with_the_same_bits(folder, tmp_path, monkeypatch):
    system = ColBERT(interaction=Interaction(dimension=8), training=training(steps=8), **COMMON)
    small_pairs.check_interrupted(system, folder, tmp_path, monkeypatch)


def test_principal_axes_keep_the_order_of_states():
    """As many axes as numbers: the untrained projection only turns, so products of states stay."""
    tokens = np.ones((1, 8), np.int32)
    for dimension in (16, 17):
        module, _ = make_network(ENCODERS, Interaction(dimension=dimension), ByteVocabulary())
        params = jax.jit(module.init)(jax.random.key(0), tokens, tokens)["params"]
        encoder = TokenEncoder(module, params, ByteVocabulary())
        if dimension == 16:
            turned = with_principal_axes(encoder, ["some text", "other"])
            kernel = turned["projection"]["kernel"]
            np.testing.assert_allclose(kernel @ kernel.T, np.eye(16), atol=1e-5)
        else:
            with pytest.raises(InputError, match="principal axes"):
                with_principal_axes(encoder, ["some text"])


def test_special_tokens_are_none_that_texts_have():
    module, _ = make_network(ENCODERS, Interaction(dimension=8, markers=True), ByteVocabulary())
    config, size = module.config, ByteVocabulary().size
    special = [config.mask_token, config.query_marker or 0, config.document_marker or 0]
    assert len({*special}) == 3 and min(special) >= size and max(special) < config.encoder.vocab_size
    assert set(config.skipped_tokens) == {ByteVocabulary().encode(symbol)[0] for symbol in string.punctuation}


def test_multipliers_name_parameters_that_there_are():
    check_multipliers(
        LateInteraction(LateInteractionConfig(FOUR_LAYERS, dimension=4, whole_text=True, token_weights="learned")),
        FASTER,
    )


def test_bad_settings():
    with pytest.raises(InputError, match="negatives of the kinds"):
        ColBERT(**{**COMMON, "mining": Mining(shares={"cluster": 1.0})})
    with pytest.raises(InputError, match="reads no prefixes"):
        ColBERT(**{**COMMON, "encoders": dataclasses.replace(ENCODERS, query_prefix="query: ")})
    for changes, says in (({"first": "dense"}, "None, bm25"), ({"augmentation": 0}, "too small"), ({"depth": 0}, "1")):
        with pytest.raises(InputError, match=says):
            Interaction(**changes)
