"""Stages: made once, made again exactly when something changed, and never half."""

import builtins
import json
import os
import pathlib
import shutil
import time
from typing import Any

import pytest

from gr_jax import storage
from gr_jax.errors import InputError
from gr_jax.stages.graph import Place, Stage, in_order, stage
from gr_jax.stages.runner import Runner, changed_settings

MADE: list[str] = []  # what the functions below made, in order
FAIL: list[str] = []  # which of them are to raise


def _note(name: str) -> None:
    MADE.append(name)
    if name in FAIL:
        raise RuntimeError(f"{name} breaks")


@stage(shared=True)
def words(place: Place, *, text: str) -> None:
    _note("words")
    storage.write_text(place.folder / "words.txt", text)


@stage(trains=True)
def counts(place: Place, words: pathlib.Path, *, training: dict) -> None:
    found = (words / "words.txt").read_text().split()
    place.notes["words"] = len(found)
    counted = {word: training["scale"] * found.count(word) for word in found}
    storage.write_json(place.folder / "counts.json", counted)
    _note("counts")


@stage()
def report(place: Place, counts: pathlib.Path, *, title: str) -> None:
    counted = json.loads((counts / "counts.json").read_text())
    storage.write_text(place.folder / "report.txt", f"{title}: {counted}")
    _note("report")


class Bench:
    """Three stages in a row, the first one shared: `words` → `counts` → `report`; remembers what was made."""

    def __init__(self, root: pathlib.Path, model: str = "run"):
        self.root = root
        self.said: list[str] = []
        self.runner = Runner(root / model, config="a = 1", say=self.said.append)

    def stages(
        self, *, text: str = "a b a", scale: int = 1, title: str = "t", rates: dict | None = None
    ) -> list[Stage]:
        first = words(text=text)
        second = counts(first, training={"scale": scale, "rates": rates or {"query": 0.5}})
        return in_order(report(second, title=title))

    def run(self, **settings: Any) -> list[str]:
        """What was made, in order."""
        MADE.clear()
        self.said.clear()
        stages = self.stages(**settings)
        self.folders = {one.name: self.runner.folder(one) for one in stages}
        self.runner.run(stages, corpus="c0ffee")
        return list(MADE)

    def report(self) -> str:
        return (self.folders["report"] / "report.txt").read_text()


@pytest.fixture
def bench(tmp_path) -> Bench:
    FAIL.clear()
    return Bench(tmp_path)


def test_finished_stages_are_skipped(bench):
    assert bench.run() == ["words", "counts", "report"]
    assert bench.report() == "t: {'a': 2, 'b': 1}"
    assert bench.run() == []
    assert [line.split(":")[0] for line in bench.said] == ["✓ words", "✓ counts", "✓ report"]
    assert all("already made" in line for line in bench.said)
    again = Bench(bench.root)  # another process
    assert again.run() == [] and again.report() == bench.report()


def test_the_manifest_says_what_it_was_made_from(bench):
    bench.run()
    manifest = storage.read_folder(bench.folders["counts"], "counts")
    assert manifest.corpus == "c0ffee" and manifest.gin == "a = 1"
    assert manifest.meta["words"] == 3 and manifest.meta["seconds"] >= 0 and manifest.meta["version"] == 1
    assert manifest.meta["config"] == {"training": {"scale": 1, "rates": {"query": 0.5}}}
    stages = bench.stages()
    assert manifest.meta["inputs"] == {"words": stages[0].key} and manifest.made_from == stages[1].key


@stage()
def interrupted_once(place: Place, *, label: str) -> None:
    place.work.mkdir(parents=True, exist_ok=True)
    if FAIL:
        raise RuntimeError("breaks")
    started = time.process_time()
    while time.process_time() - started < 0.02:
        pass


def test_core_seconds_are_those_of_a_stage_made_in_one_go(tmp_path):
    """Of a stage that goes on after an interruption nobody knows what it took before."""
    runner = Runner(tmp_path, say=lambda line: None)

    def measured(label: str) -> dict:
        made = interrupted_once(label=label)
        runner.run([made])
        return storage.read_folder(runner.folder(made)).meta

    FAIL[:] = ["it"]
    with pytest.raises(RuntimeError, match="breaks"):
        measured("interrupted")
    FAIL.clear()
    assert "core_seconds" not in measured("interrupted")
    assert measured("peaceful")["core_seconds"] >= 0.02


def test_a_shared_stage_is_made_once_for_two_systems(tmp_path):
    one, other = Bench(tmp_path, "one"), Bench(tmp_path, "other")
    assert one.run() == ["words", "counts", "report"]
    assert other.run(title="u") == ["counts", "report"]
    assert one.folders["words"] == other.folders["words"] == tmp_path / "shared" / one.folders["words"].name
    assert one.folders["counts"] != other.folders["counts"]
    assert other.report() == "u: {'a': 2, 'b': 1}" and one.report() == "t: {'a': 2, 'b': 1}"


def test_a_changed_setting_is_named_and_what_follows_is_made_again(bench):
    bench.run()
    assert bench.run(scale=3) == ["counts", "report"]
    assert "! counts: training.scale: 1 → 3. It is made again." in bench.said
    assert "! report: counts was made anew. It is made again." in bench.said
    assert bench.report() == "t: {'a': 6, 'b': 3}"
    assert bench.run(scale=3, title="u") == ["report"]
    assert "! report: title: 't' → 'u'. It is made again." in bench.said
    assert bench.run() == ["counts", "report"]  # and back
    assert bench.report() == "t: {'a': 2, 'b': 1}"


def test_a_raised_version_makes_the_stage_and_what_follows_again(bench, monkeypatch):
    bench.run()
    monkeypatch.setattr(counts, "version", 2)
    assert bench.run() == ["counts", "report"]
    assert "! counts: version: 1 → 2. It is made again." in bench.said
    assert "! report: counts was made anew. It is made again." in bench.said
    assert storage.read_folder(bench.folders["counts"]).meta["version"] == 2
    assert bench.run() == []


def test_a_raised_version_of_a_shared_stage_is_named_where_it_matters(bench, monkeypatch):
    bench.run()
    monkeypatch.setattr(words, "version", 2)
    assert bench.run() == ["words", "counts", "report"]
    assert "! counts: words.version: 1 → 2. It is made again." in bench.said


def test_a_changed_setting_of_a_shared_stage_is_named_where_it_matters(bench):
    bench.run()
    first = bench.folders["words"]
    assert bench.run(text="b") == ["words", "counts", "report"]
    assert "! counts: words.text: 'a b a' → 'b'. It is made again." in bench.said
    assert bench.folders["words"] != first and first.exists()
    assert bench.run() == ["counts", "report"]  # the first words are still there
    assert bench.folders["words"] == first


def test_where_the_earlier_shared_folder_is_gone_the_stage_is_named(bench):
    bench.run()
    shutil.rmtree(bench.root / "shared")
    assert bench.run(text="b") == ["words", "counts", "report"]
    assert "! counts: words was made anew. It is made again." in bench.said


def test_changed_settings():
    old = {"a": 1, "b": {"c": [1, 2], "d": {"e": "x"}}, "gone": None, "same": (1, 2)}
    new = {"a": 1.5, "b": {"c": [1, 2], "d": {"e": "y", "f": True}}, "same": [1, 2]}
    assert changed_settings(old, new) == ["a: 1 → 1.5", "b.d.e: 'x' → 'y'", "b.d.f: None → True"]
    assert changed_settings({"training": {"learning_rate": 0.001}}, {"training": {"learning_rate": 0.002}}) == [
        "training.learning_rate: 0.001 → 0.002"
    ]
    assert changed_settings(new, new) == []


def damage_by_truncating(file: pathlib.Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def damage_by_flipping(file: pathlib.Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.parametrize("damage", [damage_by_truncating, damage_by_flipping, pathlib.Path.unlink])
@pytest.mark.parametrize("name", ["words", "counts", "report"])
def test_a_damaged_folder_is_said_and_made_again(bench, name, damage):
    bench.run()
    expected = bench.report()
    file = next(f for f in bench.folders[name].iterdir() if f.name != "manifest.json")
    damage(file)
    assert bench.run() == [name]
    assert any(line.startswith(f"! {name}: {file}: ") and line.endswith("It is made again.") for line in bench.said)
    assert bench.report() == expected and bench.run() == []


def test_a_damaged_manifest_is_said_and_its_folder_made_again(bench):
    bench.run()
    manifest = bench.folders["counts"] / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-20])
    assert bench.run() == ["counts"]
    assert any(line.startswith("! counts: ") and "manifest" in line for line in bench.said)


def test_a_run_of_other_settings_in_the_same_folder_never_wins(bench):
    """Its folders are whole and of the right kind, and its names are ours."""
    bench.run(scale=7)
    other = Bench(bench.root)
    assert other.run() == ["counts", "report"]
    assert other.report() == "t: {'a': 2, 'b': 1}"
    assert any(line.startswith("! counts: training.scale: 7 → 1.") for line in other.said)


def test_an_artefact_of_another_kind_is_replaced_and_said(bench):
    with storage.write_folder(bench.root / "run" / "counts", "index", made_from=bench.stages()[1].key) as folder:
        (folder / "x").write_text("x")
    assert bench.run() == ["words", "counts", "report"]
    assert any(line.startswith("! counts: ") and "'index', not 'counts'" in line for line in bench.said)


@pytest.mark.parametrize("manifest", [None, '{"name": "an extension", "version": 3}'])
def test_a_folder_of_somebody_else_is_refused_before_anything_is_made(bench, manifest):
    theirs = bench.root / "run" / "report"
    theirs.mkdir(parents=True)
    (theirs / "thesis.txt").write_text("years of work")
    if manifest:
        (theirs / "manifest.json").write_text(manifest)
    with pytest.raises(InputError, match=str(theirs)):
        bench.run()
    assert MADE == [] and (theirs / "thesis.txt").read_text() == "years of work"
    (theirs / "thesis.txt").unlink()
    if manifest:
        (theirs / "manifest.json").unlink()
    assert bench.run() == ["words", "counts", "report"]  # an empty folder is nobody's


def test_a_file_where_a_folder_should_be_is_refused(bench):
    (bench.root / "run").mkdir()
    (bench.root / "run" / "counts").write_text("theirs")
    with pytest.raises(InputError, match="counts"):
        bench.run()
    assert MADE == []


def test_a_stage_that_raises_leaves_the_old_artefact(bench):
    bench.run()
    old = (bench.folders["counts"] / "counts.json").read_bytes()
    FAIL[:] = ["counts"]
    with pytest.raises(RuntimeError, match="counts breaks"):
        bench.run(scale=5)
    made = bench.root / "run" / "counts"
    assert (made / "counts.json").read_bytes() == old
    storage.read_folder(made, "counts")
    assert [p.name for p in (bench.root / "run").iterdir() if p.name.startswith(".") and p.name != ".locks"] == []
    FAIL.clear()
    assert bench.run() == []  # what stood there is still good for what it was made from
    assert bench.run(scale=5) == ["counts", "report"]


SEEN: list[list[str]] = []


@stage(trains=True)
def checkpointed(place: Place, *, rate: float) -> None:
    place.work.mkdir(parents=True, exist_ok=True)
    SEEN.append(sorted(file.name for file in place.work.iterdir() if file.name != "starts.json"))
    (place.work / f"step_{len(SEEN)}").touch()
    if len(SEEN) % 2:
        raise KeyboardInterrupt
    (place.folder / "model").write_text(str(rate))


def test_what_a_stage_keeps_in_its_work_folder_outlives_interruptions_but_not_changes(tmp_path):
    SEEN.clear()
    runner = Runner(tmp_path / "run", say=lambda line: None)
    for rate in (0.1, 0.2):
        with pytest.raises(KeyboardInterrupt):
            runner.run([checkpointed(rate=rate)])
        runner.run([checkpointed(rate=rate)])
    assert SEEN == [[], ["step_1"], [], ["step_3"]]
    assert not list((tmp_path / "run" / "checkpointed").glob("step_*"))


@stage(shared=True)
def in_pieces(place: Place) -> None:
    place.work.mkdir(parents=True, exist_ok=True)
    (place.work / "piece").touch()
    (place.folder / "whole").touch()


def test_pieces_of_a_stage_that_trains_nothing_go_when_it_is_whole(tmp_path):
    runner, made = Runner(tmp_path / "run", say=lambda line: None), in_pieces()
    runner.run([made])
    assert (runner.folder(made) / "whole").exists() and not list((tmp_path / "run").rglob("piece"))


def test_stale_stages_that_are_not_made_now_are_said(bench):
    bench.run()
    changed = bench.stages(scale=9)
    bench.said.clear()
    bench.runner.run(changed[:2])
    bench.runner.say_what_is_stale(changed[2:])
    assert bench.said[-1].startswith("! report: ") and "earlier run" in bench.said[-1]
    bench.runner.run(changed)
    bench.said.clear()
    bench.runner.say_what_is_stale(changed[2:])
    assert bench.said == []


# ── Checksums of finished folders are remembered


def old(folder: pathlib.Path) -> None:
    """As if its files had been written a while ago: what is younger than two seconds is not remembered."""
    for file in folder.rglob("*"):
        os.utime(file, ns=(1_000_000_000, time.time_ns() - 10_000_000_000))


def read_in(monkeypatch, run) -> list[str]:
    """The files, but manifests and what is remembered, that a call reads the bytes of."""
    read, opened = list[str](), builtins.open

    def counting(file, mode="r", *arguments, **named):
        if "b" in mode and "r" in mode and not isinstance(file, int):
            read.append(pathlib.Path(file).name)
        return opened(file, mode, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", counting)
        run()
    return [name for name in read if name != "manifest.json"]


def test_a_second_run_reads_no_bytes_of_finished_folders(bench, monkeypatch):
    bench.run()
    old(bench.root)
    first = read_in(monkeypatch, lambda: Bench(bench.root).run())
    assert sorted(first) == ["counts.json", "report.txt", "words.txt"]
    assert read_in(monkeypatch, lambda: Bench(bench.root).run()) == []


def test_a_changed_byte_is_found_though_checksums_are_remembered(bench):
    bench.run()
    old(bench.root)
    assert Bench(bench.root).run() == []  # now all are remembered
    file = bench.folders["words"] / "words.txt"
    damage_by_flipping(file)  # of the same size, a moment later
    again = Bench(bench.root)
    assert again.run() == ["words"] and any(str(file) in line for line in again.said)
    assert again.run() == []
