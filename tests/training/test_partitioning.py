import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from gr_jax import models
from gr_jax.errors import InputError
from gr_jax.training.optimizers import adafactor, adamw
from gr_jax.training.partitioning import logical_axes, make_mesh, padded_shape, parameter_shardings, rules_for
from gr_jax.training.train_state import Trainer
from tests.training.toy import ToyModel

SHAPES = {"encoder_input_tokens": (8, 16), "decoder_input_tokens": (8, 4)}


def test_meshes():
    assert make_mesh().shape == {"data": 8, "model": 1}
    assert make_mesh(model=4).shape == {"data": 2, "model": 4}
    assert make_mesh(2, 2).shape == {"data": 2, "model": 2}
    for data, model in ((9, 1), (4, 4), (1, 0), (-1, 1)):
        with pytest.raises(InputError, match="does not fit on 8 devices"):
            make_mesh(data, model)


def test_parameters_lie_where_their_names_say():
    trainer = Trainer.create(ToyModel(), adamw(), make_mesh(2, 4), SHAPES)
    params = trainer.initial_params(0)
    specs = {path: value.sharding.spec for path, value in params.items()}
    assert specs == {
        "input_embedding": PartitionSpec("model", None),
        "target_embedding": PartitionSpec("model", None),
        "wi": PartitionSpec(None, "model"),
        "wo": PartitionSpec("model", None),
        "output": PartitionSpec(None, "model"),
    }
    assert {value.addressable_shards[0].data.shape for value in (params["wi"],)} == {(16, 8)}


def test_optimiser_state_lies_with_its_parameters():
    trainer = Trainer.create(ToyModel(), adamw(), make_mesh(2, 4), SHAPES)
    state = trainer.initial_state(trainer.initial_params(0))
    moments = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(state.opt_state)[0]
    }
    for path, parameter in state.params.items():
        for name in ("mu", "nu"):
            (moment,) = (leaf for key, leaf in moments.items() if key.endswith(f"{name}/{path}"))
            assert moment.sharding == parameter.sharding


def test_factored_moments_are_replicated():
    trainer = Trainer.create(ToyModel(inputs=256, width=128), adafactor(), make_mesh(2, 4), SHAPES)
    state = trainer.initial_state(trainer.initial_params(0))
    for leaf in jax.tree.leaves(state.opt_state):
        assert leaf.sharding.is_fully_replicated or leaf.ndim == 2


def test_fsdp_splits_both_axes():
    trainer = Trainer.create(ToyModel(), adamw(), make_mesh(2, 4), SHAPES, sharding="fsdp")
    params = trainer.initial_params(0)
    assert params["wi"].sharding.spec == PartitionSpec("data", "model")
    assert params["wi"].addressable_shards[0].data.shape == (8, 8)


def test_what_cannot_be_split_evenly_lies_padded():
    shapes = {"table": (30, 16), "wi": (16, 64)}
    axes = {"table": ("vocab", "embed"), "wi": ("embed", "mlp")}
    mesh = make_mesh(2, 4)
    shardings = parameter_shardings(mesh, axes, rules_for(mesh, shapes, axes))
    assert shardings["table"].spec == PartitionSpec("model", None)
    assert padded_shape((30, 16), shardings["table"]) == (32, 16)
    assert shardings["wi"].spec == PartitionSpec(None, "model")
    trainer = Trainer.create(ToyModel(inputs=30, targets=31), adamw(), mesh, SHAPES)
    params = trainer.initial_params(0)
    assert {path: value.shape for path, value in params.items() if path in trainer.padded} == {
        "input_embedding": (32, 16), "target_embedding": (32, 16), "output": (16, 32),
    }  # fmt: skip
    assert {path: value.shape for path, value in trainer.cut(params).items()} == {
        path: leaf.shape for path, leaf in trainer.shapes.items()
    }


def test_a_written_vocabulary_is_split_by_itself():
    """Each vocabulary lies padded by itself, where it has to be: 30,522 words on 4 devices."""
    read = models.T5Config(vocab_size=30_522, emb_dim=8, num_heads=4, head_dim=2, mlp_dim=8, num_encoder_layers=1)
    written = dataclasses.replace(read, vocab_size=48, num_decoder_layers=1)
    module = models.EncoderDecoder(read, written, share_embeddings=False)
    trainer = Trainer.create(models.EncoderDecoderModel(module), adamw(), make_mesh(2, 4), SHAPES)
    params = trainer.initial_params(0)
    assert params["token_embedder/embedding"].sharding.spec == PartitionSpec("model", None)
    assert trainer.padded == {"token_embedder/embedding": (30_524, 8)}
    assert params["decoder_token_embedder/embedding"].sharding.spec == PartitionSpec("model", None)
    assert params["decoder/logits_dense/kernel"].sharding.spec == PartitionSpec(None, "model")


def test_parameters_without_names_get_them_by_path():
    shapes = {
        "token_embedder/embedding": (32, 16),
        "encoder/layers_0/attention/query/kernel": (16, 16),
        "encoder/layers_0/attention/out/kernel": (16, 16),
        "encoder/layers_0/mlp/wi_0/kernel": (16, 64),
        "encoder/layers_0/mlp/wo/kernel": (64, 16),
        "decoder/logits_dense/kernel": (16, 32),
        "encoder/norm/scale": (16,),
    }
    axes = logical_axes(shapes, None)
    mesh = make_mesh(2, 4)
    specs = {path: s.spec for path, s in parameter_shardings(mesh, axes, rules_for(mesh, shapes, axes)).items()}
    split = [tuple(spec).index("model") if "model" in tuple(spec) else None for spec in specs.values()]
    assert split == [0, 1, 0, 1, 0, 1, None]


def test_the_real_networks_name_every_matrix():
    from gr_jax.models.encoder_decoder import EncoderDecoder
    from gr_jax.models.generative import EncoderDecoderModel
    from gr_jax.models.t5 import T5Config

    config = T5Config(
        vocab_size=32, emb_dim=16, num_heads=2, head_dim=8, num_encoder_layers=1, num_decoder_layers=1, mlp_dim=32
    )
    model = EncoderDecoderModel(EncoderDecoder(config))
    described = jax.eval_shape(lambda key: model.get_initial_variables(key, SHAPES), jax.random.key(0))
    trainer = Trainer.create(model, adamw(), make_mesh(2, 2), SHAPES)
    assert "params_axes" in described
    for path, leaf in trainer.shapes.items():
        if leaf.ndim == 2:
            assert "model" in tuple(trainer.shardings[path].spec), path


def test_initial_values_do_not_depend_on_the_mesh():
    alone = Trainer.create(ToyModel(), adamw(), make_mesh(1, 1), SHAPES).initial_params(3)
    spread = Trainer.create(ToyModel(), adamw(), make_mesh(2, 4), SHAPES).initial_params(3)
    other = Trainer.create(ToyModel(), adamw(), make_mesh(2, 4), SHAPES).initial_params(4)
    for path in alone:
        np.testing.assert_array_equal(alone[path], spread[path])
        assert not np.array_equal(alone[path], other[path])


def test_given_parameters_are_taken_and_not_touched():
    trainer = Trainer.create(ToyModel(), adamw(), make_mesh(2, 4), SHAPES)
    given = {"wi": jnp.full((16, 32), 7.0)}
    params = trainer.initial_params(0, given)
    assert (np.asarray(params["wi"]) == 7).all() and set(params) == set(trainer.shapes)
    jax.jit(lambda x: x + 1, donate_argnums=0)(params["wi"])
    assert (np.asarray(given["wi"]) == 7).all()


@pytest.mark.parametrize(
    "given, problem",
    [({"wj": np.zeros(3)}, "none of the model's"), ({"wi": np.zeros((16, 31))}, r"has shape \(16, 31\)")],
)
def test_given_parameters_must_fit(given, problem):
    trainer = Trainer.create(ToyModel(), adamw(), make_mesh(1, 1), SHAPES)
    with pytest.raises(InputError, match=problem):
        trainer.initial_params(0, given)
