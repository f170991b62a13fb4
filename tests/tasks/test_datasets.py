"""Tasks of a data set: tokens as a system's own store has them, texts, and measures as `gr-jax evaluate` has them."""

import json

import numpy as np
import pytest

from gr_jax import corpus, storage
from gr_jax.errors import InputError
from gr_jax.evaluation import evaluate
from gr_jax.stages.docids import load_docids
from gr_jax.stages.examples import finished_examples
from gr_jax.text import ByteVocabulary
from gr_jax.training.token_store import TokenStore
from tests import small_data, small_dsi


@pytest.fixture(scope="module", autouse=True)
def libraries():
    """Imported by the worker alone that runs these tests: TensorFlow takes ten seconds and most of a GiB."""
    global seqio, tasks
    seqio = pytest.importorskip("seqio")
    import tasks


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(folder of documents, folder of the examples of a system on them)."""
    root = tmp_path_factory.mktemp("tasks")
    folder = small_data.write_beir(root / "mine", count=24)
    small_dsi.dsi().run(folder, root / "runs" / "dsi", until="examples", say=small_dsi.quiet)
    (examples,) = (root / "runs" / "shared").glob("examples-*")
    return folder, examples


@pytest.fixture
def name():
    before = [(registry, set(registry.names())) for registry in (seqio.TaskRegistry, seqio.MixtureRegistry)]
    yield "small"
    for registry, known in before:
        for added in set(registry.names()) - known:
            registry.remove(added)


def test_tokens_are_those_of_the_system(finished, tmp_path, name):
    """Bit for bit, all kinds together and each apart."""
    _, folder = finished
    tasks.add_docid_tasks(name, finished_examples(folder))
    tasks.write_token_store_from_task(tmp_path / "all", name)
    theirs = storage.read_folder(folder / "tokens", "tokens").files
    assert storage.read_folder(tmp_path / "all", "tokens").files == theirs and len(theirs) == 5
    whole = TokenStore.load(folder / "tokens")
    for number, task in enumerate(("retrieval", "indexing", "pseudo_query")):
        apart = tasks.write_token_store_from_task(tmp_path / task, f"{name}_{task}")
        rows = np.flatnonzero(whole.source == number)
        assert len(apart) == len(rows) > 0
        for one, row in enumerate(rows.tolist()):
            np.testing.assert_array_equal(apart[one]["inputs"], whole[row]["inputs"])
            np.testing.assert_array_equal(apart[one]["targets"], whole[row]["targets"])


def test_the_mixture_has_all_three(finished, name):
    mixture = tasks.add_docid_tasks(name, finished_examples(finished[1]), rates={"retrieval": 1.0, "indexing": 1.0})
    assert mixture.name == f"{name}_mixture" and {task.name for task in mixture.tasks} == {
        f"{name}_retrieval", f"{name}_indexing",
    }  # fmt: skip
    lengths = {"inputs": 32, "targets": 8}
    drawn = mixture.get_dataset(lengths, split="train", shuffle=True, seed=0, num_epochs=None)
    documents = {
        one["inputs"].tobytes()
        for one in seqio.get_mixture_or_task(f"{name}_indexing").get_dataset(lengths, "train").as_numpy_iterator()
    }
    shares = [one["inputs"].tobytes() in documents for one in drawn.take(200).as_numpy_iterator()]
    assert 60 < sum(shares) < 140
    with pytest.raises(InputError, match="no such Task"):
        tasks.add_docid_tasks("other", finished_examples(finished[1]), rates={"titles": 1.0})


def test_an_evaluator_says_what_launch_evaluate_says(finished, name):
    """Of a model whose ranking is known: docids in a random order, some twice, some that name nothing."""
    folder, examples = finished
    dataset = corpus.read_beir(folder)
    meta = json.loads((examples / "manifest.json").read_text())["meta"]["inputs"]
    (docids_folder,) = examples.parent.glob(f"*-{meta['docids']}")
    docids, rng = load_docids(docids_folder), np.random.default_rng(0)
    qrels, measures = dataset.split("test"), ["Success@1", "Success@5", "RR@10", "nDCG@10"]
    metric = tasks.top_k_metric(docids, list(dataset.corpus.doc_ids), qrels, list(qrels), measures)
    tasks.add_docid_tasks(name, finished_examples(examples), metric_fns=[metric])
    orders = [rng.permutation(len(docids))[:8].tolist() for _ in qrels]
    end = [] if docids.eos_id is None else [docids.eos_id]

    def predict(cached):
        found = []
        for place, _ in cached.enumerate().as_numpy_iterator():
            beams = [docids.sequence(row) + end for row in (*orders[int(place)][:3], *orders[int(place)])]
            longest = max(map(len, beams)) + 1
            nothing = [docids.vocab_size - 1] * longest
            found.append((int(place), [nothing, *(beam + [0] * (longest - len(beam)) for beam in beams)]))
        return found

    evaluator = seqio.Evaluator(
        f"{name}_retrieval", feature_converter=seqio.EncDecFeatureConverter(pack=False), eval_split="test",
        sequence_length={"inputs": 32, "targets": 8},
    )  # fmt: skip
    measured, _ = evaluator.evaluate(compute_metrics=True, predict_fn=predict, score_fn=None)
    ranked = {}
    for query, order in zip(qrels, orders, strict=True):
        pages = [dataset.corpus.doc_ids[int(one)] for row in order for one in docids.documents_of(row)]
        ranked[query] = [(page, -float(place)) for place, page in enumerate(pages)]
    expected = evaluate(corpus.Run(ranked), qrels, measures)
    said = measured.result()[f"{name}_retrieval"]
    assert 0 < expected["RR@10"] < 1
    assert {one: float(said[one]) for one in measures} == pytest.approx(dict(expected))
    with pytest.raises(InputError, match="1 predictions for 12 questions"):
        metric([], [[]])


def test_tasks_of_texts(finished, tmp_path, name):
    dataset = corpus.read_beir(finished[0])
    words = ByteVocabulary()

    def read(text, length):
        room = length - len(words.prefix) - len(words.suffix)
        return [*words.prefix, *words.encode(text)[:room], *words.suffix]

    made = tasks.add_text_tasks(name, dataset, words, query_length=40, document_length=60)
    assert [task.name for task in made] == [f"{name}_title", f"{name}_pair", f"{name}_triple"]
    rows = {task.name: list(task.get_dataset(None, split="train", shuffle=False).as_numpy_iterator()) for task in made}
    for place, (query, grades) in enumerate(dataset.split("train").items()):
        document = dataset.corpus[dataset.corpus.index_of(next(iter(grades)))]
        expected = {"title": list(words.encode(document.title)), "pair": read(document.contents, 60)}
        for task, target in (*expected.items(), ("triple", expected["pair"])):
            row = rows[f"{name}_{task}"][place]
            assert row["inputs"].tolist() == read(dataset.queries.text(query), 40)
            assert row["targets"].tolist() == target
        negative = rows[f"{name}_triple"][place]["negatives"].tolist()
        assert negative in [read(one.contents, 60) for one in dataset.corpus if one.doc_id != document.doc_id]


def test_documents_without_a_title_have_no_task_of_titles(name):
    untitled = corpus.Corpus.from_documents([corpus.Document("a", "", "text")])
    data = corpus.Dataset(untitled, corpus.Queries(("q",), ("what",)), {"train": corpus.Qrels({"q": {"a": 1}})})
    with pytest.raises(InputError, match=r"without a title.*\(got 'a'\)"):
        tasks.add_text_tasks(name, data, ByteVocabulary())


def test_tfds_builders(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    from gr_jax.datasets import samples
    from tasks import builders

    samples.ms_marco(tmp_path / "raw")
    builder = builders.MsMarco(data_dir=tmp_path / "tfds", config="passages")
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(manual_dir=tmp_path / "raw"))
    documents = {one["id"].decode(): one["text"].decode() for one in tfds.as_numpy(builder.as_dataset(split="corpus"))}
    assert len(documents) == 2 * samples.TOWNS
    answers = {question: answer for town in samples.towns() for question, answer in town.questions}
    for split in ("train", "dev", "dl19"):
        asked = list(tfds.as_numpy(builder.as_dataset(split=split)))
        assert len(asked) == (2 * samples.TOWNS if split == "train" else samples.DEV)
        for one in asked:
            assert answers[one["text"].decode()] in documents[one["documents"][0].decode()]
            assert one["grades"].tolist() == [3 if split == "dl19" else 1]
