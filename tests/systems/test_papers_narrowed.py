"""Configurations at the papers' sizes whose networks are narrowed: they train on the sample of NQ-320k."""

import functools
import json
import re

import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from gr_jax.corpus import read_beir
from gr_jax.datasets import kind, samples
from gr_jax.docids.pseudo_queries import PseudoQueries
from gr_jax.interop import huggingface
from gr_jax.models import network_folder
from gr_jax.models.copying import CopyDecoder
from gr_jax.stages import training as training_lib
from gr_jax.text import HuggingFaceVocabulary
from gr_jax.training.task import TrainSettings
from tests.models import random_folders
from tests.systems.papers import paper


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The sample of NQ-320k that `gr-jax data sample` builds, of a record for every question."""
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
