"""Every number on a page comes from a recorded row: README's tables, and what the site's pages cite."""

import collections
import importlib
import pathlib
import re

import pytest

from benchmarks import cited
from gr_jax.errors import InputError
from tests.docs.pages import CHECKOUT, PAGES, name_of

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
_TABLE = re.compile(
    r"^<!-- recorded, in the last (\d+) columns\n(.*?)^-->\n((?:^\|[^\n]*\n)+)", re.MULTILINE | re.DOTALL
)
_NUMBER = re.compile(r"\d[\d,]*\.?\d*|\.\d+")
# What reads like something that was measured.
_MEASURED = re.compile(
    r"(?<![\w.-])(\d*\.\d+|\d[\d,]*(?= ?(%|×|ms\b|s\b|seconds|minutes|core-minutes|hours|bytes|KiB|MiB|GiB|times\b)))"
)
_BLOCK = re.compile(r"^(`{3,}).*?^\1$", re.MULTILINE | re.DOTALL)


def expected_values(lines: str) -> list[float]:
    """Of README's comment above a table: BENCHMARK :: ROW :: MEASURE | MEASURE."""
    found = []
    for line in lines.splitlines():
        benchmark, row, measures = (part.strip() for part in line.split(cited.SEPARATOR))
        for measure in measures.split("|"):
            low, high = cited.span(benchmark, row, measure.strip())
            found += [low] if low == high else [low, high]  # of several kinds of machines
    return found


def written_numbers(table: str, columns: int) -> list[str]:
    """What stands in the last columns of a Markdown table's body, in order."""
    found = []
    for line in table.splitlines()[2:]:
        for cell in line.strip().strip("|").split("|")[-columns:]:
            found += _NUMBER.findall(cell)
    return found


def same(text: str, value: float) -> bool:
    """Whether a number, as it is written, is the value rounded to as many digits."""
    plain = text.replace(",", "")
    decimals = len(plain.partition(".")[2])
    return round(float(plain) - round(value, decimals), 9) == 0


@pytest.mark.parametrize("columns, lines, table", _TABLE.findall(README))
def test_readme_tables_are_recorded_rows(columns, lines, table):
    written, values = written_numbers(table, int(columns)), expected_values(lines)
    assert len(written) == len(values)
    wrong = [(text, value) for text, value in zip(written, values, strict=True) if not same(text, value)]
    assert not wrong


def test_readme_says_no_measured_number_elsewhere():
    tables = [match.group(0) for match in _TABLE.finditer(README)]
    assert len(tables) == 2
    rest = README
    for table in tables:
        rest = rest.replace(table, "")
    assert not _measured(rest)


def test_readme_is_short():
    assert len(README.splitlines()) <= 160


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_a_page_cites_is_recorded(page):
    """Without Sphinx: what the role and the directive of recorded rows would warn of."""
    text = page.read_text(encoding="utf-8")
    for address in re.findall(r"\{row\}`([^`]+)`", text):
        cited.cite(address.replace("\n", " "))
    for benchmark, body in re.findall(r"^```\{rows\} (\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        (measures,) = re.findall(r"^:measures: (.*)$", body, re.MULTILINE)
        forms = re.findall(r"^:forms: (.*)$", body, re.MULTILINE)
        for form in forms and forms[0].split("|"):
            cited.written(0.5, form.strip())
        rows, shown = [line for line in body.splitlines() if line.strip() and not line.startswith(":")], set()
        assert rows
        for line in rows:
            named, _, row = line.partition("=>")[0].strip().rpartition(cited.SEPARATOR)
            record = cited.record(named.strip() or benchmark, row.strip())
            found = {one.strip() for one in measures.split("|") if cited.has(record, one.strip())}
            assert found, f"{row} has none of {measures}"
            shown |= found
        assert shown == {one.strip() for one in measures.split("|")}, "a column has no value"
    for benchmark in re.findall(r"^```\{recorded\} (\w+)$", text, re.MULTILINE):
        assert cited.recorded(cited.RESULTS / f"{benchmark}.json")


def cited_rows() -> dict[str, set[str]]:
    """Benchmark → the rows of it that README and the pages cite."""
    found = collections.defaultdict(set)
    for _, lines, _ in _TABLE.findall(README):
        for line in lines.splitlines():
            benchmark, row, _ = (part.strip() for part in line.split(cited.SEPARATOR))
            found[benchmark].add(row)
    for text in (page.read_text(encoding="utf-8") for page in PAGES):
        for address in re.findall(r"\{row\}`([^`]+)`", text):
            benchmark, row, *_ = (part.strip() for part in address.replace("\n", " ").split(cited.SEPARATOR))
            found[benchmark].add(row)
        for benchmark, body in re.findall(r"^```\{rows\} (\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            for line in body.splitlines():
                if line.strip() and not line.startswith(":"):
                    named, _, row = line.partition("=>")[0].strip().rpartition(cited.SEPARATOR)
                    found[named.strip() or benchmark].add(row.strip())
    return found


@pytest.mark.parametrize("benchmark", sorted(cited_rows()))
def test_a_cited_row_belongs_to_its_benchmark(benchmark):
    """A record keeps rows that its benchmark no longer has."""
    rows = importlib.import_module(f"benchmarks.{benchmark}").rows()
    assert cited_rows()[benchmark] <= {row.name for row in rows}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_has_no_number_that_is_typed(page):
    assert not _measured(page.read_text(encoding="utf-8"))


def test_every_recorded_benchmark_is_on_a_page():
    shown = {name for page in PAGES for name in re.findall(r"^```\{recorded\} (\w+)$", page.read_text("utf-8"), re.M)}
    assert {file.stem for file in cited.RESULTS.glob("*.json")} == shown


def _measured(text: str) -> list[str]:
    """Numbers in prose and tables; code, roles, formulas, links and names of papers are left out."""
    text = _BLOCK.sub("", text)
    text = re.sub(r"<!--.*?-->|\$\$.*?\$\$|\$[^$\n]+\$|\{row\}`[^`]*`|`[^`]*`|\]\([^)]*\)", "", text, flags=re.DOTALL)
    text = re.sub(r"arXiv \d+\.\d+|Python \d\.\d+|[Ss]ections? \d\.\d|NVIDIA \w+", "", text)
    return [match[0] for match in _MEASURED.findall(text)]


def test_typed_numbers_are_seen():
    assert _measured("It takes 3.5 ms and 12 % of 2,000 bytes.") == ["3.5", "12", "2,000"]
    assert not _measured(
        "With `0.02`, arXiv 2401.10487, {row}`a :: b :: c :: .1f` times, 2,067 paragraphs, $\\tau = .5$."
    )


def test_rounding():
    assert same(".690", 0.69019) and same("10,000", 10_000.0) and same("2.3", 2.3012)
    assert not same(".690", 0.6906) and not same("2.3", 2.36)


@pytest.mark.parametrize(
    "address",
    [
        "gdr_quality :: squad_dev test GDR",
        "no_such_benchmark :: squad_dev test GDR :: R@100",
        "gdr_quality :: squad_dev test GRD :: R@100",
        "gdr_quality :: squad_dev test GDR :: R@1000",
        "gdr_quality :: squad_dev test GDR :: R@100 :: three digits",
    ],
)
def test_what_is_not_recorded_cannot_be_cited(address):
    with pytest.raises(InputError):
        cited.cite(address)


def test_citing(tmp_path: pathlib.Path):
    from benchmarks import records

    values = {"a": 0.12345, "b": -0.25, "half": 2.0, "p": 1e-9, "d low": -0.01, "d high": 0.03}
    record = records.Record(values, "", {}, "", (), "", "", "", 0.0)
    records.write(tmp_path / "mine.json", "one, row", record)

    def text(measure):
        return cited.cite(f"mine :: one, row :: {measure}", tmp_path)[2]

    assert text("a") == ".123" and text("a :: .1%") == "12.3 %" and text("a :: .2f") == ".12"
    assert text("b") == "−.250" and text("b :: size") == ".250" and text("b :: .0f") == "0"
    assert text("1 / half") == ".500" and text("p :: p") == "below .001"
    assert text("smallest d :: .4f") == ".0286"  # 2.8 standard errors, of which the interval is 3.92 long
    with pytest.raises(InputError, match="no such measure"):
        text("smallest a")
