"""README and the site's pages are what `make tables` writes. Their numbers come from recorded rows, and a code host
shows them whole."""

import importlib
import pathlib
import re

import pytest

from benchmarks import cited, pages, records
from gr_jax.errors import InputError
from tests.docs.pages import CHECKOUT, PAGES, name_of

TEXTS = {name_of(page): page.read_text(encoding="utf-8") for page in [CHECKOUT / "README.md", *PAGES]}
# What reads like something that was measured.
_MEASURED = re.compile(
    r"(?<![\w.-])(\d*\.\d+|\d[\d,]*(?= ?(%|×|ms\b|s\b|seconds|minutes|core-minutes|hours|bytes|KiB|MiB|GiB|times\b)))"
)
_BLOCK = re.compile(r"^(`{3,}).*?^\1$", re.MULTILINE | re.DOTALL)
_DIRECTIVE = re.compile(r"^(?:`{3,}|:{3,}) *\{|\{[a-z-]+\}`|^:[a-z-]+:|^\([\w-]+\)=|^\+\+\+", re.MULTILINE)


@pytest.mark.parametrize("page", pages.paths(), ids=name_of)
def test_a_page_is_what_make_tables_writes(page):
    assert pages.rewritten(TEXTS[name_of(page)], page) == TEXTS[name_of(page)], "run make tables"


@pytest.mark.parametrize("name", TEXTS)
def test_a_page_has_no_number_that_is_typed(name):
    assert not _measured(TEXTS[name])


@pytest.mark.parametrize("name", TEXTS)
def test_a_code_host_shows_a_page_whole(name):
    assert not _DIRECTIVE.findall(re.sub(r"^(`{3,})\w.*?^\1$", "", TEXTS[name], flags=re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("page", pages.paths(), ids=name_of)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", _BLOCK.sub("", TEXTS[name_of(page)]))
    assert not [link for link in links if not (page.parent / link).exists()]


def test_readme_is_short():
    assert len(TEXTS["README.md"].splitlines()) < 150


def test_every_recorded_benchmark_is_on_a_page():
    assert {file.stem for file in cited.RESULTS.glob("*.json")} == pages.recorded_pages().keys()


def test_a_cited_row_belongs_to_its_benchmark():
    """A record keeps rows that its benchmark no longer has."""
    found = {row for text in TEXTS.values() for row in pages.cited_rows(text)}
    assert {"gdr_quality", "decoding", "dgr"} <= {benchmark for benchmark, _ in found}
    for benchmark in {benchmark for benchmark, _ in found}:
        known = {row.name for row in importlib.import_module(f"benchmarks.{benchmark}").rows()}
        assert {row for of, row in found if of == benchmark} <= known


def _measured(text: str) -> list[str]:
    """Numbers in prose and tables; what is written, code, formulas, links and names of papers are left out."""
    text = _BLOCK.sub("", pages.without_written(text))
    text = re.sub(r"<!--.*?-->|\$\$.*?\$\$|\$[^$\n]+\$|`[^`]*`|\]\([^)]*\)", "", text, flags=re.DOTALL)
    text = re.sub(r"arXiv \d+\.\d+|Python \d\.\d+(?: to \d\.\d+)?|[Ss]ections? \d\.\d|NVIDIA \w+", "", text)
    return [match[0] for match in _MEASURED.findall(text)]


def test_typed_numbers_are_seen():
    assert _measured("It takes 3.5 ms and 12% of 2,000 bytes, <.001<!-- a :: b :: p :: p --> or .5.") == [
        "3.5",
        "12",
        "2,000",
        ".5",
    ]
    assert not _measured("With `0.02`, arXiv 2401.10487, 2.4–3.5<!-- a :: b :: c :: .1f --> times, $\\tau = .5$.")


def test_directives_are_seen():
    seen = ["```{toctree}", ":::{note}", "as {row}`a` says", "```\n:hidden:", "(ance)="]
    assert all(_DIRECTIVE.search(text) for text in seen)
    assert not _DIRECTIVE.search("```bash\nmake\n```\nNote: {a, b} of `c`.")


@pytest.fixture
def page(tmp_path: pathlib.Path, monkeypatch):
    """Beside which `mine` has rows of two splits, and a row of speed on two machines."""
    monkeypatch.setattr(cited, "RESULTS", tmp_path)
    values = {"a": 0.12345, "b": -0.25, "half": 2.0, "p": 1e-9, "d low": -0.01, "d high": 0.03}

    def record(values, machine=""):
        return records.Record(values, "", {}, "", (), "", "", "", 0.0, machine=machine)

    records.write_all(tmp_path / "mine.json", {"test X": record(values), "dev X": record({"a": 0.5, "c": 12.25})})
    for machine, times in (("old", 3.51), ("new", 2.44)):
        records.write(tmp_path / "mine.json", "speed", record({"times": times}, machine))
    return tmp_path / "page.md"


@pytest.mark.parametrize(
    "measure, text",
    {
        "a": ".123",
        "a :: .1%": "12.3%",
        "a :: .2f": ".12",
        "b": "−.250",
        "b :: size": ".250",
        "b :: .0f": "0",
        "1 / half": ".500",
        "p :: p": "<.001",
        "smallest d :: .4f": ".0286",  # 2.8 standard errors, of which the interval is 3.92 long
    }.items(),
)
def test_a_number(page, measure, text):
    comment = f"<!-- mine :: test X :: {measure} -->"
    for before in ("", ".9", "−1,000.5", "1.5–2.5", "12%", "<.001", "7.6e-06", "–"):
        assert pages.rewritten(f"It is 3 and ({before}{comment}).", page) == f"It is 3 and ({text}{comment})."


def test_a_number_of_two_machines_whose_address_is_on_two_lines(page):
    assert pages.rewritten("1<!-- mine ::\n  speed :: times :: .1f -->", page).startswith(
        "2.4–3.5<!-- mine ::\n  speed"
    )


def test_a_table(page):
    comment = """<!-- table: mine
title: Small
header: system | file | dev | test | either
measures: dev :: a | test :: a | dev :: b or c
forms: .1f | .2f
{} X => [x](x.md) | `x`
-->"""
    table = """**Small**

| system    | file | dev | test | either |
| --------- | ---- | --: | ---: | -----: |
| [x](x.md) | `x`  |  .5 |  .12 |  12.25 |"""
    text = f"Before\n\n{comment}\nstale\n<!-- end -->\n\nafter\n"
    once = pages.rewritten(text, page)
    assert once == f"Before\n\n{comment}\n\n{table}\n\n<!-- end -->\n\nafter\n"
    assert pages.rewritten(once, page) == once
    assert pages.cited_rows(once) == {("mine", "dev X"), ("mine", "test X")}


def test_a_table_without_a_header(page):
    text = pages.rewritten("<!-- table: mine\nmeasures: a | c\ntest X => X*\ndev X\n-->\n<!-- end -->", page)
    assert text.splitlines()[6:] == [
        "| `mine` |    a |     c |",
        "| ------ | ---: | ----: |",
        "| X*     | .123 |     – |",
        "| dev X  | .500 | 12.25 |",
        "",
        "<!-- end -->",
    ]


def test_intervals_stand_beside_their_measure():
    title = (CHECKOUT / "docs" / "results" / "titles.md").read_text(encoding="utf-8")
    row, values = "nq_boolq_dev + wiki_intro_179k Async above CGR", ("above", "low", "high")
    above, low, high = (cited.text("cgr", row, f"RR@10 {value}") for value in values)
    (line,) = (line for line in title.splitlines() if line.startswith(f"| {row} "))
    assert line.split("|")[2].strip() == f"{above} [{low}, {high}]"


def test_cited_code(page):
    head = "<!-- code: benchmarks/rows.py :: Row.key"
    whole, cut = (
        pages.rewritten(f"{head}{lines} -->\n<!-- end -->", page).splitlines()
        for lines in ("", "\nfrom: What a record\nbefore: return\n")
    )
    assert whole[2:5] == ["<!-- fmt: off -->", "```py", "def key(self, corpus: str) -> str:"]
    assert whole[-5].startswith("    return ") and whole[-4:] == ["```", "<!-- fmt: on -->", "", "<!-- end -->"]
    assert cut[6:-3] == ["```py", whole[5].strip(), "```"]
    with pytest.raises(InputError, match="page.md:1: Row.key has no line with this"):
        pages.rewritten(f"{head}\nfrom: nothing\n-->\n<!-- end -->", page)


@pytest.mark.parametrize(
    "text, line, problem",
    [
        ("\n.1<!-- mine :: test X -->", 2, "cited by benchmark, row and measure"),
        ("<!-- none :: test X :: a -->", 1, "no benchmark"),
        ("\n\n<!-- mine :: test Y :: a -->", 3, "no recorded row"),
        ("<!-- mine :: test X :: z -->", 1, "no such measure"),
        ("<!-- mine :: test X :: smallest a -->", 1, "no such measure"),
        ("<!-- mine :: test X :: a :: three digits -->", 1, "no format"),
        ("<!-- table: mine\nmeasures: a\ntest X\ntest Y\n-->\n<!-- end -->", 4, "no recorded row"),
        ("<!-- table: mine\nmeasures: c\ntest X\n-->\n<!-- end -->", 3, "none of these measures"),
        ("<!-- table: mine\nmeasures: a | z\ntest X\n-->\n<!-- end -->", 1, "column of the table has no value"),
        ("<!-- table: mine\nmeasures: a\ntest X => x | y\n-->\n<!-- end -->", 1, "as many cells"),
        ("\n<!-- table: mine\nmeasures: a\ntest X\n-->", 2, "no end"),
        ("<!-- recorded: mine -->\n<!-- recorded: mine -->\n<!-- end -->", 2, "within another"),
        ("\n<!-- end -->", 2, "nothing is open"),
        ("<!-- recorded: none -->\n<!-- end -->", 1, "no benchmark"),
        ("<!-- published: NQ-320k\nBM25\nBM26\n-->\n<!-- end -->", 3, "nothing published"),
        ("<!-- published: NQ\nBM25\n-->\n<!-- end -->", 1, "nothing published"),
        ("<!-- code: benchmarks/rows.py :: Row.nothing -->\n<!-- end -->", 1, "no such function"),
        ("<!-- code: benchmarks/nothing.py :: Row -->\n<!-- end -->", 1, "no file"),
    ],
)
def test_what_cannot_be_written_is_named_with_its_line(page, text, line, problem):
    with pytest.raises(InputError, match=f"page.md:{line}: .*{problem}"):
        pages.rewritten(text, page)


def test_the_command_says_where_it_failed(page, monkeypatch, capsys):
    page.write_text("<!-- mine :: test x :: a -->", encoding="utf-8")
    monkeypatch.setattr(pages, "paths", lambda: [page])
    assert pages.main() == 2 and "page.md:1:" in capsys.readouterr().err
    assert page.read_text(encoding="utf-8") == "<!-- mine :: test x :: a -->"
