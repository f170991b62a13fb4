"""The notebook runs from its first cell to its last, and does what `make quickstart` does."""

import pathlib

import gin
import pytest

import launch.show  # noqa: F401  gin files name it
from tests.end_to_end.test_packaging import CHECKOUT

NOTEBOOK = CHECKOUT / "notebooks" / "quickstart.ipynb"
# What makes it short, and nothing else: fewer documents, fewer steps, a smaller search.
SHORTER = {
    "systems.PythonDocs()": 'systems.PythonDocs(packages=("statistics", "heapq", "bisect"))',
    "steps=120": "steps=4, warmup_steps=2",
    "evaluate_every=30": "evaluate_every=2",
    "dev_queries=200": "dev_queries=20",
    "most_sentences=4": "most_sentences=1",
}

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")


def _code(notebook) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.slow
def test_it_runs(tmp_path, monkeypatch):
    pytest.importorskip("tokenizers")
    from gr_jax.interop import huggingface

    if huggingface.find_minilm() is None:
        pytest.skip("the packaged MiniLM is not installed")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for old, new in SHORTER.items():
        assert sum(source.count(old) for source in _code(notebook)) == 1, f"{old!r} stands in the notebook not once"
        for cell in notebook.cells:
            cell.source = cell.source.replace(old, new)
    monkeypatch.delenv("XLA_FLAGS")  # the machine's own devices, as a reader has them
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    client = nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3")
    client.execute(cwd=str(tmp_path))
    shown = "\n".join(
        output.get("text", "") or output.get("data", {}).get("text/markdown", "")
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    assert "BM25" in shown and "(cluster " in shown
    assert (tmp_path / "runs" / "quickstart" / "index" / "manifest.json").exists()
    found = notebook.cells[-1].outputs[-1]["data"]["text/plain"]
    assert "tea" in found


def test_it_does_what_make_quickstart_does(monkeypatch):
    """The settings that stand in the notebook are those of the gin file: a Colab has no checkout to read them from."""
    from gr_jax.systems import GDR, configuration
    from gr_jax.systems.base import System

    cell = next(source for source in _code(nbformat.read(NOTEBOOK, as_version=4)) if "gdr = GDR(" in source)
    names: dict = {}
    exec(cell, names)
    gin.clear_config()
    monkeypatch.chdir(CHECKOUT)
    try:
        gin.parse_config_files_and_bindings(["gin_configs/systems/quickstart.gin"], [])
        assert names["gdr"] == configuration.from_gin(GDR, configuration.registered(System))
    finally:
        gin.clear_config()


def test_it_is_committed_without_outputs_and_with_one_install_cell():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.outputs and cell.execution_count is None for cell in notebook.cells if cell.cell_type == "code")
    assert sum("pip install" in source for source in _code(notebook)) == 1
    assert pathlib.Path(NOTEBOOK).stat().st_size < 50_000
