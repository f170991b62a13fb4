"""Long documents are searched in pieces by default, short ones are not: what an index has vectors of."""

import pathlib
import shutil

import numpy as np
import pytest

import gr_jax
from gr_jax import storage
from gr_jax.corpus import Corpus, Document, read_beir
from gr_jax.corpus.pieces import text_pieces
from gr_jax.stages.encoders import Encoders
from gr_jax.systems import DPR, GDR, Clusters, ClusterSearch, Search, System
from tests import small_data
from tests.small_dsi import Said, network, quiet

# A token is a byte, and less of a document is read than the 256 behind which it is long.
ENCODERS = Encoders(
    encoder="t5", vocabulary="byte", width=16, heads=2, mlp_width=16, layers=1, query_length=24, document_length=64
)
LONG = " ".join(f"Sentence number {n} of this story is about nothing." for n in range(12))


def dpr(**changes) -> DPR:
    return DPR(encoders=ENCODERS, training=None, query_training=None, search=Search(**changes))


def gdr(**changes) -> GDR:
    return GDR(
        encoders=ENCODERS, encoder_training=None, training=None, clusters=Clusters(budget=4),
        network=network(outputs="centroid", query_residual=True),
        search=ClusterSearch(beams=4, betas=(0.0,), chosen=(4,), most_share=1.0), **changes,
    )  # fmt: skip


SYSTEMS = {"dpr": dpr, "gdr": gdr}


@pytest.fixture(scope="module")
def stories(tmp_path_factory) -> pathlib.Path:
    """Eight documents of 600 letters, and four of a few."""
    folder = small_data.write_beir(tmp_path_factory.mktemp("data") / "stories", count=12)
    rows = small_data.documents(12)
    small_data.write_jsonl(
        folder / "corpus.jsonl",
        [row | {"text": f"{row['text']} {LONG}"} if n < 8 else row for n, row in enumerate(rows)],
    )
    return folder


def facts(model_dir: pathlib.Path) -> str:
    report = (model_dir / "results" / "report.md").read_text()
    (line,) = [line for line in report.splitlines() if line.startswith("| documents read")]
    return line


def run(system: System, source: pathlib.Path, root: pathlib.Path):
    return system.run(source, root / "run", shared_dir=root / "shared", say=quiet)


@pytest.mark.parametrize("name", ["dpr", pytest.param("gdr", marks=pytest.mark.slow)])
def test_long_documents_are_found_by_the_best_of_their_pieces(name, stories, tmp_path):
    retriever = run(SYSTEMS[name](), stories, tmp_path).retriever
    encoder = retriever.encoder if name == "dpr" else retriever.document_encoder
    corpus, queries = read_beir(stories).corpus, ["number 7 of this story", "where is the red cat"]

    def count(texts):
        return np.array([len(text.encode()) for text in texts])

    texts, owner = text_pieces(corpus, count, encoder.room)
    assert retriever.pieces and retriever.num_documents == 12 and len(texts) > 40
    assert retriever.searcher.num_documents == len(texts)
    vectors = encoder.encode(texts, "document")
    asked = encoder.encode(queries, "query") if name == "dpr" else retriever.query_vectors(queries)
    best = np.full((2, 12), -np.inf)
    np.maximum.at(best, (slice(None), owner), asked @ vectors.T)
    ranking = retriever.retrieve(queries, 12, explain=True)
    np.testing.assert_allclose(np.take_along_axis(best, ranking.doc_index, axis=1), ranking.score, atol=1e-5)
    np.testing.assert_allclose(ranking.score, -np.sort(-best, axis=1), atol=1e-5)
    assert "piece " in ranking.evidence[0][0][-1].text
    assert f"searched in {len(texts)} pieces" in facts(tmp_path / "run") and "100.0% of 12 are cut at 64" in facts(
        tmp_path / "run"
    )
    # Documents that are added are cut alike, by an index that was read back too.
    again = gr_jax.load(tmp_path / "run" / "index").retriever
    added = Corpus.from_documents([Document("new", "a new story", LONG)])
    more = len(text_pieces(added, count, encoder.room)[0])
    assert more > 5 and again.update(add=added).searcher.num_documents == len(texts) + more
    assert again.num_documents == 13


@pytest.mark.parametrize("name", ["dpr", pytest.param("gdr", marks=pytest.mark.slow)])
def test_short_documents_and_those_who_want_it_get_a_vector_a_document(name, beir, stories, tmp_path):
    short = run(SYSTEMS[name](), beir, tmp_path / "short").retriever
    told = run(SYSTEMS[name](unread=None), stories, tmp_path / "told").retriever
    for retriever, documents in ((short, 24), (told, 12)):
        assert not retriever.pieces and retriever.searcher.num_documents == documents
    assert "pieces" not in facts(tmp_path / "short" / "run") + facts(tmp_path / "told" / "run")
    said = Said()
    SYSTEMS[name](unread=0.9).run(
        stories, tmp_path / "told" / "run", shared_dir=tmp_path / "told" / "shared", say=said.append
    )
    assert "pieces" in said.made() and not [one for one in ("model", "clusters", "vectors") if one in said.made()]
    assert not gr_jax.load(tmp_path / "told" / "run" / "index").retriever.pieces


def test_an_index_of_before_there_were_pieces_is_read(beir, tmp_path):
    """Its manifest does not say how long documents were cut."""
    retriever = run(dpr(), beir, tmp_path).retriever
    here = tmp_path / "run" / "index" / "retriever"
    meta = storage.read_folder(here, verify=False).meta
    assert meta.pop("pieces") is False
    with storage.write_folder(tmp_path / "before", "dense", meta=meta) as folder:
        for part in ("encoder", "searcher"):
            shutil.copytree(here / part, folder / part)
    again = type(retriever).load(tmp_path / "before")
    assert not again.pieces and again.num_documents == 24
