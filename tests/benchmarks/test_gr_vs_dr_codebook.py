"""What exact search over quantised vectors reaches, against a loop over codewords, on a run of a small DSI."""

import shutil

import numpy as np
import pytest

from benchmarks import gr_vs_dr_codebook, pooled
from gr_jax.corpus import read_beir
from gr_jax.errors import InputError
from gr_jax.models import network_folder
from gr_jax.stages.docids import load_codebooks, load_docids, load_quantised
from gr_jax.stages.vectors import load_vectors
from tests.benchmarks import small_run
from tests.benchmarks.small_run import SmallRun


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> SmallRun:
    return small_run.of_codebooks(tmp_path_factory)


def test_quantised_vectors_are_sums_of_codewords(run):
    folder = run.input_folder("model", "docids")
    books, docids, found = load_codebooks(folder), load_docids(folder), load_quantised(folder)
    for document in range(24):
        tokens = docids.sequence(*docids.rows_of(document))
        total = sum(books[level][tokens[level] - docids.levels[level][0]] for level in range(2))
        np.testing.assert_allclose(found[document], total, rtol=1e-6)
    vectors = load_vectors(run.input_folder("model", "vectors"))
    error = ((found - vectors) ** 2).sum(axis=1).mean()
    assert error == pytest.approx(docids.meta["reconstruction_error"], rel=1e-5)


def test_exact_search_is_a_loop_over_documents(run):
    """By the vectors of questions that the trained network reads."""
    vectors = np.random.default_rng(0).standard_normal((24, small_run.WIDTH)).astype(np.float32)
    encoder, dataset = gr_vs_dr_codebook.trained(run), read_beir(run.source)
    values = gr_vs_dr_codebook.ceiling(run, "test", gr_vs_dr_codebook.trained, lambda _: vectors)
    asked, qrels = dataset.split_queries("test"), dataset.split("test")
    right = {1: 0, 10: 0}
    for one, question in zip(asked.ids, asked.texts, strict=True):
        query = encoder.encode([question], "query")[0]
        assert np.linalg.norm(query) == pytest.approx(1.0, abs=1e-4)
        ranked = sorted(range(24), key=lambda place: -float(query @ vectors[place]))
        names = [dataset.corpus.doc_ids[place] for place in ranked]
        for k in right:
            right[k] += any(qrels[one].get(name, 0) > 0 for name in names[:k])
    for k, count in right.items():
        assert values[f"Success@{k}"] == pytest.approx(count / len(asked))


def test_docids_without_codes(run, tmp_path):
    with pytest.raises(InputError, match="no codebooks"):
        load_codebooks(tmp_path)


def test_tables_start_at_random_where_the_study_says_so():
    started, random = (gr_vs_dr_codebook.runs("squad_dev", *flags)[0] for flags in ((), gr_vs_dr_codebook.RANDOM))
    one, other = (made.configs()[0]["settings"] for made in (started, random))
    assert (one["network"]["outputs"], other["network"]["outputs"]) == ("centroid", "random")
    assert one | {"network": other["network"]} == other
    assert (one["identifiers"]["codebooks"], one["identifiers"]["bits"]) == (6, 8)


def test_a_writer_keeps_the_codewords_that_it_starts_from(run):
    """What is trained is the encoder of questions."""
    folder = run.input_folder("model", "docids")
    books, docids = load_codebooks(folder), load_docids(folder)
    table = network_folder.load_network(run.folder / "model")[1]["decoder"]["logits_dense"]["kernel"].T
    for (start, size), book in zip(docids.levels, books, strict=False):
        np.testing.assert_allclose(table[start : start + size], book / small_run.TEMPERATURE, atol=1e-5)


def test_an_index_answers_what_its_report_says(run, tmp_path):
    """And is asked once: not where there is a report of it, and never again where there is none."""
    run = SmallRun("", "", "", root=str(shutil.copytree(run.root, tmp_path / "own")))  # what is changed is not shared
    reported = run.evaluation("test", "DSI", ["Success@1", "RR@10"])
    for report in (True, False):
        found = pooled.of_indices([run], ["test"], ["Success@1", "RR@10"])
        assert found.query_ids == reported.query_ids
        for name, values in reported.per_query.items():
            np.testing.assert_array_equal(found.per_query[name], values)
        assert (run.folder / "answers").exists() is not report
        if report:
            (run.folder / "results").rename(run.folder / "taken_away")
    (answers,) = (run.folder / "answers").iterdir()
    answers.write_text("".join(line for line in answers.read_text().splitlines(keepends=True) if " 1 " not in line))
    assert pooled.of_indices([run], ["test"], ["Success@1"])["Success@1"] != found["Success@1"]
