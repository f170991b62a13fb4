"""Runs of GDR: what they make, share, make again, choose, and how the second training goes on."""

import dataclasses
import json
import shutil
import threading
import types

import numpy as np
import pytest

import gr_jax
from gr_jax import docids as docids_lib
from gr_jax import storage
from gr_jax.docids.pseudo_queries import PseudoQueries
from gr_jax.errors import InputError
from gr_jax.models import network_folder
from gr_jax.stages import contrastive, negatives, pairs, results, vectors
from gr_jax.stages import training as stages_training
from gr_jax.stages.clusters import load_clusters
from gr_jax.stages.negatives import Mining
from gr_jax.systems.dpr import DPR
from gr_jax.systems.gdr import GDR, ClusterSearch, Matching, learning
from gr_jax.systems.gdr.retriever import GDRRetriever
from gr_jax.training import checkpoints
from gr_jax.training.negatives import Negatives
from gr_jax.training.shared_answers import share_answers
from gr_jax.training.token_store import TokenStore
from tests.small_dsi import Said, network
from tests.systems.gdr.small_run import ENCODERS, Finished, settings, training

OF_THE_ENCODER = [
    "corpus", "vocabulary", "bm25", "pseudo_queries", "encoder_pairs", "encoder_negatives", "document_encoder",
    "vectors",
]  # fmt: skip
OWN = ["clusters", "negatives", "model", "joint_model", "passage_vectors", "index", "hybrid", "results"]


@pytest.fixture(scope="module")
def finished(beir, tmp_path_factory) -> Finished:
    model_dir = tmp_path_factory.mktemp("gdr") / "runs" / "gdr"
    said = Said()
    searcher = GDR(**settings()).run(beir, model_dir, say=said.append)
    return Finished(beir, model_dir, searcher, said)


def test_every_stage_is_made_once(finished):
    """The pairs that GDR learns from are those of the document encoder."""
    made = finished.said.made()
    assert sorted(made) == sorted([*OF_THE_ENCODER, *OWN])
    assert [name for name in made if name in OWN] == OWN
    said = Said()
    GDR(**settings()).run(finished.source, finished.model_dir, say=said.append)
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
    search = ClusterSearch(beams=6, betas=(0.1, 0.0), chosen=(1, 6), most_share=0.5)
    told = settings(
        encoder_training=None, training=training(held_out=0.3), joint=None, most_sentences=None, search=search
    )
    searcher = GDR(**told).run(tmp_path / "mine", tmp_path / "run", until="index", say=lambda line: None)
    model = storage.read_folder(tmp_path / "run" / "model").meta
    held_out = tmp_path / "shared" / f"pairs-{model['inputs']['pairs']}" / "held_out.json"
    assert json.loads(held_out.read_text()) and 0 <= model["dev"][-1]["dev/RR@10"] <= 1
    assert (searcher.retriever.beta, searcher.retriever.chosen) == (0.1, 3)  # as training looks at it
    choice = json.loads((tmp_path / "run" / "index" / "choice.json").read_text())
    assert not choice["table"] and choice["chosen"] == 3


def test_negatives_of_the_cluster_are_of_the_clusters_that_are_written(finished):
    folders = [path for path in finished.shared.glob("negatives-*") if (path / "cluster").exists()]
    cids = load_clusters(next(finished.shared.glob("clusters-*")))
    cluster_of = docids_lib.memberships(cids)[:, 0]
    table = Negatives.load(folders[0] / "cluster").documents
    rows = np.flatnonzero((table >= 0).any(axis=1))
    assert len(rows)
    stores = [TokenStore.load(path / "queries") for path in finished.shared.glob("pairs-*")]
    (targets,) = (store.targets for store in stores if len(store) == len(table))
    for row in rows:
        assert {cluster_of[document] for document in table[row] if document >= 0} == {cluster_of[targets[row][0]]}


def test_the_second_training_moves_documents_and_their_vectors_are_made_anew(finished):
    first = vectors.load_vectors(finished.read_by("model", "vectors", "encoded"))
    searcher = gr_jax.load(finished.model_dir / "index")
    encoder, owner = searcher.retriever.document_encoder, searcher.retriever._owner
    whole = np.unique(owner, return_index=True)[1]
    passages = vectors.load_vectors(finished.read_by("index", "passage_vectors", "encoded"))
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
    encoder = negatives.load_encoder(folder)
    parts = types.SimpleNamespace(
        dataset=dataset,
        words=gr_jax.load(finished.model_dir / "index").retriever.vocabulary,
        cids=load_clusters(next(finished.shared.glob("clusters-*"))),
        vectors=encoder.reading(document_length=12).encode(dataset.corpus.contents, "document"),
        encoder=encoder,
    )
    retriever = learning.make_retriever(
        module,
        params,
        parts,
        None,
        told["encoders"].pooling,
        told["matching"].similarity,
        told["search"].look,
        learning.LOOK_QUERY_LENGTH,
    )
    asked = stages_training.sample_queries(dataset.split("dev"), 8)
    some = contrastive.searched(dataset, {"dev": dataset.split("dev")}, told["joint"])
    assert len(some) == 20
    allowed = np.isin(dataset.corpus.doc_ids, some.doc_ids)
    queries = dataset.queries.select(list(asked))
    ranking = retriever.retrieve(queries.texts, 10, allowed=allowed)
    run = gr_jax.retrievers.ranking_to_run(ranking, queries.ids, dataset.corpus)
    expected = gr_jax.evaluation.evaluate(run, asked, ("RR@10", "Success@1"))
    assert {name: measured[f"dev/{name}"] for name in expected} == pytest.approx(dict(expected), abs=1e-6)


def test_results_have_bm25_and_the_vectors_alone_beside(finished):
    metrics = json.loads((finished.model_dir / "results" / "metrics.json").read_text())
    assert set(metrics["test"]) == {"BM25", "GDR, vectors alone", "GDR", "BM25 + GDR"}
    report = (finished.model_dir / "results" / "report.md").read_text()
    assert "trie over 6 clusters" in report


def test_what_is_said_of_clusters_is_what_a_brute_force_finds(finished, tmp_path, monkeypatch):
    """Of rankings of 5: 100 hold all of these documents. Two of six clusters are looked into, so that both matter."""
    monkeypatch.setattr(results, "DEPTH", 5)
    shutil.copytree(finished.model_dir, tmp_path / "run")
    said = Said()
    search = dataclasses.replace(settings()["search"], betas=(0.1,), chosen=(2,), measure="R@100")
    gdr = GDR(**settings(search=search))
    gdr.run(finished.source, tmp_path / "run", shared_dir=finished.shared, say=said.append)
    assert said.made() == ["index", "hybrid", "results"]
    written = json.loads((tmp_path / "run" / "results" / "clusters.json").read_text())["test"]
    metrics = json.loads((tmp_path / "run" / "results" / "metrics.json").read_text())["test"]
    dataset, retriever = gr_jax.corpus.read_beir(finished.source), gr_jax.load(tmp_path / "run" / "index").retriever
    queries, qrels = dataset.split_queries("test"), dataset.split("test")
    answers = np.array([[dataset.corpus.index_of(doc_id) for doc_id in qrels[name]] for name in queries.ids])[:, 0]
    folder = finished.read_by("index", "passage_vectors", "encoded")
    of_passages, owner = vectors.load_vectors(folder), vectors.load_owner(folder)
    cids = load_clusters(next(finished.shared.glob("clusters-*")))
    cluster_of = docids_lib.memberships(cids)[:, 0]

    decoded = retriever.decode(queries.texts)
    assert (np.sort(decoded.clusters) == np.arange(len(cids))).all()  # all are in the beam
    weights = np.take_along_axis(decoded.weights, np.argsort(decoded.clusters), axis=1)
    looked_into = np.array([np.isin(cluster_of, row[:2]) for row in decoded.clusters])
    scores = decoded.vectors.astype(np.float64) @ of_passages.T + retriever.beta * weights[:, cluster_of[owner]]
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


@pytest.mark.slow
def test_an_encoder_that_dpr_trained_is_taken_and_nothing_is_trained_twice(finished, tmp_path):
    trained = tmp_path / "runs" / "dpr"
    short = training(steps=2, evaluate_every=None, dev_queries=None)
    dpr = DPR(
        encoders=ENCODERS, training=short, query_training=short, mining=Mining(shares={"bm25": 1.0}, kept=2)
    )  # fmt: skip
    dpr.run(finished.source, trained, until="query_model", say=lambda line: None)
    said = Said()
    untrained = {"training": None, "joint": None, "most_sentences": None}
    gdr = GDR(**settings(trained=trained, **untrained))
    gdr.run(finished.source, tmp_path / "runs" / "gdr", say=said.append)
    assert not [name for name in said.made() if "pairs" in name or "negatives" in name]
    copied = next((tmp_path / "runs" / "shared").glob("taken-*")) / "encoder" / network_folder.PARAMETERS_FILE
    assert copied.read_bytes() == (trained / "query_model" / "encoder" / network_folder.PARAMETERS_FILE).read_bytes()
    other = GDR(**settings(trained=trained, encoders=dataclasses.replace(ENCODERS, pooling="cls"), **untrained))
    with pytest.raises(InputError, match="Set Encoders.pooling = \"mean\"|Set Encoders.pooling = 'mean'"):
        other.run(finished.source, tmp_path / "runs" / "other", say=lambda line: None)
    nowhere = GDR(**settings(trained=tmp_path / "nowhere"))
    with pytest.raises(InputError, match="nowhere"):
        nowhere.run(finished.source, tmp_path / "runs" / "none", say=lambda line: None)
    with pytest.raises(InputError, match="training held out other questions: its held_out is None"):
        GDR(**settings(trained=trained, training=training(held_out=0.2)))


def test_negatives_mined_by_the_model_are_refreshed(finished, tmp_path):
    mining = Mining(shares={"ance": 1.0, "cluster": 0.0}, kept=4, refresh_every=2)
    model_dir = finished.model_dir.with_name("refreshed")
    still = training(steps=6, learning_rate=1e-30)  # no parameter that is not 0 changes at such a rate
    gdr = GDR(**settings(mining=mining, training=still, joint=None, most_sentences=None))
    gdr.run(finished.source, model_dir, until="model", say=lambda line: None)
    model = storage.read_folder(model_dir / "model")
    assert model.meta["negatives made again"] == 1  # mined at 2, used from 4 on
    # At such a rate the parameters of step 2 are the last ones: of what is drawn then, the best that answer nothing.
    last = checkpoints.path_of(model_dir / "work" / f"model-{model.made_from}" / "checkpoints", 6)
    table = checkpoints.load_hooks(last)[1]["negatives/made/2/documents"]
    searcher = gdr.run(finished.source, model_dir, until="index", say=lambda line: None)
    read = finished.shared / f"pairs-{model.meta['inputs']['pairs']}"
    targets = share_answers(TokenStore.load(read / "queries")).targets
    dataset = gr_jax.corpus.read_beir(finished.source)
    made = PseudoQueries.load(
        finished.shared / f"pseudo_queries-{model.meta['inputs']['pseudo_queries']}" / "pseudo_queries"
    )
    texts = pairs.training_queries(dataset, made, still.kept_back).texts
    documents_of = searcher.retriever.document_encoder.encode(dataset.corpus.contents, "document")
    products = searcher.retriever.query_vectors(texts) @ documents_of.T
    ranked = np.argsort(-products, axis=1)
    best = [[d for d in row if d not in targets[n]][:4] for n, row in enumerate(ranked.tolist())]
    cluster = Negatives.load(finished.shared / f"negatives-{model.meta['inputs']['negatives']}" / "cluster").documents
    # By their products: which of two documents as near comes first, rounding decides.
    mined_rows = [
        n
        for n, row in enumerate(table)
        if (row >= 0).all() and np.allclose(products[n][row], products[n][best[n]], atol=1e-5)
    ]
    assert 8 <= len(mined_rows) < len(table)
    others = np.setdiff1d(np.arange(len(table)), mined_rows)
    np.testing.assert_array_equal(table[others], cluster[others])


@pytest.mark.parametrize(
    "stage, changes",
    [
        pytest.param("model", {}, id="vectors_as_they_are", marks=pytest.mark.slow),
        pytest.param(
            "joint_model",
            {"training": None, "matching": Matching(alpha=2.0, rdrop=0.15)},
            id="jointly",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "model",
            {"mining": Mining(shares={"ance": 0.5, "cluster": 0.5}, kept=4, refresh_every=2)},
            id="mined_again",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_interrupted_training_ends_with_the_same_bits(finished, tmp_path, monkeypatch, stage, changes):
    """Interrupted at step 4 before that is on disk, and before the negatives are that step 5 would draw from."""
    asked = training(steps=6, keep_best=None, dev_documents=20, document_length=12)
    trainings = {"training": asked, "joint": None} if stage == "model" else {"joint": asked}
    gdr = GDR(**settings(most_sentences=None, **(trainings | changes)))

    def run(name):
        gdr.run(finished.source, tmp_path / name, shared_dir=finished.shared, until=stage, say=lambda line: None)
        meta = storage.read_folder(tmp_path / name / stage).meta
        files = sorted((tmp_path / name / stage).rglob("*.safetensors"))
        return [meta.get(key) for key in ("last_step", "dev", "negatives made again")], [f.read_bytes() for f in files]

    whole = run("whole")
    judged, judge, mined, mine = [], stages_training.DevEvaluation.__call__, [], negatives.mine
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

    monkeypatch.setattr(stages_training.DevEvaluation, "__call__", interrupted)
    monkeypatch.setattr(negatives, "mine", killed)
    with pytest.raises(KeyboardInterrupt):
        run("cut")
    assert run("cut") == whole and judged == [2, 4, 4, 6]
    released.set()
    assert len(whole[1]) == (1 if stage == "model" else 2) and len(mined) == (2 if "mining" in changes else 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoders": dataclasses.replace(ENCODERS, query_prefix="query: ")}, "without a prefix"),
        ({"encoders": dataclasses.replace(ENCODERS, similarity="dot")}, "vectors of unit length"),
        ({"encoders": dataclasses.replace(ENCODERS, projection=8)}, "pooled states"),
        ({"encoders": dataclasses.replace(ENCODERS, pooling="pooler")}, "pooled states"),
        ({"training": training(margin_mse=1.0)}, "teacher"),
        ({"joint": training(steps=2, document_length=16)}, "document_length differs"),
        ({"joint": training(steps=2, held_out=0.2, document_length=12)}, "held_out differs"),
        ({"training": training(held_out=0.2), "joint": None}, "its held_out is None"),
        ({"training": None, "joint": training(held_out=0.2)}, "its held_out is None"),
        ({"most_sentences": -1}, "most_sentences is too small"),
        ({"mining": Mining(shares={"ance": 1.0}, refresh_every=3)}, "end before negatives"),
        ({"mining": Mining(shares={"ance": 1.0}, refresh_every=2), "training": training(steps=8)}, "joint"),
    ],
)
def test_settings_that_contradict_one_another(changes, message):
    with pytest.raises(InputError, match=message):
        GDR(**settings(**changes))


@pytest.mark.parametrize(("measure", "message"), [("R@10 RR@10", "several measures"), ("nonsense", "nonsense")])
def test_measures_that_choose_nothing(measure, message):
    with pytest.raises(InputError, match=message):
        ClusterSearch(measure=measure)


def test_queries_and_documents_of_different_widths():
    with pytest.raises(InputError, match="32 dimensions"):
        GDR(**settings(network=network(width=32, heads=2), matching=Matching(start="pretrained")))
