"""Numbers of recorded rows on the site's pages. A page that cites what is not recorded is not built without a warning.

{row}`gdr_quality :: squad_dev test GDR :: R@100`              one value; see `benchmarks.cited.cite`

```{rows} gdr_quality                                          a table, a line a row: NAME OF THE ROW => what to call it
:measures: Success@1 | R@100
squad_dev test GDR => `gdr`
```

```{recorded} gdr_quality                                      all rows of a benchmark, and what its module says
```

```{published} NQ-320k                                         numbers that others published, of published.json
BM25
```
"""

from __future__ import annotations

import ast
import hashlib
import json
import pathlib
from collections.abc import Iterable, Sequence

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

from benchmarks import cited
from gr_jax.errors import InputError

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
PUBLISHED = CHECKOUT / "docs" / "published.json"
log = logging.getLogger(__name__)


class Row(SphinxRole):
    """One value, which leads to its row among the results."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        try:
            benchmark, row, text = cited.cite(self.text)
        except InputError as error:
            log.warning(str(error), location=self.get_location())
            return [nodes.problematic(self.rawtext, self.rawtext)], []
        self.env.note_dependency(str(cited.RESULTS / f"{benchmark}.json"))
        return [_link(benchmark, row, text, self.env.docname)], []


class Rows(SphinxDirective):
    """Some rows of a benchmark as a table; rows of others are named with it, BENCHMARK :: ROW."""

    has_content = True
    required_arguments = 1
    option_spec = {
        "measures": directives.unchanged_required,
        "forms": directives.unchanged,
        "title": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        measures = [one.strip() for one in self.options["measures"].split("|")]
        forms = [one.strip() for one in self.options.get("forms", "").split("|")]
        forms += [forms[-1]] * (len(measures) - len(forms))
        body = []
        for line in self.content:
            if not line.strip():
                continue
            address, _, label = line.partition("=>")
            benchmark, _, row = address.rpartition(cited.SEPARATOR)
            benchmark, row = benchmark.strip() or self.arguments[0], row.strip()
            try:
                record = cited.record(benchmark, row)
            except InputError as error:
                log.warning(str(error), location=self.get_location())
                continue
            self.env.note_dependency(str(cited.RESULTS / f"{benchmark}.json"))
            cells = [self.parse_inline(label.strip() or row)[0]]
            for measure, form in zip(measures, forms, strict=True):
                known = cited.has(record, measure)
                text = cited.written(cited.value(benchmark, row, measure), form) if known else "–"
                cells.append([_link(benchmark, row, text, self.env.docname)] if known else [nodes.Text(text)])
            if not any(cited.has(record, measure) for measure in measures):
                log.warning("%s, %r has none of these measures", benchmark, row, location=self.get_location())
            body.append(cells)
        return [table(["", *measures], body, self.options.get("title", ""))]


class Recorded(SphinxDirective):
    """All rows of a benchmark: what it measures, its command, its tables, and where and when they were measured."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        file = cited.RESULTS / f"{name}.json"
        try:
            rows = cited.recorded(file)
        except InputError as error:
            log.warning(str(error), location=self.get_location())
            return []
        self.env.note_dependency(str(file))
        shown_benchmarks(self.env).setdefault(name, self.env.docname)
        section = nodes.section(ids=[nodes.make_id(name)])
        section += nodes.title("", "", nodes.literal("", name))
        module = CHECKOUT / "benchmarks" / f"{name}.py"
        self.env.note_dependency(str(module))
        about = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
        section += self.parse_text_to_nodes(about)
        command = nodes.literal_block("", f"python -m benchmarks.{name}", language="bash")
        section += [nodes.paragraph("", "The command that measures these rows is"), command]
        for measures, members in alike({row: record.values for row, record in rows.items()}):
            body = []
            for row in members:
                place = target_of(name, row)
                target = nodes.target("", "", ids=[place])
                self.env.domains.standard_domain.note_hyperlink_target(place, self.env.docname, place)
                cells = [cited.written(rows[row].values[m]) if m in rows[row].values else "" for m in measures]
                body.append([[target, nodes.Text(row)], *([nodes.Text(cell)] for cell in cells)])
            section += table(["row", *measures], body)
        made = sorted({f"{one.hardware}; commit {one.commit[:12]}; {one.date[:10]}" for one in rows.values()})
        places = nodes.bullet_list()
        places += [nodes.list_item("", nodes.paragraph("", line)) for line in made]
        section += [nodes.paragraph("", "Measured on:"), places]
        return [section]


class Published(SphinxDirective):
    """What others published on one data set, which is marked as theirs."""

    has_content = True
    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(PUBLISHED))
        table_of = json.loads(PUBLISHED.read_text(encoding="utf-8")).get(self.arguments[0])
        names = [line.strip() for line in self.content if line.strip()]
        missing = [name for name in names if table_of is None or name not in table_of["rows"]]
        if missing or table_of is None:
            log.warning("nothing published on %s by %s", self.arguments[0], missing, location=self.get_location())
            return []
        body = [[[nodes.Text(text)] for text in (name, *table_of["rows"][name])] for name in names]
        title = f"Published, on {self.arguments[0]}: {table_of['source']}"
        return [table([table_of["what"], *table_of["measures"]], body, title)]


def table(header: Sequence[str], body: Sequence[Sequence[Sequence[nodes.Node]]], title: str = "") -> nodes.table:
    """A table of text and nodes; a wide one scrolls."""
    made = nodes.table(classes=["recorded"], align="left")
    if title:
        made += nodes.title("", title)
    group = nodes.tgroup(cols=len(header))
    made += group
    group += [nodes.colspec(colwidth=1) for _ in header]
    head = nodes.thead()
    head += _line([[nodes.Text(text)] for text in header])
    rows = nodes.tbody()
    rows += [_line(cells) for cells in body]
    group += [head, rows]
    return made


def alike(values: dict[str, dict[str, float]]) -> list[tuple[list[str], list[str]]]:
    """Rows by table, (measures, names): a row joins the first whose measures it has all, or that has all of its."""
    tables: list[tuple[list[str], list[str]]] = []
    for name, measured in values.items():
        for measures, members in tables:
            if {*measured} <= {*measures} or {*measures} <= {*measured}:
                measures += [one for one in measured if one not in measures]
                members.append(name)
                break
        else:
            tables.append((list(measured), [name]))
    return tables


def target_of(benchmark: str, row: str) -> str:
    """The name of a row's place among the results."""
    return f"row-{hashlib.sha256(f'{benchmark} {row}'.encode()).hexdigest()[:12]}"


def shown_benchmarks(env) -> dict[str, str]:
    """Benchmark → the page that shows all of its rows."""
    if not hasattr(env, "recorded_benchmarks"):
        env.recorded_benchmarks = {}
    return env.recorded_benchmarks


def check_all_are_shown(app: Sphinx, env) -> None:
    """What is recorded stands on a page."""
    for file in sorted(cited.RESULTS.glob("*.json")):
        if file.stem not in shown_benchmarks(env):
            log.warning("the rows of %s are on no page: put ```{recorded} %s``` on one", file.name, file.stem)


def _link(benchmark: str, row: str, text: str, docname: str) -> addnodes.pending_xref:
    where = {"refdomain": "std", "reftype": "ref", "reftarget": target_of(benchmark, row), "refdoc": docname}
    link = addnodes.pending_xref("", refexplicit=True, refwarn=True, **where)
    link += nodes.inline("", text)
    return link


def _line(cells: Iterable[Sequence[nodes.Node]]) -> nodes.row:
    line = nodes.row()
    line += [nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells]
    return line


def setup(app: Sphinx) -> dict[str, object]:
    app.add_role("row", Row())
    for name, directive in (("rows", Rows), ("recorded", Recorded), ("published", Published)):
        app.add_directive(name, directive)
    app.connect("env-check-consistency", check_all_are_shown)
    return {"parallel_read_safe": False, "version": "1", "env_version": 1}
