"""Configurations at the papers' sizes: each is the system that it is named after, and says what it is."""

import dataclasses
import re
from typing import Any

import pytest

from launch import listing
from tests.systems.configured import CHECKOUT, MACROS, resolved
from tests.systems.papers import PAPERS, paper

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
        "asking.alpha": 2.0,
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
    assert re.match(rf"(gr-jax |python -m launch\.)recipe --gin_file=gin_configs/papers/nq320k_{name}\.gin", command)
    for macro in re.findall(r"(\w+) = %gin.REQUIRED", _included(f"papers/nq320k_{name}")):
        given = macro in ("T5", "BERT") and name == "gdr"
        assert given or f'--gin.{macro}=\\"' in command, macro
    assert re.search(
        r"(gr-jax |python -m launch\.)data build nq320k --raw=~/nq --output=data/nq320k --variant=nci", said
    )
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
