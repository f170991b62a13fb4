"""Tables, numbers and code of README and of the site, written from what is recorded: `python -m benchmarks.pages`.

Pages are Markdown that any code host shows. What is written stands behind an HTML comment, which is not shown:

    R@100 is .951<!-- gdr_quality :: squad_dev test GDR :: R@100 -->      a number; " :: FORM" may follow, see `cited`

    <!-- table: gdr_quality                   rows of a benchmark, NAME => LABEL; of another: BENCHMARK :: NAME => LABEL
    title: Standard budget
    header: paper | file | R@100 | unseen     without it the measures, and a link to all rows of the benchmark
    measures: test :: R@100 | unseen :: R@100          "test" is put in the place of {} in the rows' names
    forms: .3f | .2f                          of each measure, the last one for those behind it; see `cited.written`
    squad_dev {} GDR => [GDR](gdr.md) | `gdr`
    -->
    <!-- end -->

    <!-- recorded: gdr_quality -->            all rows of a benchmark, what it measures, and where they were measured
    <!-- published: NQ-320k                   numbers of others, of docs/published.json
    BM25
    -->
    <!-- code: gr_jax/losses/rdrop.py :: symmetric_kl      a function, method or class, with the lines …
    from: the first line that has this
    before: the first line that has this
    -->

`<!-- end -->` closes each of these four. "A or B" as a measure is the first of both that a row has.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import os
import pathlib
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from benchmarks import cited
from benchmarks.tables import alike
from gr_jax.errors import InputError

CHECKOUT = pathlib.Path(__file__).resolve().parents[1]
DOCS = CHECKOUT / "docs"
_OPENED = r"^<!-- (?P<kind>table|recorded|published|code): "
_END = "<!-- end -->"
_NUMBER = r"<?−?[\d,.]*\d(?:e[+-]\d+)?%?"
_WRITTEN = re.compile(
    rf"{_OPENED}(?P<what>.*?)-->\n.*?^{_END}$"
    rf"|(?:(?<![\w.,])(?:{_NUMBER}(?:–{_NUMBER})?|–))?(?P<comment><!--\s+(?P<address>\w+\s+::.*?)\s+-->)",
    re.MULTILINE | re.DOTALL,
)
_SETTING = re.compile(r"(title|header|measures|forms|from|before): (.*)")


def paths() -> list[pathlib.Path]:
    """README and the pages of the site."""
    return [CHECKOUT / "README.md", *sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)]


def rewritten(text: str, page: pathlib.Path) -> str:
    """A page as it has to be.

    Args:
      text: of the page, as it is.
      page: where it stands, for links and errors.

    Raises:
      InputError: something is cited that is not recorded, or a block has no end; with the line.
    """
    _check_ends(text, page)

    def written(match: re.Match) -> str:
        line = text.count("\n", 0, match.start()) + 1
        if match["kind"] is None:
            with _at(page, line):
                return cited.cite(" ".join(match["address"].split()))[2] + match["comment"]
        comment = f"<!-- {match['kind']}: {match['what']}-->"
        return f"{comment}\n\n{_BLOCKS[match['kind']](_Block(match['what'], page, line))}\n\n{_END}"

    return _WRITTEN.sub(written, text)


def without_written(text: str) -> str:
    """A page without what `rewritten` writes."""
    return _WRITTEN.sub("", text)


def cited_rows(text: str) -> set[tuple[str, str]]:
    """(benchmark, row) of each number and each table of a page."""
    found = set()
    for match in _WRITTEN.finditer(text):
        if match["address"]:
            benchmark, row, *_ = (part.strip() for part in " ".join(match["address"].split()).split(cited.SEPARATOR))
            found.add((benchmark, row))
        elif match["kind"] == "table":
            block = _Block(match["what"], CHECKOUT, 0)
            parts = [part for part, _ in _measures(block)]
            found |= {(benchmark, row.replace("{}", part)) for _, benchmark, row, _ in _lines(block) for part in parts}
    return found


@functools.cache
def recorded_pages() -> dict[str, pathlib.Path]:
    """Benchmark → the page that has all of its rows."""
    return {
        name: page
        for page in paths()
        for name in re.findall(r"^<!-- recorded: (\w+) -->$", page.read_text(encoding="utf-8"), re.MULTILINE)
    }


class _Block:
    """What a comment says: the name in its first line, settings, and further lines, each with where it stands."""

    def __init__(self, what: str, page: pathlib.Path, line: int):
        first, *rest = what.strip().splitlines()
        self.name, self.page, self.line = first.strip(), page, line
        settings = [(number, _SETTING.fullmatch(text)) for number, text in enumerate(rest, line + 1)]
        self.settings = {match[1]: match[2].strip() for _, match in settings if match}
        self.lines = [(number, rest[number - line - 1]) for number, match in settings if not match]

    def cells(self, setting: str) -> list[str]:
        """A setting's parts between bars."""
        return _cells(self.settings[setting]) if setting in self.settings else []


def _measures(block: _Block) -> list[tuple[str, list[str]]]:
    """Of each column the part of rows' names, and the measures of which it has the first."""
    split = [measure.rpartition(cited.SEPARATOR) for measure in block.cells("measures")]
    return [(part.strip(), [one.strip() for one in measure.split(" or ")]) for part, _, measure in split]


def _lines(block: _Block) -> Iterator[tuple[int, str, str, list[str]]]:
    """Of each line of a table where it stands, the benchmark, the row and the labels."""
    for number, line in block.lines:
        address, _, label = line.partition("=>")
        benchmark, _, row = address.rpartition(cited.SEPARATOR)
        yield number, benchmark.strip() or block.name, row.strip(), _cells(label) if label else _escaped([row.strip()])


def _table(block: _Block) -> str:
    columns, forms = _measures(block), block.cells("forms") or [""]
    forms += forms[-1:] * (len(columns) - len(forms))
    body, seen = [], set()
    for number, benchmark, row, cells in _lines(block):
        labels = len(cells)
        with _at(block.page, number):
            for column, ((part, measures), form) in enumerate(zip(columns, forms, strict=True)):
                name = row.replace("{}", part)
                record = cited.record(benchmark, name)
                known = next((measure for measure in measures if cited.has(record, measure)), None)
                cells.append("–" if known is None else cited.text(benchmark, name, known, form))
                seen |= {column} if known is not None else set()
            if {*cells[labels:]} == {"–"}:
                raise InputError("the row has none of these measures", "Name one that it has.", value=row)
        body.append(cells)
    with _at(block.page, block.line):
        if len(seen) < len(columns) or not seen:
            raise InputError("a column of the table has no value", "Remove its measure.", value=block.settings)
        alone = {benchmark for _, benchmark, _, _ in _lines(block)} == {block.name}
        default = [_link(block) if alone else "", *(" or ".join(measures) for _, measures in columns)]
        header = block.cells("header") or default
        if {len(header)} != {len(cells) for cells in body}:
            raise InputError("the table's lines do not have as many cells as its header", "Make them equal.")
    return _titled(block.settings.get("title", ""), _markdown(header, body, len(header) - len(columns)))


def _recorded(block: _Block) -> str:
    file, name = cited.RESULTS / f"{block.name}.json", block.name
    with _at(block.page, block.line):
        rows = cited.recorded(file)
    about = ast.get_docstring(ast.parse((CHECKOUT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8"))) or ""
    parts = [f"## `{name}`", about]
    for measures, members in alike({row: record.values for row, record in rows.items()}):
        ends = {measure: found for measure in measures if (found := _ends(measure, measures))}
        columns = [measure for measure in measures if not any(measure in found for found in ends.values())]
        header = [f"{measure} [low, high]" if measure in ends else measure for measure in columns]
        body = [[row, *(_value(rows[row].values, m, ends.get(m, ())) for m in columns)] for row in members]
        parts.append(_markdown(_escaped(["row", *header]), [_escaped(cells) for cells in body], 1))
    places = sorted({f"- {one.hardware}; commit {one.commit[:12]}; {one.date[:10]}" for one in rows.values()})
    return "\n\n".join([*parts, "Measured on:", "\n".join(places)])


def _ends(measure: str, measures: Sequence[str]) -> tuple[str, ...]:
    """The measures that are the ends of the interval of one; () where there are none."""
    for form in (measure.replace(" above", " {}"), f"{measure} {{}}", f"{measure}, {{}}"):
        ends = form.format("low"), form.format("high")
        if ends[0] != measure and {*ends} <= {*measures}:
            return ends
    return ()


def _value(values: Mapping[str, float], measure: str, ends: Sequence[str]) -> str:
    if measure not in values:
        return ""
    interval = ", ".join(cited.written(values[end]) for end in ends if end in values)
    return cited.written(values[measure]) + (f" [{interval}]" if interval else "")


def _published(block: _Block) -> str:
    known = json.loads((DOCS / "published.json").read_text(encoding="utf-8"))
    with _at(block.page, block.line):
        if block.name not in known:
            raise InputError("nothing published on this", f"Name one of: {'; '.join(known)}.", value=block.name)
    table, body = known[block.name], []
    for number, name in block.lines:
        with _at(block.page, number):
            if name not in table["rows"]:
                raise InputError("nothing published of this", f"Name one of: {'; '.join(table['rows'])}.", value=name)
        body.append([name, *table["rows"][name]])
    title = f"Published, on {block.name}: {table['source']}"
    return _titled(title, _markdown([table["what"], *table["measures"]], body, 1))


def _code(block: _Block) -> str:
    file, _, name = (part.strip() for part in block.name.partition(cited.SEPARATOR))
    with _at(block.page, block.line):
        try:
            source = (CHECKOUT / file).read_text(encoding="utf-8")
        except OSError as error:
            raise InputError("no file with code of this name", "Name one of the checkout.", value=file) from error
        found: ast.AST | None = ast.parse(source)
        for part in name.split("."):
            found = next((one for one in getattr(found, "body", ()) if getattr(one, "name", None) == part), None)
        if not isinstance(found, ast.FunctionDef | ast.ClassDef) or found.end_lineno is None:
            raise InputError(f"{file} has no such function, method or class", "Name one that it has.", value=name)
        start = min([found.lineno, *(one.lineno for one in found.decorator_list)]) - 1
        lines = source.splitlines()[start : found.end_lineno]
        for setting in ("from", "before"):
            if (mark := block.settings.get(setting)) is not None:
                at = next((place for place, line in enumerate(lines) if mark in line), None)
                if at is None:
                    raise InputError(f"{name} has no line with this", "Name a part of one.", value=mark)
                lines = lines[at:] if setting == "from" else lines[:at]
    code = textwrap.dedent("\n".join(lines)).rstrip()
    # "py": blocks of "python" are a reader's, which the tests run. What is no longer indented may fit into fewer lines.
    return f"<!-- fmt: off -->\n```py\n{code}\n```\n<!-- fmt: on -->"


_BLOCKS = {"table": _table, "recorded": _recorded, "published": _published, "code": _code}


def _link(block: _Block) -> str:
    """The benchmark, which leads to all of its rows."""
    page = recorded_pages().get(block.name)
    if page is None:
        return f"`{block.name}`"
    return f"[`{block.name}`]({pathlib.PurePath(os.path.relpath(page, block.page.parent)).as_posix()}#{block.name})"


def _markdown(header: Sequence[str], body: Sequence[Sequence[str]], labels: int) -> str:
    """A table whose columns are aligned: `labels` of text, then numbers."""
    widths = [max(3, *map(len, column)) for column in zip(header, *body, strict=True)]
    rule = ["-" * width if place < labels else "-" * (width - 1) + ":" for place, width in enumerate(widths)]
    lines = []
    for cells in (header, rule, *body):
        sides = [cell.ljust if place < labels else cell.rjust for place, cell in enumerate(cells)]
        lines.append(f"| {' | '.join(side(width) for side, width in zip(sides, widths, strict=True))} |")
    return "\n".join(lines)


def _titled(title: str, table: str) -> str:
    return f"**{title}**\n\n{table}" if title else table


def _cells(text: str) -> list[str]:
    return [cell.strip() for cell in text.split("|")]


def _escaped(names: Sequence[str]) -> list[str]:
    """Names whose signs are no Markdown."""
    return [re.sub(r"([*<$`|])", r"\\\1", name) for name in names]


def _check_ends(text: str, page: pathlib.Path) -> None:
    opened = None
    for match in re.finditer(f"{_OPENED}|^{_END}$", text, re.MULTILINE):
        line = text.count("\n", 0, match.start()) + 1
        if (match["kind"] is None) == (opened is None):
            problem = "nothing is open that ends here" if opened is None else "a block begins within another"
            raise InputError(problem, f"Write {_END} once, behind each block.", file=page, line=line)
        opened = None if match["kind"] is None else line
    if opened is not None:
        raise InputError("a block has no end", f"Write {_END} behind it.", file=page, line=opened)


@contextlib.contextmanager
def _at(page: pathlib.Path, line: int) -> Iterator[None]:
    """Errors say where on the page."""
    try:
        yield
    except InputError as error:
        raise InputError(error.problem, error.remedy, file=page, line=line, value=error.value) from error


def main() -> int:
    """Rewrites the pages in place, and prints which have changed."""
    for page in paths():
        text = page.read_text(encoding="utf-8")
        try:
            new = rewritten(text, page)
        except InputError as error:
            print(error, file=sys.stderr)
            return 2
        if new != text:
            page.write_text(new, encoding="utf-8")
            print(page.relative_to(CHECKOUT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
