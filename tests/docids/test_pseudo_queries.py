"""Pseudo-queries: each from its own document alone, whatever else is in the corpus."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from gr_jax import InputError
from gr_jax.corpus import Corpus, Document
from gr_jax.docids.pseudo_queries import MAX_SENTENCE_WORDS, SPAN_WORDS, PseudoQueries, pseudo_queries

RHINE = (
    "The Rhine is a river that begins in the Swiss canton of Graubünden. It flows through Germany and the Netherlands "
    "to the North Sea. In 1932 the Lorelei rock was visited by 12,000 people. The longest bridge was built by Johann "
    "Tulla between 1817 and 1828. Its catchment area covers 185,000 square kilometres."
)
DOCUMENTS = [
    Document("rhine", "Rhine (river)", RHINE),
    Document("tower", "Eiffel Tower", "The tower was designed by Gustave Eiffel. It was opened to the public in 1889."),
    Document("tokyo", "東京", "東京は日本の首都である。1868年に江戸から改称され、人口は約1400万人に達している。"),
    Document(
        "koeln",
        "Köln",
        "Köln liegt am Rhein und hat mehr als eine Million Einwohner. Der Dom wurde 1880 fertiggestellt.",
    ),
    Document(
        "scan",
        "jax.lax.scan_loop",
        "Carries a value through a loop. It returns the last value.\n\n>>> scan(f, 0, xs)[1][:, 2]",
    ),
    Document("empty", "", ""),
    Document("bare", "Only a title", ""),
]
KINDS = {"title": 2, "sentence": 3, "span": 4, "cloze": 5}


def by_document(queries, corpus):
    """doc_id → kind → texts"""
    found = {}
    for text, index, kind in zip(queries.texts, queries.documents, queries.kinds, strict=True):
        found.setdefault(corpus.doc_ids[int(index)], {}).setdefault(queries.kind_names[kind], []).append(text)
    return found


@pytest.fixture(scope="module")
def corpus():
    return Corpus.from_documents(DOCUMENTS)


@pytest.fixture(scope="module")
def made(corpus):
    return by_document(pseudo_queries(corpus, kinds=KINDS, seed=3), corpus)


def test_a_document_with_much_to_say_gets_as_many_as_asked_for(corpus, made):
    assert {kind: len(texts) for kind, texts in made["rhine"].items()} == KINDS
    for kinds in made.values():
        for kind, texts in kinds.items():
            assert len(set(texts)) == len(texts) <= KINDS[kind] and all(text.strip() for text in texts)
    assert made["bare"] == {"title": ["Only a title"]} and "empty" not in made


def test_each_kind_is_what_it_says(made):
    assert made["rhine"]["title"] == ["Rhine (river)", "Rhine"]
    assert all(sentence in RHINE for sentence in made["rhine"]["sentence"])
    assert all(sentence.endswith(".") for sentence in made["rhine"]["sentence"])
    for span in made["rhine"]["span"]:
        assert span in RHINE and len(span.split()) <= SPAN_WORDS[1]
    assert not any(question in RHINE for question in made["rhine"]["cloze"])
    assert any(question.lower().startswith(("wh", "how")) for question in made["rhine"]["cloze"])


def test_scripts_without_spaces_and_other_languages_have_all_kinds(made):
    text = next(document.text for document in DOCUMENTS if document.doc_id == "tokyo")
    assert set(made["tokyo"]) == set(KINDS) and all(span in text for span in made["tokyo"]["span"])
    assert any(word in "".join(made["tokyo"]["cloze"]) for word in ("何", "いつ", "どこ", "いくつ"))
    german = " ".join(made["koeln"]["cloze"]).lower().split()
    assert not {"what", "who", "when", "did"} & set(german)


def test_code_is_left_out_where_there_is_prose(made):
    assert not any(">>>" in text for texts in made["scan"].values() for text in texts)


def test_order_growth_and_other_kinds_change_nothing(corpus, made):
    again = by_document(pseudo_queries(corpus, kinds=KINDS, seed=3), corpus)
    assert again == made
    for chosen in ([0], [3, 1, 0], range(6, -1, -1)):
        part = corpus.subset(chosen)
        for doc_id, kinds in by_document(pseudo_queries(part, kinds=KINDS, seed=3), part).items():
            assert kinds == made[doc_id]
    for kind in KINDS:
        alone = by_document(pseudo_queries(corpus, kinds={kind: KINDS[kind]}, seed=3), corpus)
        assert all(alone[doc_id][kind] == kinds[kind] for doc_id, kinds in made.items() if kind in kinds)
        # Fewer of a kind are the first ones.
        fewer = by_document(pseudo_queries(corpus, kinds={kind: 1}, seed=3), corpus)
        assert all(fewer[doc_id][kind] == kinds[kind][:1] for doc_id, kinds in made.items() if kind in kinds)
    assert by_document(pseudo_queries(corpus, kinds=KINDS, seed=4), corpus) != made


def test_columns(corpus):
    queries = pseudo_queries(corpus, kinds=KINDS)
    assert len(queries) == len(queries.texts) == len(queries.documents) == len(queries.kinds)
    assert queries.documents.dtype == np.int32 and queries.kinds.dtype == np.int8
    assert (np.diff(queries.documents) >= 0).all() and queries.kind_names == tuple(KINDS)
    assert queries.corpus == corpus.fingerprint


def test_queries_go_through_the_transform(corpus):
    queries = pseudo_queries(corpus, kinds={"title": 1}, transform="split_identifiers")
    assert by_document(queries, corpus)["scan"]["title"] == ["jax lax scan loop"]


def test_saved_pseudo_queries_load_equal(corpus, tmp_path):
    queries = pseudo_queries(corpus, kinds=KINDS)
    queries.save(tmp_path / "queries")
    loaded = PseudoQueries.load(tmp_path / "queries")
    assert list(loaded.texts) == list(queries.texts)
    assert (loaded.kind_names, loaded.corpus) == (queries.kind_names, queries.corpus)
    np.testing.assert_array_equal(loaded.documents, queries.documents)
    np.testing.assert_array_equal(loaded.kinds, queries.kinds)
    PseudoQueries(list(queries.texts), queries.documents, queries.kinds, queries.kind_names).save(tmp_path / "queries")
    assert list(PseudoQueries.load(tmp_path / "queries").texts) == list(queries.texts)
    (tmp_path / "queries" / "kinds.npy").unlink()
    with pytest.raises(InputError):
        PseudoQueries.load(tmp_path / "queries")


@pytest.mark.parametrize("kinds", [{"poem": 1}, {"span": -1}, {"span": 1.5}])
def test_bad_kinds_are_refused(corpus, kinds):
    with pytest.raises(InputError):
        pseudo_queries(corpus, kinds=kinds)
    with pytest.raises(InputError):
        pseudo_queries(corpus, transform="none such")


@hypothesis.given(
    documents=st.lists(
        st.builds(Document, st.just("d"), st.text(max_size=12), st.text(max_size=80)), min_size=1, max_size=1
    ),
    seed=st.integers(0, 5),
)
def test_any_document_can_be_read(documents, seed):
    corpus = Corpus.from_documents(
        [Document("d", d.title, d.text) for d in documents if _is_unicode(d.title + d.text)] or DOCUMENTS
    )
    queries = pseudo_queries(corpus, kinds=KINDS, seed=seed)
    assert all(text.strip() for text in queries.texts)


def _is_unicode(text):
    return text.encode("utf-8", "replace").decode() == text


def test_sentences_without_end_are_cut():
    corpus = Corpus.from_documents([Document("d", "", "word " * 300)])
    (sentence,) = pseudo_queries(corpus, kinds={"sentence": 5}).texts
    assert len(sentence.split()) == MAX_SENTENCE_WORDS


def test_questions_about_real_paragraphs_look_like_questions(shared_data):
    """Length and overlap of real training questions: 10 words, .73 of the content words in the paragraph."""
    from gr_jax.corpus import read_beir

    corpus = read_beir(shared_data / "squad_dev").corpus.subset(range(0, 2067, 20))
    queries = pseudo_queries(corpus, kinds={"cloze": 5})
    assert len(queries) >= 4.9 * len(corpus)
    lengths = [len(text.split()) for text in queries.texts]
    assert 7 < np.mean(lengths) < 12
    openings = [text.split()[0].lower() for text in queries.texts]
    asking = set(
        "what who when where which how why is are was were did does do has have had can could will would".split()
    )
    assert np.mean([opening in asking for opening in openings]) > 0.7


def test_generated_queries_are_a_kind_like_others(tmp_path):
    corpus = Corpus.from_documents([Document(f"d{i}", f"Title {i}", "Some text.") for i in range(3)])
    texts, owners = ["what is zero?", "where is zero?", "what is two?"], np.array([0, 0, 2], np.int32)
    table = PseudoQueries(texts, owners, np.zeros(3, np.int8), ("generated",), corpus.fingerprint)
    table.save(tmp_path / "table")
    for generated in (table, PseudoQueries.load(tmp_path / "table")):
        made = pseudo_queries(corpus, kinds={"generated": 1, "title": 1}, generated=generated)
        assert made.kind_names == ("generated", "title")
        found = list(zip(made.documents.tolist(), made.kinds.tolist(), made.texts, strict=True))
        assert found == [
            (0, 0, "what is zero?"), (0, 1, "Title 0"), (1, 1, "Title 1"), (2, 0, "what is two?"), (2, 1, "Title 2"),
        ]  # fmt: skip
        assert list(pseudo_queries(corpus, kinds={"generated": 9}, generated=generated).texts) == texts
    with pytest.raises(InputError, match="need a table"):
        pseudo_queries(corpus, kinds={"generated": 1})
    other = Corpus.from_documents([Document("d0", "", "Other text.")])
    with pytest.raises(InputError, match="generated from the corpus"):
        pseudo_queries(other, kinds={"generated": 1}, generated=table)


@pytest.mark.parametrize(
    ("mark", "end"), [(".", " x"), ("a_", " x"), ("a_", ""), ("a.", ""), ("(", ""), ("( ", ""), ("a ", "")]
)
def test_a_title_of_a_million_marks(mark, end):
    """With an expression that goes back at every mark, it takes hours."""
    title = 1_000_000 * mark + end
    corpus = Corpus.from_documents([Document("d", title, "A short text about nothing.")])
    found = pseudo_queries(corpus, kinds={"title": 1, "cloze": 1})
    assert found.texts[0] == " ".join(title.split())
