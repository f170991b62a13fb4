"""A report as Markdown and on a terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING

from gr_jax.evaluation.results import HIT_DEPTH, SIGNIFICANT, ReportRow, Results
from gr_jax.evaluation.significance import Comparison
from gr_jax.printing import printable

if TYPE_CHECKING:
    from rich.console import Console

BETTER, WORSE = "▲", "▼"


def markdown(report: Results) -> str:
    """See `Report.markdown`."""
    comparisons = report.comparisons()
    parts = [f"# {_plain(report.title)}"]
    if report.introduction:
        parts.append(report.introduction)
    for split in report.splits:
        header, body = split_table(report, split, marks(comparisons), bold="**{}**")
        parts += [f"## {_plain(split)}", markdown_table(header, body)]
    parts += map(_remark, report.remarks)
    if comparisons:
        parts += [legend(report, comparisons), "## Differences", markdown_table(*comparison_table(report, comparisons))]
    if report.examples:
        parts += ["## Example searches", *map(_plain, drawn(report))]
    for example in report.examples:
        by = f" ({_plain(example.system)})" if example.system else ""
        hits = []
        for rank, hit in enumerate(example.hits, start=1):
            title = f"{'✓ ' if hit.relevant else ''}{_plain(hit.title or hit.doc_id)}"
            names = [_plain(hit.doc_id)] if hit.title not in ("", hit.doc_id) else []
            names += [f"`{printable(hit.docid)}`"] if hit.docid else []
            hits.append(f"{rank}. " + " · ".join([title, f"{hit.score:.2f}", *names]))
        where = ["", _plain(example.where)] if example.where else []
        parts.append("\n".join([f"**{_plain(example.query)}**{by}", *where, "", *(hits or ["nothing found"])]))
    parts += ["## What these numbers rest on", markdown_table(("", ""), report.rests_on)]
    return "\n\n".join(parts) + "\n"


def print_tables(report: Results, file: IO[str] | None = None) -> None:
    """See `report.print_table`."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    screen = console(file)
    comparisons = report.comparisons()
    for split in report.splits:
        header, body = split_table(report, split, marks(comparisons))
        table = Table(
            title=Text(printable(f"{report.title}: {split}")),
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
        )
        for place, name in enumerate(header):
            is_number = 0 < place and name in report.measures
            table.add_column(name, justify="right" if is_number else "left", no_wrap=is_number)
        for row in body:
            table.add_row(*map(Text, map(printable, row)))
        screen.print(table)
    for remark in report.remarks:
        screen.print(Text(remark), soft_wrap=True)  # commands are copied
    if comparisons:
        screen.print(Text(legend(report, comparisons)), style="dim")
    for name, value in report.rests_on:
        screen.print(Text(printable(f"{name}: {value}")), style="dim")


def console(file: IO[str] | None = None) -> Console:
    """Where tables are printed: as wide as the terminal; a log is wide enough to keep every row on one line."""
    from rich.console import Console

    found = Console(file=file)
    return found if found.is_terminal else Console(file=file, width=160)


def split_table(
    report: Results, split: str, marked: Mapping[tuple[str, str, str], str], bold: str = "{}"
) -> tuple[list[str], list[list[str]]]:
    """Header and rows of one split: system, measures, and notes where there are some. `bold` wraps the best values."""
    rows = [row for row in report.rows if row.split == split]
    measures = [measure for measure in report.measures if any(measure in row.values for row in rows)]
    best = {measure: max(row.values.get(measure, -math.inf) for row in rows) for measure in measures}
    has_notes = any(row.note for row in rows)
    body = []
    for row in rows:
        cells = [row.system]
        for measure in measures:
            value = row.values.get(measure)
            text = format_value(value)
            if len(rows) > 1 and value is not None and value == best[measure]:
                text = bold.format(text)
            mark = marked.get((row.system, split, measure), "")
            cells.append(f"{text} {mark}".rstrip())
        body.append(cells + [row.note] * has_notes)
    return ["system", *measures, *["note"] * has_notes], body


def comparison_table(
    report: Results, comparisons: Sequence[tuple[ReportRow, Comparison]]
) -> tuple[list[str], list[list[str]]]:
    """Header and rows of all differences from the baseline."""
    body = []
    for row, comparison in comparisons:
        low, high = comparison.interval
        body.append(
            [
                row.system,
                row.split,
                comparison.measure,
                format_value(comparison.difference, signed=True),
                f"{format_value(low, signed=True)} … {format_value(high, signed=True)}",
                format_p(comparison.p_randomisation),
                format_p(comparison.p_t),
            ]
        )
    against = f"difference from {report.baseline}"
    return ["system", "split", "measure", against, "95% interval", "p (randomisation)", "p (t-test)"], body


def marks(comparisons: Sequence[tuple[ReportRow, Comparison]]) -> dict[tuple[str, str, str], str]:
    """(system, split, measure) → whether it is better or worse than the baseline beyond chance; else absent."""
    return {
        (row.system, row.split, comparison.measure): BETTER if comparison.difference > 0 else WORSE
        for row, comparison in comparisons
        if comparison.p_randomisation < SIGNIFICANT
    }


def legend(report: Results, comparisons: Sequence[tuple[ReportRow, Comparison]]) -> str:
    """What the marks mean."""
    return (
        f"{BETTER} {WORSE}: better or worse than {report.baseline}, p < {SIGNIFICANT} by the two-sided paired "
        f"randomisation test over queries; {len(comparisons)} comparisons, p not corrected for their number."
    )


def drawn(report: Results) -> list[str]:
    """How example searches were chosen, where they have ranks."""
    chosen = [example for example in report.examples if example.ranks]
    if not chosen:
        return []
    has = f"has the answer to the first ones among its first {HIT_DEPTH} documents, and not to the others"
    return [f"Queries are drawn by a fixed seed. {chosen[0].system} {has}."]


def markdown_table(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table in GitHub's Markdown."""
    rows = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows)


def format_value(value: float | None, *, signed: bool = False) -> str:
    """.654 for values in −1..1, four digits beyond, 7.6e-06 where that would read .000, – where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{abs(value):.3f}" if abs(value) < 10 else f"{abs(value):,.4g}"
    if 0 < abs(value) < 0.0005:
        text = f"{abs(value):.1e}"
    if abs(value) >= 10_000:
        text = f"{abs(value):,.0f}"
    sign = "" if not float(text.replace(",", "")) else "−" if value < 0 else "+" if signed else ""
    return sign + text.removeprefix("0")


def format_p(p: float) -> str:
    """Three decimals; "< .001" below."""
    return "< .001" if p < 0.001 else f"{p:.3f}".removeprefix("0")


def _cell(text: str) -> str:
    return printable(text).replace("|", "\\|")


def _remark(sentence: str) -> str:
    """A sentence whose commands, between backquotes, stay as they are."""
    parts = re.split("(`[^`]*`)", sentence)
    return "".join(part if part.startswith("`") else _escaped(part) for part in parts)


def _plain(text: str) -> str:
    """Text of a data set within Markdown: on one line, its special characters escaped."""
    return _escaped(printable(text))


def _escaped(text: str) -> str:
    return re.sub(r"[\\`*\[\]<>#|]|(?<!\w)_|_(?!\w)", r"\\\g<0>", text)
