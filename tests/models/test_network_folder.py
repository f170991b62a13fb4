"""Networks in folders: what comes out is what went in, and what does not fit is refused."""

import functools
import json
import os

import jax
import numpy as np
import pytest
from flax import traverse_util

from gr_jax import models
from gr_jax.errors import InputError
from gr_jax.models import network_folder
from tests import compiled

TOKENS = np.ones((1, 4), np.int32)


def sizes(**changes) -> models.T5Config:
    return models.T5Config(
        **{
            "vocab_size": 24, "emb_dim": 16, "num_heads": 2, "head_dim": 8, "num_encoder_layers": 1,
            "num_decoder_layers": 1, "mlp_dim": 24, "mlp_activations": ("gelu", "linear"), **changes,
        }
    )  # fmt: skip


BERT = models.BertConfig(vocab_size=30, emb_dim=16, num_heads=2, num_encoder_layers=1, mlp_dim=24)
MODULES = {
    "shared": models.EncoderDecoder(encoder_config=sizes()),
    "tied": models.EncoderDecoder(encoder_config=sizes(logits_via_embedding=True, mlp_activations=("relu",))),
    "apart": models.EncoderDecoder(
        encoder_config=sizes(vocab_size=40), decoder_config=sizes(), share_embeddings=False, query_residual=True
    ),
    "bert": models.EncoderDecoder(
        encoder_config=BERT, decoder_config=sizes(num_decoder_layers=2), share_embeddings=False, query_residual=True
    ),
    "first state": models.EncoderDecoder(
        encoder_config=BERT, decoder_config=sizes(), share_embeddings=False, query_residual=True, query_pooling="cls"
    ),
}


@functools.cache
def parameters(module) -> dict:
    return jax.device_get(jax.jit(module.init)(jax.random.key(0), TOKENS, TOKENS)["params"])


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in ("shared", "first state") else ()) for name in MODULES],
)
def test_a_network_comes_back(tmp_path, name):
    module, params = MODULES[name], parameters(MODULES[name])
    network_folder.save_network(tmp_path, module, params)
    loaded, found = network_folder.load_network(tmp_path)
    assert loaded.encoder_config == module.encoder_config and loaded.decoder_sizes == module.decoder_sizes
    for setting in ("shares_embeddings", "query_residual", "query_pooling"):
        assert getattr(loaded, setting) == getattr(module, setting)
    flat, expected = (traverse_util.flatten_dict(dict(tree), sep="/") for tree in (found, params))
    assert flat.keys() == expected.keys()
    for path, value in expected.items():
        assert flat[path].shape == value.shape and flat[path].dtype == value.dtype  # a scalar stays one
        np.testing.assert_array_equal(flat[path], value)
    tokens = np.asarray([[3, 5, 7, 1]], np.int32)
    np.testing.assert_array_equal(
        compiled.run(loaded, found, tokens, tokens), compiled.run(module, params, tokens, tokens)
    )


def test_a_network_of_any_registered_kind(tmp_path, monkeypatch):
    module, params = MODULES["apart"], parameters(MODULES["apart"])
    made = models.GenerativeDecoder(module, params, ((2, 4), (6, 4)), 1)
    made.save(tmp_path)
    found = network_folder.load_model(tmp_path)
    assert (found.levels, found.eos_id, found.start_token) == (made.levels, 1, 0)
    assert (found.input_vocab_size, found.output_vocab_size) == (40, 24)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(made), strict=True):
        np.testing.assert_array_equal(one, other)
    config = json.loads((tmp_path / network_folder.CONFIG_FILE).read_text())
    (tmp_path / network_folder.CONFIG_FILE).write_text(json.dumps({**config, "kind": "os.system"}))
    with pytest.raises(InputError, match="'os.system'.*known are .*encoder_decoder"):
        network_folder.load_model(tmp_path)
    with pytest.raises(InputError, match="'os.system' where 'encoder_decoder' is wanted"):
        network_folder.load_network(tmp_path)


def test_a_start_token_of_its_own(tmp_path):
    """It takes the place of the 0 that rows and segments begin with, and comes back from a folder."""
    plain, params = MODULES["apart"], parameters(MODULES["apart"])
    module = plain.clone(start_token=23)
    network_folder.save_network(tmp_path, module, params)
    assert network_folder.load_network(tmp_path)[0].start_token == 23
    read, inputs = np.array([[3, 5, 1]], np.int32), np.array([[0, 7, 0, 0, 9]], np.int32)
    by_hand = compiled.run(plain, params, read, np.array([[23, 7, 0, 0, 9]], np.int32))
    np.testing.assert_array_equal(compiled.run(module, params, read, inputs), by_hand)
    segments = {
        "encoder_segment_ids": np.array([[1, 1, 2]], np.int32), "decoder_segment_ids": np.array([[1, 1, 1, 2, 2]])
    }  # fmt: skip
    packed = np.array([[23, 7, 0, 23, 9]], np.int32)
    by_hand = jax.jit(lambda: plain.apply({"params": params}, read, packed, **segments))()
    found = jax.jit(lambda: module.apply({"params": params}, read, inputs, **segments))()
    np.testing.assert_array_equal(found, by_hand)
    with pytest.raises(InputError, match="start token"):
        jax.eval_shape(lambda: plain.clone(start_token=24).apply({"params": params}, read, inputs))


def test_a_network_from_before_there_was_a_choice_pools_by_the_mean(tmp_path):
    network_folder.save_network(tmp_path, MODULES["apart"], parameters(MODULES["apart"]))
    file = tmp_path / network_folder.CONFIG_FILE
    config = json.loads(file.read_text())
    assert config.pop("query_pooling") == "mean"
    file.write_text(json.dumps(config))
    assert network_folder.load_network(tmp_path)[0].query_pooling == "mean"


def test_equal_parameters_are_equal_bytes(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        network_folder.save_network(tmp_path / name, MODULES["apart"], parameters(MODULES["apart"]))
    for file in (network_folder.CONFIG_FILE, network_folder.PARAMETERS_FILE):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "other" / file).read_bytes()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("network")
    network_folder.save_network(folder, MODULES["apart"], parameters(MODULES["apart"]))
    return folder


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_a_configuration_of_another_network_is_refused_with_the_parameter(saved, tmp_path, part):
    config = json.loads((saved / network_folder.CONFIG_FILE).read_text())
    config[part]["vocab_size"] += 8
    (tmp_path / network_folder.CONFIG_FILE).write_text(json.dumps(config))
    (tmp_path / network_folder.PARAMETERS_FILE).write_bytes((saved / network_folder.PARAMETERS_FILE).read_bytes())
    with pytest.raises(InputError, match=f"{network_folder.PARAMETERS_FILE}.*embedding|logits_dense"):
        network_folder.load_network(tmp_path)


@pytest.mark.parametrize("change", [{"num_encoder_layers": 2}, {"num_encoder_layers": 0}])
def test_missing_and_needless_parameters_are_refused(saved, tmp_path, change):
    config = json.loads((saved / network_folder.CONFIG_FILE).read_text())
    config["encoder"] |= change
    (tmp_path / network_folder.CONFIG_FILE).write_text(json.dumps(config))
    (tmp_path / network_folder.PARAMETERS_FILE).write_bytes((saved / network_folder.PARAMETERS_FILE).read_bytes())
    with pytest.raises(InputError, match="encoder/layers_[01]"):
        network_folder.load_network(tmp_path)


@pytest.mark.parametrize("file", [network_folder.CONFIG_FILE, network_folder.PARAMETERS_FILE])
@pytest.mark.parametrize("data", [None, b"", b"{", b"\x00" * 100, b'{"encoder": {"kind": "t5", "unknown": 1}}'])
def test_what_is_no_network(saved, tmp_path, file, data):
    for name in (network_folder.CONFIG_FILE, network_folder.PARAMETERS_FILE):
        if name != file:
            (tmp_path / name).write_bytes((saved / name).read_bytes())
        elif data is not None:
            (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=file):
        network_folder.load_network(tmp_path)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_have_the_mode_that_the_umask_gives(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        network_folder.write(tmp_path, {}, {"a": np.zeros(2)})
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {network_folder.CONFIG_FILE: mode, network_folder.PARAMETERS_FILE: mode}


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_more_layers_than_parameters_are_refused_before_they_are_made(tmp_path, side):
    network_folder.save_network(tmp_path, MODULES["apart"], parameters(MODULES["apart"]))
    config = json.loads((tmp_path / network_folder.CONFIG_FILE).read_text())
    config[side] |= {"num_encoder_layers": 10**9, "num_decoder_layers": 10**9}
    (tmp_path / network_folder.CONFIG_FILE).write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"network.json: .*num_encoder_layers = 1000000000, and \d+ arrays"):
        network_folder.load_network(tmp_path)
