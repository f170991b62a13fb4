"""Generated queries: what is learnt from, what is kept, and the system from documents to an expanded index."""

import numpy as np
import pytest

import gr_jax
from gr_jax import corpus as corpus_lib
from gr_jax import storage
from gr_jax.docids.pseudo_queries import PseudoQueries
from gr_jax.errors import InputError
from gr_jax.models.copying import CopyNetworkModel
from gr_jax.retrievers import BM25
from gr_jax.stages import copy_networks, documents
from gr_jax.stages import pseudo_queries as made_stage
from gr_jax.stages.runner import Runner
from gr_jax.stages.sources import BeirFolder
from gr_jax.systems import BM25DocT5Query
from gr_jax.systems.doct5query import GeneratedQueries, QueryGenerating, generation
from gr_jax.systems.doct5query.generator import load_generator
from gr_jax.text import ByteVocabulary
from tests import small_data
from tests.models import random_folders

pytest.importorskip("bm25s")
pytest.importorskip("Stemmer")

GENERATOR = {
    "encoder": "t5", "vocabulary": "byte", "width": 32, "heads": 2, "mlp_width": 32, "encoder_layers": 1,
    "decoder_layers": 1, "dropout": 0.0, "words": 32, "document_tokens": 64, "query_tokens": 32, "row_targets": 64,
    "made": {"title": 1}, "steps": 60, "warmup_steps": 5, "batch_size": 12, "learning_rate": 1e-2,
    "evaluate_every": 30, "checkpoint_every": 20,
}  # fmt: skip


def run(source, model_dir, **changes):
    said = []
    system = BM25DocT5Query(
        generator=QueryGenerating(**GENERATOR),
        generated=GeneratedQueries(samples=4, top_k=3, temperature=0.5, within=None, most=3, batch_size=8),
    )
    return system.run(source, model_dir, say=said.append, **changes), said


@pytest.fixture(scope="module")
def made(beir, tmp_path_factory):
    root = tmp_path_factory.mktemp("generated")
    return root, run(beir, root / "mine")[0]


def test_the_system_expands_documents_by_what_it_writes(made, beir):
    root, searcher = made
    dataset = corpus_lib.read_beir(beir)
    queries = PseudoQueries.load(root / "mine" / "generated" / "pseudo_queries")
    assert queries.kind_names == ("generated",) and queries.corpus == dataset.corpus.fingerprint
    assert (np.diff(queries.documents) >= 0).all() and np.bincount(queries.documents).max() <= 3
    assert all(text.strip() for text in queries.texts)
    expected = BM25(dataset.corpus, expansions=queries)
    asked = ["who saw a red cat", "where is the goat"]
    for index in (searcher, gr_jax.load(root / "mine" / "index")):
        ranking = index.retrieve(asked, 24)
        np.testing.assert_array_equal(ranking.doc_index, expected.retrieve(asked, 24).doc_index)
        np.testing.assert_array_equal(ranking.score, expected.retrieve(asked, 24).score)
    meta = storage.read_folder(root / "mine" / "generated", "generated").meta
    assert meta["drawn"] == 4 * 24 and meta["kept"] == len(queries)
    report = (root / "mine" / "results" / "report.md").read_text()
    shown = [text for text in dict.fromkeys(queries.texts) if f"**{text}**" in report]
    assert len(shown) >= min(5, len(set(queries.texts))) and "BM25 + docT5query" in report


def test_what_is_finished_is_not_made_again(made, beir):
    root, _ = made
    _, said = run(beir, root / "mine")
    assert not [line for line in said if line.startswith("✓") and "already made" not in line]
    assert not list((root / "mine" / "work").glob("generated-*"))


def test_another_system_trains_on_generated_queries(made, beir, tmp_path):
    root, _ = made
    table = root / "mine" / "generated" / "pseudo_queries"
    settings = made_stage.PseudoQueries(kinds={"generated": 2, "title": 1}, generated=str(table))
    corpus = documents.corpus(BeirFolder(str(beir)))
    stage = made_stage.pseudo_queries(corpus, settings=settings)
    runner = Runner(tmp_path / "run", say=lambda line: None)
    runner.run([corpus, stage])
    found = made_stage.load_pseudo_queries(runner.folder(stage))
    written = PseudoQueries.load(table)
    texts = [text for text, kind in zip(found.texts, found.kinds, strict=True) if found.kind_names[kind] == "generated"]
    assert texts and set(texts) <= set(written.texts)
    assert str(table) not in str(stage.config)  # what it holds counts, not where it lies
    plain = made_stage.pseudo_queries(corpus, settings=made_stage.PseudoQueries(kinds={"title": 1}))
    assert plain.config == {"settings": {"kinds": {"title": 1}, "seed": 0}}
    nowhere = made_stage.PseudoQueries(kinds={"generated": 1}, generated=str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="read"):
        made_stage.pseudo_queries(corpus, settings=nowhere).key  # noqa: B018


def test_chunks_that_are_there_are_not_drawn_again(made, tmp_path):
    root, _ = made
    module, params, words = load_generator(root / "mine" / "generator")
    decoder = CopyNetworkModel(module, words).decoder(params)
    tokens = np.array([[5, 6, 7, 0], [8, 9, 0, 0], [5, 5, 5, 5]], np.int32)
    settings = dict(samples=2, top_k=2, temperature=1.0, query_tokens=8, batch_size=2, seed=3)
    first = generation.generate(decoder, ByteVocabulary(), tokens, work=tmp_path / "work", **settings)
    assert [len(queries) for queries in first] == [2, 2, 2]
    again = generation.generate(None, ByteVocabulary(), tokens, work=tmp_path / "work", **settings)
    other = generation.generate(decoder, ByteVocabulary(), tokens, work=tmp_path / "other", **settings)
    assert first == again == other


@pytest.mark.slow
def test_an_interrupted_generator_ends_with_the_same_bits(made, beir, tmp_path, monkeypatch):
    """Interrupted at the second look at dev: behind the checkpoint of step 40."""
    root, _ = made
    looked, look = [], generation.mean_loss

    def interrupted(*arguments):
        looked.append(1)
        if len(looked) == 2:
            raise KeyboardInterrupt
        return look(*arguments)

    monkeypatch.setattr(generation, "mean_loss", interrupted)
    again = {"shared_dir": root / "shared", "until": "generator"}
    with pytest.raises(KeyboardInterrupt):
        run(beir, tmp_path / "cut", **again)
    run(beir, tmp_path / "cut", **again)
    one, other = (sorted(folder.glob("generator/*.safetensors")) for folder in (tmp_path / "cut", root / "mine"))
    assert len(looked) == 3 and [f.read_bytes() for f in one] == [f.read_bytes() for f in other] and one


def test_only_the_split_is_learnt_from(beir):
    dataset = corpus_lib.read_beir(beir)
    vocabulary = ByteVocabulary()
    data = generation.document_queries(
        dataset, vocabulary, split="test", made={"title": 1}, document_tokens=32, query_tokens=12, seed=0, others=0.5
    )
    asked = [vocabulary.decode(query) for queries in data.kinds[generation.ASKED] for query in queries]
    expected = [dataset.queries.text(query_id)[:11] for query_id in dataset.split("test")]
    assert sorted(asked) == sorted(expected) and len(data.sources) == 12 + 6
    assert sum(not queries for queries in data.kinds[generation.ASKED]) == 6
    starts = [vocabulary.decode(row) for row in data.sources]
    for start, (made,) in zip(starts, data.kinds[generation.MADE], strict=True):
        assert start.startswith(vocabulary.decode(made)[:8])  # titles stand first
    counted = copy_networks.frequent_words((one for of_one in data.kinds[generation.ASKED] for one in of_one), 5, 1)
    letters = "".join(expected)
    assert counted[0] == 1 and {letters.count(chr(token - 3)) for token in counted[1:]} == set(
        sorted((letters.count(letter) for letter in set(letters)), reverse=True)[:4]
    )


def test_a_query_of_several_documents_is_learnt_from_by_each():
    documents = [corpus_lib.Document(f"d{n}", "", f"text {n}") for n in range(4)]
    queries = corpus_lib.Queries(("a", "b", "c"), ("both", "second", "none"))
    judged = corpus_lib.Qrels({"a": {"d1": 1, "d3": 2}, "b": {"d1": 1, "d2": 0}, "c": {"d2": 0}})
    dataset = corpus_lib.Dataset(corpus_lib.Corpus.from_documents(documents), queries, {"train": judged})
    data = generation.document_queries(
        dataset, ByteVocabulary(), split="train", made={}, document_tokens=9, query_tokens=9, seed=0
    )
    asked = [[ByteVocabulary().decode(query) for query in found] for found in data.kinds[generation.ASKED]]
    assert asked == [["both", "second"], ["both"]] and len(data.sources) == 2


def test_what_is_kept():
    corpus = corpus_lib.Corpus.from_documents(
        corpus_lib.Document(f"d{i}", "", text) for i, text in enumerate(["cats sleep", "dogs bark", "mice eat cheese"])
    )
    drawn = [["cats", "", "  cats ", "who barks", "sleep"], ["bark", "dogs", "barking dogs"], ["dogs"]]
    kept = generation.filtered(drawn, BM25(corpus), within=1, most=2, corpus=corpus.fingerprint)
    assert list(kept.texts) == ["cats", "sleep", "bark", "dogs"] and kept.documents.tolist() == [0, 0, 1, 1]
    everything = generation.filtered(drawn, BM25(corpus), within=0, most=9, corpus=corpus.fingerprint)
    assert list(everything.texts) == ["cats", "who barks", "sleep", "bark", "dogs", "barking dogs", "dogs"]
    with pytest.raises(InputError, match="leads to its document"):
        generation.filtered([[], [], ["dogs"]], BM25(corpus), within=1, most=2, corpus="")


def test_states_of_a_pretrained_encoder_are_those_of_the_network(tmp_path):
    from gr_jax.interop import huggingface
    from gr_jax.models import T5Config

    encoder, pretrained = huggingface.load_bert(random_folders.write_bert(tmp_path / "bert"), dropout_rate=0.5)
    decoder = T5Config(vocab_size=101, emb_dim=32, num_heads=2, head_dim=16, num_decoder_layers=1, mlp_dim=16)
    module, params = copy_networks.initial(encoder, pretrained, [3, 7, 9], decoder, 0)
    table = pretrained["token_embedder"]["embedding"]
    np.testing.assert_array_equal(params["words"]["kernel"].T, table[[3, 7, 9]])
    tokens = random_folders.token_batch(0, (40, 3, 17, 40, 9), 40, 101)
    states = copy_networks.encode_sources(module, params, tokens, tmp_path / "states", batch_size=2)
    expected = np.asarray(module.apply({"params": params}, tokens, method="encode"))
    np.testing.assert_allclose(states[tokens != 0], expected[tokens != 0], atol=2e-3)
    some = copy_networks.encode_sources(
        module, params, tokens, tmp_path / "some", batch_size=2, rows=np.array([1, 3, 4])
    )
    np.testing.assert_allclose(some[[1, 3, 4]], states[[1, 3, 4]], atol=2e-3)
    assert not some[[0, 2]].any()


def test_bad_settings_and_data(tmp_path):
    for changes, says in (
        ({"row_targets": 8}, "row_targets"),
        ({"words": 1}, "words"),
        ({"vocabulary": "x"}, "byte"),
        ({"dev_queries": 8}, "dev_documents"),
        ({"keep_best": "dev/RR@10"}, "dev/loss"),
        ({"encoder": "minilm", "multipliers": {"words": 2.0}}, "stays as it is"),
    ):
        with pytest.raises(InputError, match=says):
            QueryGenerating(**{**GENERATOR, **changes})
    for changes, says in (
        ({"temperature": 0.0}, "temperature"),
        ({"samples": 0}, "samples"),
        ({"within": 0}, "within"),
    ):
        with pytest.raises(InputError, match=says):
            GeneratedQueries(**changes)
    source = small_data.write_beir(tmp_path / "mine", count=4, queries=False)
    with pytest.raises(InputError, match="train"):
        run(source, tmp_path / "run")
    unanswered = small_data.write_grades(small_data.write_beir(tmp_path / "unanswered", count=8), 0)
    with pytest.raises(InputError, match="no grade is above 0"):
        run(unanswered, tmp_path / "other")
    assert not (tmp_path / "other" / "generator").exists()
