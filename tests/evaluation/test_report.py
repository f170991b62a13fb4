"""What a report says, in Markdown, in HTML and on a terminal."""

import base64
import html.parser
import io
import re
import types
import xml.etree.ElementTree

import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.evaluation import Provenance, Report, evaluate, print_table, read_training_metrics, render

ABOUT = Provenance(
    corpus={"name": "toy", "corpus": "00ff00ff00ff00ff", "documents": 1234, "splits": {"test": [40, 41]}},
    split=["test", "test_unseen"],
    duplicate_rule="equal texts share a docid",
    pseudo_queries=5,
    constraint="trie",
    normalizer="vocabulary",
    seeds=[0, 1],
    commit="abc123",
    hardware="a machine",
)
QRELS = {f"q{i}": {"a": 1} for i in range(40)}


def evaluation(right: int):
    """`right` of 40 queries are answered at rank one, the others at rank two."""
    run = {
        query: [("a", 2.0), ("b", 1.0)] if place < right else [("b", 2.0), ("a", 1.0)]
        for place, query in enumerate(QRELS)
    }
    return evaluate(run, QRELS, "Success@1 RR@10")


@pytest.fixture
def report() -> Report:
    made = Report("A <toy> report", ABOUT, baseline="BM25", introduction="Made & shown.")
    made.add("BM25", "test", evaluation(30))
    made.add("DSI", "test", evaluation(10), note="5 | minutes")
    made.add("GDR", "test", evaluation(31))
    made.add("BM25", "test_unseen", {"Success@1": 0.25})
    made.add("DSI", "test_unseen", {"Success@1": 0.125, "R@100": 0.5})
    made.add_training("DSI", [{"step": s, "loss": 5.0 / s} for s in range(1, 9)] + [{"step": 8, "dev/Success@1": 0.1}])
    made.add_beam_survival("test", [0.9, 0.8])
    hit = types.SimpleNamespace(doc_id="d1", title="<i>One</i>", score=1.5, docid="3-1-4")
    made.add_example("which `one`?", [hit], relevant={"d1"}, system="DSI")
    made.add_example("nothing?", [], system="DSI", answer="*The* one", ranks={"DSI": None, "BM25": 3})
    made.add_remark("GDR is <best>: `ask --it` says so.")
    made.add_remark("")
    made.add_fact("documents read", "half & half")
    made.add_fact("mining", "")
    return made


def tables(markdown: str) -> dict[str, dict[str, dict[str, str]]]:
    """heading → first cell → column → cell."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    heading, header = "", None
    for line in markdown.splitlines():
        if line.startswith("## "):
            heading, header = line[3:], None
        elif line.startswith("| "):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if header is None:
                header = cells
            elif not set(cells[0]) <= {"-"}:
                found.setdefault(heading, {})[cells[0]] = dict(zip(header, cells, strict=True))
    return found


def test_markdown_holds_every_number_and_what_it_rests_on(report):
    found = tables(report.markdown())
    assert found["test"]["BM25"] == {"system": "BM25", "Success@1": ".750", "RR@10": ".875", "note": ""}
    assert found["test"]["DSI"] == {"system": "DSI", "Success@1": ".250 ▼", "RR@10": ".625 ▼", "note": r"5 \| minutes"}
    # One query more is better, but not beyond chance: the best, without a mark.
    assert found["test"]["GDR"]["Success@1"] == "**.775**"
    assert found["test_unseen"]["DSI"] == {"system": "DSI", "Success@1": ".125", "R@100": "**.500**"}
    assert found["test_unseen"]["BM25"]["R@100"] == "–"
    rest = {name: row[""] for name, row in found["What these numbers rest on"].items() if name}
    for value in ("00ff00ff00ff00ff", "1,234 documents", "40 queries", "equal texts share a docid", "trie", "0, 1"):
        assert value in report.markdown()
    about = [*ABOUT.lines(), ("documents read", "half & half")]
    assert rest == {name: render._cell(value) for name, value in about}
    between = report.markdown().partition("## test_unseen")[2].partition("## Differences")[0]
    assert "\n\nGDR is \\<best\\>: `ask --it` says so.\n\n" in between
    assert "# A \\<toy\\> report" in report.markdown()


def test_differences_are_tested_against_the_baseline_of_the_same_split(report):
    found = {(row.system, row.split, c.measure): c for row, c in report.comparisons()}
    assert set(found) == {(system, "test", measure) for system in ("DSI", "GDR") for measure in ("Success@1", "RR@10")}
    worse = found["DSI", "test", "Success@1"]
    assert worse.difference == pytest.approx(-0.5) and worse.p_randomisation < 0.05
    assert found["GDR", "test", "Success@1"].p_randomisation > 0.05
    row = tables(report.markdown())["Differences"]
    assert "difference from BM25" in row["DSI"] and "−.250" in row["DSI"]["difference from BM25"]


class Checker(html.parser.HTMLParser):
    """Fails where tags do not match; collects tags, images and text."""

    def __init__(self):
        super().__init__()
        self.open, self.images, self.text, self.tags = [], [], [], set()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag == "img":
            self.images.append(dict(attributes))
        elif tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_html_is_one_file_with_its_plots(report):
    checker = Checker()
    checker.feed(report.html())
    assert not checker.open
    assert not checker.tags & {"script", "link", "iframe", "a"}
    assert len(checker.images) == 3
    for image in checker.images:
        assert image["alt"]
        prefix, _, data = image["src"].partition(",")
        assert prefix == "data:image/svg+xml;base64"
        svg = xml.etree.ElementTree.fromstring(base64.b64decode(data))
        assert svg.tag.endswith("svg")
        assert not [e for e in svg.iter() if e.tag.endswith("}text")]  # letters are outlines: no font is needed
    text = " ".join(checker.text)
    assert "<p>GDR is &lt;best&gt;: <code>ask --it</code> says so.</p>" in report.html()
    for expected in (
        "A <toy> report",
        "Made & shown.",
        "half & half",
        "<i>One</i>",
        "3-1-4",
        "which `one`?",
        "nothing found",
        ".250",
    ):
        assert expected in text
    assert "i" not in checker.tags  # texts of a data set are text
    for _, value in ABOUT.lines():
        assert value in text


def test_examples_say_where_the_answer_is(report):
    said = "its rank: DSI not found, BM25 3"
    assert f"answer: *The* one; {said}" in report.html() and f"answer: \\*The\\* one; {said}" in report.markdown()
    assert "DSI has the answer to the first ones among its first 10 documents" in report.markdown()


def test_what_was_noted_once_is_a_sentence_and_no_panel():
    made = Report("r", ABOUT)
    made.add_training("DSI", [{"step": 8, "dev/Success@1": 0.125}])
    assert "<img" not in made.html() and "dev/Success@1 0.125 at step 8" in made.html()


def test_same_report_same_bytes(report):
    assert report.html() == report.html()


def test_save_and_print(report, tmp_path):
    markdown, page = report.save(tmp_path / "new")
    assert markdown.read_text("utf-8") == report.markdown()
    assert page.read_text("utf-8") == report.html()
    out = io.StringIO()
    print_table(report, out)
    for expected in ("DSI", ".250 ▼", "5 | minutes", "corpus: toy", "hardware: a machine", "half & half", "`ask --it`"):
        assert expected in out.getvalue()


def test_a_single_query_is_reported_without_a_test():
    made = Report("One query", ABOUT, baseline="BM25")
    for system, order in (("BM25", "ab"), ("DSI", "ba")):
        run = {"q": [(doc, -float(rank)) for rank, doc in enumerate(order)]}
        made.add(system, "test", evaluate(run, {"q": {"a": 1}}, "Success@1 RR@10"))
    assert made.comparisons() == []
    assert tables(made.markdown())["test"]["DSI"]["RR@10"].startswith(".5")
    assert "DSI" in made.html()


def test_a_report_without_results_says_what_it_rests_on():
    report = Report("Only documents", ABOUT)
    assert "trie" in report.markdown() and "trie" in report.html()
    print_table(report, io.StringIO())


def test_wrong_input(report):
    with pytest.raises(InputError, match="already has 'DSI' on 'test'"):
        report.add("DSI", "test", {"Success@1": 1.0})
    for shares in ([], [0.5, 1.2], [float("nan")]):
        with pytest.raises(InputError, match="one share, 0 to 1"):
            report.add_beam_survival("test", shares)
    with pytest.raises(TypeError):
        Provenance(corpus="toy", split="test")  # nothing may be left out


def test_training_metrics_of_a_training_that_died_and_went_on(tmp_path):
    file = tmp_path / "metrics.jsonl"
    lines = [
        '{"step": 1, "loss": 3.0}',
        '{"step": 2, "loss": 2.5}',
        '{"step": 3, "loss": 9}',
        '{"step": 2, "loss": 2.0}',
    ]
    file.write_text("\n".join(lines) + '\n{"step": 2, "dev/Success@1": 0.5}\n{"step": 3, "lo')
    assert read_training_metrics(file) == [
        {"step": 1, "loss": 3.0},
        {"step": 2, "loss": 2.0, "dev/Success@1": 0.5},
        {"step": 3, "loss": 9},
    ]
    report = Report("r", ABOUT)
    report.add_training("one", file)
    assert len(report.curves["one"]) == 3


def test_training_metrics_that_are_none(tmp_path):
    with pytest.raises(InputError, match="metrics.jsonl: no training metrics"):
        read_training_metrics(tmp_path / "metrics.jsonl")
    file = tmp_path / "metrics.jsonl"
    for line in ("nonsense", '{"loss": 1}', "[1]", '{"step": "two"}', '{"step": NaN}', '{"step": true}', "[" * 100_000):
        file.write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
        with pytest.raises(InputError, match="metrics.jsonl:2: not a line"):
            read_training_metrics(file)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.6543, ".654"), (0.0, ".000"), (1.0, "1.000"), (-0.25, "−.250"), (12.345, "12.35"), (1234567, "1,234,567"),
     (None, "–"), (float("nan"), "–"), (-0.00012, "−1.2e-04"), (0.0005, ".001"), (99.96, "99.96"), (9.9999, "10.000")],
)  # fmt: skip
def test_numbers_as_text(value, text):
    assert render.format_value(value) == text


def test_signs():
    assert [render.format_value(v, signed=True) for v in (0.1, -0.1, 0.0)] == ["+.100", "−.100", ".000"]
    assert [render.format_p(p) for p in (0.0001, 0.034, 1.0)] == ["< .001", ".034", "1.000"]


def test_numpy_values_are_welcome():
    report = Report("r", ABOUT)
    report.add("a", "test", {"Success@1": np.float32(0.5)})
    assert ".500" in report.markdown() and ".500" in report.html()


def test_control_characters_of_a_data_set_are_in_no_report(report):
    nasty = "red\x1b[31m\x9b2J\u202e cat\x00"
    report.add(nasty, nasty, evaluation(3), note=nasty)
    report.add_example(nasty, [types.SimpleNamespace(doc_id=nasty, title=nasty, score=1.0, docid=nasty)], system=nasty)
    screen = io.StringIO()
    print_table(report, screen)
    for text in (report.markdown(), report.html(), screen.getvalue()):
        assert "�[31m" in text
        assert not {"\x1b", "\x9b", "\x00", "\u202e"} & {*text}
