"""What NCI's head starts from, against least squares of scikit-learn."""

import jax
import numpy as np
from sklearn.linear_model import Ridge

from gr_jax import models
from gr_jax.docids import children, hierarchical_kmeans
from gr_jax.models.pawa_start import nearest_kernel, prefix_states
from gr_jax.stages.networks import Network, initial_parameters, make_network
from tests import compiled

RANDOM = np.random.default_rng(0)
T5 = models.T5Config(
    vocab_size=40, emb_dim=16, num_heads=2, head_dim=8, num_encoder_layers=1, num_decoder_layers=1, mlp_dim=16
)


def test_the_kernel_is_the_ridge_regression_of_what_is_missing():
    states = RANDOM.normal(size=(30, 6))
    parent, token = RANDOM.integers(30, size=80), RANDOM.choice([2, 3, 3, 4], size=80)
    token[0] = 5  # the only node of its token
    token[1:] = np.where(token[1:] == 5, 3, token[1:])
    missing = RANDOM.normal(size=(80, 4)).astype(np.float32)
    kernel = nearest_kernel(states, parent, token, missing, 7, ridge=0.1)
    penalty = 0.1 * np.mean(np.sum(states**2, axis=1))
    for one in (2, 3, 4):
        rows = token == one
        expected = Ridge(alpha=penalty, fit_intercept=False).fit(states[parent[rows]], missing[rows]).coef_
        np.testing.assert_allclose(kernel[one], expected, atol=1e-5)
    assert not kernel[[0, 1, 5, 6]].any()


def test_states_of_prefixes_are_those_that_decoding_has():
    module = models.EncoderDecoder(T5, T5, share_embeddings=False, pawa_layers=1)
    tokens = np.ones((1, 4), np.int32)
    params = jax.device_get(jax.jit(module.init)(jax.random.key(0), tokens, tokens)["params"])
    prefixes = np.array([[0, 0], [5, 0], [5, 9], [7, 0]], np.int32)
    found = prefix_states(module, params, prefixes)
    for prefix, state in zip(prefixes, found, strict=True):
        inputs = np.concatenate([[0], prefix[prefix != 0]])[None].astype(np.int32)
        features = compiled.run(module, params, np.array([[3, 8]], np.int32), inputs, method="features")
        np.testing.assert_allclose(state, features[0, -1, module.feature_dim :], atol=1e-5)


def test_logits_start_as_products_with_centroids_under_the_prefix():
    """With fewer nodes of a token than the head has dimensions, what is nearest is what was wanted."""
    vectors = RANDOM.normal(size=(60, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    docids = hierarchical_kmeans(vectors, branching=4, leaf_capacity=4, tokens="position")
    network = Network(
        encoder="t5", width=16, heads=2, mlp_width=16, encoder_layers=1, decoder_layers=1, pawa_layers=1,
        temperature=0.5, cluster_temperature=1.0,
    )  # fmt: skip
    module, _ = make_network(network, 30, docids)
    params = initial_parameters(module, network, None, docids, vectors, 0)
    nodes = children(docids, vectors)
    assert len(nodes.token) > 40 and np.bincount(nodes.token).max() > 4
    apply = jax.jit(lambda tokens: module.apply({"params": params}, queries, tokens))
    queries = np.array([[3, 8, 2]], np.int32)
    encoded = compiled.run(module, params, queries, method="encode")
    query = np.asarray(compiled.run(module, params, encoded, queries, method="query_vector"))[0]
    query = query / np.linalg.norm(query)
    wanted = nodes.vectors @ query / np.where(nodes.ends, 0.5, 1.0)
    plain = []
    found = []
    for parent, token in zip(nodes.parent, nodes.token, strict=True):
        prefix = nodes.prefixes[parent]
        inputs = np.concatenate([[0], prefix[prefix != 0]])[None].astype(np.int32)
        logits = apply(inputs)
        found.append(float(logits[0, -1, token]))
        row = params["decoder"]["logits_dense"]["kernel"].T[token]
        plain.append(float(row @ query))
    error, before = np.square(np.array(found) - wanted).mean(), np.square(np.array(plain) - wanted).mean()
    assert error < 0.2 * before
