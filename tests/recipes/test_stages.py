"""Stages: made once, made again exactly when something changed, and never half."""

import json
import pathlib
import shutil
import time

import pytest
from gr_jax.recipes.stages import Runner, Stage, changed_settings

from gr_jax import storage
from gr_jax.errors import InputError


class Bench:
    """Three stages in a row, the first one shared: `words` → `counts` → `report`; remembers what was made."""

    def __init__(self, root: pathlib.Path, model: str = "run"):
        self.root, self.model = root, model
        self.made: list[str] = []
        self.said: list[str] = []
        self.fail: str | None = None
        self.runner = Runner(root / model, gin="a = 1", say=self.said.append)

    def stages(
        self, *, text: str = "a b a", scale: int = 1, title: str = "t", rates: dict | None = None
    ) -> list[Stage]:
        def words(place):
            self.note("words", place)
            storage.write_text(place.folder / "words.txt", text)

        def counts(place):
            words = (place.inputs["words"] / "words.txt").read_text().split()
            place.meta["words"] = len(words)
            storage.write_json(place.folder / "counts.json", {w: scale * words.count(w) for w in words})
            self.note("counts", place)

        def report(place):
            counted = json.loads((place.inputs["counts"] / "counts.json").read_text())
            storage.write_text(place.folder / "report.txt", f"{title}: {counted}")
            self.note("report", place)

        first = Stage("words", {"text": text}, (), words, shared=True)
        config = {"training": {"scale": scale, "rates": rates or {"query": 0.5}}}
        second = Stage("counts", config, (first,), counts)
        return [first, second, Stage("report", {"title": title}, (second,), report)]

    def note(self, name, place):
        self.made.append(name)
        if self.fail == name:
            raise RuntimeError(f"{name} breaks")

    def run(self, **settings) -> list[str]:
        """What was made, in order."""
        self.made.clear()
        self.said.clear()
        self.folders = self.runner.run(self.stages(**settings), corpus="c0ffee")
        return list(self.made)

    def report(self) -> str:
        return (self.folders["report"] / "report.txt").read_text()


@pytest.fixture
def bench(tmp_path) -> Bench:
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
    assert manifest.meta["words"] == 3 and manifest.meta["seconds"] >= 0
    assert manifest.meta["config"] == {"training": {"scale": 1, "rates": {"query": 0.5}}}
    stages = bench.stages()
    assert manifest.meta["inputs"] == {"words": stages[0].key} and manifest.made_from == stages[1].key


def test_core_seconds_are_those_of_a_stage_made_in_one_go(tmp_path):
    """Of a stage that goes on after an interruption nobody knows what it took before."""
    fail = True

    def make(place):
        place.work.mkdir(parents=True, exist_ok=True)
        if fail:
            raise RuntimeError("breaks")
        started = time.process_time()
        while time.process_time() - started < 0.02:
            pass

    def measured(name):
        return storage.read_folder(Runner(tmp_path).run([Stage(name, {}, (), make)])[name]).meta

    with pytest.raises(RuntimeError, match="breaks"):
        measured("interrupted")
    fail = False
    assert "core_seconds" not in measured("interrupted")
    assert measured("peaceful")["core_seconds"] >= 0.02


def test_a_shared_stage_is_made_once_for_two_recipes(tmp_path):
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


def test_the_order_of_a_mappings_keys_is_no_change(bench):
    bench.run(rates={"query": 0.5, "pseudo": 0.5})
    assert bench.run(rates={"pseudo": 0.5, "query": 0.5}) == []


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
    assert bench.made == [] and (theirs / "thesis.txt").read_text() == "years of work"
    (theirs / "thesis.txt").unlink()
    if manifest:
        (theirs / "manifest.json").unlink()
    assert bench.run() == ["words", "counts", "report"]  # an empty folder is nobody's


def test_a_file_where_a_folder_should_be_is_refused(bench):
    (bench.root / "run").mkdir()
    (bench.root / "run" / "counts").write_text("theirs")
    with pytest.raises(InputError, match="counts"):
        bench.run()
    assert bench.made == []


def test_a_stage_that_raises_leaves_the_old_artefact(bench):
    bench.run()
    old = (bench.folders["counts"] / "counts.json").read_bytes()
    bench.fail = "counts"
    with pytest.raises(RuntimeError, match="counts breaks"):
        bench.run(scale=5)
    counts = bench.root / "run" / "counts"
    assert (counts / "counts.json").read_bytes() == old
    storage.read_folder(counts, "counts")
    assert sorted(p.name for p in (bench.root / "run").iterdir() if p.name.startswith(".")) == []
    bench.fail = None
    assert bench.run() == []  # what stood there is still good for what it was made from
    assert bench.run(scale=5) == ["counts", "report"]


def test_what_a_stage_keeps_in_its_work_folder_outlives_interruptions_but_not_changes(tmp_path):
    seen: list[list[str]] = []

    def stage(rate: float) -> Stage:
        def make(place):
            place.work.mkdir(parents=True, exist_ok=True)
            seen.append(sorted(f.name for f in place.work.iterdir()))
            (place.work / f"step_{len(seen)}").touch()
            if len(seen) % 2:
                raise KeyboardInterrupt
            (place.folder / "model").write_text(str(rate))

        return Stage("model", {"rate": rate}, (), make)

    runner = Runner(tmp_path / "run", say=lambda line: None)
    for rate in (0.1, 0.2):
        with pytest.raises(KeyboardInterrupt):
            runner.run([stage(rate)])
        runner.run([stage(rate)])
    assert seen == [[], ["step_1"], [], ["step_3"]]
    assert not list((tmp_path / "run" / "model").glob("step_*"))


def test_keys_depend_on_names_settings_and_inputs():
    def key(name="a", config=None, inputs=(), shared=False):
        return Stage(name, config or {"x": 1}, inputs, lambda place: None, shared).key

    base = Stage("b", {"y": 1}, (), lambda place: None)
    other = Stage("b", {"y": 2}, (), lambda place: None)
    keys = [key(), key("c"), key(config={"x": 2}), key(config={"x": "1"}), key(inputs=(base,)), key(inputs=(other,))]
    assert len(set(keys)) == len(keys)
    assert key() == key(shared=True) and all(len(k) == 16 for k in keys)


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
