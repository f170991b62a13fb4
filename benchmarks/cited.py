"""Recorded values as the pages cite them: `BENCHMARK :: ROW :: MEASURE`, and how a number is written.

The site (`docs/_extensions`) and the test of README's tables (`tests/docs`) read rows by this alone, so that a page and
a record cannot say different things.
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


def record(benchmark: str, row: str, results: pathlib.Path = RESULTS) -> Record:
    """A recorded row.

    Raises:
      InputError: there is none of this name; says which are near.
    """
    rows = recorded(results / f"{benchmark}.json")
    if row not in rows:
        raise InputError(f"{benchmark} has no recorded row of this name", _nearest(row, rows), value=row)
    return rows[row]


def value(benchmark: str, row: str, measure: str, results: pathlib.Path = RESULTS) -> float:
    """One value of a recorded row; of "1 / MEASURE" the reciprocal. "smallest MEASURE" is the smallest difference that
    the row's questions show at 80% power, which follows from its interval, "MEASURE low" to "MEASURE high".

    Raises:
      InputError: there is none; says which are near.
    """
    found = record(benchmark, row, results)
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


def span(benchmark: str, row: str, measure: str, results: pathlib.Path = RESULTS) -> tuple[float, float]:
    """The smallest and the largest `value` over the kinds of machines that a row was measured on.

    Raises:
      InputError: there is none; says which are near.
    """
    last, file = record(benchmark, row, results), results / f"{benchmark}.json"
    found = [value(benchmark, row, measure, results)]
    for kind in records.machines(file) if last.machine else []:
        one = records.read(file, kind).get(row)
        if one is not None and one.machine == kind and one.config == last.config:
            found.append(_value_of(one, measure))
    return min(found), max(found)


def cite(address: str, results: pathlib.Path = RESULTS) -> tuple[str, str, str]:
    """A value by its address, as text; of a row of several kinds of machines the smallest and the largest.

    Args:
      address: "BENCHMARK :: ROW :: MEASURE", or with " :: FORM" behind it: see `written`.
      results: folder of the records.

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
    low, high = (written(number, *form) for number in span(benchmark, row, measure, results))
    return benchmark, row, low if low == high else f"{low} to {high}"


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
        return render.format_p(number) if number >= 0.001 else "below .001"
    if not form:
        return render.format_value(number)
    try:
        text = format(abs(number), ".3f" if form == "size" else form).replace("%", " %")
    except ValueError as error:
        raise InputError(f"no format of numbers: {error}", 'Write ".3f", ".0%" or "p".', value=form) from error
    sign = "−" if number < 0 and form != "size" and re.search(r"[1-9]", text) else ""
    return sign + re.sub(r"^0(?=\.)", "", text)


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


def _nearest(wanted: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(wanted, list(known), n=3, cutoff=0.5)
    return f"Name one of: {'; '.join(near or sorted(known)[:12])}."
