import functools

import jax
import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.models import BertConfig, EncoderDecoder, T5Config, initialise_docid_tables
from tests import compiled

WIDTH = 12
ENCODER = BertConfig(vocab_size=20, emb_dim=WIDTH, num_heads=2, num_encoder_layers=1, mlp_dim=8, max_positions=8)
TOKENS = np.ones((1, 4), np.int32)


@functools.cache
def network(width=WIDTH, *, tied=False, residual=True):
    decoder = T5Config(
        vocab_size=9, emb_dim=width, num_heads=2, head_dim=4, num_decoder_layers=1, mlp_dim=8, logits_via_embedding=tied
    )
    module = EncoderDecoder(ENCODER, decoder, query_residual=residual)
    return module, jax.device_get(jax.jit(module.init)(jax.random.key(0), TOKENS, TOKENS)["params"])


@pytest.fixture
def vectors():
    """Unit vectors of tokens 2 to 6; padding, EOS, and two more rows of the table have none."""
    rows = np.random.default_rng(0).normal(size=(7, WIDTH)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[:2] = 0
    return rows


def output_table(module, params):
    return np.asarray(compiled.run(module, params, method="output_table"))


@pytest.mark.parametrize("tied", (False, True))
def test_untrained_logits_are_cosines_over_temperature(tied, vectors):
    module, params = network(tied=tied)
    params = initialise_docid_tables(params, vectors, 0.05)
    source, target = np.array([[3, 5, 7, 0]], np.int32), np.zeros((1, 1), np.int32)
    logits = np.asarray(compiled.run(module, params, source, target))[0, 0]
    query = np.asarray(compiled.run(module, params, source, method="encode"))[0, :3].mean(0)
    np.testing.assert_allclose(logits[2:7], 20 * vectors[2:] @ (query / np.linalg.norm(query)), atol=1e-4)


def test_tied_tables_without_residual_make_up_for_the_scale_of_features(vectors):
    module, params = network(tied=True, residual=False)
    table = output_table(module, initialise_docid_tables(params, vectors, 0.1))
    np.testing.assert_allclose(table[2:7] * WIDTH**-0.5, vectors[2:] / 0.1, rtol=1e-5)


def test_rows_without_a_vector_keep_what_they_have(vectors):
    module, params = network()
    before = jax.tree.map(np.array, params)
    made = initialise_docid_tables(params, vectors)
    untouched = [0, 1, 7, 8]
    np.testing.assert_array_equal(output_table(module, made)[untouched], output_table(module, params)[untouched])
    tables = [np.asarray(p["decoder_token_embedder"]["embedding"]) for p in (made, params)]
    np.testing.assert_array_equal(tables[0][untouched], tables[1][untouched])
    assert np.abs(tables[0][2:7] - tables[1][2:7]).min() > 0
    jax.tree.map(np.testing.assert_array_equal, before, params)  # what was given is left as it was


@pytest.mark.parametrize("width", (8, 12, pytest.param(20, marks=pytest.mark.slow)))
def test_input_embeddings_keep_directions_at_the_size_of_random_rows(width, vectors):
    _, params = network(width)
    random_rows = np.asarray(params["decoder_token_embedder"]["embedding"])
    rows = np.asarray(initialise_docid_tables(params, vectors)["decoder_token_embedder"]["embedding"])[2:7]
    norms = np.linalg.norm(rows, axis=1)
    np.testing.assert_allclose(norms, np.sqrt(np.mean(np.sum(random_rows**2, axis=1))), rtol=1e-5)
    # Five vectors span at most five dimensions, so that even a narrower table can keep every angle.
    cosines = rows @ rows.T / norms[0] ** 2
    np.testing.assert_allclose(cosines, vectors[2:] @ vectors[2:].T, atol=1e-5)


def test_only_inputs_or_only_outputs(vectors):
    module, params = network()
    only_inputs = initialise_docid_tables(params, vectors, outputs=False)
    np.testing.assert_array_equal(output_table(module, only_inputs), output_table(module, params))
    only_outputs = initialise_docid_tables(params, vectors, inputs=False)
    assert only_outputs["decoder_token_embedder"] is params["decoder_token_embedder"]


def test_what_does_not_fit_is_refused(vectors):
    _, params = network()
    _, narrow = network(8, residual=False)
    for bad, says in (
        ((params, np.ones((10, WIDTH))), "vocabulary of 9"),
        ((params, np.full((3, WIDTH), np.nan)), "finite"),
        ((params, vectors, 0.0), "temperature"),
        ((narrow, vectors), "width 8"),
    ):
        with pytest.raises(InputError, match=says):
            initialise_docid_tables(*bad)
    shared = EncoderDecoder(T5Config(vocab_size=9, emb_dim=WIDTH, num_heads=2, head_dim=4, num_encoder_layers=1,
                                     num_decoder_layers=1, mlp_dim=8))  # fmt: skip
    params = jax.eval_shape(shared.init, jax.random.key(0), TOKENS, TOKENS)["params"]
    with pytest.raises(InputError, match="shares"):
        initialise_docid_tables(params, vectors)
