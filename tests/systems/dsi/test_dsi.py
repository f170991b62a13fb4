"""The whole of DSI: what it learns, makes, makes again, and says."""

import json
import pathlib
import shutil

import numpy as np
import pytest

import gr_jax
from gr_jax import corpus, retrievers, storage, systems
from gr_jax.errors import InputError
from gr_jax.training.token_store import TokenStore
from tests import small_data
from tests.small_dsi import Said, dsi, training
from tests.systems.configured import read_back

STAGES = [
    "corpus",
    "bm25",
    "vectors",
    "docids",
    "vocabulary",
    "pseudo_queries",
    "examples",
    "model",
    "index",
    "hybrid",
    "results",
]
# What training and the index need, in the order in which it is made.
TRAINED = ["corpus", "vectors", "docids", "vocabulary", "pseudo_queries", "examples", "model"]


def run(source: pathlib.Path, model_dir: pathlib.Path, *, until: str = "index", **changes) -> Said:
    """What a run of two steps says."""
    said = Said()
    kept = {name: changes.pop(name) for name in ("shared_dir",) if name in changes}
    short = {"training": training(steps=2, checkpoint_every=None)}
    dsi(**{**short, **changes}).run(source, model_dir, until=until, say=said.append, **kept)
    return said


def test_64_documents_are_learnt_by_heart(memorised):
    """The overfitting check: Hits@1 = 1.0 on the training queries."""
    dataset = corpus.read_beir(memorised.corpus)
    qrels = dataset.split("train")
    run = retrievers.retrieve_run(memorised.searcher.retriever, dataset.split_queries("train"), dataset.corpus, k=1)
    wrong = {query_id: hits for query_id, hits in run.items() if hits[0][0] not in qrels[query_id]}
    assert len(run) == 64 and not wrong


def test_what_is_on_disk_is_what_was_returned(memorised):
    queries = ["who saw a red cat", "where is the grey goat", "an owl"]
    one, other = (
        searcher.retrieve(queries, 10) for searcher in (memorised.searcher, gr_jax.load(memorised.model_dir / "index"))
    )
    np.testing.assert_array_equal(one.doc_index, other.doc_index)
    np.testing.assert_array_equal(one.score, other.score)


def test_a_finished_run_is_not_made_again(memorised):
    manifests = {file: file.stat().st_mtime_ns for file in memorised.model_dir.parent.rglob("manifest.json")}
    said = Said()
    memorised.system.run(memorised.corpus, memorised.model_dir, say=said.append)
    assert said.made() == [] and sum("already made" in line for line in said) == len(STAGES)
    assert {file: file.stat().st_mtime_ns for file in manifests} == manifests


def test_every_artefact_carries_the_corpus_and_its_settings(memorised):
    fingerprint = corpus.read_beir(memorised.corpus).corpus.fingerprint
    shared = memorised.model_dir.parent / "shared"
    folders = [*shared.glob("*-*"), *(memorised.model_dir / name for name in ("model", "index", "hybrid", "results"))]
    assert len(folders) == len(STAGES)
    for folder in folders:
        manifest = storage.read_folder(folder)
        if manifest.kind != "corpus":
            assert manifest.corpus == fingerprint
        assert manifest.meta["version"] >= 1 and "config" in manifest.meta
        assert systems.configuration.MODULE in manifest.gin and "training/Training.steps = 150" in manifest.gin
    model = storage.read_folder(memorised.model_dir / "model").meta["config"]
    assert model["settings"]["learning_rate"] == 3e-3 and model["network"]["width"] == 48
    assert (memorised.model_dir / "config.gin").read_text() == manifest.gin


@pytest.mark.slow
def test_stages_that_do_not_differ_are_shared_by_two_runs(beir, tmp_path):
    first = run(beir, tmp_path / "one")
    assert first.made() == [*TRAINED, "index"]
    second = run(beir, tmp_path / "two", training=training(steps=2, seed=1))
    assert second.made() == ["model", "index"]
    third = run(beir, tmp_path / "three", identifiers=systems.Identifiers(branching=3), until="examples")
    assert third.made() == ["docids", "examples"]
    assert len(list((tmp_path / "shared").glob("corpus-*"))) == 1
    elsewhere = run(beir, tmp_path / "four", shared_dir=tmp_path / "elsewhere", until="vectors")
    assert elsewhere.made() == ["corpus", "vectors"] and len(list((tmp_path / "elsewhere").glob("*-*"))) == 2


@pytest.mark.slow
def test_what_was_changed_is_named_and_what_follows_is_made_again(beir, tmp_path):
    source = pathlib.Path(shutil.copytree(beir, tmp_path / "mine"))
    model_dir = tmp_path / "runs" / "mine"
    run(source, model_dir, training=training(steps=1, learning_rate=0.001))

    faster = {"training": training(steps=1, learning_rate=0.002)}
    said = run(source, model_dir, **faster)
    assert said.made() == ["model", "index"]
    assert said.why("model") == "! model: settings.learning_rate: 0.001 → 0.002. It is made again."
    assert said.why("index") == "! index: model was made anew. It is made again."

    wider = {**faster, "decoding": systems.Decoding(beams=12)}
    said = run(source, model_dir, **wider)
    assert said.made() == ["model", "index"]  # few beams are those of dev too
    assert said.why("index").startswith("! index: decoding.beams: 10 → 12; ")

    longer = {**wider, "decoding": systems.Decoding(beams=12, max_query_length=32)}
    said = run(source, model_dir, **longer)
    assert said.made() == ["index"]  # what is read at search time trains nothing again

    fewer = {**longer, "pseudo_queries": systems.PseudoQueries(kinds={"title": 1})}
    said = run(source, model_dir, **fewer)
    assert said.made() == ["pseudo_queries", "examples", "model", "index"]
    assert "pseudo_queries.settings.kinds.sentence: 1 → None" in said.why("model")

    with open(source / "corpus.jsonl", "a") as file:
        file.write('{"_id": "new", "title": "purple yak", "text": "There is a purple yak on the roof."}\n')
    said = run(source, model_dir, **fewer)
    assert said.made() == [name for name in [*TRAINED, "index"] if name != "vocabulary"]  # bytes are of no documents
    assert "corpus.source.beir.corpus.jsonl: " in said.why("model")
    assert len(gr_jax.load(model_dir / "index").corpus) == 25


@pytest.mark.slow
def test_damage_to_a_shared_folder_is_noticed(beir, tmp_path):
    """A flipped bit in the vectors would otherwise be used by whatever is made next."""
    run(beir, tmp_path / "mine")
    (vectors,) = (tmp_path / "shared").glob("vectors-*/vectors.npy")
    data = vectors.read_bytes()
    vectors.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    said = run(beir, tmp_path / "mine", identifiers=systems.Identifiers(seed=1))
    assert said.made() == ["vectors", "docids", "examples", "model", "index"]
    assert str(vectors) in said.why("vectors") and vectors.read_bytes() == data


def test_a_folder_of_somebody_else_is_refused_before_the_work(beir, tmp_path):
    theirs = tmp_path / "mine" / "index"
    theirs.mkdir(parents=True)
    (theirs / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match=str(theirs)):
        run(beir, tmp_path / "mine")
    assert not list(tmp_path.glob("shared/docids-*")) and (theirs / "thesis.txt").read_text() == "years of work"


def test_until(beir, tmp_path):
    """Makes what the stage reads, and nothing else."""
    assert run(beir, tmp_path / "mine", until="docids").made() == ["corpus", "vectors", "docids"]
    assert run(beir, tmp_path / "mine", until="corpus").made() == []
    assert run(beir, tmp_path / "mine", until="bm25").made() == ["bm25"]
    assert run(beir, tmp_path / "mine", until="vocabulary").made() == ["vocabulary"]
    with pytest.raises(InputError, match="no such stage.*'modle'.*Name one of: corpus, bm25, vectors"):
        run(beir, tmp_path / "mine", until="modle")
    assert run(beir, tmp_path / "mine", until=systems.base.TRAINED).made() == ["pseudo_queries", "examples", "model"]
    assert not (tmp_path / "mine" / "index").exists()


@pytest.mark.slow
def test_an_index_of_an_earlier_model_is_said_to_be_one(beir, tmp_path):
    """`gr-jax train` with other settings leaves it as it is."""
    run(beir, tmp_path / "mine")
    said = run(beir, tmp_path / "mine", until="model", training=training(steps=2, seed=3))
    assert said.made() == ["model"] and "earlier run" in said.why("index")
    assert run(beir, tmp_path / "mine", training=training(steps=2, seed=3)).made() == ["index"]


def test_what_is_not_trained_needs_no_examples(beir, tmp_path):
    said = run(beir, tmp_path / "mine", training=None)
    assert said.made() == ["corpus", "vectors", "docids", "vocabulary", "model", "index"]
    assert (tmp_path / "mine" / "model" / "metrics.jsonl").read_text() == ""
    assert not list((tmp_path / "mine").glob("work/*/checkpoints"))
    assert len(gr_jax.load(tmp_path / "mine" / "index").retriever.docids) == 24


def test_without_queries_it_trains_on_what_it_makes_and_says_so(tmp_path):
    source = small_data.write_beir(tmp_path / "mine", count=12, queries=False)
    said = run(source, tmp_path / "run", until="examples")
    assert any("pseudo-queries alone" in line for line in said)
    assert any("no dev split" in line for line in said)
    (tokens,) = (tmp_path / "shared").glob("examples-*/tokens")
    counts = TokenStore.load(tokens).counts()
    assert counts.get("query", 0) == 0 and counts["pseudo"] > 0 and counts["document"] == 12


def test_with_all_splits_nothing_is_missing(beir, tmp_path):
    said = run(beir, tmp_path / "mine", until="corpus")
    assert not any(line.startswith("! ") for line in said)
    assert "mine: 24 documents" in said[1] and "train 24, dev 12, test 12" in said[1]


def test_rates_that_find_no_examples(tmp_path):
    source = small_data.write_beir(tmp_path / "mine", count=12, queries=False)
    with pytest.raises(InputError, match="rate"):
        run(source, tmp_path / "run", training=training(steps=2, rates={"query": 1.0}))
    assert not (tmp_path / "run" / "model").exists()


def test_docids_without_levels(beir, tmp_path):
    numeric = systems.Identifiers(scheme="naive_numeric")
    with pytest.raises(InputError, match="naive_numeric"):
        run(beir, tmp_path / "mine", identifiers=numeric)
    assert not (tmp_path / "shared").exists()
    run(
        beir, tmp_path / "mine",
        identifiers=numeric, training=None, decoding=systems.Decoding(normalize="vocabulary"),
    )  # fmt: skip
    hits = gr_jax.load(tmp_path / "mine" / "index").search("a red cat", k=24)
    assert sorted(int(hit.docid.replace("-", "")) for hit in hits) == sorted(
        int("".join(str(int(digit) + 2) for digit in str(number))) for number in range(24)
    )


@pytest.mark.slow  # a document of several docids is found by the best in tests/retrievers/test_generative.py
def test_a_docid_for_every_sentence(beir, tmp_path):
    """Each document is found once, by the best of its docids."""
    passages = systems.Vectors(encoder="lsa", passages="sentences")
    run(beir, tmp_path / "mine", vectors=passages, decoding=systems.Decoding(beams=72), training=None)
    searcher = gr_jax.load(tmp_path / "mine" / "index")
    docids = searcher.retriever.docids
    assert (len(docids), docids.num_documents) == (72, 24)
    ranking = searcher.retrieve(["a red cat", "under the bridge"], 24, explain=True)
    assert all(sorted(row) == list(range(24)) for row in ranking.doc_index.tolist())
    assert all(len(reasons) == 3 for evidence in ranking.evidence for reasons in evidence)


def test_the_written_configuration_is_the_system_that_ran(memorised):
    assert read_back((memorised.model_dir / "config.gin").read_text()) == memorised.system
    metrics = json.loads((memorised.model_dir / "results" / "metrics.json").read_text())
    assert set(metrics["test"]) == {"BM25", "DSI", "BM25 + DSI"}
