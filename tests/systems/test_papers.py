"""Configurations at the papers' sizes: each is the system that it is named after, of the size that it says; a narrowed
one trains. At full size nothing is allocated: shapes alone are reckoned."""

import dataclasses
import functools
import json
import re
from typing import Any

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from gr_jax import models, systems
from gr_jax.corpus import read_beir
from gr_jax.datasets import kind, samples
from gr_jax.docids import Docids
from gr_jax.docids.pseudo_queries import PseudoQueries
from gr_jax.interop import huggingface
from gr_jax.models import network_folder
from gr_jax.models.copy_network import CopyNetwork
from gr_jax.models.copying import CopyDecoder, CopyNetworkModel
from gr_jax.stages import copy_networks, encoders, networks, teaching
from gr_jax.stages import training as training_lib
from gr_jax.stages.contrastive import ContrastiveTraining
from gr_jax.systems.gdr.model import DOCUMENT, GDRModel
from gr_jax.systems.ngram import asking
from gr_jax.systems.ngram.distilling import DistilledWriter
from gr_jax.text import ByteVocabulary, HuggingFaceVocabulary
from gr_jax.training.packing import Pairs
from gr_jax.training.task import TrainSettings
from launch import listing
from tests.models import random_folders
from tests.systems.configured import CHECKOUT, MACROS, resolved

PAPERS = {
    "dsi": systems.DSI,
    "nci": systems.NCI,
    "seal": systems.SEAL,
    "minder": systems.MINDER,
    "ltrgr": systems.LTRGR,
    "dgr": systems.DGR,
    "genre": systems.GENRE,
    "cgr": systems.CGR,
    "gdr": systems.GDR,
}
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

# What the papers and their authors' code say, as this project's notes on them have it.
PUBLISHED: dict[str, dict[str, Any]] = {
    "dsi": {
        "identifiers.branching": 10, "identifiers.leaf_capacity": 100, "pseudo_queries.kinds": {},
        "training.rates": {"query": 1, "document": 32, "pseudo": 0}, "training.max_input_length": 32,
    },
    "nci": {
        "identifiers.branching": 30, "identifiers.leaf_capacity": 30, "identifiers.tokens": "position",
        "network.decoder_layers": 6, "network.pawa_layers": 4, "network.pawa_width": None, "training.rdrop": 0.15,
        "training.learning_rate": 2e-4, "training.batch_size": 8 * 64, "training.weight_decay": 1e-4,
        "encoder_training": None, "start": "pretrained", "decoding.beams": 100,
        "pseudo_queries.kinds": {"generated": 15, "span": 10},
    },
    "seal": {
        "writing.spans": 10, "writing.span_tokens": 10, "asking.beams": 15, "asking.tokens": 10, "asking.alpha": 2.0,
        "asking.beta": 0.8, "asking.most_documents": 1500, "asking.title_tokens": 15,
    },
    "minder": {
        "writing.spans": 10, "writing.titles": 3, "writing.pseudo_queries": 5, "asking.pseudo_query_shift": 14.0,
        "asking.writes": ("body", "title", "pseudo_query"),
    },
    "ltrgr": {
        "distilling.loss": "two_margins", "distilling.margins": (300.0, 100.0), "distilling.learning_rate": 1e-5,
        "distilling.questions": None,
    },
    "dgr": {
        "distilling.loss": "distilled_ranknet", "distilling.margins": (300.0, 100.0), "distilling.length": 8,
        "distilling.pool": 15, "distilling.learning_rate": 1e-5, "distilling.candidates": 200, "distilling.clip": 1.0,
    },
    "genre": {
        "training.label_smoothing": 0.1, "training.learning_rate": 3e-5, "training.warmup_steps": 500,
        "decoding.beams": 10, "contextual.title_tokens": 15, "contextual.vanilla": True, "copying": False,
    },
    "cgr": {
        "contextual.clusters": 5, "contextual.content": True, "training.optimizer": "adafactor",
        "training.learning_rate": 1e-4, "training.batch_size": 512, "training.schedule": "linear",
        "decoding.beams": 10, "rebuilds": 0, "aligning": None, "copying": False,
    },
    "gdr": {
        "network.decoder_layers": 6, "network.pawa_layers": 4, "matching.similarity": "tanh", "matching.rdrop": 0.15,
        "matching.temperature": 0.05, "training.batch_size": 64, "training.negatives": 10, "search.beams": 100,
        "encoders.document_length": 128, "pseudo_queries.kinds": {"generated": 5, "span": 5},
    },
}  # fmt: skip
QUESTIONS = 307_373  # of train


def paper(name: str, *bindings: str, **macros: str) -> Any:
    """The system that a file makes.

    Args:
      bindings: gin flags.
      macros: instead of those of `configured.MACROS`.
    """
    own = {macro: value for macro, value in MACROS.items() if macro not in ("T5", "BERT")}  # which the files give
    return resolved(f"papers/nq320k_{name}", bindings=bindings, macros=own | macros)


def head(name: str) -> str:
    text = (CHECKOUT / "gin_configs" / "papers" / f"nq320k_{name}.gin").read_text(encoding="utf-8")
    return text.split("\n\n", 1)[0]


def test_every_paper_has_a_file():
    files = {file.stem for file in (CHECKOUT / "gin_configs" / "papers").glob("*.gin")}
    assert files == {f"nq320k_{name}" for name in PAPERS}
    assert "gin_configs/papers/nq320k_dsi.gin" in listing.listing()


@pytest.mark.parametrize("name", PAPERS)
def test_it_is_the_system_that_it_is_named_after(name):
    made = paper(name)
    assert type(made) is PAPERS[name]
    for place, value in PUBLISHED[name].items():
        found = made
        for part in place.split("."):
            found = getattr(found, part)
        assert found == value, place


def test_epochs_are_the_papers():
    """As many steps as epochs of the questions of train have."""
    training = paper("cgr").training
    assert round(training.steps * training.batch_size / QUESTIONS) == 150
    assert training.warmup_steps * 10 == training.steps
    training = paper("gdr").training
    assert round(training.steps * training.batch_size / QUESTIONS) == 51
    for name in ("ltrgr", "dgr"):
        distilling = paper(name).distilling
        assert round(distilling.steps * distilling.batch_size / QUESTIONS) == 3
        assert distilling.warmup_steps * 10 == distilling.steps
    # 500 and 1000 · writing, of a loss that is divided by the base of its margins.
    assert paper("dgr").distilling.generation == pytest.approx(500 / 300, rel=1e-4)
    assert paper("ltrgr").distilling.generation == pytest.approx(1000 / 300, rel=1e-4)
    rates = paper("nci").training
    factors = {name: rates.learning_rate * factor for name, factor in rates.multipliers.items()}
    assert set(factors.values()) == {1e-4} and "encoder" not in factors


@pytest.mark.parametrize("name", PAPERS)
def test_the_head_says_how_and_what_to_expect(name):
    said = head(name)
    command = listing.command(CHECKOUT / "gin_configs" / "papers" / f"nq320k_{name}.gin")
    assert command.startswith(f"python -m launch.recipe --gin_file=gin_configs/papers/nq320k_{name}.gin")
    for macro in re.findall(r"(\w+) = %gin.REQUIRED", _included(f"papers/nq320k_{name}")):
        given = macro in ("T5", "BERT") and name == "gdr"
        assert given or f'--gin.{macro}=\\"' in command, macro
    assert "python -m launch.data build nq320k --raw=~/nq --output=data/nq320k --variant=nci" in said
    paragraphs = " ".join(line.removeprefix("#").strip() or "|" for line in said.splitlines()).split("|")
    opened = {paragraph.strip().split()[0] for paragraph in paragraphs[1:]}
    assert {"Published:", "Published,"} & opened and "Budget:" in opened and "What" in opened
    assert "not measured here" in said.replace("\n# ", " ")


def test_another_model_may_follow_t5():
    for name in ("dsi", "cgr"):
        t5 = resolved(f"systems/{name}", "models/t5_base")
        assert t5.network.encoder == t5.network.decoder == MACROS["T5_BASE"]
        minilm = resolved(f"systems/{name}", "models/t5_base", "models/minilm")
        assert minilm.network == dataclasses.replace(resolved(f"systems/{name}").network, outputs="random")
        assert name == "dsi" or minilm.contextual == resolved("systems/cgr").contextual


def _included(name: str) -> str:
    text = (CHECKOUT / "gin_configs" / f"{name}.gin").read_text(encoding="utf-8")
    for one in re.findall(r'include "gin_configs/(.*)\.gin"', text):
        text += _included(one)
    return text


# ── At full size


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
    bools = ("single", "valid", "in_cluster")
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


@pytest.mark.parametrize("name", WRITERS)
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


@pytest.mark.parametrize("name", COPIERS)
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
    shapes = {
        "encoder_input_tokens": (rows, system.writing.query_tokens),
        **{f"decoder_{one}": (rows, settings.row_tokens) for one in ("input_tokens", "target_tokens", "segment_ids")},
        "log_chance": (rows, settings.row_ngrams),
        "single": (rows, settings.row_ngrams),
        "coefficients": (questions, 2 * settings.length, len(views) * settings.row_ngrams),
        "list_valid": (questions, 2, settings.length),
        "list_teacher": (questions, 2, settings.length),
        **{f"write_{one}": shape for one, shape in written_rows(system.writing, settings.rows).items()},
    }
    cost(learner, params, batch_of(shapes))


@pytest.mark.parametrize("stage", ["training", "joint"])
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


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The sample of NQ-320k that `launch.data sample` builds, of a record for every question."""
    folder = tmp_path_factory.mktemp("nq")
    samples.nq(folder / "raw")
    kind("nq320k").build(folder / "raw", folder / "built", "page", 1, False)
    return folder / "built"


ROWS = 300  # of the tables of tokens: more than there are words


@pytest.fixture(scope="module")
def narrow(tmp_path_factory, pages) -> dict[str, str]:
    """Macros that name folders of a T5 and a BERT of 32 dimensions and 2 layers, with a token for every word, and
    queries that were written to each document."""
    import tokenizers

    root = tmp_path_factory.mktemp("narrow")
    sizes = {"d_model": 32, "d_kv": 16, "num_heads": 2, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2,
             "vocab_size": ROWS}  # fmt: skip
    random_folders.write_t5(root / "t5", "t5_1_0", **sizes)
    random_folders.write_bert(
        root / "bert",
        vocab_size=ROWS,
        hidden_size=32,
        num_attention_heads=2,
        num_hidden_layers=2,
        max_position_embeddings=512,
    )
    dataset = read_beir(pages)
    words = sorted(set(re.findall(r"\w+", " ".join([*dataset.document_texts(), *dataset.queries.texts]))))
    for name, special, around in (
        ("t5", ["<pad>", "</s>", "<unk>"], "$A </s>"),
        ("bert", ["[PAD]", "[UNK]", "[CLS]", "[SEP]"], "[CLS] $A [SEP]"),
    ):
        ids = {word: number for number, word in enumerate([*special, *words])}
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token=special[-1 if name == "t5" else 1]))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        used = [(one, ids[one]) for one in special if one in around]
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single=around, special_tokens=used)
        tokenizer.save(str(root / name / "tokenizer.json"))
    corpus = dataset.corpus
    texts = [
        f"{question} of {title}" for title in corpus.titles for question in ("where", "who", "what", "when", "how")
    ]
    owners = np.repeat(np.arange(len(corpus)), 5).astype(np.int32)
    made = PseudoQueries(texts, owners, np.zeros(len(texts), np.int8), ("generated",), corpus.fingerprint)
    made.save(root / "generated")
    return {
        "CORPUS": str(pages), "T5_BASE": str(root / "t5"), "BERT_BASE": str(root / "bert"),
        "GENERATED": str(root / "generated"),
    }  # fmt: skip


def test_a_table_may_have_rows_that_no_token_has(narrow, pages, tmp_path):
    """As T5's has: 32,128 of them, for 32,100 tokens."""
    paper("seal", "SEAL.trained = False", **narrow).run(pages, tmp_path / "run", until="model", say=lambda line: None)
    decoder = CopyDecoder.load(tmp_path / "run" / "model")
    tokens = HuggingFaceVocabulary(narrow["T5_BASE"]).size
    bias = np.asarray(decoder.params["copy_bias"])
    assert tokens < ROWS == decoder.output_vocab_size == len(bias)
    assert np.isfinite(bias).all() and (bias[tokens:] == bias[:tokens].min()).all()


STEPS = 20
# How long training takes, sizes of what is new, and a tree of two levels. The last parameters are kept, as where there
# is no dev split, such as in NQ-320k.
NARROWED = {
    "dsi": (
        f"Training.steps = {STEPS}", "Training.warmup_steps = 2", "Training.keep_best = None",
        "Identifiers.leaf_capacity = 10",
    ),
    "cgr": (f"Training.steps = {STEPS}", "Training.warmup_steps = 2", "Training.keep_best = None"),
    "gdr": (
        "Network.width = 32", "Network.heads = 2", "Network.mlp_width = 64", "Network.decoder_layers = 2",
        f"encoder_training/ContrastiveTraining.steps = {STEPS}", f"training/ContrastiveTraining.steps = {STEPS}",
        f"joint/ContrastiveTraining.steps = {STEPS}", "ContrastiveTraining.keep_best = None",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NARROWED)
def test_a_narrowed_one_trains(name, narrow, tmp_path, monkeypatch):
    """From documents to measures. Its loss falls; of what is pretrained and to be trained nothing stays as it was."""
    monkeypatch.setattr(training_lib, "TrainSettings", functools.partial(TrainSettings, log_every=1))
    system = paper(name, *NARROWED[name], **narrow)
    system.run(narrow["CORPUS"], tmp_path / "run", say=lambda line: None)
    for stage in ("model", "joint_model") if name == "gdr" else ("model",):
        lines = (tmp_path / "run" / stage / "metrics.jsonl").read_text().splitlines()
        losses = [one["train/loss"] for one in map(json.loads, lines) if "train/loss" in one]
        assert len(losses) == STEPS and np.isfinite(losses).all()
        assert np.mean(losses[-5:]) < np.mean(losses[:5])
    measured = json.loads((tmp_path / "run" / "results" / "metrics.json").read_text())
    assert {"BM25", system.name} <= set(measured["test"])
    start = huggingface.load_t5(narrow["T5_BASE"])[1]
    _, params = network_folder.load_network(tmp_path / "run" / ("joint_model" if name == "gdr" else "model"))
    for part in ("token_embedder", "encoder") if name == "gdr" else ("token_embedder", "encoder", "decoder"):
        found = flatten_dict(params[part], sep="/")
        still = [one for one, x in flatten_dict(start[part], sep="/").items() if np.array_equal(x, found[one])]
        assert not still, part
