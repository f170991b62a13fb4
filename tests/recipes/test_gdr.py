"""Recipes of GDR and NCI: what they make, share, make again, choose, and how the second training goes on."""

import dataclasses
import json
import pathlib
import shutil
import threading
from typing import Any

import numpy as np
import pytest

import gr_jax
from gr_jax import docids as docids_lib
from gr_jax import recipes, storage
from gr_jax.docids.pseudo_queries import PseudoQueries
from gr_jax.errors import InputError
from gr_jax.models import network_folder
from gr_jax.recipes import clusters as clusters_lib
from gr_jax.recipes import document_encoder, documents, gdr_learning, learning, mining, pair_training, results
from gr_jax.retrievers import GDRRetriever
from gr_jax.training import checkpoints
from gr_jax.training.negatives import Negatives
from gr_jax.training.shared_answers import share_answers
from gr_jax.training.token_store import TokenStore
from tests.recipes.conftest import network
from tests.recipes.test_dsi import Said

ENCODERS = recipes.Encoders(
    encoder="t5", vocabulary="byte", width=16, heads=2, mlp_width=16, layers=1, query_length=24, document_length=32
)
SHARED = ["corpus", "vocabulary", "bm25", "pseudo_queries", "pairs", "negatives", "document_encoder", "vectors"]


def training(**changes: Any) -> recipes.ContrastiveTraining:
    chosen = {
        "steps": 4, "batch_size": 8, "negatives": 2, "warmup_steps": 0, "learning_rate": 1e-2, "evaluate_every": 2,
        "dev_queries": 8, "checkpoint_every": 2, "seed": 1,
    }  # fmt: skip
    return recipes.ContrastiveTraining(**(chosen | changes))


def settings(**changes: Any) -> dict[str, Any]:
    """Arguments of `recipes.gdr` besides the folders: both trainings, a vector a sentence, small enough for a test."""
    chosen = {
        "encoders": ENCODERS,
        "encoder_training": training(steps=2, document_length=12),
        "encoder_mined": recipes.Mining(shares={"bm25": 1.0}, kept=2),
        "pseudo_queries": recipes.PseudoQueries(kinds={"title": 1, "sentence": 1}),
        "clusters": recipes.Clusters(budget=6),
        "network": network(outputs="centroid", query_residual=True),
        "matching": recipes.Matching(alpha=2.0),
        "mined": recipes.Mining(shares={"cluster": 0.5, "model": 0.5, "random": 0.0}, kept=4),
        "training": training(document_length=12),
        "joint": training(steps=2, keep_best="", dev_documents=20, document_length=12),
        "search": recipes.ClusterSearch(beams=6, betas=(0.1, 0.0), chosen=(1, 3, 6), most_share=1.0),
        "most_sentences": 2,
        "say": lambda line: None,
    }
    return chosen | changes


@dataclasses.dataclass(frozen=True)
class Finished:
    """A run, and what it said."""

    source: pathlib.Path
    model_dir: pathlib.Path
    searcher: Any
    said: Said

    @property
    def shared(self) -> pathlib.Path:
        return self.model_dir.parent / "shared"


@pytest.fixture(scope="module")
def finished(beir, tmp_path_factory) -> Finished:
    model_dir = tmp_path_factory.mktemp("gdr") / "runs" / "gdr"
    said = Said()
    searcher = recipes.gdr(beir, model_dir, **settings(say=said.append))
    return Finished(beir, model_dir, searcher, said)


def test_every_stage_is_made_once(finished):
    made = finished.said.made()
    own = [
        "clusters",
        "pairs",
        "negatives",
        "model",
        "joint_model",
        "passage_vectors",
        "index",
        "results",
    ]
    assert [name for name in made if name not in SHARED] == [name for name in own if name not in SHARED]
    assert len(made) == len(set(made)) + 1  # negatives of the document encoder, and GDR's; pairs are the same
    said = Said()
    recipes.gdr(finished.source, finished.model_dir, **settings(say=said.append))
    assert said.made() == []


def test_what_is_on_disk_is_what_was_returned(finished):
    queries = ["where is the red cat", "who saw a grey goat"]
    searcher = gr_jax.load(finished.model_dir / "index")
    assert isinstance(searcher.retriever, GDRRetriever)
    one, other = (s.retrieve(queries, 24) for s in (finished.searcher, searcher))
    np.testing.assert_array_equal(one.doc_index, other.doc_index)


def test_the_index_has_the_best_point_of_dev(finished):
    choice = json.loads((finished.model_dir / "index" / "choice.json").read_text())
    assert len(choice["table"]) == 6
    best = max(point["RR@10"] for point in choice["table"])
    retriever = gr_jax.load(finished.model_dir / "index").retriever
    assert (retriever.beta, retriever.chosen) == (choice["beta"], choice["chosen"])
    chosen = [p for p in choice["table"] if (p["beta"], p["chosen"]) == (retriever.beta, retriever.chosen)]
    assert chosen[0]["RR@10"] == best


def test_without_a_dev_split_what_is_held_out_stands_for_it(finished, tmp_path):
    shutil.copytree(finished.source, tmp_path / "mine")
    (tmp_path / "mine" / "qrels" / "dev.tsv").unlink()
    search = recipes.ClusterSearch(beams=6, betas=(0.1, 0.0), chosen=(1, 6), most_share=0.5)
    told = settings(
        encoder_training=training(steps=0), training=training(held_out=0.3), joint=training(steps=0), most_sentences=0,
        search=search, until="index",
    )  # fmt: skip
    searcher = recipes.gdr(tmp_path / "mine", tmp_path / "run", **told)
    model = storage.read_folder(tmp_path / "run" / "model").meta
    pairs = tmp_path / "shared" / f"pairs-{model['inputs']['pairs']}" / "held_out.json"
    assert json.loads(pairs.read_text()) and 0 <= model["dev"][-1]["dev/RR@10"] <= 1
    assert (searcher.retriever.beta, searcher.retriever.chosen) == (0.1, 3)  # as training looks at it
    choice = json.loads((tmp_path / "run" / "index" / "choice.json").read_text())
    assert not choice["table"] and choice["chosen"] == 3


def test_negatives_of_the_cluster_are_of_the_clusters_that_are_written(finished):
    folders = [path for path in finished.shared.glob("negatives-*") if (path / "cluster").exists()]
    cids = clusters_lib.load_clusters(next(finished.shared.glob("clusters-*")))
    cluster_of = docids_lib.memberships(cids)[:, 0]
    table = Negatives.load(folders[0] / "cluster").documents
    rows = np.flatnonzero((table >= 0).any(axis=1))
    assert len(rows)
    pairs = [TokenStore.load(path / "queries") for path in finished.shared.glob("pairs-*")]
    (targets,) = (store.targets for store in pairs if len(store) == len(table))
    for row in rows:
        assert {cluster_of[document] for document in table[row] if document >= 0} == {cluster_of[targets[row][0]]}


def test_the_second_training_moves_documents_and_their_vectors_are_made_anew(finished):
    first = documents.load_vectors(next(finished.shared.glob("vectors-*")))
    searcher = gr_jax.load(finished.model_dir / "index")
    encoder, owner = searcher.retriever.document_encoder, searcher.retriever._owner
    whole = np.unique(owner, return_index=True)[1]
    passages = documents.load_vectors(finished.model_dir / "passage_vectors")
    expected = encoder.encode(searcher.corpus.contents, "document")
    np.testing.assert_allclose(passages[whole], expected, atol=1e-4)
    assert first.shape == expected.shape and not np.allclose(first, expected, atol=1e-4)
    before, after = (network_folder.load_network(finished.model_dir / name)[1] for name in ("model", "joint_model"))
    assert set(before) == set(after)  # the documents' parameters are not the network's


def test_the_second_training_looks_at_dev_among_some_documents(finished):
    """As a retriever of all of them would find, were these alone allowed."""
    folder, told = finished.model_dir / "joint_model", settings()
    measured = storage.read_folder(folder, "joint_model").meta["dev"][-1]
    dataset = gr_jax.corpus.read_beir(finished.source)
    module, params = network_folder.load_network(folder)
    encoder = document_encoder.load_encoder(folder)
    retriever = gdr_learning.make_retriever(
        module, params, gr_jax.load(finished.model_dir / "index").retriever.vocabulary,
        clusters_lib.load_clusters(next(finished.shared.glob("clusters-*"))),
        encoder.reading(document_length=12).encode(dataset.corpus.contents, "document"), None, encoder,
        dataset.transform, told["encoders"], told["matching"], told["search"],
    )  # fmt: skip
    asked = learning.sample_queries(dataset.split("dev"), 8)
    some = pair_training.searched(dataset, {"dev": dataset.split("dev")}, told["joint"])
    assert len(some) == 20
    allowed = np.isin(dataset.corpus.doc_ids, some.doc_ids)
    queries = dataset.queries.select(list(asked))
    ranking = retriever.retrieve(queries.texts, 10, allowed=allowed)
    run = gr_jax.retrievers.ranking_to_run(ranking, queries.ids, dataset.corpus)
    expected = gr_jax.evaluation.evaluate(run, asked, ("RR@10", "Success@1"))
    assert {name: measured[f"dev/{name}"] for name in expected} == pytest.approx(dict(expected), abs=1e-6)


def test_results_have_bm25_and_the_vectors_alone_beside(finished):
    metrics = json.loads((finished.model_dir / "results" / "metrics.json").read_text())
    assert set(metrics["test"]) == {"BM25", "GDR, vectors alone", "GDR"}
    report = (finished.model_dir / "results" / "report.md").read_text()
    assert "trie over 6 clusters" in report


def test_what_is_said_of_clusters_is_what_a_brute_force_finds(finished, tmp_path, monkeypatch):
    """Of rankings of 5: 100 hold all of these documents. Two of six clusters are looked into, so that both matter."""
    monkeypatch.setattr(results, "DEPTH", 5)
    shutil.copytree(finished.model_dir, tmp_path / "run")
    said = Said()
    search = dataclasses.replace(settings()["search"], betas=(0.1,), chosen=(2,), measure="R@100")
    told = settings(search=search, say=said.append)
    recipes.gdr(finished.source, tmp_path / "run", shared_dir=finished.shared, **told)
    assert said.made() == ["index", "results"]
    written = json.loads((tmp_path / "run" / "results" / "clusters.json").read_text())["test"]
    metrics = json.loads((tmp_path / "run" / "results" / "metrics.json").read_text())["test"]
    dataset, retriever = gr_jax.corpus.read_beir(finished.source), gr_jax.load(tmp_path / "run" / "index").retriever
    queries, qrels = dataset.split_queries("test"), dataset.split("test")
    answers = np.array([[dataset.corpus.index_of(doc_id) for doc_id in qrels[name]] for name in queries.ids])[:, 0]
    folder = tmp_path / "run" / "passage_vectors"
    vectors, owner = documents.load_vectors(folder), documents.load_owner(folder)
    cids = clusters_lib.load_clusters(next(finished.shared.glob("clusters-*")))
    cluster_of = docids_lib.memberships(cids)[:, 0]

    decoded = retriever.decode(queries.texts)
    assert (np.sort(decoded.clusters) == np.arange(len(cids))).all()  # all are in the beam
    weights = np.take_along_axis(decoded.weights, np.argsort(decoded.clusters), axis=1)
    looked_into = np.array([np.isin(cluster_of, row[:2]) for row in decoded.clusters])
    scores = decoded.vectors.astype(np.float64) @ vectors.T + retriever.beta * weights[:, cluster_of[owner]]
    best = np.array([np.maximum.reduceat(row, np.unique(owner, return_index=True)[1]) for row in scores])

    def recall(scores):
        ranked = np.argsort(-scores, axis=1, kind="stable")
        return (ranked[:, :5] == answers[:, None]).any(axis=1).mean()

    expected = {
        "share_scored": looked_into[:, owner].mean(),
        "answer_in_chosen": looked_into[np.arange(len(queries)), answers].mean(),
        "R@100": recall(np.where(looked_into, best, -np.inf)),
        "R@100, all scored": recall(best),
    }
    assert written == pytest.approx(expected)
    assert written["R@100"] == metrics["GDR"]["R@100"]


def test_an_encoder_that_dpr_trained_is_taken_and_nothing_is_trained_twice(finished, tmp_path):
    trained = tmp_path / "runs" / "dpr"
    recipes.dpr(
        finished.source, trained, encoders=ENCODERS, training=training(steps=2, evaluate_every=0, dev_queries=0),
        query_training=training(steps=2, evaluate_every=0, dev_queries=0),
        mined=recipes.Mining(shares={"bm25": 1.0}, kept=2), say=lambda line: None, until="query_model",
    )  # fmt: skip
    said = Said()
    untrained = {"training": training(steps=0), "joint": training(steps=0), "most_sentences": 0}
    recipes.gdr(finished.source, tmp_path / "runs" / "gdr", **settings(trained=trained, say=said.append, **untrained))
    assert "pairs" not in said.made() and "negatives" not in said.made()
    copied = (
        next((tmp_path / "runs" / "shared").glob("document_encoder-*")) / "encoder" / network_folder.PARAMETERS_FILE
    )
    assert copied.read_bytes() == (trained / "query_model" / "encoder" / network_folder.PARAMETERS_FILE).read_bytes()
    with pytest.raises(InputError, match="Set Encoders.pooling = \"mean\"|Set Encoders.pooling = 'mean'"):
        other = dataclasses.replace(ENCODERS, pooling="cls")
        recipes.gdr(
            finished.source, tmp_path / "runs" / "other", **settings(trained=trained, encoders=other, **untrained)
        )
    with pytest.raises(InputError):
        recipes.gdr(finished.source, tmp_path / "runs" / "none", **settings(trained=tmp_path / "nowhere"))
    with pytest.raises(InputError, match="its held_out was 0.0"):
        other = training(held_out=0.2)
        recipes.gdr(finished.source, tmp_path / "runs" / "held", **settings(trained=trained, training=other))


def test_negatives_mined_by_the_model_are_refreshed(finished, tmp_path):
    mined = recipes.Mining(shares={"ance": 1.0, "cluster": 0.0}, kept=4, refresh_every=2)
    model_dir = finished.model_dir.with_name("refreshed")
    told = settings(
        mined=mined, training=training(steps=6, learning_rate=0.0), joint=training(steps=0), most_sentences=0
    )
    recipes.gdr(finished.source, model_dir, until="model", **told)
    model = storage.read_folder(model_dir / "model")
    assert model.meta["refreshes"] == 1  # mined at 2, used from 4 on
    # At a rate of 0 the parameters of step 2 are the last ones: of what is drawn then, the best that answer nothing.
    last = checkpoints.path_of(model_dir / "work" / f"model-{model.made_from}" / "checkpoints", 6)
    table = checkpoints.load_hooks(last)[1]["negatives/made/2/documents"]
    searcher = recipes.gdr(finished.source, model_dir, until="index", **told)
    pairs = finished.shared / f"pairs-{model.meta['inputs']['pairs']}"
    targets = share_answers(TokenStore.load(pairs / "queries")).targets
    dataset = gr_jax.corpus.read_beir(finished.source)
    made = PseudoQueries.load(
        finished.shared / f"pseudo_queries-{model.meta['inputs']['pseudo_queries']}" / "pseudo_queries"
    )
    texts = mining.training_queries(dataset, made, 0.0, 1).texts
    documents_of = searcher.retriever.document_encoder.encode(dataset.corpus.contents, "document")
    ranked = np.argsort(-(searcher.retriever.query_vectors(texts) @ documents_of.T), axis=1)
    best = [[d for d in row if d not in targets[n]][:4] for n, row in enumerate(ranked.tolist())]
    cluster = Negatives.load(finished.shared / f"negatives-{model.meta['inputs']['negatives']}" / "cluster").documents
    mined_rows = [n for n, row in enumerate(table.tolist()) if row == best[n]]
    assert 8 <= len(mined_rows) < len(table)
    others = np.setdiff1d(np.arange(len(table)), mined_rows)
    np.testing.assert_array_equal(table[others], cluster[others])


@pytest.mark.parametrize(
    "stage, changes",
    [
        pytest.param("model", {}, id="vectors_as_they_are"),
        pytest.param(
            "joint_model",
            {"training": training(steps=0), "matching": recipes.Matching(alpha=2.0, rdrop=0.15)},
            id="jointly",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "model",
            {"mined": recipes.Mining(shares={"ance": 0.5, "cluster": 0.5}, kept=4, refresh_every=2)},
            id="mined_again",
        ),
    ],
)
def test_an_interrupted_training_ends_with_the_same_bits(finished, tmp_path, monkeypatch, stage, changes):
    """Interrupted at step 4 before that is on disk, and before the negatives are that step 5 would draw from."""
    asked = training(steps=6, keep_best="", dev_documents=20, document_length=12)
    trainings = {"training": asked, "joint": training(steps=0)} if stage == "model" else {"joint": asked}

    def run(name):
        told = settings(most_sentences=0, until=stage, **trainings, **changes)
        recipes.gdr(finished.source, tmp_path / name, shared_dir=finished.shared, **told)
        meta = storage.read_folder(tmp_path / name / stage).meta
        files = sorted((tmp_path / name / stage).rglob("*.safetensors"))
        return [meta.get(key) for key in ("last_step", "dev", "refreshes")], [file.read_bytes() for file in files]

    whole = run("whole")
    judged, judge, mined, mine = [], learning.DevEvaluation.__call__, [], mining.mine
    released = threading.Event()

    def interrupted(self, params, step):
        judged.append(step)
        if judged == [2, 4]:
            raise KeyboardInterrupt
        return judge(self, params, step)

    def killed(*arguments):
        mined.append(arguments)
        if len(mined) == 1:
            released.wait(60)
        return mine(*arguments)

    monkeypatch.setattr(learning.DevEvaluation, "__call__", interrupted)
    monkeypatch.setattr(mining, "mine", killed)
    with pytest.raises(KeyboardInterrupt):
        run("cut")
    assert run("cut") == whole and judged == [2, 4, 4, 6]
    released.set()
    assert len(whole[1]) == (1 if stage == "model" else 2) and len(mined) == (2 if "mined" in changes else 0)


def test_nci_writes_the_clusters_of_gdr_and_a_place_in_them(finished):
    model_dir = finished.model_dir.with_name("nci")
    names = ("encoders", "encoder_training", "encoder_mined", "pseudo_queries", "clusters", "network", "say")
    searcher = recipes.nci(
        finished.source,
        model_dir,
        **{name: settings()[name] for name in names},
        training=recipes.Training(steps=2, warmup_steps=0, batch_size=8, dev_queries=0, rdrop=0.1, seed=1),
        decoding=recipes.Decoding(beams=10),
    )
    docids = documents.load_docids(next(finished.shared.glob("docids-*")))
    cids = clusters_lib.load_clusters(next(finished.shared.glob("clusters-*")))
    cluster_of = docids_lib.memberships(cids)[:, 0]
    path_of = {}
    for row in range(len(docids)):
        (document,) = docids.documents_of(row)
        path_of.setdefault(tuple(docids.sequence(row)[:-1]), set()).add(int(cluster_of[document]))
    assert len(path_of) == 6 and all(len(clusters) == 1 for clusters in path_of.values())
    assert searcher.retrieve(["where is the red cat"], 5).doc_index.min() >= 0
    with pytest.raises(InputError, match="hierarchical"):
        recipes.nci(finished.source, model_dir, clusters=recipes.Clusters(algorithm="kmeans"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoders": dataclasses.replace(ENCODERS, query_prefix="query: ")}, "without a prefix"),
        ({"encoders": dataclasses.replace(ENCODERS, similarity="dot")}, "cosines are wanted"),
        ({"encoders": dataclasses.replace(ENCODERS, projection=8)}, "pooled states"),
        ({"encoders": dataclasses.replace(ENCODERS, pooling="pooler")}, "pooled states"),
        ({"network": network(width=32, heads=2), "matching": recipes.Matching(start="pretrained")}, "32 dimensions"),
        ({"training": training(margin_mse=1.0)}, "teacher"),
        ({"joint": training(steps=2, document_length=16)}, "document_length differs"),
        ({"joint": training(steps=2, held_out=0.2, document_length=12)}, "held_out differs"),
        ({"training": training(held_out=0.2), "joint": training(steps=0)}, "its held_out is 0.0"),
        ({"training": training(steps=0), "joint": training(held_out=0.2)}, "its held_out is 0.0"),
        ({"search": recipes.ClusterSearch(measure="R@10 RR@10")}, "several measures"),
        ({"most_sentences": -1}, "most_sentences is too small"),
        ({"mined": recipes.Mining(shares={"ance": 1.0}, refresh_every=3)}, "end before negatives"),
        ({"mined": recipes.Mining(shares={"ance": 1.0}, refresh_every=2), "training": training(steps=8)}, "joint"),
        ({"search": recipes.ClusterSearch(measure="nonsense")}, "nonsense"),
    ],
)
def test_settings_that_contradict_one_another(finished, changes, message):
    with pytest.raises(InputError, match=message):
        recipes.gdr(finished.source, finished.model_dir.with_name("refused"), until="model", **settings(**changes))
