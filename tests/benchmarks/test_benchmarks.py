"""All benchmarks: rows with names of their own, each of which can be judged, without data and without measuring."""

import dataclasses
import importlib
import pathlib

import pytest

from benchmarks import dense, gdr, harness, recipe_runs
from gr_jax import storage
from gr_jax.stages import sources

BENCHMARKS = sorted(
    path.stem
    for path in pathlib.Path(harness.__file__).parent.glob("*.py")
    if "def rows(" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("whole", [dense, gdr])
def test_all_parts_are_benchmarks(whole):
    assert set(whole.PARTS) <= set(BENCHMARKS)


def rows_of(measured: list[str], *names: str):
    return lambda: [
        harness.Row(name=name, config={}, measure=lambda name=name: measured.append(name) or {"x": 1.0})
        for name in names
    ]


def test_several_benchmarks_share_a_command_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    measured: list[str] = []
    seen: list[tuple] = []
    monkeypatch.setattr(harness, "main", lambda name, rows, argv, draw: seen.append((name, argv)) or len(seen) - 1)
    parts = {
        "one": rows_of(measured, "a fox", "a dog"),
        "two": rows_of(measured, "a cat, black"),
        "three": rows_of(measured, "x"),
    }
    assert harness.main_of_parts(parts, []) == 2
    assert seen == [("one", []), ("two", []), ("three", [])]
    seen.clear()
    assert harness.main_of_parts(parts, ["--rows=a cat, black, a d*", "--check"]) == 1
    assert seen == [("one", ["--check", "--rows=a d*"]), ("two", ["--check", "--rows=a cat, black"])]
    seen.clear()
    assert harness.main_of_parts(parts, ["--rows=nothing"]) == 2 and not seen
    assert "nothing" in capsys.readouterr().err
    drawn: list[str] = []
    monkeypatch.setattr(harness, "main", lambda name, rows, argv, draw: draw and draw() or 0)
    assert harness.main_of_parts(parts, [], draws={"two": lambda: drawn.append("two")}) == 0 and drawn == ["two"]
    monkeypatch.setattr(harness, "main", lambda name, rows, argv, draw: seen.append(name) or 130)
    assert harness.main_of_parts(parts, []) == 130 and seen == ["one"]


def test_a_stage_is_copied_whole_and_again_when_it_changed(tmp_path):
    made, to = tmp_path / "made", tmp_path / "to"
    recipe_runs.copy_stage(made, to)
    assert not to.exists()
    for key in ("k1", "k2"):
        with storage.write_folder(made, "model", made_from=key) as folder:
            (folder / "weights").write_text(key)
        to.with_name("to.copied").mkdir()  # of a copy that was killed
        recipe_runs.copy_stage(made, to)
        assert storage.read_folder(to).made_from == key and (to / "weights").read_text() == key
    before = (to / "weights").stat().st_mtime_ns
    recipe_runs.copy_stage(made, to)
    assert (to / "weights").stat().st_mtime_ns == before


@pytest.mark.parametrize("name", BENCHMARKS)
def test_rows_have_names_and_are_judged_by_what_is_recorded_without_data(name, monkeypatch, tmp_path, capsys):
    pytest.importorskip("faiss")  # of some rows; named among the peers
    monkeypatch.setenv("GR_JAX_SHARED_DATA", str(tmp_path))
    monkeypatch.setattr(harness.Row, "fingerprint", lambda row: pytest.fail(f"{row.name}: the corpus is read"))
    monkeypatch.setattr(sources.BeirFolder, "identity", lambda source: pytest.fail("files are read"))
    monkeypatch.setattr(sources.PythonDocs, "identity", lambda source: pytest.fail("files are read"))
    monkeypatch.setattr(recipe_runs, "launch", lambda *arguments: pytest.fail("a system is run"))
    rows = importlib.import_module(f"benchmarks.{name}").rows()
    names = [row.name for row in rows]
    assert len(names) == len(set(names)) > 0
    for row in rows:
        for bound in (*row.at_least.values(), *row.at_most.values()):
            assert not isinstance(bound, harness.ShareOf) or bound.row in names
    rows = [dataclasses.replace(row, measure=lambda: pytest.fail("a row is measured")) for row in rows]
    assert harness.main(name, rows, ["--check"]) in (0, 1)
    assert f"benchmarks.{name}" in capsys.readouterr().out
