"""The tables of recorded rows, for the terminal and for papers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.records import Record
from benchmarks.rows import Row, holds, resolve
from benchmarks.states import current_values, state
from gr_jax.evaluation import render


def show(
    name: str,
    rows: Sequence[Row],
    recorded: Mapping[str, Record],
    *,
    every: Sequence[Row] | None = None,
    markdown: bool = False,
) -> None:
    """Prints each value with its bound beside it, rows with the same measures in one table, then where and when they
    were measured."""
    measured = [recorded[row.name] for row in rows if not state(row, recorded)]
    made = sorted({f"{record.hardware}; commit {record.commit}; {record.date[:10]}" for record in measured})
    current, named = current_values(every or rows, recorded), {row.name: row for row in rows}
    parts = alike({row.name: {**row.bounds(), **current.get(row.name, {})} for row in rows})
    tables = [table([named[name] for name in names], recorded, every=every or rows) for _, names in parts]
    if markdown:
        for header, body in tables:
            print(render.markdown_table(header, body), end="\n\n")
        print(*made, sep="\n")
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console = render.console()
    console.print(Text(f"benchmarks.{name}", style="bold"))
    for header, body in tables:
        shown = Table(box=box.SIMPLE_HEAD)
        for place, column in enumerate(header):
            shown.add_column(column, justify="left" if place == 0 or column == "note" else "right", overflow="fold")
        for cells in body:
            shown.add_row(*(Text(cell, style="red" if cell.endswith("✗") else "") for cell in cells))
        console.print(shown)
    for line in made:
        console.print(Text(line), style="dim")


def alike(measured: Mapping[str, Iterable[str]]) -> list[tuple[list[str], list[str]]]:
    """Rows by table, (measures, rows): a row joins the first that has all of its measures, or only measures of its."""
    tables: list[tuple[list[str], list[str]]] = []
    for row, names in measured.items():
        for measures, members in tables:
            if {*names} <= {*measures} or {*measures} <= {*names}:
                measures += [name for name in names if name not in measures]
                members.append(row)
                break
        else:
            tables.append(([*names], [row]))
    return tables


def table(
    rows: Sequence[Row], recorded: Mapping[str, Record], *, every: Sequence[Row] | None = None
) -> tuple[list[str], list[list[str]]]:
    """Header and rows as text; a value that breaks its bound ends in ✗."""
    current = current_values(every or rows, recorded)
    measures = list(
        dict.fromkeys(m for row in rows for names in (row.bounds(), current.get(row.name, {})) for m in names)
    )
    has_notes = any(row.note or state(row, recorded) for row in rows)
    body = []
    for row in rows:
        cells = [row.name]
        for measure in measures:
            value = current.get(row.name, {}).get(measure)
            bounds = [(resolve(bound, measure, current), is_floor) for bound, is_floor in row.bounds().get(measure, ())]
            text = _with_bounds(render.format_value(value), bounds) if value is not None or bounds else ""
            broken = row.name in current and not all(holds(value, limit, is_floor) for limit, is_floor in bounds)
            cells.append(f"{text} ✗" if broken else text)
        note = "; ".join(filter(None, (row.note, state(row, recorded))))
        body.append(cells + [note] * has_notes)
    return ["row", *measures, *["note"] * has_notes], body


def _with_bounds(text: str, bounds: Sequence[tuple[float | None, bool]]) -> str:
    """ ".654 (≥ .650)", or ".654 (.644 … .664)" between two bounds."""
    limits = [render.format_value(limit) for limit, _ in bounds]
    if len(bounds) == 2:
        return f"{text} ({' … '.join(limits)})"
    return f"{text} ({'≥' if bounds[0][1] else '≤'} {limits[0]})" if bounds else text
