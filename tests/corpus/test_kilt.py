"""KILT's files: real records field by field, pages, data sets, predictions there and back, and what is refused."""

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax.corpus import Document, Run
from gr_jax.corpus.kilt import Output, Provenance, Question, read_kilt, read_triviaqa
from gr_jax.corpus.kilt_pages import kilt_dataset, read_pages
from gr_jax.corpus.kilt_predictions import read_predictions, write_predictions
from gr_jax.errors import InputError


def write(file, *records):
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


@pytest.fixture
def formats(shared_data):
    return shared_data / "formats" / "kilt"


def test_real_questions_of_natural_questions(formats):
    questions = list(read_kilt(formats / "nq-dev-kilt.jsonl"))
    assert [question.id for question in questions][:2] == ["6915606477668963399", "-8366545547296627039"]
    assert len(questions) == 5
    first = questions[0]
    assert first.text == "what do the 3 dots mean in math"
    assert first.outputs[0] == Output(
        "the therefore sign",
        (Provenance("10593264", "Therefore sign", 1.0, "Section::::Abstract.", 1, 1, 44, 62),),
    )
    assert first.outputs[2] == Output("a logical consequence , such as the conclusion of a syllogism", None)
    assert first.outputs[4].answer == "" and first.outputs[4].provenance[0].bleu_score == 0.6816476074249925
    written = first.outputs[5].provenance[0]  # by people: where it stands, and no score
    assert written.bleu_score is None and written.start_paragraph == 1 and written.start_character == -1
    assert first.pages() == {"10593264": "Therefore sign"}
    assert set(first.evidence()) == {frozenset({"10593264"})} and len(first.evidence()) == sum(
        one.provenance is not None for one in first.outputs
    )
    assert set(first.evidence("title")) == {frozenset({"Therefore sign"})}


def test_real_records_of_every_task_that_is_there(formats):
    for name, inputs, judged in (
        ("aidayago2-dev", True, True), ("aidayago2-test_without_answers", True, False), ("aidayago2-train", True, True),
        ("fever-dev", True, True), ("fever-test_without_answers", True, False), ("fever-train", True, True),
        ("nq-dev", True, True), ("nq-test_without_answers", True, False), ("nq-train", True, True),
        ("triviaqa-dev_id", False, True), ("triviaqa-test_id_without_answers", False, False),
        ("triviaqa-train_id", False, True),
    ):  # fmt: skip
        questions = list(read_kilt(formats / f"{name}-kilt.jsonl"))
        assert len(questions) >= 4
        assert all(bool(question.text) == inputs for question in questions), name
        assert any(question.outputs for question in questions) == judged, name
    linked = next(read_kilt(formats / "aidayago2-dev-kilt.jsonl"))
    assert "[START_ENT] LEICESTERSHIRE [END_ENT]" in linked.text and len(linked.pages()) == 1
    claim, other, *_ = read_kilt(formats / "fever-train-kilt.jsonl")
    assert claim.outputs == (Output("SUPPORTS"),) and claim.pages() == {} and claim.evidence() == []
    assert other.pages() == {"43386202": "Roman Atwood"} and other.pages(bleu_above=0.75) == {}


def test_questions_of_triviaqa_are_joined(formats, tmp_path):
    file = formats / "triviaqa-dev_id-kilt.jsonl"
    ids = [question.id for question in read_kilt(file)]
    data = [{"QuestionId": one, "Question": f"who is {one}?", "Answer": {}} for one in ids]
    texts = read_triviaqa(write(tmp_path / "qa.json", {"Data": data, "Version": 1.0}))
    assert [question.text for question in read_kilt(file, texts)] == [f"who is {one}?" for one in ids]
    with pytest.raises(InputError, match=r":1: no input"):
        list(read_kilt(file, {}))
    with pytest.raises(InputError, match="QuestionId"):
        read_triviaqa(write(tmp_path / "qa.json", {"Data": [{"QuestionId": "x"}]}))
    with pytest.raises(InputError, match='"Data"'):
        read_triviaqa(write(tmp_path / "qa.json", {"data": []}))


PAGE = {
    "wikipedia_id": "290", "wikipedia_title": "A",
    "text": ["A\n", "A is the first letter.\n", "Section::::History.\n", "It was an ox.\n"],
    "anchors": [], "categories": "Letters", "history": {}, "wikidata_info": {},
}  # fmt: skip


def test_pages(tmp_path):
    """As the knowledge source is described: the first paragraph is the title."""
    file = tmp_path / "pages.json.gz"
    other = {**PAGE, "wikipedia_id": 7, "wikipedia_title": "B", "text": []}
    file.write_bytes(gzip.compress("".join(json.dumps(page) + "\n" for page in (PAGE, other)).encode()))
    pages = list(read_pages(file))
    assert pages[0] == Document("290", "A", "A is the first letter.\nSection::::History.\nIt was an ox.")
    assert pages[1] == Document("7", "B", "")
    for wrong in ({"text": "one"}, {"text": [1]}, {"wikipedia_id": None}, {"wikipedia_title": 3}):
        with pytest.raises(InputError, match=":1"):
            list(read_pages(write(tmp_path / "wrong.json", {**PAGE, **wrong})))


def asked(identifier: str, *pages: str, bleu: float | None = None) -> Question:
    return Question(identifier, f"q {identifier}", (Output("", tuple(Provenance(p, p, bleu) for p in pages)),))


def test_a_data_set():
    pages = [Document("1", "One", "x"), Document("2", "Two", "y")]
    tasks = {"train": [asked("a", "1", "2"), Question("b", "no evidence")], "dev": [asked("c", "2", bleu=0.4)]}
    made = kilt_dataset(pages, tasks)
    assert {split: {q: dict(g) for q, g in qrels.items()} for split, qrels in made.qrels.items()} == {
        "train": {"a": {"1": 1, "2": 1}}, "dev": {"c": {"2": 1}},
    }  # fmt: skip
    assert made.query_texts(["c"]) == ["q c"] and made.notes["questions without evidence"] == 1
    assert len(kilt_dataset(pages, tasks, bleu_above=0.5).qrels["dev"]) == 0
    tasks["dev"].append(asked("d", "3"))
    with pytest.raises(InputError, match="question d"):
        kilt_dataset(pages, tasks)
    dropped = kilt_dataset(pages, tasks, missing="drop").notes
    assert dropped["questions without a page"] == 1 == dropped["pieces of evidence without a page"]
    with pytest.raises(InputError, match='"drop"'):
        kilt_dataset(pages, tasks, missing="keep")


def test_predictions_there_and_back(tmp_path):
    made = kilt_dataset([Document("1", "One", "x"), Document("2", "Two", "y")], {})
    questions = [asked("b", "1"), asked("a", "2")]
    file = tmp_path / "guess.jsonl"
    write_predictions(file, questions, Run({"a": [("2", 0.5), ("1", 0.25)]}), made.corpus, k=1)
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"id": "b", "input": "q b", "output": [{"provenance": []}]},
        {"id": "a", "input": "q a", "output": [{"provenance": [{"wikipedia_id": "2", "title": "Two", "score": 0.5}]}]},
    ]
    assert read_predictions(file) == {"b": [], "a": ["2"]} and read_predictions(file, "title") == {
        "b": [],
        "a": ["Two"],
    }
    with pytest.raises(InputError):
        write_predictions(file, questions, Run({"a": [("9", 1.0)]}), made.corpus)
    assert read_predictions(file)["a"] == ["2"]  # what stood there is whole
    record = {"id": "a", "output": [{"answer": "x"}]}
    for wrong in ([record], [{**record, "output": [{"provenance": []}] * 2}], [{"output": []}], [{"id": "a"}],
                  [{"id": "a", "output": [{"provenance": []}]}] * 2):  # fmt: skip
        with pytest.raises(InputError, match="wrong.jsonl"):
            read_predictions(write(tmp_path / "wrong.jsonl", *wrong))


@pytest.mark.parametrize(
    "wrong",
    [{"id": None}, {"id": True}, {"id": " "}, {"input": 3}, {"output": {}}, {"output": ["x"]},
     {"output": [{"provenance": "x"}]}, {"output": [{"answer": 3}]}, {"output": [{"provenance": [{"title": 3}]}]},
     {"output": [{"provenance": [{"wikipedia_id": []}]}]}, {"output": [{"provenance": [{"bleu_score": 2}]}]},
     {"output": [{"provenance": [{"start_character": "x"}]}]}],
)  # fmt: skip
def test_records_that_are_none(tmp_path, wrong):
    good = {"id": "a", "input": "who", "output": []}
    file = write(tmp_path / "task.jsonl", good, {**good, "id": "b", **wrong})
    with pytest.raises(InputError, match=r"task\.jsonl:2"):
        list(read_kilt(file))


def test_ids_with_white_space_have_a_key(formats, tmp_path):
    """As AIDA's have: no TREC file could hold them."""
    linked = next(read_kilt(formats / "aidayago2-dev-kilt.jsonl"))
    assert linked.id.endswith("_947testa CRICKET:0") and linked.key == linked.id.replace(" ", "_")
    made = kilt_dataset([Document(page, "", "x") for page in linked.pages()], {"dev": [linked]})
    assert made.queries.ids == (linked.key,) == tuple(made.qrels["dev"])
    (page,) = linked.pages()
    write_predictions(tmp_path / "guess.jsonl", [linked], Run({linked.key: [(page, 1.0)]}), made.corpus)
    assert read_predictions(tmp_path / "guess.jsonl") == {linked.id: [page]}
    with pytest.raises(InputError, match=r"task\.jsonl:2: this id and 'a b' differ in white space alone"):
        list(read_kilt(write(tmp_path / "task.jsonl", {"id": "a b"}, {"id": "a_b"})))


def test_a_blank_input_is_none(tmp_path):
    file = write(tmp_path / "task.jsonl", {"id": "a", "input": " "})
    assert [question.text for question in read_kilt(file, {"a": "who"})] == ["who"]
    for texts in ({}, {"a": " "}):
        with pytest.raises(InputError, match=r"task\.jsonl:1: no input.*--kilt_questions"):
            list(read_kilt(file, texts))


def test_an_id_comes_once(tmp_path):
    with pytest.raises(InputError, match="came before"):
        list(read_kilt(write(tmp_path / "task.jsonl", {"id": 1}, {"id": "1"})))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "input", "output", "answer", "provenance", "wikipedia_id", "title", "bleu_score"]),
            inner,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=300)
@given(st.lists(JSON, min_size=1, max_size=3))
def test_whatever_stands_there_is_read_or_refused(tmp_path_factory, records):
    file = write(tmp_path_factory.mktemp("kilt") / "task.jsonl", *records)
    for read in (read_kilt, read_pages, lambda file: [read_predictions(file)]):
        try:
            list(read(file))
        except InputError as error:
            assert "task.jsonl" in str(error)


def test_questions_that_no_data_set_can_have():
    pages = [Document("1", "One", "x")]
    with pytest.raises(InputError, match="a"):
        kilt_dataset(pages, {"train": [asked("a", "1")], "dev": [asked("a", "1")]})
    without = Question("b", "", asked("b", "1").outputs)  # as TriviaQA's files have them
    with pytest.raises(InputError, match="b"):
        kilt_dataset(pages, {"train": [without]})
