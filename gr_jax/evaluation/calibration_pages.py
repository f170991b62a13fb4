"""How sure systems are, as a table and a page with reliability diagrams."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import IO

from gr_jax import storage
from gr_jax.evaluation import calibration, calibration_plots, html, render, temperature
from gr_jax.evaluation.calibration import Judged, Lists, Reliability
from gr_jax.evaluation.temperature import Calibration
from gr_jax.printing import printable

_HEADER = ("system", "temperature", "Brier", "calibrated", "ECE", "calibrated")
_VALUES = ("temperature", "Brier", "Brier, calibrated", "ECE", "ECE, calibrated")
_SAID = (
    "A document's probability is the softmax of the scores of the first documents of its list. The Brier score is the "
    "mean of (probability − right)² over the first documents of all queries. ECE is how far, on average, what is said "
    "is from what is seen, in bins of equal mass. 0 is the best of both. Calibrated: by one temperature, fitted on "
    "dev. On dev itself each half of the queries is measured by the temperature of the other half."
)


@dataclasses.dataclass(frozen=True)
class _Row:
    split: str
    system: str
    values: Mapping[str, float]  # of `_VALUES`
    bins: Reliability | None


class Page:
    """Collects what was measured, and shows it.

    Args:
      title: heading.
    """

    def __init__(self, title: str):
        self.title = title
        self._rows: list[_Row] = []

    def add_fitted(self, split: str, system: str, made: Calibration) -> None:
        """Adds the questions on which a temperature was fitted."""
        numbers = (made.temperature, made.brier_before, made.brier, made.error_before, made.error)
        self._rows.append(_Row(split, system, dict(zip(_VALUES, numbers, strict=True)), None))

    def add(self, split: str, system: str, run: Lists, qrels: Judged, made: Calibration) -> None:
        """Adds other questions.

        Args:
          split: their name.
          system: whose answers these are.
          run, qrels: see `temperature.fit`.
          made: of the same system.
        """
        cut = {one: found[: made.depth] for one, found in run.items()}
        bins = calibration.reliability(calibration.of_list(cut, qrels, made.temperature))
        self._rows.append(_Row(split, system, temperature.measured(cut, qrels, made.temperature), bins))

    @property
    def values(self) -> dict[str, dict[str, dict[str, float]]]:
        """split → system → measure → value."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        for row in self._rows:
            found.setdefault(row.split, {})[row.system] = dict(row.values)
        return found

    def markdown(self) -> str:
        """The tables as GitHub's Markdown."""
        parts = [f"# {self.title}", _SAID]
        for split in self.values:
            parts += [f"## {split}", render.markdown_table(_HEADER, self._cells(split))]
        return "\n\n".join(parts) + "\n"

    def html(self) -> str:
        """One HTML file with pictures inside."""
        body = [f"<h1>{html.escape(self.title)}</h1>", f"<p>{_SAID}</p>"]
        for split in self.values:
            cells = [[html.escape(cell) for cell in line] for line in self._cells(split)]
            body += [f"<h2>{html.escape(split)}</h2>", html.table(_HEADER, cells, numbers=_HEADER[1:])]
            drawn = {row.system: row.bins for row in self._rows if row.split == split and row.bins is not None}
            if drawn:
                figure = calibration_plots.reliability_diagram(drawn, title=f"{split}, calibrated")
                body.append(html.image(figure, "Share of right answers over the probability that was said"))
        return html.page(self.title, body)

    def save(self, folder: str | os.PathLike, name: str = "report") -> None:
        """Writes name.md, name.html and name.json into the folder."""
        folder = pathlib.Path(folder)
        storage.write_text(folder / f"{name}.md", self.markdown())
        storage.write_text(folder / f"{name}.html", self.html())
        storage.write_json(folder / f"{name}.json", self.values)

    def print(self, file: IO[str] | None = None) -> None:
        """Prints the tables on a terminal."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        screen = render.console(file)
        for split in self.values:
            title = Text(printable(f"{self.title} {split}"))
            table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
            for place, name in enumerate(_HEADER):
                table.add_column(name, justify="right" if place else "left", no_wrap=bool(place))
            for line in self._cells(split):
                table.add_row(*map(Text, map(printable, line)))
            screen.print(table)

    def _cells(self, split: str) -> list[list[str]]:
        return [
            [row.system, *(render.format_value(row.values[name]) for name in _VALUES)]
            for row in self._rows
            if row.split == split
        ]
