"""Networks with their first parameters."""

import numpy as np
import pytest
from flax import traverse_util

from gr_jax import clustering
from gr_jax.docids import codes_of, hierarchical_kmeans, residual_quantization
from gr_jax.errors import InputError
from gr_jax.interop import huggingface
from gr_jax.models import EncoderDecoder
from gr_jax.stages import copy_networks, networks
from gr_jax.systems import NgramWriting
from tests import compiled
from tests.models import random_folders
from tests.small_dsi import network

VECTORS = np.random.default_rng(0).normal(size=(20, 16)).astype(np.float32)
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)
DOCIDS = hierarchical_kmeans(VECTORS, branching=3, leaf_capacity=8, tokens="node")


def test_sizes():
    settings = network(width=32, heads=4, mlp_width=24, encoder_layers=2, decoder_layers=3, dropout=0.2)
    module, pretrained = networks.make_network(settings, 259, DOCIDS)
    encoder, decoder = module.encoder_config, module.decoder_sizes
    assert pretrained is None and encoder.vocab_size == 259
    assert decoder.vocab_size % 8 == 0 and 0 <= decoder.vocab_size - DOCIDS.vocab_size < 8
    assert (encoder.emb_dim, encoder.num_encoder_layers, decoder.num_decoder_layers) == (32, 2, 3)
    assert (decoder.num_heads, decoder.head_dim, decoder.mlp_dim, decoder.dropout_rate) == (4, 8, 24, 0.2)
    assert not module.shares_embeddings


def test_the_seed_decides_what_is_random():
    module, _ = networks.make_network(network(), 259, DOCIDS)
    one, same, other = (
        traverse_util.flatten_dict(networks.initial_parameters(module, network(), None, DOCIDS, None, seed))
        for seed in (0, 0, 1)
    )
    assert all((one[name] == same[name]).all() for name in one)
    assert any((one[name] != other[name]).any() for name in one)


def test_outputs_from_centroids():
    """Each document's own token is its vector, each cluster's the mean of its documents, by their temperatures."""
    settings = network(outputs="centroid", temperature=0.1, cluster_temperature=0.5)
    module, _ = networks.make_network(settings, 259, DOCIDS)
    params = networks.initial_parameters(module, settings, None, DOCIDS, VECTORS, 0)
    table = params["decoder"]["logits_dense"]["kernel"].T
    under: dict[int, set[int]] = {}
    for row in range(len(DOCIDS)):
        for token in DOCIDS.sequence(row):
            under.setdefault(token, set()).update(DOCIDS.documents_of(row).tolist())
    last = {DOCIDS.sequence(row)[-1] for row in range(len(DOCIDS))}
    assert len(last) == 20 and len(under) > 20
    for token, found in under.items():
        temperature = 0.1 if token in last else 0.5
        expected = VECTORS[sorted(found)].mean(axis=0) / temperature
        np.testing.assert_allclose(table[token], expected, rtol=1e-5, atol=1e-5)


def test_outputs_from_codebooks():
    """The logits of a document's codes sum to the product with its approximated vector."""
    docids = residual_quantization(VECTORS, levels=3, bits=3)
    settings = network(outputs="centroid", temperature=0.1, cluster_temperature=0.5)
    module, _ = networks.make_network(settings, 259, docids)
    table = networks.initial_parameters(module, settings, None, docids, VECTORS, 0)["decoder"]["logits_dense"][
        "kernel"
    ].T
    sums = np.stack([table[docids.sequence(docids.rows_of(document)[0])].sum(0) for document in range(20)]) * 0.1
    assert ((sums - VECTORS) ** 2).sum(1).mean() <= docids.meta["reconstruction_error"] * 1.001 < 0.1


def test_outputs_from_codebooks_that_were_fitted_together():
    """The logits of a document's codes sum to the product with the very vector that the codes stand for."""
    books = clustering.learn_codebooks(VECTORS, levels=3, bits=3, refits=4)
    docids = residual_quantization(VECTORS, codebooks=books, refits=4)
    settings = network(outputs="centroid", temperature=0.1)
    module, _ = networks.make_network(settings, 259, docids)
    params = networks.initial_parameters(module, settings, None, docids, VECTORS, 0, codebooks=books)
    table = params["decoder"]["logits_dense"]["kernel"].T
    sums = np.stack([table[docids.sequence(docids.rows_of(document)[0])[:3]].sum(0) for document in range(20)]) * 0.1
    np.testing.assert_allclose(sums, clustering.reconstruct(codes_of(docids), books), atol=1e-5)
    for codewords in (False, True):
        factors = networks.learning_rate_multipliers(module, settings, None, codewords=codewords)
        assert factors.keys() == {"decoder", "decoder/logits_dense", "decoder_token_embedder"}
        assert all((factor == 0) == codewords for factor in factors.values())


def test_vectors_of_another_width_are_refused():
    settings = network(outputs="centroid")
    module, _ = networks.make_network(settings, 259, DOCIDS)
    with pytest.raises(InputError, match="12 wide.* 16"):
        networks.initial_parameters(module, settings, None, DOCIDS, VECTORS[:, :12], 0)


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_a_pretrained_encoder(tmp_path, kind):
    folder = tmp_path / kind
    if kind == "bert":
        random_folders.write_bert(folder)
    else:
        random_folders.write_t5(folder, "t5_1_1")
    settings = network(encoder=str(folder), vocabulary="pretrained")
    module, pretrained = networks.make_network(settings, 1, DOCIDS)
    params = traverse_util.flatten_dict(
        networks.initial_parameters(module, settings, pretrained, DOCIDS, None, 0), sep="/"
    )
    load = huggingface.load_bert if kind == "bert" else huggingface.load_t5
    _, expected = load(folder)
    for part in ("encoder", "token_embedder"):
        for name, value in traverse_util.flatten_dict(expected[part], sep="/").items():
            np.testing.assert_array_equal(params[f"{part}/{name}"], value)
    assert module.feature_dim == module.encoder_config.emb_dim
    factors = networks.learning_rate_multipliers(module, settings, pretrained)
    assert factors["token_embedder"] == 0 and factors["encoder/layers_0"] == 0 and factors["encoder"] > 0


READ = random_folders.token_batch(0, (9, 5, 7), 9, 97)
WRITTEN = np.array([[0, 3, 5, 2], [0, 4, 4, 1], [0, 7, 2, 6]], np.int32)


def whole(folder) -> tuple[dict, np.ndarray]:
    """A T5's parameters, and the states of its decoder, before the scale of tied logits."""
    config, params = huggingface.load_t5(folder)
    features = np.asarray(compiled.run(EncoderDecoder(config), params, READ, WRITTEN, method="features"))
    return params, features * config.emb_dim**0.5 if config.logits_via_embedding else features


@pytest.mark.parametrize("variant", ["t5_1_1", pytest.param("t5_1_0", marks=pytest.mark.slow)])
def test_a_pretrained_decoder_is_that_of_the_whole_t5(tmp_path, variant):
    """But for its tables: with the rows that it was trained to read, its states are the same."""
    folder = random_folders.write_t5(tmp_path / "t5", variant)
    params, expected = whole(folder)
    settings = network(encoder=str(folder), decoder=str(folder), vocabulary="pretrained", query_residual=False)
    module, pretrained = networks.make_network(settings, 97, DOCIDS)
    assert (module.decoder_sizes.num_decoder_layers, module.decoder_sizes.mlp_dim) == (2, 48)  # not the settings'
    made = networks.initial_parameters(module, settings, pretrained, DOCIDS, None, 0)
    rows, table = made["decoder_token_embedder"]["embedding"], params["token_embedder"]["embedding"]
    assert rows.shape == (module.vocab_size, 32) and made["decoder"]["logits_dense"]["kernel"].shape == rows.T.shape
    lengths = [np.sqrt(np.mean(np.sum(one**2, axis=1))) for one in (rows, table)]
    np.testing.assert_allclose(*lengths, rtol=1e-5)
    read = {**made, "decoder_token_embedder": {"embedding": table[: len(rows)]}}
    found = compiled.run(module, read, READ, WRITTEN, method="features")
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("variant", ["t5_1_0", pytest.param("t5_1_1", marks=pytest.mark.slow)])
def test_a_pretrained_decoder_that_copies(tmp_path, variant):
    """It reads and writes as the whole T5 does before it has learned to copy."""
    folder = random_folders.write_t5(tmp_path / "t5", variant)
    params, expected = whole(folder)
    settings = NgramWriting(encoder=str(folder), decoder=str(folder), frozen=False)
    module, made, frozen = copy_networks.make_network(settings, 97, [3, 7, 9])
    states, _ = compiled.run(module, made, READ, WRITTEN)
    np.testing.assert_allclose(states, expected, rtol=1e-5, atol=1e-6)
    logits = compiled.run(module, made, states, method="word_logits")
    rows = params["token_embedder"]["embedding"][[3, 7, 9]]
    np.testing.assert_allclose(logits, expected @ rows.T * 32**-0.5, rtol=1e-4, atol=1e-5)
    assert not frozen and copy_networks.make_network(NgramWriting(encoder=str(folder)), 97, [3])[2]


def test_decoders_that_do_not_fit_their_encoders(tmp_path):
    wide = random_folders.write_t5(tmp_path / "wide", "t5_1_0")
    narrow = random_folders.write_bert(tmp_path / "narrow", hidden_size=16)
    settings = network(encoder=str(narrow), decoder=str(wide), vocabulary="pretrained")
    with pytest.raises(InputError, match="width 32.* 16 wide"):
        networks.make_network(settings, 97, DOCIDS)
    with pytest.raises(InputError, match="width 32.* 16 wide"):
        copy_networks.make_network(NgramWriting(encoder=str(narrow), decoder=str(wide)), 97, [3])
    with pytest.raises(InputError, match="not a t5 model"):
        networks.make_network(network(encoder=str(narrow), decoder=str(narrow)), 97, DOCIDS)
    for settings in (network, NgramWriting):
        with pytest.raises(InputError, match="from scratch"):
            settings(encoder="t5", decoder=str(wide))
    with pytest.raises(InputError, match="stays as it is"):
        NgramWriting(encoder=str(wide), multipliers={})
    assert NgramWriting(encoder=str(wide), multipliers={}, frozen=False).multipliers == {}
