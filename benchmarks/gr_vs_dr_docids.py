"""Rows of the study `bounds` of `benchmarks.gr_vs_dr`: what a writer says of all docids together.

GR-codebook as it is trained on `squad_dev` writes every docid that there is, with as many beams as docids, under each
normaliser. Under the constraint's the probabilities of all docids have the sum 1. Under the vocabulary's, and under
that of a docid's level, the rest belongs to sequences that are no docid.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

import gr_jax
from benchmarks import gr_vs_dr_codebook, harness
from benchmarks.recipe_runs import RecipeRun
from gr_jax.corpus import read_beir
from gr_jax.models import network_folder
from gr_jax.retrievers.generative import GenerativeRetriever
from gr_jax.stages.vocabulary import load_vocabulary

DATA, SPLIT, QUESTIONS = "squad_dev", "test", 5
ROUNDING = 1e-4
# Normaliser → at least, at most, of the sum over all docids.
SUMS = {"constraint": (1 - ROUNDING, 1 + ROUNDING), "level": (0.0, 1 + ROUNDING), "vocabulary": (0.0, 1 + ROUNDING)}
Values = Mapping[str, float]


def sums(run: RecipeRun, normalize: str) -> Values:
    """The least and the greatest sum over questions, and how many documents were found for each.

    Args:
      run: indexed where it is not.
      normalize: over which tokens each step's probabilities have the sum 1.
    """
    run.index()
    made: Any = gr_jax.load(run.folder / "index").retriever
    docids = made.docids
    module, params = network_folder.load_network(run.folder / "model")
    words = load_vocabulary(run.input_folder("model", "vocabulary"))
    retriever: Any = GenerativeRetriever.over_docids(
        module, params, words, docids, beams=docids.num_documents, normalize=normalize
    )
    asked, totals = read_beir(run.source).split_queries(SPLIT).texts[:QUESTIONS], []
    for question in asked:
        found = retriever.retrieve([question], docids.num_documents)
        assert (found.doc_index >= 0).all()
        totals.append(float(np.exp(np.asarray(found.score, np.float64)).sum()))
    return {"least sum": min(totals), "greatest sum": max(totals), "docids": float(docids.num_documents)}


def rows() -> list[harness.Row]:
    """A row for each normaliser."""
    (run,) = gr_vs_dr_codebook.runs(DATA)
    return [
        harness.Row(
            name=f"bounds: p̂ of all docids of {DATA}, {normalize}",
            config={"split": SPLIT, "questions": QUESTIONS, "normalize": normalize},
            measure=functools.partial(sums, run, normalize),
            at_least={"least sum": least},
            at_most={"greatest sum": most},
            corpus=run.fingerprint,
            seeds=(0,),
            runs=[run],
        )
        for normalize, (least, most) in SUMS.items()
    ]
