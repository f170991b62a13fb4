"""DPR's files: a real sample field by field, published forms by hand, and what is refused."""

import csv
import gzip
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax.corpus import Document
from gr_jax.corpus.dpr_files import read_examples, read_passages, read_questions
from gr_jax.errors import InputError


def test_a_real_sample(shared_data):
    file = shared_data / "formats" / "dpr" / "nq_dev_sample.json"
    examples = list(read_examples(file))
    assert len(examples) == 5
    first = examples[0]
    assert first.question == "who sings does he love me with reba" and first.answers == ("Linda Davis",)
    assert [len(one) for one in (first.positives, first.negatives, first.hard_negatives)] == [5, 50, 96]
    assert first.positives[0].title == "Does He Love You"
    assert first.positives[0].text.startswith('Does He Love You "Does He Love You" is a song written by Sandy Knox')
    assert first.negatives[0].doc_id == "2145653" and first.negatives[0].title == "Cormac McCarthy"
    for example, raw in zip(examples, json.loads(file.read_text()), strict=True):
        for passages, name in (
            (example.positives, "positive_ctxs"),
            (example.negatives, "negative_ctxs"),
            (example.hard_negatives, "hard_negative_ctxs"),
        ):
            expected = [(one["passage_id"], one["title"], one["text"]) for one in raw[name]]
            assert [(one.doc_id, one.title, one.text) for one in passages] == expected


def test_a_line_each_and_ids_of_other_names(tmp_path):
    file = tmp_path / "train.jsonl.gz"
    records = [{"question": "q", "answers": [], "positive_ctxs": [{"text": "t", "psg_id": 3}]}, {"question": "r"}]
    file.write_bytes(gzip.compress("".join(json.dumps(one) + "\n" for one in records).encode()))
    first, second = read_examples(file)
    assert first.positives == (Document("3", "", "t"),) and second.positives == () == second.answers


@pytest.mark.parametrize(
    "text", ["", "[1]", "[", '[{"question": 3}]', '[{"question": "q", "answers": "a"}]', "3", '{"question": "q"}\n3',
             '[{"question": "q", "positive_ctxs": [{"title": "t"}]}]', '[{"question": "q", "hard_negative_ctxs": 3}]'],
)  # fmt: skip
def test_examples_that_are_none(tmp_path, text):
    (tmp_path / "train.json").write_text(text)
    with pytest.raises(InputError, match=r"train\.json"):
        list(read_examples(tmp_path / "train.json"))


def test_questions(tmp_path):
    file = tmp_path / "nq-test.qa.csv"
    file.write_text("who wrote it\t['Bobby Scott', \"Bob O'Brien\"]\nwhen\t['2017']\n")
    assert list(read_questions(file)) == [("who wrote it", ("Bobby Scott", "Bob O'Brien")), ("when", ("2017",))]
    for wrong in ("who\n", "who\tBobby\n", "who\t[1]\n", "who\t[__import__('os').getcwd()]\n"):
        file.write_text("when\t['2017']\n" + wrong)
        with pytest.raises(InputError, match=r"nq-test\.qa\.csv:2"):
            list(read_questions(file))


def test_passages_and_their_header(tmp_path):
    file = tmp_path / "psgs_w100.tsv"
    file.write_text('id\ttext\ttitle\n1\t"Aaron ""the priest"" is, a prophet"\tAaron\n2\tplain\t"Aaron (""A"")"\n')
    assert list(read_passages(file)) == [
        Document("1", "Aaron", 'Aaron "the priest" is, a prophet'), Document("2", 'Aaron ("A")', "plain"),
    ]  # fmt: skip
    file.write_text("1\tt\ta\n2\tt\n")
    with pytest.raises(InputError, match=r"psgs_w100\.tsv:2.*2 columns"):
        list(read_passages(file))


FIELD = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), min_size=1, max_size=8).filter(
    lambda text: text.strip()
)


@settings(deadline=None)
@given(st.lists(st.tuples(FIELD, FIELD, FIELD), min_size=1, max_size=4))
def test_passages_as_the_csv_module_writes_them(tmp_path_factory, rows):
    written = io.StringIO()
    csv.writer(written, delimiter="\t", lineterminator="\n").writerows([("id", "text", "title"), *rows])
    file = tmp_path_factory.mktemp("dpr") / "psgs.tsv"
    file.write_text(written.getvalue())
    assert [(one.doc_id, one.text, one.title) for one in read_passages(file)] == rows


@settings(max_examples=200)
@given(
    st.lists(
        st.dictionaries(st.sampled_from(["title", "text"]), st.text(), min_size=2).map(
            lambda one: {"question": one["text"], "answers": [one["title"]], "positive_ctxs": [one]}
        ),
        min_size=1,
    ),
    st.sampled_from([None, 0, 4]),
    st.booleans(),
)
def test_lists_are_streamed_as_json_reads_them(tmp_path_factory, records, indent, ascii_only):
    """However they are laid out, and whatever brackets and quotes texts hold."""
    file = tmp_path_factory.mktemp("listed") / "train.json"
    file.write_text(json.dumps(records, indent=indent, ensure_ascii=ascii_only), encoding="utf-8")
    read = list(read_examples(file))
    assert [one.question for one in read] == [one["question"] for one in records]
    assert [one.positives[0].text for one in read] == [one["positive_ctxs"][0]["text"] for one in records]


@pytest.mark.parametrize(
    "text",
    ["[", "[{}", '[{"question": "a"} {"question": "b"}]', '[{"question": "a"},]x', '[1, {"question": "a"}]',
     '[{"question": "a"}, 2]', '[{"question": "a"}}', '[{"question": "a"}]\n[{"question": "b"}]', '["{}"]'],
)  # fmt: skip
def test_lists_that_are_none(tmp_path, text):
    file = tmp_path / "train.json"
    file.write_text(text)
    with pytest.raises(InputError, match="train.json:[12]: "):
        list(read_examples(file))
