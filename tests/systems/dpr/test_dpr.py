"""DPR and ANCE: what they make, make again, mine, hold out, and go on with after an interruption."""

import dataclasses
import json
import pathlib
import shutil
from typing import Any

import jax
import numpy as np
import pytest

import gr_jax
from gr_jax import evaluation, storage, systems
from gr_jax.corpus import Corpus, Dataset, Document, Qrels, Queries
from gr_jax.docids.pseudo_queries import PseudoQueries as MadeQueries
from gr_jax.errors import InputError
from gr_jax.models import network_folder
from gr_jax.retrievers import BM25, DenseEncoder, DenseRetriever, HybridRetriever
from gr_jax.stages import contrastive, hybrid, negatives, results
from gr_jax.stages import training as training_lib
from gr_jax.stages.pairs import HeldOut, training_queries
from gr_jax.systems import ContrastiveTraining, Mining, Search
from gr_jax.training.token_store import Ragged
from tests import small_data
from tests.small_dsi import Said, quiet
from tests.systems import one_setting, small_pairs

PARAMETERS = f"model/encoder/{network_folder.PARAMETERS_FILE}"
SHARED = ["corpus", "bm25", "pseudo_queries", "vocabulary", "pairs", "negatives"]
OWN = ["model", "embeddings", "pieces", "index", "hybrid", "results"]


def dpr(**changes: Any) -> systems.DPR:
    """ANCE, small enough for a test; changes are of its fields."""
    chosen = {
        "encoders": systems.Encoders(
            encoder="t5", vocabulary="byte", width=16, heads=2, mlp_width=16, layers=1, query_length=24,
            document_length=32,
        ),
        "pseudo_queries": systems.PseudoQueries(kinds={"title": 1, "sentence": 1}),
        "mining": Mining(shares={"ance": 0.5, "model": 0.25, "bm25": 0.25, "random": 0.0}, kept=4, refresh_every=6),
        "training": training(),
        "query_training": None,
    }  # fmt: skip
    return systems.DPR(**(chosen | changes))


def training(**changes: Any) -> ContrastiveTraining:
    chosen = {
        "steps": 18, "batch_size": 8, "warmup_steps": 2, "learning_rate": 3e-3, "evaluate_every": 6, "dev_queries": 8,
        "checkpoint_every": 3, "held_out": 0.1,
    }  # fmt: skip
    return ContrastiveTraining(**(chosen | changes))


def embeddings(model_dir: pathlib.Path, shared: pathlib.Path) -> pathlib.Path:
    """The folder of the vectors that a run's index is of, which runs share."""
    return shared / f"encoded-{storage.read_folder(model_dir / 'index').meta['inputs']['embeddings']}"


@dataclasses.dataclass(frozen=True)
class Finished:
    """A run, and what it said."""

    source: pathlib.Path
    model_dir: pathlib.Path
    searcher: Any
    said: Said


@pytest.fixture(scope="module")
def finished(beir, tmp_path_factory) -> Finished:
    model_dir = tmp_path_factory.mktemp("dense") / "runs" / "ance"
    said = Said()
    searcher = dpr(name="ANCE").run(beir, model_dir, say=said.append)
    return Finished(beir, model_dir, searcher, said)


def test_every_stage_is_made_once(finished):
    assert sorted(finished.said.made()) == sorted(SHARED + OWN) and finished.said.made()[-6:] == OWN
    said = Said()
    dpr(name="ANCE").run(finished.source, finished.model_dir, say=said.append)
    assert said.made() == []


def test_what_is_on_disk_is_what_was_returned(finished):
    queries = ["where is the red cat", "who saw a grey goat"]
    searcher = gr_jax.load(finished.model_dir / "index")
    assert isinstance(searcher.retriever, DenseRetriever)
    one, other = (s.retrieve(queries, 24) for s in (finished.searcher, searcher))
    np.testing.assert_array_equal(one.doc_index, other.doc_index)
    vectors = storage.load_array(embeddings(finished.model_dir, finished.model_dir.parent / "shared") / "vectors.npy")
    expected = searcher.retriever.encoder.encode(searcher.corpus.contents, "document")
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_the_model_says_how_often_negatives_were_mined(finished):
    meta = storage.read_folder(finished.model_dir / "model").meta
    assert meta["negatives made again"] == 1 and meta["last_step"] == 18  # mined at 6, used from 12 on
    assert meta["config"]["mining"]["refresh_every"] == 6
    (dev,) = meta["dev"]
    assert {"dev/RR@10", "dev_unseen/RR@10"} <= set(dev)


def test_results_have_bm25_and_the_combination_beside(finished):
    folder = finished.model_dir / "results"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert set(metrics["test"]) == {"BM25", "ANCE", "BM25 + ANCE"}
    compared = json.loads((folder / "comparisons.json").read_text())
    assert set(compared["test"]) == {"BM25", "ANCE"}
    combined = metrics["test"]["BM25 + ANCE"]["RR@10"]
    for system, found in compared["test"].items():
        assert found["difference"] == pytest.approx(combined - metrics["test"][system]["RR@10"])
    hybrid = gr_jax.load(finished.model_dir / "hybrid" / "index").retriever
    assert isinstance(hybrid, HybridRetriever) and list(hybrid.parts) == ["BM25", "ANCE"]
    choice = json.loads((finished.model_dir / "hybrid" / "weights.json").read_text())
    best = max(point["RR@10"] for point in choice["curve"])
    assert list(hybrid.weights) == choice["weights"] and hybrid.normalize == choice["normalize"]
    chosen = [p for p in choice["curve"] if (p["normalize"], p["weight"]) == (hybrid.normalize, hybrid.weights[1])]
    assert chosen[0]["RR@10"] == best
    first, second = choice["weights"]
    said = f"BM25 + ANCE: {hybrid.normalize} of each part's scores, weights {first:.2f} and {second:.2f}, chosen on dev"
    assert said in (folder / "report.md").read_text()


def test_an_interrupted_training_ends_with_the_same_bits(finished, tmp_path, monkeypatch):
    """Interrupted between a refresh and its first use: the table is mined again, or was there."""
    judged: list[int] = []
    judge = training_lib.DevEvaluation.__call__

    def interrupted(self, params, step):
        judged.append(step)
        if judged == [0, 6, 12]:
            raise KeyboardInterrupt
        return judge(self, params, step)

    monkeypatch.setattr(training_lib.DevEvaluation, "__call__", interrupted)
    run: dict[str, Any] = {"until": "model", "say": quiet, "shared_dir": finished.model_dir.parent / "shared"}
    with pytest.raises(KeyboardInterrupt):
        dpr().run(finished.source, tmp_path / "cut", **run)
    dpr().run(finished.source, tmp_path / "cut", **run)
    assert judged == [0, 6, 12, 12, 18]
    assert (tmp_path / "cut" / PARAMETERS).read_bytes() == (finished.model_dir / PARAMETERS).read_bytes()
    cut, whole = (storage.read_folder(folder / "model").meta for folder in (tmp_path / "cut", finished.model_dir))
    for name in ("negatives made again", "step", "dev"):
        assert cut[name] == whole[name]


@pytest.mark.slow
def test_the_side_of_queries_is_trained_alone(beir, finished, tmp_path):
    """Against whole documents, whatever the index has vectors of; documents and their vectors stay as they are."""
    asked = training(steps=4, batch_size=12, negatives=3, evaluate_every=2, keep_best=None)
    shared = {"shared_dir": finished.model_dir.parent / "shared"}
    first = {"mining": Mining(shares={"model": 0.5, "bm25": 0.5}, kept=4), "training": training(steps=4)}
    both = dpr(query_training=asked, **first)
    said, model_dir = Said(), tmp_path / "plain"
    both.run(beir, model_dir, until=systems.base.TRAINED, say=said.append, **shared)
    assert said.made()[-3:] == ["model", "embeddings", "query_model"]  # everything that trains, the second one too
    said = Said()
    searcher = both.run(beir, model_dir, say=said.append, **shared)
    assert said.made() == ["pieces", "index", "hybrid", "results"]
    before = DenseEncoder.load(model_dir / "model" / "encoder").params["query"]
    after = searcher.retriever.encoder.params
    leaves = [jax.tree.leaves(tree) for tree in (before, after["document"], after["query"])]
    assert all(np.array_equal(*pair) for pair in zip(leaves[0], leaves[1], strict=True))
    assert any(not np.array_equal(*pair) for pair in zip(leaves[0], leaves[2], strict=True))
    vectors = storage.load_array(embeddings(model_dir, shared["shared_dir"]) / "vectors.npy")
    expected = searcher.retriever.encoder.encode(searcher.corpus.contents, "document")
    np.testing.assert_allclose(vectors, expected, atol=1e-5)

    said, parts = Said(), tmp_path / "parts"
    for name in ("model", "query_model"):
        shutil.copytree(model_dir / name, parts / name)
    passages = dpr(query_training=asked, search=Search(most_sentences=2, hybrid=False), **first)
    passages.run(beir, parts, say=said.append, **shared)
    assert said.made() == ["passage_embeddings", "index", "results"]
    for changed in ({"held_out": 0.2}, {"seed": 5}):
        with pytest.raises(InputError, match="second training differs"):
            dpr(query_training=dataclasses.replace(asked, **changed), **first)


def frozen(**changes: Any) -> systems.DPR:
    """Documents that are read once, and all of them every query's negatives."""
    chosen = {
        "name": "frozen",
        "encoders": dataclasses.replace(small_pairs.ENCODERS, projection=12),
        "pseudo_queries": small_pairs.COMMON["pseudo_queries"],
        "mining": Mining(shares={"random": 1.0}),
        "training": small_pairs.training(steps=8, negatives=None, learning_rate=1e-2, seed=3),
        "query_training": None,
        "frozen_documents": True,
    }
    return systems.DPR(**(chosen | changes))


@pytest.mark.parametrize("shared", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_documents_that_are_read_once(beir, tmp_path, shared):
    encoders = dataclasses.replace(small_pairs.ENCODERS, projection=12, shared=shared)
    last = dataclasses.replace(frozen().training, keep_best=None)
    searcher = frozen(encoders=encoders, training=last).run(
        beir, tmp_path / "run", shared_dir=tmp_path / "shared", until="index", say=lambda _: None
    )
    encoder = searcher.retriever.encoder
    vectors = encoder.encode(searcher.corpus.contents, "document")  # each read again, whole
    questions = list(gr_jax.corpus.read_beir(beir).queries.texts[:5])
    asked = encoder.encode(questions, "query")
    found = searcher.retriever.retrieve(questions, len(vectors))
    expected = np.take_along_axis(asked @ vectors.T, found.doc_index, axis=1)
    np.testing.assert_allclose(found.score, expected, atol=1e-4)
    first = DenseEncoder.load(tmp_path / "run" / "frozen_encoder" / "encoder").params["query"]
    trained = encoder.params
    same = jax.tree.map(np.array_equal, first["encoder"], trained["document"]["encoder"])
    assert all(jax.tree.leaves(same))  # documents are read as before
    assert not all(jax.tree.leaves(jax.tree.map(np.array_equal, first["encoder"], trained["query"]["encoder"])))
    alike = jax.tree.map(np.array_equal, trained["query"]["projection"], trained["document"]["projection"])
    assert all(jax.tree.leaves(alike)) == shared


@pytest.mark.slow
def test_a_training_on_documents_that_are_read_once_is_interrupted(beir, tmp_path, monkeypatch):
    small_pairs.check_interrupted(frozen(), beir, tmp_path, monkeypatch)


def test_nothing_is_searched_for_where_every_query_has_all_documents():
    stages = one_setting.stages(frozen(mining=Mining(shares={"bm25": 1.0}, kept=4)))
    assert stages["negatives"].key == one_setting.stages(frozen(mining=Mining(shares={"random": 1.0})))["negatives"].key
    asked = dataclasses.replace(frozen().training, negatives=3)
    assert one_setting.stages(frozen(mining=Mining(), query_training=asked))["negatives"].key != stages["negatives"].key


def test_what_documents_that_are_read_once_cannot_have():
    for changes, says in (
        ({"frozen_documents": False}, "frozen_documents of DPR or ColBERT"),
        ({"training": None}, "no training"),
        ({"encoders": small_pairs.ENCODERS}, "no projection"),
        (
            {"mining": Mining(shares={"ance": 1.0}, refresh_every=2), "training": small_pairs.training(steps=8)},
            "read once",
        ),
    ):
        with pytest.raises(InputError, match=says):
            frozen(**changes)


def test_where_nothing_trains_nothing_is_mined(beir, finished, tmp_path):
    said = Said()
    untrained = dpr(training=None)
    shared = {"shared_dir": finished.model_dir.parent / "shared"}
    searcher = untrained.run(beir, tmp_path / "zero", until="index", say=said.append, **shared)
    assert said.made() == ["model", "embeddings", "pieces", "index"]
    assert searcher.search("a red cat", 3)


def test_settings_that_contradict_each_other():
    for mistaken in (
        lambda: dpr(training=training(steps=12)),  # no refreshed table would be used
        lambda: Mining(shares={"ance": 1.0}),
        lambda: Mining(shares={"bm25": 1.0}, refresh_every=6),
        lambda: Mining(shares={"bm42": 1.0}),
        lambda: systems.Encoders(similarity="euclidean"),
        lambda: systems.Encoders(temperature=0.0),
        lambda: training(rates={"document": 1.0}),
        lambda: training(held_out=1.0),
        lambda: Search(searcher="telepathy"),
    ):
        with pytest.raises(InputError):
            mistaken()


def test_what_is_missing_is_said_where_it_matters(tmp_path):
    source = small_data.write_beir(tmp_path / "mine", count=4, queries=False)
    for learnt, expected in ((training(), ["no training queries", "no dev split"]), (None, [])):
        said = Said()
        dpr(training=learnt).run(source, tmp_path / "run", until="vocabulary", say=said.append)
        notes = [line for line in said if line.startswith("! There")]
        assert len(notes) == len(expected) and all(part in note for part, note in zip(expected, notes, strict=True))


def test_one_query_is_compared_with_nothing():
    def measured(count):
        values = {f"q{n}": {"d": 1} for n in range(count)}
        return {name: evaluation.evaluate({q: [("d", 1.0)] for q in values}, values, "RR@10") for name in "AB"}

    compared = hybrid.compare_with_parts({"test": measured(1), "other": measured(2)}, "A")
    assert list(compared) == ["other"] and list(compared["other"]) == ["B"]


def test_curves_are_drawn_where_there_is_something_to_draw(tmp_path):
    added = []

    class Report:
        def add_training(self, name, curves):
            added.append(name)

    for name, lines in (("none", ""), ("looked", '{"step": 2}\n'), ("learnt", '{"step": 2}\n{"step": 4, "loss": 1}\n')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(lines)
        results.add_training(Report(), name, tmp_path / name)
    assert added == ["learnt"]


def dataset(count: int = 20) -> Dataset:
    documents = [Document(f"d{n}", f"title {n}", f"word{n} word{n + 1} common") for n in range(count)]
    ids = tuple(f"q{n}" for n in range(2 * count))
    texts = tuple(f"word{n % count}" for n in range(2 * count))
    train = {f"q{n}": {f"d{n % count}": 1, f"d{(n + 1) % count}": 0} for n in range(2 * count)}
    train["q0"] = {"d0": 1, "d19": 2}
    return Dataset(Corpus.from_documents(documents), Queries(ids, texts), {"train": Qrels(train)})


def no_queries() -> MadeQueries:
    return MadeQueries(["made up", "of thin air"], np.array([3, 4], np.int32), np.zeros(2, np.int8), ("title",))


def test_held_out_documents_lose_all_their_questions():
    about = dataset()
    everything = training_queries(about, no_queries(), HeldOut.of(None, 0))
    assert not everything.held_out and len(everything.texts) == 43
    assert everything.documents[:2] == [[0, 19], [19, 0]]  # once for each answer, which comes first
    asked = training_queries(about, no_queries(), HeldOut.of(0.25, 0))
    gone = {document for n in asked.held_out for document in [int(n[1:]) % 20] + [19] * (n == "q0")}
    left = {d for found, source in zip(asked.documents, asked.sources, strict=True) if source == "query" for d in found}
    assert 5 <= len(gone) <= 6 and not gone & left - {19}
    assert asked.sources[-2:] == ["pseudo", "pseudo"] and list(asked.documents[-2:]) == [[3], [4]]
    assert asked.held_out == training_queries(about, no_queries(), HeldOut.of(0.25, 0)).held_out
    assert asked.held_out != training_queries(about, no_queries(), HeldOut.of(0.25, 1)).held_out


def test_mined_negatives_are_the_rankings_without_the_answers():
    about = dataset()
    asked = training_queries(about, no_queries(), HeldOut.of(None, 0))
    offsets = np.cumsum([0, *map(len, asked.documents)])
    relevant = Ragged(np.array([d for found in asked.documents for d in found], np.int32), offsets)
    bm25 = BM25(about.corpus)
    table = negatives.mine(bm25, asked.texts, relevant, 3, 0, "BM25's").documents
    for row, text in enumerate(asked.texts):
        ranking = [d for d in bm25.retrieve([text], 20).doc_index[0].tolist() if d >= 0]
        expected = [d for d in ranking if d not in asked.documents[row]][:3]
        assert table[row].tolist() == expected + [-1] * (3 - len(expected))


def test_dev_searches_its_answers_and_a_sample_of_the_rest():
    about = dataset()
    judged = {"dev": {"q1": {"d1": 1}, "q2": {"d2": 1}}, "dev_unseen": {"q7": {"d7": 1}}}
    some = contrastive.searched(about, judged, training(dev_documents=8))
    assert len(some) == 8 and {"d1", "d2", "d7"} <= set(some.doc_ids)
    assert list(some.doc_ids) == list(contrastive.searched(about, judged, training(dev_documents=8)).doc_ids)
    assert contrastive.searched(about, judged, training(dev_documents=None)) is about.corpus
    assert len(contrastive.searched(about, judged, training(dev_documents=2))) == 3
