"""Toy benchmarks: what is measured when, what survives, what is judged."""

import functools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from benchmarks import harness, machine, records
from benchmarks.harness import Row, ShareOf
from gr_jax.errors import InputError

CHECKOUT = pathlib.Path(harness.__file__).resolve().parents[1]


class Toy:
    """A system that is run."""

    def __init__(self):
        self.data, self.settings, self.stages = "toy", {"training": {"steps": 60}, "beams": 5}, {"model": 1, "index": 3}

    def configs(self) -> list[dict]:
        return [{"system": "DSI", "data": self.data, "settings": self.settings}]

    def versions(self) -> dict[str, int]:
        return {f"DSI.{kind}": version for kind, version in self.stages.items()}


class Bench:
    """A benchmark whose rows count how often they are measured."""

    def __init__(self, folder: pathlib.Path):
        self.folder, self.measured = folder, []
        self.values = {"bm25": {"Success@10": 0.9}, "dsi": {"Success@10": 0.8, "seconds": 3.0}}
        self.config = {"steps": 100, "beams": [1, 2]}
        self.corpus, self.seeds = "aaaa", (0,)
        self.ran = {"dsi": Toy()}
        self.fails: dict[str, BaseException] = {}

    def rows(self) -> list[Row]:
        def measure(name):
            self.measured.append(name)
            if name in self.fails:
                raise self.fails[name]
            return self.values[name]

        def fingerprint():
            if isinstance(self.corpus, Exception):
                raise self.corpus
            return self.corpus

        def row(name, **bounds):
            runs = [self.ran[name]] if name in self.ran else []
            measuring = functools.partial(measure, name)
            return Row(name, self.config, measuring, corpus=fingerprint, seeds=self.seeds, runs=runs, **bounds)

        return [
            row("bm25"),
            row("dsi", at_least={"Success@10": ShareOf("bm25", 0.85)}, at_most={"seconds": 5.0}, note="toy"),
        ]

    def __call__(self, *arguments: str) -> int:
        self.measured.clear()
        return harness.main("toy", self.rows(), arguments, results=self.folder)

    @property
    def recorded(self) -> dict:
        return json.loads((self.folder / "toy.json").read_text())["rows"]


@pytest.fixture
def bench(tmp_path) -> Bench:
    return Bench(tmp_path / "results")


def test_each_row_is_measured_once_and_recorded_with_all_it_rests_on(bench):
    assert bench() == 0 and bench.measured == ["bm25", "dsi"]
    row = bench.recorded["dsi"]
    assert row["values"] == {"Success@10": 0.8, "seconds": 3.0}
    assert (row["config"], row["corpus"], row["seeds"]) == (bench.config, "aaaa", [0])
    assert row["hardware"] and row["commit"] and re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", row["date"])
    assert bench() == 0 and bench.measured == []
    assert bench("--check") == 0 and bench.measured == []


def test_rows_are_measured_again_when_asked(bench):
    bench()
    bench.values["dsi"] = {"Success@10": 0.85, "seconds": 1.0}
    assert bench("--rows=d*", "--again") == 0 and bench.measured == ["dsi"]
    assert bench.recorded["dsi"]["values"]["Success@10"] == 0.85
    assert bench("--rows=bm25") == 0 and bench.measured == []
    assert bench("--again") == 0 and bench.measured == ["bm25", "dsi"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda bench: bench.config.update(steps=200), "stale: steps: 100 → 200"),
        (lambda bench: bench.config.update(beams=(1, 3), new=1), r"stale: beams: \[1, 2\] → \[1, 3\]; new: None → 1"),
        (lambda bench: setattr(bench, "seeds", (1,)), r"stale: seeds \[1\], were \[0\]"),
        (lambda bench: bench.ran["dsi"].settings.update(warmup=10), r"stale: DSI.warmup: None → 10"),
        (
            lambda bench: bench.ran["dsi"].settings["training"].update(steps=50),
            r"stale: DSI.training.steps: 60 → 50",
        ),
        (lambda bench: setattr(bench.ran["dsi"], "data", "other"), "stale: DSI.data: 'toy' → 'other'"),
        (
            lambda bench: bench.ran["dsi"].stages.update(model=2),
            "older versions of stages: DSI.model: version 1, now 2",
        ),
        (
            lambda bench: bench.ran["dsi"].stages.update(rerank=1),
            "older versions of stages: DSI.rerank: not run, now version 1",
        ),
        (
            lambda bench: bench.ran["dsi"].stages.pop("index"),
            "older versions of stages: DSI.index: version 3, not run now",
        ),
    ],
)
def test_check_names_stale_rows_and_measures_them_only_when_told(bench, capsys, change, says):
    bench()
    change(bench)
    assert bench("--check") == 1 and bench.measured == []
    err = capsys.readouterr().err
    assert re.search(f"dsi: {says}", err)
    names = re.findall("^(bm25|dsi): ", err, re.MULTILINE)
    assert names == (["dsi"] if "DSI" in says else ["bm25", "dsi"])
    assert bench("--check", "--measure") == 0 and bench.measured == names
    assert bench("--check") == 0


def test_a_stage_that_came_to_stand_beside_a_system_makes_no_row_older(bench, capsys):
    bench()
    bench.ran["dsi"].stages.update(hybrid=1)
    assert bench("--check") == 0
    assert bench("--rows=dsi", "--again") == 0 and bench.recorded["dsi"]["versions"]["DSI.hybrid"] == 1
    bench.ran["dsi"].stages.update(hybrid=2)
    assert bench("--check") == 1 and "DSI.hybrid: version 1, now 2" in capsys.readouterr().err


def test_judging_looks_at_no_documents_and_measuring_does(bench, capsys):
    bench()
    bench.corpus = InputError("no data", "Fetch it.")
    assert bench("--check") == 0 and bench.measured == []
    assert bench() == 2 and "no data" in capsys.readouterr().err
    bench.corpus = "bbbb"
    assert bench("--check") == 0
    assert bench() == 0 and bench.measured == ["bm25", "dsi"]
    assert "measuring bm25 (stale: measured on corpus aaaa, now bbbb)" in capsys.readouterr().err
    assert bench.recorded["dsi"]["corpus"] == "bbbb" and bench() == 0 and bench.measured == []


def test_what_a_row_ran_is_recorded_once_for_all_rows(bench):
    bench()
    row, file = bench.recorded["dsi"], json.loads((bench.folder / "toy.json").read_text())
    assert row["versions"] == {"DSI.index": 3, "DSI.model": 1} and row["digest"]
    assert [file["runs"][digest] for digest in row["runs"]] == bench.ran["dsi"].configs()
    assert not {"runs", "versions", "digest", "rekeyed"} & set(bench.recorded["bm25"])
    record = records.read(bench.folder / "toy.json")["dsi"]
    records.write(bench.folder / "toy.json", "another", record)
    again = json.loads((bench.folder / "toy.json").read_text())
    assert again["runs"] == file["runs"] and again["rows"]["another"] == row == again["rows"]["dsi"]
    bench.ran["dsi"].settings["warmup"] = 10
    bench("--rows=dsi")
    again = json.loads((bench.folder / "toy.json").read_text())
    assert len(again["runs"]) == 2 and again["rows"]["dsi"]["runs"] != again["rows"]["another"]["runs"]


def test_versions_that_were_edited_are_refused(bench, capsys):
    bench()
    file = bench.folder / "toy.json"
    file.write_text(file.read_text().replace('"DSI.model": 1', '"DSI.model": 2'))
    assert bench("--check") == 2 and "not those of its digest" in capsys.readouterr().err


def test_a_tuple_in_a_configuration_is_not_a_change(bench):
    bench()
    bench.config["beams"] = (1, 2)
    assert bench("--check") == 0


def test_check_names_rows_that_are_missing_or_short(bench, capsys):
    assert bench("--check") == 1 and bench.measured == []
    assert "bm25: missing" in capsys.readouterr().err
    bench.values["dsi"] = {"Success@10": 0.7, "seconds": 6.0}
    assert bench() == 0  # measuring judges nothing
    assert bench("--check") == 1
    err = capsys.readouterr().err
    assert "dsi: Success@10 0.7 is short: at least 0.765 is claimed" in err
    assert "dsi: seconds 6 is over: at most 5 is claimed" in err
    assert "bm25:" not in err
    assert bench("--check", "--rows=bm25") == 0
    bench.values["dsi"] = {"Success@10": 0.8}
    assert bench("--rows=dsi", "--again", "--check", "--measure") == 1
    assert "dsi: seconds was not measured" in capsys.readouterr().err


def test_bounds_are_met_by_equal_values(bench):
    bench.values = {"bm25": {"Success@10": 0.5}, "dsi": {"Success@10": 0.425, "seconds": 5.0}}
    assert bench("--check", "--measure") == 0


def test_a_share_of_a_row_that_is_stale_is_not_judged(bench, capsys):
    bench()
    rows = bench.rows()
    rows[0] = Row("bm25", {"other": 1}, rows[0].measure)
    assert harness.main("toy", rows, ["--check", "--rows=dsi"], results=bench.folder) == 1
    assert "dsi: Success@10 is judged by 'bm25', which is missing or stale" in capsys.readouterr().err


@pytest.mark.parametrize("error", [RuntimeError("out of luck"), InputError("no data", "Fetch it.")])
def test_a_row_that_fails_costs_only_itself(bench, capsys, error):
    bench.fails["bm25"] = error
    assert bench() == 1 and bench.measured == ["bm25", "dsi"]
    assert set(bench.recorded) == {"dsi"}
    assert str(error) in capsys.readouterr().err
    bench.fails.clear()
    assert bench() == 0 and bench.measured == ["bm25"]


def test_a_value_that_is_no_number_is_not_recorded(bench, capsys):
    bench.values["dsi"]["seconds"] = float("nan")
    assert bench() == 1 and set(bench.recorded) == {"bm25"}
    assert "no finite number" in capsys.readouterr().err


def test_an_interrupted_benchmark_keeps_what_was_finished(bench, capsys):
    bench.fails["dsi"] = KeyboardInterrupt()
    assert bench() == 130
    assert set(bench.recorded) == {"bm25"}
    assert "left: dsi" in capsys.readouterr().err
    bench.fails.clear()
    assert bench() == 0 and bench.measured == ["dsi"]


def test_a_killed_benchmark_keeps_what_was_finished(tmp_path, capsys):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import pathlib, sys, time
        from benchmarks import harness
        folder = pathlib.Path(sys.argv[1])
        def second():
            (folder / "second_started").touch()
            time.sleep(600)
        rows = [harness.Row("first", {}, lambda: {"x": 1}), harness.Row("second", {}, second)]
        sys.exit(harness.main("toy", rows, [], results=folder / "results"))
        """)
    )
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    process = subprocess.Popen([sys.executable, program, tmp_path], env=environment)
    try:
        deadline = time.monotonic() + 120
        while not (tmp_path / "second_started").exists() and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    file = tmp_path / "results" / "toy.json"
    assert {name: record.values for name, record in records.read(file).items()} == {"first": {"x": 1.0}}
    before = file.read_text()
    rows = [Row("first", {}, lambda: {"x": 1}), Row("second", {}, lambda: {"x": 2})]
    assert harness.main("toy", rows, [], results=file.parent) == 0
    assert "measuring second (missing), row 1 of 1" in capsys.readouterr().err
    recorded = records.read(file)
    assert {name: record.values for name, record in recorded.items()} == {"first": {"x": 1.0}, "second": {"x": 2.0}}
    assert json.loads(before)["rows"]["first"] == json.loads(file.read_text())["rows"]["first"]
    assert [path.name for path in file.parent.iterdir()] == ["toy.json"]


def test_processes_that_record_at_once_lose_nothing(tmp_path):
    file = tmp_path / "toy.json"
    program = textwrap.dedent("""
        import pathlib, sys
        from benchmarks import records
        for row in range(20):
            record = records.Record({"x": row}, "k", {}, "", (), "c", "h", "d", 0.0)
            records.write(pathlib.Path(sys.argv[1]), f"{sys.argv[2]}-{row}", record)
        """)
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    processes = [
        subprocess.Popen([sys.executable, "-c", program, file, str(number)], env=environment) for number in range(2)
    ]
    assert [process.wait() for process in processes] == [0, 0]
    assert set(records.read(file)) == {f"{process}-{row}" for process in range(2) for row in range(20)}


def test_the_table_shows_values_beside_their_bounds(bench, capsys):
    bench("--rows=dsi")
    bench("--markdown", "--rows=bm25")
    capsys.readouterr()
    bench("--markdown")
    out = capsys.readouterr().out
    cells = {line.split(" | ")[0].strip("| "): line for line in out.splitlines() if line.startswith("|")}
    assert cells["row"] == "| row | Success@10 | seconds | note |"
    assert cells["bm25"] == "| bm25 | .900 |  |  |"
    assert cells["dsi"] == "| dsi | .800 (≥ .765) | 3.000 (≤ 5.000) | toy |"
    bench.values["dsi"] = {"Success@10": 0.1, "seconds": 3.0}
    bench("--rows=dsi", "--again", "--markdown")
    assert "| .100 (≥ .765) ✗ |" in capsys.readouterr().out
    bench.config["steps"] = 7
    bench("--check", "--markdown")
    assert "| dsi | – (≥ –) | – (≤ 5.000) | toy; stale: steps: 100 → 7 |" in capsys.readouterr().out
    bench("--check")
    assert "stale: steps: 100 → 7" in capsys.readouterr().out


def test_pictures_are_drawn_of_what_was_measured_never_to_judge_it(bench):
    drawn = []
    for flags in (["--check"], []):
        harness.main("toy", bench.rows(), flags, results=bench.folder, draw=lambda: drawn.append(len(bench.recorded)))
    assert drawn == [2]


def test_rows_of_speed_are_kept_for_each_kind_of_machine(bench, monkeypatch, capsys):
    times = {"Zen 3, AVX2, 2 cores": 4.0, "Zen 4, AVX-512, 2 cores": 2.5}
    here = [*times][0]
    monkeypatch.setattr(machine, "kind", lambda: here)

    def rows(ceiling):
        speed = Row("speed", {}, lambda: {"ms": times[here]}, at_most={"ms": ceiling}, speed=True)
        return [*bench.rows()[:1], speed]

    def run(*arguments, ceiling=3.0):
        return harness.main("toy", rows(ceiling), arguments, results=bench.folder)

    assert run() == 0 and run("--check") == 1  # too slow on the first
    assert "speed: ms 4 is over" in capsys.readouterr().err
    here = [*times][1]
    assert run("--check") == 0  # nothing is judged by another machine
    out = capsys.readouterr().out
    assert "1 rows of speed are not judged: there are none of this kind of machine (Zen 4, AVX-512, 2 cores)" in out
    assert "speed, on Zen 3, AVX2, 2 cores: ms 4" in out
    assert run() == 0 and bench.measured == ["bm25"] and run("--check") == 0  # what is no speed is not measured again
    assert bench.recorded["speed"]["machine"] == here and "machine" not in bench.recorded["bm25"]
    assert "GFLOP/s" in bench.recorded["speed"]["hardware"]
    file = bench.folder / "toy.json"
    assert {kind: records.read(file, kind)["speed"].values["ms"] for kind in records.machines(file)} == times
    here, times[[*times][0]] = [*times][0], 5.0
    assert run("--check", ceiling=4.5) == 0 and run("--again") == 0  # what was measured there is judged there again
    assert {kind: records.read(file, kind)["speed"].values["ms"] for kind in records.machines(file)} == times
    assert list(json.loads(file.read_text())["machines"]) == ["Zen 4, AVX-512, 2 cores"]


def test_rows_with_other_measures_stand_in_a_table_of_their_own(bench, capsys):
    rows = [*bench.rows(), Row("speed", {}, lambda: {"ms": 2.5}, at_most={"ms": 3.0})]
    assert harness.main("toy", rows, ["--markdown"], results=bench.folder) == 0
    tables = capsys.readouterr().out.split("\n\n")[:2]
    assert [line.split(" | ")[0] for line in tables[0].splitlines()] == ["| row", "| ---", "| bm25", "| dsi"]
    assert tables[1].splitlines()[::2] == ["| row | ms |", "| speed | 2.500 (≤ 3.000) |"]


NAMES = ("growth: DR, 10,000", "growth: DR, 32,000", "growth: MVDR, 32,000", "bm25")


@pytest.mark.parametrize(
    "patterns, chosen",
    [
        ("growth: DR, 10,000", [0]),
        ("bm25, growth: DR, 32,000,growth: DR, 10,000", [0, 1, 3]),
        ("growth: DR, *", [0, 1]),
        ("bm*,*10,000", [0, 3]),
        ("*DR*,*32,000", [0, 1, 2]),
        ("growth: MV*,bm25,", [2, 3]),
    ],
)
def test_names_may_hold_commas(patterns, chosen, tmp_path):
    measured = []
    rows = [Row(name, {}, lambda name=name: measured.append(name) or {"x": 1.0}) for name in NAMES]
    assert harness.main("toy", rows, [f"--rows={patterns}"], results=tmp_path) == 0
    assert measured == [NAMES[place] for place in chosen]


def test_a_name_that_is_nearly_right(tmp_path, capsys):
    rows = [Row(name, {}, dict) for name in NAMES]
    assert harness.main("toy", rows, ["--rows=bm25, growth: DR, 10000"], results=tmp_path) == 2
    assert "no such row (got 'growth: DR, 10000'). Did you mean 'growth: DR, 10,000'" in capsys.readouterr().err


def test_wrong_use(bench, capsys):
    assert bench("--rows=nothing") == 2
    assert "no such row (got 'nothing'). Choose among bm25, dsi." in capsys.readouterr().err
    twice = [Row("a", {}, dict), Row("a", {}, dict)]
    assert harness.main("toy", twice, [], results=bench.folder) == 2
    strange = [Row("a", {}, dict, at_least={"x": ShareOf("b", 0.5)})]
    assert harness.main("toy", strange, [], results=bench.folder) == 2
    not_json = [Row("a", {"x": {1, 2}}, dict)]
    assert harness.main("toy", not_json, [], results=bench.folder) == 2
    assert "recorded as JSON" in capsys.readouterr().err
    bench.folder.mkdir(exist_ok=True)
    (bench.folder / "toy.json").write_text('{"rows": {"bm25": 1}}')
    assert bench() == 2
    assert "toy.json: the recorded rows cannot be read" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        bench("--unheard")


def test_data_is_found_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("GR_JAX_SHARED_DATA", str(tmp_path))
    (tmp_path / "toy").mkdir()
    assert harness.data_folder("toy") == tmp_path / "toy"
    with pytest.raises(InputError, match="GR_JAX_SHARED_DATA"):
        harness.data_folder("other")
