"""Rows of the scoring that is chosen on dev."""

import types

import numpy as np
import pytest

from benchmarks import ngram_scoring
from benchmarks.ngram_scoring import CHOSEN, GRID, OF_SEAL, Scoring
from benchmarks.recipe_runs import RecipeRun
from gr_jax.constraints import FMIndex
from gr_jax.corpus import Corpus, Document
from gr_jax.docids.spans import token_text
from gr_jax.evaluation import evaluate
from gr_jax.retrievers.ngram_scorer import Ngrams, NgramScoring
from gr_jax.retrievers.ngrams import NgramAggregation, NgramView
from gr_jax.retrievers.views import View
from gr_jax.systems import Asking
from gr_jax.text import ByteVocabulary

pytest.importorskip("pydivsufsort")
pytest.importorskip("numba")

GRIDS = (GRID, ngram_scoring.WITHOUT_QUERIES)
VOCABULARY = ByteVocabulary()
VIEWS = (View(walks="title+body"), View("{query} || query", walks="pseudo_query"))


def test_settings_reach_the_scorer_and_the_view_of_queries_alone():
    corpus = Corpus.from_documents([Document("a", "", "red cat"), Document("b", "", "blue cat")])
    said = token_text(corpus, VOCABULARY, views=("title+body",))
    index = FMIndex.from_text(said, filters=True)
    views = (NgramView(singles=7), NgramView(tokens=5, own_words=0, shift=-1.0, most=-1.0))
    own = NgramAggregation(VOCABULARY, said, np.asarray(index.row_documents), views=views)
    other = ngram_scoring.scored_by(types.SimpleNamespace(documents_of=own, views=VIEWS), Scoring(3.0, -2.0))
    assert other.scorer.settings == NgramScoring(alpha=3.0)
    assert other.views == (views[0], NgramView(tokens=5, own_words=0, shift=-2.0, most=-1.0))
    assert own.scorer.settings == NgramScoring() and own.views == views
    none = ngram_scoring.scored_by(types.SimpleNamespace(documents_of=own, views=VIEWS), OF_SEAL)
    assert none.views == (views[0], NgramView(tokens=5, own_words=0))
    # An n-gram that stands once, with p = .5 after a question.
    found = Ngrams(*(np.array(x) for x in ([[1, 2]], [2], [0], [np.log(0.5)], [0], [1], [1])))
    chance = 6 / (len(said.tokens) + 5)
    expected = np.log(0.5 / 0.5) - np.log(chance / (1 - chance))
    assert other.scorer.weighted(found).weights[0] == pytest.approx(expected**3)


def test_a_choice_says_what_is_best_and_how_far_the_default_is_above(monkeypatch):
    """Question a has its answer second by the others, first by what is chosen."""
    qrels = {"a": {"d": 1}, "b": {"d": 1}}

    def reached(run, scorings):
        assert scorings == GRID
        orders = {one: "dx" if one == CHOSEN else "xd" for one in scorings}
        return {
            one: evaluate({"a": [(order[0], 2.0), (order[1], 1.0)], "b": [("d", 1.0)]}, qrels, ngram_scoring.MEASURES)
            for one, order in orders.items()
        }

    monkeypatch.setattr(ngram_scoring, "on_dev", reached)
    values = ngram_scoring.choice(None, GRID)
    assert Scoring(values["alpha"], values["shift"]) == CHOSEN
    assert values["behind the best"] == 0 and values["RR@10"] == 1 and values["RR@10 by SEAL's"] == 0.75
    assert values["RR@10 above"] == pytest.approx(0.25) and CHOSEN != OF_SEAL


def test_rows_of_before_have_what_was_the_default():
    systems = {"seal": 14.0, "minder": None, "ltrgr": None, "dgr": None}
    assert set(ngram_scoring.BEFORE) == set(systems)
    for system, shift in systems.items():
        teacher = RecipeRun("ngram", "squad_dev", "bm25") if system == "dgr" else None
        run = RecipeRun("ngram", "squad_dev", system, flags=ngram_scoring.BEFORE[system], teacher=teacher)
        asking = run.resolved().asking
        assert (asking.alpha, asking.pseudo_query_shift) == (2.0, shift)
    assert (Asking().alpha, Asking().pseudo_query_shift) == CHOSEN


def test_a_grid_without_queries_has_the_power_alone():
    names = [ngram_scoring.row(RecipeRun("ngram", "squad_dev", "seal"), "SEAL", one).config["chosen"] for one in GRIDS]
    assert names == [[CHOSEN.alpha, CHOSEN.shift], [CHOSEN.alpha, None]]
