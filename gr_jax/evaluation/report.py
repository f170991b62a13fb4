"""Reports: results as Markdown, as one HTML file, and on a terminal."""

from __future__ import annotations

import os
import pathlib
from typing import IO

from gr_jax import storage
from gr_jax.evaluation import render
from gr_jax.evaluation.results import Results


class Report(Results):
    """Collects results and renders them: `markdown()`, `html()`, `save(folder)`, and `print_table` for a terminal; see
    `Results` for the arguments."""

    def markdown(self) -> str:
        """The report as GitHub's Markdown; plots are in the HTML."""
        return render.markdown(self)

    def html(self) -> str:
        """The report as one HTML file with its plots inside."""
        from gr_jax.evaluation import html  # brings matplotlib with it

        return html.html(self)

    def save(self, folder: str | os.PathLike, name: str = "report") -> tuple[pathlib.Path, pathlib.Path]:
        """Writes name.md and name.html into the folder; returns both paths."""
        folder = pathlib.Path(folder)
        paths = folder / f"{name}.md", folder / f"{name}.html"
        for path, text in zip(paths, (self.markdown(), self.html()), strict=True):
            storage.write_text(path, text)
        return paths


def print_table(report: Report, file: IO[str] | None = None) -> None:
    """Prints the report's tables on a terminal, by rich."""
    render.print_tables(report, file)
