"""The notebooks run from their first cell to their last, and the first does what `make quickstart` does."""

import pathlib
import re

import gin
import pytest

import launch.show  # noqa: F401  gin files name it
from tests.end_to_end.test_packaging import CHECKOUT

NOTEBOOK = CHECKOUT / "notebooks" / "quickstart.ipynb"
THEORY = CHECKOUT / "notebooks" / "theory.ipynb"
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


def _executed(notebook, folder: pathlib.Path, monkeypatch) -> str:
    """What it shows, as text."""
    monkeypatch.delenv("XLA_FLAGS")  # the machine's own devices, as a reader has them
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    client = nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3")
    client.execute(cwd=str(folder))
    return "\n".join(
        output.get("text", "") or output.get("data", {}).get("text/markdown", "")
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )


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
    shown = _executed(notebook, tmp_path, monkeypatch)
    assert "BM25" in shown and "(cluster " in shown
    assert (tmp_path / "runs" / "quickstart" / "index" / "manifest.json").exists()
    found = notebook.cells[-1].outputs[-1]["data"]["text/plain"]
    assert "tea" in found
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]  # which git ignores


def test_theory_is_checked(tmp_path, monkeypatch):
    shown = _executed(nbformat.read(THEORY, as_version=4), tmp_path, monkeypatch)
    said = {line.rsplit(maxsplit=1)[0]: float(line.split()[-1]) for line in shown.splitlines() if line[-1:].isdigit()}
    assert said["CE"] == said["H + KL"]
    assert said["log Z_K − log Z"] < 0 < said["Eq. 5: at least"]
    assert said["rank of inner products"] == said["rank of a sum of three"] == 4 < said["rank of their maximum"]
    assert said["largest difference"] < 1e-5
    assert "which is less than is seen" in shown
    assert not list(tmp_path.iterdir())


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


_NOT_RUN = pytest.mark.xfail(reason="it trains for a quarter of an hour: make notebooks", strict=True)


@pytest.mark.parametrize("path", [pytest.param(NOTEBOOK, marks=_NOT_RUN), THEORY], ids=["quickstart", "theory"])
def test_they_are_committed_with_what_they_show(path):
    """As they ran from the first cell to the last, without a word of whose machine it was."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert len(outputs) >= 4 and not [output for output in outputs if output.output_type == "error"]
    assert not re.search(r"/(tmp|home|root|work)/|site-packages|Warning|WARNING", str(outputs))
    assert path.stat().st_size < 300_000


@pytest.mark.parametrize("path", [NOTEBOOK, THEORY], ids=lambda path: path.stem)
def test_they_ask_no_package_index_for_gr_jax(path):
    """The name may be anyone's there: they install the checkout around them, or a wheel beside them."""
    (cell,) = (source for source in _code(nbformat.read(path, as_version=4)) if "pip install" in source)
    asked = re.findall(r"%pip install (.*)", cell)
    assert asked[0] == '--quiet "{SOURCE}[quickstart]"' and all("--no-deps gt-all" in other for other in asked[1:])
    assert "SOURCE = wheels[-1] if wheels else checkout" in cell
