"""What is scored by each remedy, against loops over docids, on a run of a small DSI and of a small GDR."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import gr_jax
from benchmarks import gr_vs_dr_codebook, gr_vs_dr_remedies
from gr_jax.corpus import read_beir
from gr_jax.errors import InputError
from gr_jax.systems.gdr import GDR
from tests import small_data, small_dsi
from tests.benchmarks import small_run
from tests.benchmarks.small_run import COUNT, SmallRun
from tests.systems.gdr.small_run import settings

QUESTIONS = ["where is the red cat", "who saw a grey goat", "a bee near the river"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> SmallRun:
    return small_run.of_codebooks(tmp_path_factory)


@pytest.fixture(scope="module")
def retriever(run):
    return gr_jax.load(run.folder / "index").retriever


def test_stepping_back_takes_all_that_begin_alike(retriever):
    docids = retriever.docids
    tokens = [docids.sequence(*docids.rows_of(document)) for document in range(COUNT)]
    written = gr_vs_dr_remedies.writes(retriever, QUESTIONS, 3)
    assert all(len(row) == 3 for row in written)
    for depth in (1, 2, 3):
        found = gr_vs_dr_remedies.backed_off(docids, written, depth)
        for row, documents in enumerate(written):
            expected = {
                other for other in range(COUNT) for one in documents if tokens[other][:depth] == tokens[one][:depth]
            }
            assert set(np.flatnonzero(found[row]).tolist()) == expected >= set(documents)
    assert gr_vs_dr_remedies.backed_off(docids, written, 3).sum() == 9  # a whole docid is one document's


def test_prefixes_that_are_kept_have_the_best_first_tokens(retriever):
    """Of as many beams as there are first codes all documents are scored; of one those of the likeliest."""
    docids = retriever.docids
    tokens = [docids.sequence(*docids.rows_of(document)) for document in range(COUNT)]
    assert gr_vs_dr_remedies.under_prefixes(retriever, QUESTIONS, 4).all()
    one = gr_vs_dr_remedies.under_prefixes(retriever, QUESTIONS, 1)
    for row in one:
        firsts = {tokens[document][0] for document in np.flatnonzero(row)}
        assert len(firsts) == 1
        (first,) = firsts
        assert row.sum() == sum(its[0] == first for its in tokens)
    two = gr_vs_dr_remedies.under_prefixes(retriever, QUESTIONS, 2)
    assert (two >= one).all() and (two.sum(axis=1) > one.sum(axis=1)).all()


@pytest.fixture
def vectors(monkeypatch) -> np.ndarray:
    """Of documents, as wide as the network's, and others than those that the codes are of."""
    made = np.random.default_rng(0).standard_normal((COUNT, small_run.WIDTH)).astype(np.float32)
    monkeypatch.setattr(gr_vs_dr_codebook, "whole", lambda run: made)
    return made


def test_where_all_is_scored_it_is_exact_search(run, vectors):
    values = gr_vs_dr_remedies.of_codebook(run, "shallow prefix", 4)
    assert (values["found"], values["documents scored"]) == (1.0, COUNT)
    dataset = read_beir(run.source)
    queries, right = gr_vs_dr_remedies.asked(dataset)
    encoder = gr_vs_dr_codebook.trained(run)
    for rank in (1, 10):
        hits = 0
        for text, its in zip(queries.texts, right, strict=True):
            scores = encoder.encode([text], "query")[0] @ vectors.T
            hits += its[np.argsort(-scores, kind="stable")[:rank]].any()
        assert values[f"Success@{rank}"] == pytest.approx(hits / len(queries.texts))


@pytest.mark.usefixtures("vectors")
def test_stepping_back_finds_what_was_written_and_more(run):
    alone, back = (gr_vs_dr_remedies.of_codebook(run, remedy, 2) for remedy in ("writes", "backs off"))
    assert alone["documents scored"] == 2 < back["documents scored"]
    assert back["found"] >= alone["found"] == alone["Success@10"]
    with pytest.raises(InputError, match="no such remedy"):
        gr_vs_dr_remedies.of_codebook(run, "prays", 2)


@pytest.mark.slow
def test_gdr_scores_the_documents_of_its_clusters(tmp_path):
    """Where some are in two."""
    source = small_data.write_beir(tmp_path / "beir", count=COUNT)
    told = settings(joint=None, most_sentences=None, encoder_training=None)
    told["clusters"] = dataclasses.replace(told["clusters"], most_docids=2, margin=0.5)
    GDR(**told).run(source, tmp_path / "run", shared_dir=tmp_path / "shared", say=small_dsi.quiet)
    run = SmallRun("", "", "", root=str(tmp_path))
    retriever = gr_jax.load(run.folder / "index").retriever
    queries, right = gr_vs_dr_remedies.asked(read_beir(source))
    decoded, docids = retriever.decode(queries.texts), retriever.docids()
    names = {tuple(retriever.cids.sequence(row)): row for row in range(len(retriever.cids))}
    members = {names[tuple(docids.sequence(row))]: docids.documents_of(row).tolist() for row in range(len(docids))}
    assert sum(map(len, members.values())) > COUNT
    for chosen in (1, 3):
        values = gr_vs_dr_remedies.of_gdr(run, chosen)
        looked = [
            [one for cluster in row[:chosen] if cluster >= 0 for one in members[int(cluster)]]
            for row in decoded.clusters
        ]
        assert values["documents scored"] == pytest.approx(np.mean([len(one) for one in looked]))
        found = np.mean([its[one].any() for one, its in zip(looked, right, strict=True)])
        assert values["found"] == pytest.approx(found) and values["Success@10"] <= values["found"]


def test_documents_near_a_border_are_in_two_clusters():
    one, two = (run.configs()[0]["settings"] for run in gr_vs_dr_remedies.clusters().values())
    assert (one["clusters"]["most_docids"], two["clusters"]["most_docids"]) == (1, 2)
    assert one | {"clusters": two["clusters"]} == two
