import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen import partitioning
from flax.traverse_util import flatten_dict

from gr_jax.models import EncoderDecoder, T5Config
from gr_jax.models.layers import relative_position_bucket

CONFIG = T5Config(
    vocab_size=20,
    emb_dim=8,
    num_heads=2,
    head_dim=6,
    num_encoder_layers=2,
    num_decoder_layers=1,
    mlp_dim=10,
    mlp_activations=("gelu", "linear"),
)
TOKENS = np.array([[5, 6, 7, 0], [8, 9, 3, 4]], np.int32)


@pytest.fixture(scope="module")
def variables():
    return jax.jit(EncoderDecoder(CONFIG).init)(jax.random.key(0), TOKENS, TOKENS[:, :3])


def t5x_parameters():
    """Names, shapes and logical axes of T5X's `network.Transformer` with CONFIG's sizes, read in its source."""
    attention = {
        **{f"{part}/kernel": ((8, 12), ("embed", "joined_kv")) for part in ("query", "key", "value")},
        "out/kernel": ((12, 8), ("joined_kv", "embed")),
    }
    mlp = {
        "mlp/wi_0/kernel": ((8, 10), ("embed", "mlp")),
        "mlp/wi_1/kernel": ((8, 10), ("embed", "mlp")),
        "mlp/wo/kernel": ((10, 8), ("mlp", "embed")),
    }
    norm = ((8,), ("embed",))
    expected = {"token_embedder/embedding": ((20, 8), ("vocab", "embed"))}
    for stack in ("encoder", "decoder"):
        expected[f"{stack}/relpos_bias/rel_embedding"] = ((2, 32), ("heads", "relpos_buckets"))
        expected[f"{stack}/{stack}_norm/scale"] = norm
    for layer in ("encoder/layers_0", "encoder/layers_1"):
        expected |= {f"{layer}/attention/{name}": value for name, value in attention.items()}
        expected |= {f"{layer}/{name}": value for name, value in mlp.items()}
        expected |= {f"{layer}/pre_{name}_layer_norm/scale": norm for name in ("attention", "mlp")}
    layer = "decoder/layers_0"
    for name in ("self_attention", "encoder_decoder_attention"):
        expected |= {f"{layer}/{name}/{part}": value for part, value in attention.items()}
    expected |= {f"{layer}/{name}": value for name, value in mlp.items()}
    norms = ("self_attention", "cross_attention", "mlp")
    expected |= {f"{layer}/pre_{name}_layer_norm/scale": norm for name in norms}
    expected["decoder/logits_dense/kernel"] = ((8, 20), ("embed", "vocab"))
    return expected


def test_parameters_are_t5xs(variables):
    shapes = {path: leaf.shape for path, leaf in flatten_dict(variables["params"], sep="/").items()}
    axes = flatten_dict(dict(partitioning.get_axis_names(variables["params_axes"]).unfreeze()), sep="/")
    assert shapes == {path: shape for path, (shape, _) in t5x_parameters().items()}
    assert {path: tuple(names) for path, names in axes.items()} == {
        path: names for path, (_, names) in t5x_parameters().items()
    }


def test_first_parameters_are_drawn_as_t5x_draws_them():
    config = T5Config(vocab_size=500, emb_dim=64, num_heads=4, head_dim=16, num_encoder_layers=1, num_decoder_layers=1)
    params = jax.jit(EncoderDecoder(config).init)(jax.random.key(0), TOKENS, TOKENS)["params"]
    attention = params["encoder"]["layers_0"]["attention"]
    assert np.std(params["token_embedder"]["embedding"]) == pytest.approx(1.0, rel=0.05)
    assert np.std(attention["key"]["kernel"]) == pytest.approx(64**-0.5, rel=0.05)
    # T5 has no 1/sqrt(head_dim) in its attention: the query kernel starts that much smaller.
    assert np.std(attention["query"]["kernel"]) == pytest.approx((64 * 16) ** -0.5, rel=0.05)


def one_bucket(distance, bidirectional, num_buckets=32, max_distance=128):
    """Raffel et al. 2020, §2.1, for one number."""
    first = 0
    if bidirectional:
        num_buckets //= 2
        first = num_buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = num_buckets // 2
    if distance < exact:
        return first + distance
    wide = exact + math.log(distance / exact) / math.log(max_distance / exact) * (num_buckets - exact)
    return first + min(math.floor(wide + 1e-6), num_buckets - 1)


@pytest.mark.parametrize("bidirectional", (True, False))
def test_relative_position_buckets(bidirectional):
    distances = np.arange(-300, 301)
    buckets = relative_position_bucket(distances, bidirectional=bidirectional, num_buckets=32, max_distance=128)
    assert buckets.tolist() == [one_bucket(int(d), bidirectional) for d in distances]


@pytest.mark.parametrize("bidirectional", (True, False))
def test_relative_position_buckets_are_transformers(bidirectional):
    torch = pytest.importorskip("torch")
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distances = np.arange(-300, 301)
    expected = t5.T5Attention._relative_position_bucket(torch.tensor(distances), bidirectional=bidirectional)
    ours = relative_position_bucket(distances, bidirectional=bidirectional, num_buckets=32, max_distance=128)
    np.testing.assert_array_equal(ours, expected.numpy())


def test_bfloat16_activations_float32_parameters(variables):
    config = T5Config(**{**vars(CONFIG), "dtype": "bfloat16"})
    module = EncoderDecoder(config)
    params = jax.eval_shape(module.init, jax.random.key(0), TOKENS, TOKENS)["params"]
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    arguments = ({"params": variables["params"]}, TOKENS, TOKENS[:, :3])
    assert jax.eval_shape(lambda *a: module.apply(*a, method="features"), *arguments).dtype == jnp.bfloat16
    logits, exact = jax.jit(module.apply)(*arguments), jax.jit(EncoderDecoder(CONFIG).apply)(*arguments)
    assert logits.dtype == jnp.float32
    assert np.abs(logits - exact).max() > 0
    np.testing.assert_allclose(logits, exact, atol=0.1)


def test_dropout_is_drawn_from_the_key(variables):
    @jax.jit
    def logits(seed):
        rngs = {"dropout": jax.random.key(seed)}
        return EncoderDecoder(CONFIG).apply(
            {"params": variables["params"]}, TOKENS, TOKENS[:, :3], deterministic=False, rngs=rngs
        )

    first = logits(1)
    np.testing.assert_array_equal(first, logits(1))
    assert np.abs(first - logits(2)).max() > 1e-3


def test_sizes_given_as_a_list_can_be_hashed():
    hash(T5Config(mlp_activations=["gelu", "linear"]))  # Linen modules are hashed by their fields when they are jitted
