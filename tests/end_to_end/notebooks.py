"""Runs the notebooks where they lie, and keeps in them what they show: `make notebooks`, minutes on an idle machine."""

from __future__ import annotations

import pathlib
import sys

import nbclient
import nbformat


def run(path: pathlib.Path) -> None:
    """Runs one in its folder and writes it with its outputs, without the lines of progress of stderr."""
    notebook = nbformat.read(path, as_version=4)
    metadata = dict(notebook.metadata)
    client = nbclient.NotebookClient(notebook, timeout=None, kernel_name="python3", record_timing=False)
    client.execute(cwd=str(path.parent))
    notebook.metadata = metadata  # the client adds which Python it was
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        run(pathlib.Path(name).resolve())
