"""Configurations at the papers' sizes, whole. Nothing is allocated: shapes alone are reckoned."""

import json
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from gr_jax import models
from gr_jax.docids import Docids
from gr_jax.interop import huggingface
from gr_jax.models.copy_network import CopyNetwork
from gr_jax.models.copying import CopyNetworkModel
from gr_jax.stages import copy_networks, encoders, networks, teaching
from gr_jax.stages.contrastive import ContrastiveTraining
from gr_jax.systems.gdr.model import DOCUMENT, GDRModel
from gr_jax.systems.ngram import asking, prefixes
from gr_jax.systems.ngram.distilling import DistilledWriter
from gr_jax.text import ByteVocabulary
from gr_jax.training.packing import Pairs
from tests.models import random_folders
from tests.systems.papers import paper

WRITERS = ("dsi", "nci", "genre", "cgr")  # of docids
COPIERS = ("seal", "minder", "ltrgr", "dgr")
WHOLE_T5 = 223e6  # parameters of T5-base (Raffel et al. 2020 have "220 million"), one table of tokens for both sides
BERT = 110e6  # of BERT-base (Devlin et al. 2019)

# The files that name sizes; what they hold is not read.
T5_BASE = {
    **random_folders.T5, "vocab_size": 32128, "d_model": 768, "d_kv": 64, "num_heads": 12, "d_ff": 3072,
    "num_layers": 12, "num_decoder_layers": 12, "feed_forward_proj": "relu", "tie_word_embeddings": True,
}  # fmt: skip
BERT_BASE = {
    **random_folders.BERT, "vocab_size": 30522, "hidden_size": 768, "num_attention_heads": 12,
    "num_hidden_layers": 12, "intermediate_size": 3072, "max_position_embeddings": 512,
}  # fmt: skip


def one_of(names: Sequence[str], default: str) -> list[Any]:
    """All of them, of which one runs by default: each takes seconds to trace."""
    return [pytest.param(name, marks=[pytest.mark.slow] * (name != default)) for name in names]


@pytest.fixture
def full_size(tmp_path, monkeypatch) -> dict[str, str]:
    """Macros that name folders of T5-base and BERT-base whose tensors are views of one zero."""

    class NoTensors:
        names = ()

        def __init__(self, folder):
            self.folder = folder

    def shapes_alone(tensors, entries):
        params: dict[str, Any] = {}
        for path, _, shape, transposed in entries:
            leaf = params
            for key in path[:-1]:
                leaf = leaf.setdefault(key, {})
            leaf[path[-1]] = np.broadcast_to(np.float32(0), shape[::-1] if transposed else shape)
        return params

    monkeypatch.setattr(huggingface, "TensorFolder", NoTensors)
    monkeypatch.setattr(huggingface, "_read", shapes_alone)
    for name, config in (("t5", T5_BASE), ("bert", BERT_BASE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    return {"T5_BASE": str(tmp_path / "t5"), "BERT_BASE": str(tmp_path / "bert")}


def count(params: Any) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))


def layers(params: Any, *parts: str) -> int:
    """Parameters of some parts, but for the table of what is written."""
    return sum(count({name: one for name, one in params[part].items() if name != "logits_dense"}) for part in parts)


def shapes_of(module: Any) -> Any:
    tokens = np.ones((1, 8), np.int32)
    return jax.eval_shape(module.init, jax.random.key(0), tokens, tokens)["params"]


def batch_of(shapes: dict[str, tuple[int, ...]]) -> dict[str, jax.ShapeDtypeStruct]:
    """A batch of such shapes, without its numbers."""
    floats = ("weights", "vectors", "chance", "coefficients", "teacher")
    bools = ("single", "valid", "in_cluster", "mask")
    kinds = {
        name: np.float32 if name.endswith(floats) else bool if name.endswith(bools) else np.int32 for name in shapes
    }
    return {name: jax.ShapeDtypeStruct(shape, kinds[name]) for name, shape in shapes.items()}


def cost(model: Any, params: Any, batch: Any) -> Any:
    """One step's loss and gradients, as shapes."""

    def step(params, batch):
        return jax.value_and_grad(model.loss_fn, has_aux=True)(params, batch, jax.random.key(0))

    (loss, _), gradients = jax.eval_shape(step, params, batch)
    assert loss.shape == () and jax.tree.map(lambda x: x.shape, gradients) == jax.tree.map(lambda x: x.shape, params)


def identifiers(name: str) -> Docids:
    """Two docids in a vocabulary of the size that NQ-320k's have."""
    if name in ("genre", "cgr"):  # Lee et al. 2022: 117,508 contextualized tokens of Wikipedia's titles; T5's own
        return Docids.build([[5, 6], [7, 8]], vocab_size=117_508 if name == "cgr" else 32_101, eos_id=2)
    size, depth = (10, 6) if name == "dsi" else (30, 5)
    blocks = [(2 + level * size, size) for level in range(depth)]
    return Docids.build(
        [[start for start, _ in blocks], [start + 1 for start, _ in blocks]],
        vocab_size=2 + size * depth, eos_id=None, levels=blocks,
    )  # fmt: skip


@pytest.mark.parametrize("name", one_of(WRITERS, "nci"))
def test_a_writer_of_docids_at_full_size(name, full_size):
    system = paper(name, **full_size)
    ids = identifiers(name)
    module, pretrained = networks.make_network(system.network, 32_100, ids)
    params = shapes_of(module)
    if name == "nci":
        assert module.decoder_sizes.num_decoder_layers == 6 and pretrained.keys() == {"token_embedder", "encoder"}
        whole = {part: params[part] for part in ("token_embedder", "encoder")}
        # By hand: attention, feed-forward and norms of 12 layers, the last norm, the bias of places, the table.
        own = 12 * (4 * 768**2 + 2 * 768 * 3072 + 2 * 768) + 768 + 32 * 12 + 32_128 * 768
        assert count(whole) == own == count(pretrained)
    else:
        assert layers(params, "encoder", "decoder", "token_embedder") == pytest.approx(WHOLE_T5, rel=0.02)
        for part in ("encoder", "decoder", "token_embedder"):
            wanted = {one: leaf for one, leaf in flatten_dict(params[part], sep="/").items() if "logits" not in one}
            found = flatten_dict(pretrained[part], sep="/")
            assert {one: leaf.shape for one, leaf in found.items()} == {one: x.shape for one, x in wanted.items()}
    if name == "dsi":
        assert count(params) == pytest.approx(WHOLE_T5, rel=0.02)
    tables = 2 * module.vocab_size * 768
    assert count(params["decoder_token_embedder"]) + count(params["decoder"]["logits_dense"]) == tables
    training = system.training
    model = models.EncoderDecoderModel(
        module=module, label_smoothing=training.label_smoothing, rdrop=training.rdrop or 0.0,
        normalize=training.normalize, levels=ids.levels, eos_id=ids.eos_id,
    )  # fmt: skip
    rows = Pairs((training.row_length,), (training.row_targets,), True).shapes(training.batch_size)
    cost(model, params, batch_of(rows))


def copier(settings: Any) -> tuple[CopyNetworkModel, Any]:
    encoder, pretrained, decoder, written = copy_networks.stacks(settings, 32_100)
    assert pretrained is not None and written and not settings.keeps_encoder
    module = CopyNetwork(encoder, decoder, settings.words, counted=True)
    return CopyNetworkModel(module, tuple(range(1, 1 + settings.words))), shapes_of(module)


def written_rows(settings: Any, batch_size: int) -> dict[str, tuple[int, ...]]:
    target = (batch_size, settings.row_targets)
    shapes = {f"decoder_{one}": target for one in ("input_tokens", "target_tokens", "loss_weights", "segment_ids")}
    return {**shapes, "encoder_input_tokens": (batch_size, settings.query_tokens)}


@pytest.mark.parametrize("name", one_of(COPIERS, "seal"))
def test_a_writer_of_ngrams_at_full_size(name, full_size):
    system = paper(name, **full_size)
    model, params = copier(system.writing)
    assert layers(params, "encoder", "decoder", "token_embedder") == pytest.approx(WHOLE_T5, rel=0.02)
    if name == "seal":
        cost(model, params, batch_of(written_rows(system.writing, system.writing.batch_size)))
    if name == "minder":
        made, its = copier(system.generator)
        assert layers(its, "encoder", "decoder", "token_embedder") == pytest.approx(WHOLE_T5, rel=0.02)
        cost(made, its, batch_of(written_rows(system.generator, system.generator.batch_size)))
    if name not in ("ltrgr", "dgr"):
        return
    settings, nothing = (
        system.distilling,
        teaching.FoundDocuments(*(np.zeros((0, 0), kind) for kind in (np.int32, np.float32))),
    )
    views = tuple(
        asking._ngram_view(what, view, ByteVocabulary(), system.asking) for what, _, view in system.asking.views
    )
    base, _ = teaching.margins_of(settings, nothing)
    learner = DistilledWriter(
        model, views, system.asking.alpha, teaching.make_loss(settings, nothing), base, settings.generation
    )
    questions, rows = settings.batch_size, settings.batch_size * len(views)
    ngrams = prefixes.empty(rows, settings.row_prefixes, settings.row_ngrams, system.asking.tokens)
    shapes = {
        "encoder_input_tokens": (rows, system.writing.query_tokens),
        **{name: one.shape for name, one in ngrams.items()},
        "log_chance": (rows, settings.row_ngrams),
        "single": (rows, settings.row_ngrams),
        "coefficients": (questions, 2 * settings.length, len(views) * settings.row_ngrams),
        "list_valid": (questions, 2, settings.length),
        "list_teacher": (questions, 2, settings.length),
        **{f"write_{one}": shape for one, shape in written_rows(system.writing, settings.rows).items()},
    }
    cost(learner, params, batch_of(shapes))


@pytest.mark.slow
@pytest.mark.parametrize("stage", ("training", "joint"))
def test_gdr_at_full_size(stage, full_size):
    system = paper("gdr", **full_size)
    ids = identifiers("gdr")
    module, pretrained = networks.make_network(system.network, 32_100, ids, query_pooling=system.encoders.pooling)
    params = shapes_of(module)
    assert count({part: params[part] for part in ("token_embedder", "encoder")}) == count(pretrained)
    assert (module.decoder_sizes.num_decoder_layers, module.pawa_layers) == (6, 4)
    config, _ = encoders.make_encoders(system.encoders, 30_522)
    tower = config.tower("document")
    training: ContrastiveTraining = getattr(system, stage)
    documents = training.batch_size * (1 + training.negatives)
    shapes = {
        "encoder_input_tokens": (training.batch_size, system.encoders.query_length),
        **{f"decoder_{one}": (training.batch_size, 5) for one in ("input_tokens", "target_tokens", "loss_weights")},
        "document_index": (documents,),
        "negative_in_cluster": (training.batch_size, training.negatives),
    }
    if stage == "joint":
        shapes["document_tokens"] = (documents, system.encoders.document_length)
        params = {
            **params,
            DOCUMENT: jax.eval_shape(tower.init, jax.random.key(0), np.ones((1, 8), np.int32))["params"],
        }
        assert count(params[DOCUMENT]) == pytest.approx(BERT, rel=0.02)
    else:
        shapes["document_vectors"] = (documents, 768)
    model = GDRModel(
        module=module, normalize=system.search.normalize, levels=ids.levels, eos_id=ids.eos_id,
        rdrop=system.matching.rdrop or 0.0, alpha=system.matching.alpha, temperature=system.matching.temperature,
        similarity=system.matching.similarity, pooling=system.encoders.pooling,
        document=tower if stage == "joint" else None, chunks=training.chunks,
    )  # fmt: skip
    cost(model, params, batch_of(shapes))


# ── Narrowed, and else as they are
