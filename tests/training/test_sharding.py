"""Every set of rules trains T5, BERT and GDR to the parameters of one device, and each device keeps its share."""

import functools
import math

import jax
import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.models import BertConfig, EncoderDecoder, EncoderDecoderModel, T5Config
from gr_jax.systems.gdr.model import GDRModel
from gr_jax.training.optimizers import Schedule, adafactor, adamw
from gr_jax.training.partitioning import RULE_SETS, make_mesh
from gr_jax.training.train_state import Trainer, unflatten
from tests.training.toy import ToyModel

# No vocabulary is divided by two devices, nor T5's width by eight.
T5 = T5Config(
    vocab_size=37, emb_dim=20, num_heads=4, head_dim=4, num_encoder_layers=1, num_decoder_layers=1, mlp_dim=32,
    dropout_rate=0.1,
)  # fmt: skip
BERT = BertConfig(vocab_size=41, emb_dim=20, num_heads=4, num_encoder_layers=1, mlp_dim=16, max_positions=16)
WITH_BERT = EncoderDecoder(BERT, T5, share_embeddings=False, query_residual=True)
LEVELS = ((3, 17), (20, 17))
MODELS = {
    "T5": EncoderDecoderModel(EncoderDecoder(T5)),
    "BERT": EncoderDecoderModel(WITH_BERT),
    "GDR": GDRModel(WITH_BERT, levels=LEVELS, normalize="level", temperature=0.5, alpha=1.5, intra_weight=0.5),
}
MESHES = {"data": (8, 1), "tensor": (2, 4), "fsdp": (4, 2)}
ROWS, STEPS = 8, 3
# Adam divides by a gradient's size: where that is nothing but rounding, the sign of a step is.
OPTIMIZER = adamw(Schedule(1e-3), eps=1e-4, weight_decay=0.01)


def batches():
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        targets = np.stack([rng.integers(start, start + size, ROWS) for start, size in LEVELS], axis=1).astype(np.int32)
        yield {
            "encoder_input_tokens": rng.integers(1, 37, (ROWS, 6)).astype(np.int32),
            "decoder_input_tokens": np.pad(targets, ((0, 0), (1, 0)))[:, :-1],
            "decoder_target_tokens": targets,
            "decoder_loss_weights": np.ones(targets.shape, np.float32),
        }


def batches_of(name):
    rng = np.random.default_rng(1)
    for batch in batches():
        if name == "GDR":
            batch["document_index"] = rng.integers(0, 30, 2 * ROWS).astype(np.int32)
            batch["document_vectors"] = rng.normal(size=(2 * ROWS, 20)).astype(np.float32)
        yield batch


@functools.cache
def trained(name, mesh, sharding="tensor", optimizer=OPTIMIZER, **settings):
    """Losses, the trainer, its last state and all parameters as a model has them."""
    shapes = {key: value.shape for key, value in next(batches_of(name)).items()}
    trainer = Trainer.create(MODELS[name], optimizer, make_mesh(*mesh), shapes, sharding=sharding, **settings)
    learn, frozen = trainer.split(trainer.initial_params(0))
    state, update, losses = trainer.initial_state(learn), trainer.update(seed=1), []
    for batch in batches_of(name):
        state, metrics = update(state, frozen, trainer.place_batch(batch))
        losses.append(float(metrics["loss"][0] / metrics["loss"][1]))
    return np.array(losses), trainer, state, trainer.to_arrays(state, frozen)


# What splits everything; the other rules train the toy in `test_train_state`.
DEFAULT = {("T5", "fsdp")}


@pytest.mark.parametrize(
    ("name", "sharding"),
    [
        pytest.param(name, sharding, marks=() if (name, sharding) in DEFAULT else pytest.mark.slow)
        for name in MODELS
        for sharding in RULE_SETS
    ],
)
def test_losses_and_parameters_are_those_of_one_device(name, sharding):
    losses, trainer, state, arrays = trained(name, MESHES[sharding], sharding)
    expected, _, _, expected_arrays = trained(name, (1, 1))
    np.testing.assert_allclose(losses, expected, atol=1e-5)
    for group, flat in expected_arrays.items():
        assert arrays[group].keys() == flat.keys()
        for path, value in flat.items():
            assert arrays[group][path].shape == value.shape
            np.testing.assert_allclose(arrays[group][path], value, atol=1e-5, err_msg=path)
    if sharding != "data":
        assert trainer.padded
        check_shares(trainer, state)


def check_shares(trainer, state):
    """No device has more than its share of what is padded, of a table and of both of its moments."""
    mesh = trainer.mesh.shape
    split = 0
    for path, leaf in trainer.shapes.items():
        parts = math.prod(mesh[axis] for axis in trainer.shardings[path].spec if axis)
        padded = math.prod(trainer.padded.get(path, leaf.shape))
        arrays = [state.params[path], *(x for key, x in moments(state) if key.endswith(f"/{path}"))]
        assert len(arrays) == 3
        for array in arrays:
            assert {shard.data.size for shard in array.addressable_shards} == {padded // parts}, path
        if "token_embedder" in path or "logits_dense" in path:
            assert parts > 1, path
            split += 1
    assert split


def moments(state):
    for path, leaf in jax.tree_util.tree_flatten_with_path(state.opt_state)[0]:
        yield jax.tree_util.keystr(path, simple=True, separator="/"), leaf


def test_padding_stays_zero_and_a_checkpoint_of_one_mesh_goes_on_on_another():
    _, trainer, state, arrays = trained("T5", (4, 2), "fsdp")
    for path in trainer.padded:
        array = np.array(state.params[path])
        array[tuple(map(slice, trainer.shapes[path].shape))] = 0
        assert not array.any(), path
    host = {group: {path: np.asarray(x) for path, x in flat.items()} for group, flat in arrays.items()}
    shapes = {key: value.shape for key, value in next(batches()).items()}
    other = Trainer.create(MODELS["T5"], OPTIMIZER, make_mesh(2, 4), shapes)
    again = other.to_arrays(*other.from_arrays(host))
    for group, flat in host.items():
        for path, value in flat.items():
            np.testing.assert_array_equal(again[group][path], value)
    assert unflatten(again["params"]).keys() == unflatten(host["params"]).keys()


@pytest.mark.slow
def test_adafactor_sees_no_padding():
    optimizer = adafactor(Schedule(1e-3), min_dim_size_to_factor=16)
    expected = trained("T5", (1, 1), optimizer=optimizer)
    found = trained("T5", (4, 2), "fsdp", optimizer)
    np.testing.assert_allclose(found[0], expected[0], atol=1e-5)
    for path, value in expected[3]["params"].items():
        np.testing.assert_allclose(found[3]["params"][path], value, atol=1e-5)


def test_what_cannot_be_split_is_said():
    shapes = {key: value.shape for key, value in next(batches()).items()}
    with pytest.raises(InputError, match="its 4 heads cannot be split over 8 devices.*1, 2, 4"):
        Trainer.create(MODELS["T5"], OPTIMIZER, make_mesh(1, 8), shapes)
    with pytest.raises(InputError, match="splits nothing over the 2 devices"):
        Trainer.create(MODELS["T5"], OPTIMIZER, make_mesh(4, 2), shapes, sharding="data")
    for wrong in ({"sharding": "pipeline"}, {"precision": "float16"}, {"remat": "everything"}):
        with pytest.raises(InputError, match="unknown"):
            Trainer.create(MODELS["T5"], OPTIMIZER, make_mesh(1), shapes, **wrong)
    with pytest.raises(InputError, match="no dtype"):
        Trainer.create(ToyModel(), OPTIMIZER, make_mesh(1), shapes, precision="bfloat16")
