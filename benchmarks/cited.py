"""Recorded values as the pages cite them: `BENCHMARK :: ROW :: MEASURE`, and how a number is written.

What `pages` writes into README and the site's pages is read by this alone.
"""

from __future__ import annotations

import difflib
import functools
import pathlib
import re
from collections.abc import Iterable

from benchmarks import records
from benchmarks.records import Record
from gr_jax.errors import InputError
from gr_jax.evaluation import render

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
SEPARATOR, RECIPROCAL, SMALLEST = "::", "1 / ", "smallest "
_AT_80_PERCENT = (1.96 + 0.84) / (2 * 1.96)  # of an interval of 95%: the difference that is seen in four of five tries


def record(benchmark: str, row: str) -> Record:
    """A recorded row.

    Raises:
      InputError: there is none of this name; says which are near.
    """
    rows = recorded(RESULTS / f"{benchmark}.json")
    if row not in rows:
        raise InputError(f"{benchmark} has no recorded row of this name", _nearest(row, rows), value=row)
    return rows[row]


def value(benchmark: str, row: str, measure: str) -> float:
    """One value of a recorded row; of "1 / MEASURE" the reciprocal. "smallest MEASURE" is the smallest difference that
    the row's questions show at 80% power, which follows from its interval, "MEASURE low" to "MEASURE high".

    Raises:
      InputError: there is none; says which are near.
    """
    found = record(benchmark, row)
    if not has(found, measure):
        bare = measure.removeprefix(RECIPROCAL).removeprefix(SMALLEST)
        raise InputError(f"{benchmark}, {row!r} has no such measure", _nearest(bare, found.values), value=measure)
    return _value_of(found, measure)


def has(record: Record, measure: str) -> bool:
    """Whether a row has a measure, or what it follows from; see `value`."""
    return {*_parts(measure)} <= {*record.values}


def _parts(measure: str) -> tuple[str, ...]:
    """The recorded measures that one follows from."""
    if measure.startswith(SMALLEST):
        name = measure.removeprefix(SMALLEST)
        return f"{name} low", f"{name} high"
    return (measure.removeprefix(RECIPROCAL),)


def _value_of(record: Record, measure: str) -> float:
    values = [record.values[part] for part in _parts(measure)]
    if measure.startswith(SMALLEST):
        return _AT_80_PERCENT * (values[1] - values[0])
    return 1 / values[0] if measure.startswith(RECIPROCAL) else values[0]


def span(benchmark: str, row: str, measure: str) -> tuple[float, float]:
    """The smallest and the largest `value` over the kinds of machines that a row was measured on.

    Raises:
      InputError: there is none; says which are near.
    """
    last, file = record(benchmark, row), RESULTS / f"{benchmark}.json"
    found = [value(benchmark, row, measure)]
    for kind, rows in _machines(file).items() if last.machine else ():
        one = rows.get(row)
        if one is not None and one.machine == kind and one.config == last.config:
            found.append(_value_of(one, measure))
    return min(found), max(found)


def text(benchmark: str, row: str, measure: str, form: str = "") -> str:
    """A value as pages have it; of a row of several kinds of machines the smallest and the largest, "2.4–3.5".

    Raises:
      InputError: there is none; says which are near.
    """
    low, high = (written(number, form) for number in span(benchmark, row, measure))
    return low if low == high else f"{low}–{high}"


def cite(address: str) -> tuple[str, str, str]:
    """`text` by its address.

    Args:
      address: "BENCHMARK :: ROW :: MEASURE", or with " :: FORM" behind it: see `written`.

    Returns:
      The benchmark, the row, and the value as it is written.

    Raises:
      InputError: it is no address, or nothing is recorded there.
    """
    parts = [part.strip() for part in address.split(SEPARATOR)]
    if len(parts) not in (3, 4) or not all(parts):
        raise InputError(
            "a recorded value is cited by benchmark, row and measure",
            "Write BENCHMARK :: ROW :: MEASURE.",
            value=address,
        )
    benchmark, row, measure, *form = parts
    return benchmark, row, text(benchmark, row, measure, *form)


def written(number: float, form: str = "") -> str:
    """A number as pages have it, without the 0 before a point.

    Args:
      number: as it was recorded.
      form: Python's format, such as ".3f", ".0%" or ",.0f"; "size" is ".3f" without a sign; "p" is that of a p-value;
        "" as in the benchmarks' tables.

    Raises:
      InputError: it is no format.
    """
    if form == "p":
        return render.format_p(number).replace(" ", "")
    if not form:
        return render.format_value(number)
    try:
        size = format(abs(number), ".3f" if form == "size" else form)
    except ValueError as error:
        raise InputError(f"no format of numbers: {error}", 'Write ".3f", ".0%" or "p".', value=form) from error
    sign = "−" if number < 0 and form != "size" and re.search(r"[1-9]", size) else ""
    return sign + re.sub(r"^0(?=\.)", "", size)


@functools.cache
def recorded(file: pathlib.Path) -> dict[str, Record]:
    """All rows of a file, which is read once.

    Raises:
      InputError: there is no such file, or it holds no rows.
    """
    rows = records.read(file)
    if not rows:
        known = {one.stem for one in file.parent.glob("*.json")}
        raise InputError("no benchmark of this name has recorded rows", _nearest(file.stem, known), file=file)
    return rows


@functools.cache
def _machines(file: pathlib.Path) -> dict[str, dict[str, Record]]:
    """Kind of machine → rows, those of this kind before others."""
    return {kind: records.read(file, kind) for kind in records.machines(file)}


def _nearest(wanted: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(wanted, list(known), n=3, cutoff=0.5)
    return f"Name one of: {'; '.join(near or sorted(known)[:12])}."
