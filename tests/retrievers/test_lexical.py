"""BM25 against its formula, written out here, and against the data sets' reference values."""

import collections
import json
import math
import os
import subprocess
import sys
import tempfile

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from gr_jax.corpus import Corpus, Document, read_beir
from gr_jax.docids.pseudo_queries import PseudoQueries
from gr_jax.errors import InputError
from gr_jax.evaluation import evaluate
from gr_jax.retrievers import BM25, analyzers, retrieve_run

pytest.importorskip("bm25s")
pytest.importorskip("Stemmer")

ANIMALS = [
    ("Cats", "Cats chase mice. A cat sleeps."),
    ("Dogs", "Dogs chase cats, and dogs bark."),
    ("Mice", "Mice eat cheese."),
    ("", "Cheese is made of milk."),
    ("", "the of and"),
]


def corpus_of(texts) -> Corpus:
    return Corpus.from_documents(Document(f"d{i}", title, text) for i, (title, text) in enumerate(texts))


def by_formula(documents: list[list[str]], query: list[str], k1: float, b: float) -> np.ndarray:
    """Lucene's BM25: idf · tf / (tf + k1 (1 − b + b |d| / avg)), summed over the query's terms."""
    average = sum(map(len, documents)) / len(documents)
    scores = np.zeros(len(documents))
    for term in query:
        frequency = sum(term in document for document in documents)
        idf = math.log(1 + (len(documents) - frequency + 0.5) / (frequency + 0.5))
        for place, document in enumerate(documents):
            count = document.count(term)
            if count:
                scores[place] += idf * count / (count + k1 * (1 - b + b * len(document) / average))
    return scores


# Words that no stemmer changes and no stop list holds, one of them in Greek.
words = st.sampled_from(["zebra", "lion", "fox", "wolf", "owl", "λύκο"])
texts = st.lists(words, max_size=8).map(" ".join)


@hypothesis.given(
    st.lists(texts, min_size=1, max_size=12),
    st.lists(texts, min_size=1, max_size=4),
    st.integers(1, 14),
    st.floats(0, 3),
    st.floats(0, 1),
    st.randoms(use_true_random=False),
)
@hypothesis.settings(max_examples=30)
def test_the_best_of_the_allowed_by_the_formula(documents, queries, k, k1, b, random):
    index = BM25(corpus_of([("", text) for text in documents]), k1=k1, b=b)
    allowed = np.array([[random.random() < 0.7 for _ in documents] for _ in queries])
    found = index.retrieve(queries, k, allowed=allowed)
    unfiltered = index.retrieve(queries, k)
    for mask, ranking in ((allowed, found), (np.ones_like(allowed), unfiltered)):
        assert ranking.doc_index.shape == ranking.score.shape == (len(queries), k)
        assert (ranking.doc_index.dtype, ranking.score.dtype) == (np.int32, np.float32)
        for row, query in enumerate(queries):
            scores = by_formula([text.split() for text in documents], query.split(), k1, b)
            right = [i for i in range(len(documents)) if mask[row, i] and scores[i] > 0]
            places = ranking.doc_index[row][ranking.doc_index[row] >= 0]
            assert len(set(places)) == len(places) == min(k, len(right))
            assert set(places) <= set(right)
            np.testing.assert_allclose(ranking.score[row, : len(places)], scores[places], rtol=1e-4)
            # The k best scores, falling; documents of equal score in their order.
            np.testing.assert_allclose(scores[places], sorted(scores[right], reverse=True)[: len(places)], rtol=1e-5)
            assert (ranking.doc_index[row, len(places) :] == -1).all()
            assert np.isneginf(ranking.score[row, len(places) :]).all()
            for first, second in zip(range(len(places)), range(1, len(places)), strict=False):
                if ranking.score[row, first] == ranking.score[row, second]:
                    assert places[first] < places[second]


def test_scores_are_those_of_bm25s():
    bm25s = pytest.importorskip("bm25s")
    rng = np.random.default_rng(0)
    vocabulary = [f"w{number}x" for number in range(200)]
    read = [rng.choice(vocabulary, rng.integers(1, 60), p=np.arange(200, 0, -1) / 20100).tolist() for _ in range(300)]
    queries = [rng.choice(vocabulary, rng.integers(1, 8)).tolist() for _ in range(50)]
    peer = bm25s.BM25(k1=0.9, b=0.4, method="lucene")
    peer.index(read, show_progress=False)
    index = BM25(corpus_of([("", " ".join(words)) for words in read]))
    for k in (1, 10, 300):
        positions, scores = peer.retrieve(queries, k=k, show_progress=False)
        found = index.retrieve([" ".join(query) for query in queries], k)
        np.testing.assert_allclose(np.where(found.doc_index >= 0, found.score, 0), scores, atol=1e-5)
        apart = np.abs(np.diff(scores, axis=1, prepend=np.inf, append=-np.inf)) > 1e-4
        unique = apart[:, :-1] & apart[:, 1:] & (scores > 0) if k == 300 else np.zeros(scores.shape, bool)
        np.testing.assert_array_equal(found.doc_index[unique], positions[unique])


def test_stop_words_are_those_of_bm25s():
    from bm25s.stopwords import STOPWORDS_EN

    words = [*STOPWORDS_EN, "who", "we", "cat"]
    assert analyzers.make_analyzer("english", "none").terms(words) == ["who", "we", "cat"]


def test_equal_documents_keep_their_order():
    index = BM25(corpus_of([("", "fox")] * 6 + [("", "fox fox")] + [("", "fox")] * 6))
    assert index.retrieve(["fox"], 5).doc_index[0].tolist() == [6, 0, 1, 2, 3]


def test_words_are_stemmed_and_stop_words_left_out():
    index = BM25(corpus_of(ANIMALS))
    assert index.retrieve(["a CAT"], 5).doc_index[0].tolist() == [0, 1, -1, -1, -1]
    assert index.retrieve(["the dogs' chasing"], 5).doc_index[0].tolist()[0] == 1
    for nothing in ("", "the of and", "unheard", "?!", "x"):
        found = index.retrieve([nothing], 3)
        assert found.doc_index.tolist() == [[-1, -1, -1]] and np.isneginf(found.score).all()
    assert index.retrieve([], 3).doc_index.shape == (0, 3)


def test_a_corpus_without_words():
    index = BM25(corpus_of([("", "the"), ("", "?")]))
    assert index.retrieve(["anything"], 2).doc_index.tolist() == [[-1, -1]]


def test_titles_count():
    index = BM25(corpus_of([("Zebra", "stripes"), ("", "lion")]))
    assert index.retrieve(["zebra"], 1).doc_index.tolist() == [[0]]


def test_transform_splits_identifiers_of_documents_and_queries():
    texts = [("jax.lax.scan", "fooBar of tree_map"), ("", "nothing here")]
    assert BM25(corpus_of(texts)).retrieve(["map a tree"], 1).doc_index.tolist() == [[-1]]
    index = BM25(corpus_of(texts), transform="split_identifiers")
    assert index.retrieve(["map a tree"], 1).doc_index.tolist() == [[0]]
    assert index.retrieve(["theBar"], 1).doc_index.tolist() == [[0]]


def test_character_bigrams_need_no_spaces():
    texts = [("", "東大寺の仏像"), ("", "手塚治虫は漫画家"), ("", "猫")]
    index = BM25(corpus_of(texts), k1=1.2, b=0.75, analyzer="character_bigrams")
    assert index.retrieve(["仏像はどこ?"], 2).doc_index.tolist() == [[0, -1]]
    assert index.retrieve(["猫"], 1).doc_index.tolist() == [[2]]
    documents = [
        ["東大", "大寺", "寺の", "の仏", "仏像"],
        ["手塚", "塚治", "治虫", "虫は", "は漫", "漫画", "画家"],
        ["猫"],
    ]
    found = index.retrieve(["漫画家"], 1)
    np.testing.assert_allclose(found.score[0, 0], by_formula(documents, ["漫画", "画家"], 1.2, 0.75)[1], rtol=1e-5)


def test_explanations_add_up_and_point_into_the_text():
    corpus = corpus_of(ANIMALS)
    index = BM25(corpus)
    found = index.retrieve(["dogs chase cats cats", "nothing there"], 3, explain=True)
    assert found.evidence is not None
    assert [len(reasons) for reasons in found.evidence] == [2, 0]
    for rank, reasons in enumerate(found.evidence[0]):
        assert sum(reason.score for reason in reasons) == pytest.approx(float(found.score[0, rank]), rel=1e-5)
        text = corpus[int(found.doc_index[0, rank])].text
        for reason in reasons:
            assert reason.kind == "term" and reason.spans
            for start, end in reason.spans:
                assert text[start:end].lower().startswith(reason.text)
    assert {reason.text for reason in found.evidence[0][0]} == {"dog", "chase", "cat"}
    assert index.retrieve(["cats"], 3).evidence is None


def test_explanations_with_a_transform_point_at_the_identifier():
    corpus = corpus_of([("", "Use tree_map or fooBar.")])
    found = BM25(corpus, transform="split_identifiers").retrieve(["the tree bars"], 1, explain=True)
    places = {reason.text: [corpus[0].text[s:e] for s, e in reason.spans] for reason in found.evidence[0][0]}
    assert places == {"tree": ["tree_map"], "bar": ["fooBar"]}


def test_explanations_of_bigrams():
    found = BM25(corpus_of([("", "Ab, ab cab")]), analyzer="character_bigrams").retrieve(["AB"], 1, explain=True)
    assert found.evidence[0][0][0].spans == ((0, 2), (4, 6), (8, 10))


@pytest.mark.parametrize("mmap", [False, True])
def test_save_and_load(tmp_path, mmap):
    corpus = corpus_of(ANIMALS)
    index = BM25(corpus, k1=1.1, b=0.3, transform="split_identifiers")
    index.save(tmp_path / "index")
    again = BM25.load(tmp_path / "index", corpus, mmap=mmap)
    assert again.settings == index.settings and again.num_documents == 5
    queries = ["cats and dogs", "cheese", "nothing"]
    for one, two in zip(index.retrieve(queries, 4, explain=True).__dict__.values(),
                        again.retrieve(queries, 4, explain=True).__dict__.values(), strict=True):  # fmt: skip
        np.testing.assert_equal(one, two)
    without = BM25.load(tmp_path / "index")
    assert without.retrieve(["cats"], 1, explain=True).evidence[0][0][0].spans == ()
    manifest = json.loads((tmp_path / "index" / "manifest.json").read_text())
    assert (manifest["kind"], manifest["corpus"]) == ("bm25", corpus.fingerprint)


def test_the_same_corpus_gives_the_same_files_whatever_the_hash_seed(tmp_path):
    """In another process, and in this one, whose seed is another."""
    program = (
        "import sys; from gr_jax.corpus import Corpus, Document; from gr_jax.retrievers import BM25;"
        "corpus = Corpus.from_documents([Document('a', 'Cats', 'fox wolf owl'), Document('b', '', 'owl lion')]);"
        "BM25(corpus).save(sys.argv[1])"
    )
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    subprocess.run([sys.executable, "-c", program, tmp_path / "other"], check=True, env=_environment(seed))
    corpus = Corpus.from_documents([Document("a", "Cats", "fox wolf owl"), Document("b", "", "owl lion")])
    BM25(corpus).save(tmp_path / "this")
    one, other = ({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("this", "other"))
    assert one == other


def _environment(hash_seed: str) -> dict[str, str]:
    return {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def queries_of(corpus, *pairs) -> PseudoQueries:
    texts, documents = [text for text, _ in pairs], np.array([document for _, document in pairs], np.int32)
    return PseudoQueries(texts, documents, np.zeros(len(pairs), np.int8), ("generated",), corpus.fingerprint)


@hypothesis.given(
    st.lists(texts, min_size=1, max_size=6),
    st.lists(texts, min_size=1, max_size=6),
    st.lists(st.tuples(texts, st.integers(0, 5)), max_size=6),
    st.sets(st.integers(0, 5)),
    texts,
    st.booleans(),
)
@hypothesis.settings(max_examples=30)
def test_an_updated_index_answers_as_one_made_of_what_is_left(old, new, asked, removed, query, mmap):
    first = corpus_of([("", text) for text in old])
    added = Corpus.from_documents(Document(f"n{i}", "", text) for i, text in enumerate(new))
    removed = sorted(place for place in removed if place < len(old))
    for target, texts_of_target, shift in ((first, old, 0), (added, new, len(old))):
        pairs = [(text, document) for text, document in asked if document < len(texts_of_target)]
        index = BM25(first)
        with tempfile.TemporaryDirectory() as folder:
            index.save(f"{folder}/index")
            index = BM25.load(f"{folder}/index", first, mmap=mmap and any(old))
            assert index.update(add=added, remove=removed, expansions=queries_of(target, *pairs)) is index
        documents = [text.split() for text in [*old, *new]]
        for text, document in pairs:
            documents[document + shift] = documents[document + shift] + text.split()
        left = [place for place in range(len(documents)) if place not in removed]
        scores = np.zeros(len(documents))
        scores[left] = by_formula([documents[place] for place in left], query.split(), 0.9, 0.4)
        found = index.retrieve([query], len(documents))
        places = found.doc_index[0][found.doc_index[0] >= 0]
        assert index.num_documents == len(documents) and set(places) == set(np.flatnonzero(scores))
        np.testing.assert_allclose(found.score[0, : len(places)], scores[places], rtol=1e-4)
        np.testing.assert_allclose(scores[places], np.sort(scores[scores > 0])[::-1], rtol=1e-5)


def test_expanded_when_made_and_expanded_later_are_the_same(tmp_path):
    corpus = corpus_of(ANIMALS)
    queries = queries_of(corpus, ("what do tigers hunt", 0), ("cheese eaters", 2), ("cheese eaters", 2))
    assert BM25(corpus).retrieve(["tigers"], 2).doc_index.tolist() == [[-1, -1]]
    made, later = BM25(corpus, expansions=queries), BM25(corpus)
    later.update(expansions=queries)
    for name, index in (("made", made), ("later", later)):
        assert index.retrieve(["tiger"], 2).doc_index.tolist() == [[0, -1]]
        index.save(tmp_path / name)
    files = [{file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("made", "later")]
    assert files[0] == files[1]
    allowed = np.array([False, True, True, True, True])
    assert made.retrieve(["tigers and cheese"], 3, allowed=allowed).doc_index.tolist() == [[2, 3, -1]]
    (tiger,) = made.retrieve(["tigers"], 1, explain=True).evidence[0][0]
    assert (tiger.text, tiger.spans) == ("tiger", ())  # the document itself does not say it


def test_an_updated_index_knows_its_corpus(tmp_path):
    first, added = corpus_of(ANIMALS), Corpus.from_documents([Document("new", "", "a zebra")])
    both = Corpus.from_documents([*first, *added])
    index = BM25(first).update(add=added, remove=[0])
    assert index.corpus_fingerprint == both.fingerprint
    assert index.retrieve(["zebra"], 1, explain=True).evidence[0][0][0].spans == ((2, 7),)
    index.save(tmp_path / "index", corpus=both.fingerprint)
    BM25.load(tmp_path / "index", both).update(remove=[5])
    with pytest.raises(InputError, match="made from the corpus"):
        BM25.load(tmp_path / "index", first)
    BM25(first).save(tmp_path / "alone")
    alone = BM25.load(tmp_path / "alone").update(add=added)  # it does not have the texts, and takes their owner's word
    alone.save(tmp_path / "later", corpus=both.fingerprint)
    assert BM25.load(tmp_path / "later", both).retrieve(["zebra"], 1).doc_index.tolist() == [[5]]
    emptied = BM25(first).update(remove=range(5))
    assert emptied.retrieve(["cats"], 1).doc_index.tolist() == [[-1]]
    assert emptied.update(add=added).retrieve(["zebra cats"], 2).doc_index.tolist() == [[5, -1]]


def test_a_refused_update_changes_nothing():
    first, added = corpus_of(ANIMALS), Corpus.from_documents([Document("new", "", "a zebra")])
    index = BM25(first)
    other = queries_of(Corpus.from_documents([Document("x", "", "y")]), ("z", 0))
    with pytest.raises(InputError, match="made from the corpus"):
        index.update(add=added, expansions=other)
    assert index.num_documents == 5
    assert index.retrieve(["zebra cats"], 2).doc_index.tolist() == BM25(first).retrieve(["cats"], 2).doc_index.tolist()


def test_an_interrupted_update_leaves_an_index_that_answers(monkeypatch):
    """New words have numbers before they have postings: what stands there is not read."""
    index = BM25(Corpus.from_documents([Document("a", "", "red cats"), Document("b", "", "blue dogs")]))
    before = index.retrieve(["red cats", "blue"], 2)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(BM25, "_weigh", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        index.update(Corpus.from_documents([Document("c", "", "zebras yawn while quokkas sleep")]))
    after = index.retrieve(["red cats", "blue"], 2)
    np.testing.assert_array_equal(after.doc_index, before.doc_index)
    np.testing.assert_array_equal(after.score, before.score)
    assert (index.retrieve(["zebras quokkas yawn sleep"], 2).doc_index == -1).all()


def test_updates_that_make_no_sense():
    corpus = corpus_of(ANIMALS)
    for wrong in ([5], [-1]):
        with pytest.raises(InputError, match="no such document"):
            BM25(corpus).update(remove=wrong)
    with pytest.raises(InputError, match="made from the corpus"):
        BM25(corpus, expansions=queries_of(corpus_of(ANIMALS[:2]), ("cats", 0)))


def test_a_damaged_or_foreign_index_is_refused(tmp_path):
    corpus = corpus_of(ANIMALS)
    BM25(corpus).save(tmp_path / "index")
    with pytest.raises(InputError, match="made from the corpus"):
        BM25.load(tmp_path / "index", corpus_of(ANIMALS[:3]))
    with pytest.raises(InputError, match="made from the corpus"):
        BM25(corpus).save(tmp_path / "other", corpus="0123456789abcdef")
    assert not (tmp_path / "other").exists()
    corpus.save(tmp_path / "corpus")
    with pytest.raises(InputError, match="holds 'corpus', not 'bm25'"):
        BM25.load(tmp_path / "corpus")
    for name in ("weights.npy", "documents.npy", "tokens.npy", "living.npy", "terms.json"):
        file = tmp_path / "index" / name
        data = file.read_bytes()
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(InputError, match=name):
            BM25.load(tmp_path / "index")
        file.write_bytes(data)
    BM25.load(tmp_path / "index")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"k1": -1}, "k1"),
        ({"k1": float("nan")}, "k1"),
        ({"b": 1.5}, "between 0 and 1"),
        ({"analyzer": "klingon"}, "english, character_bigrams"),
        ({"transform": "upside_down"}, "split_identifiers"),
    ],
)
def test_wrong_settings(settings, says):
    with pytest.raises(InputError, match=says):
        BM25(corpus_of(ANIMALS), **settings)


def test_wrong_arguments():
    index = BM25(corpus_of(ANIMALS))
    with pytest.raises(InputError, match="sequence of texts"):
        index.retrieve("cats", 3)
    with pytest.raises(InputError, match="1 or more"):
        index.retrieve(["cats"], 0)
    with pytest.raises(InputError, match="does not fit"):
        index.retrieve(["cats"], 3, allowed=np.ones(4, bool))


def test_a_missing_package_is_named(monkeypatch):
    for module, package in (("Stemmer", "PyStemmer"), ("bm25s", "bm25s")):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(InputError, match=f"needs the package {package}. pip install 'gr_jax"):
                BM25(corpus_of(ANIMALS))


Reference = collections.namedtuple("Reference", "data subset split settings success1 success10 rr10")
JAPANESE = {"k1": 1.2, "b": 0.75, "analyzer": "character_bigrams"}


@pytest.mark.parametrize(
    "reference",
    [
        Reference("squad_dev", "", "test", {}, 0.789, 0.953, 0.848),
        pytest.param(Reference("squad_dev", "", "test_unseen", {}, 0.757, 0.957, 0.829), marks=pytest.mark.slow),
        pytest.param(Reference("nq_boolq_dev", "", "test", {}, 0.711, 0.931, 0.791), marks=pytest.mark.slow),
        pytest.param(Reference("jaquad", "", "test", JAPANESE, 0.822, 0.967, 0.875), marks=pytest.mark.slow),
        pytest.param(Reference("wiki_intro_179k", "10k", "test", {}, 0.366, 0.581, 0.439), marks=pytest.mark.slow),
    ],
    ids=lambda reference: f"{reference.data}-{reference.split}",
)
def test_reference_values(shared_data, reference):
    pytest.importorskip("ir_measures")
    folder = shared_data / reference.data
    data = read_beir(folder, subset=folder / "subsets" / f"{reference.subset}.ids.gz" if reference.subset else None)
    run = retrieve_run(BM25(data.corpus, **reference.settings), data.split_queries(reference.split), data.corpus, k=10)
    found = evaluate(run, data.split(reference.split), "Success@1 Success@10 RR@10")
    assert list(found.values()) == pytest.approx(reference[4:], abs=0.01)


@pytest.mark.parametrize("name", ["offsets", "documents", "weights"])
@pytest.mark.parametrize("change", ["longer", "beyond", "another kind"])
def test_postings_that_would_be_read_beyond_their_end_are_refused(tmp_path, name, change):
    index = BM25(corpus_of(ANIMALS))
    array = getattr(index, f"_{name}")
    if change == "longer":
        array = np.append(array, array[-1:])
    elif change == "another kind":
        array = array.astype(np.float64)
    elif name == "weights":
        array = array[:-1]
    else:
        array[len(array) // 2] = 99
    setattr(index, f"_{name}", array)
    index.save(tmp_path / "index")
    with pytest.raises(InputError, match="another type" if change == "another kind" else "postings do not fit"):
        BM25.load(tmp_path / "index")
