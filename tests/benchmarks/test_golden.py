"""Golden runs: differences are found, whatever they are; what only moved is none; every training is killed once."""

import json
import pathlib
import textwrap

import numpy as np
import pytest
import safetensors.numpy

from benchmarks import golden, golden_runs, golden_systems, harness
from gr_jax import storage
from gr_jax.errors import InputError

SYSTEM = golden_systems.System("toy", ("old",), ("new",), {"steps": 3}, trains=False)


def write_run(
    folder: pathlib.Path,
    *,
    scale: float = 1.0,
    negatives: int = 2,
    home: str = "index",
    runs: str = "a b",
    dev: float = 0.5,
):
    """Parameters, two artefacts of one stage, a table that training mined, runs; as a run leaves them."""
    kernel = np.arange(6, dtype=np.float32).reshape(2, 3)
    with storage.write_folder(folder / "run" / "model", "model", made_from="k") as place:
        (place / "encoder").mkdir()
        params = {"kernel": kernel * np.float32(scale), "bias": np.zeros(3, np.float32)}
        safetensors.numpy.save_file(params, place / "encoder" / "parameters.safetensors")
        seen = [{"step": 2, "loss": np.random.default_rng().random()}, {"step": 2, "dev/RR@10": dev}]
        storage.write_text(place / "metrics.jsonl", "".join(json.dumps(one) + "\n" for one in seen))
    for number in range(negatives):
        with storage.write_folder(folder / "shared" / f"negatives-{number:016x}", "negatives") as place:
            with storage.write_folder(place / "bm25", "part") as part:
                np.save(part / "documents.npy", np.full((2, 2), number))
    mined = folder / "run" / "work" / "model-0123456789abcdef" / "negatives" / "step_00000006"
    with storage.write_folder(mined, "negatives") as place:
        np.save(place / "documents.npy", np.ones((2, 2)))
    np.save(mined.parents[1] / "left.npy", np.random.default_rng().random(2))  # neither final nor mined
    with storage.write_folder(folder / "run" / home, home) as place:
        np.save(place / "vectors.npy", kernel)
        (place / "words.txt").write_text("x")
    with storage.write_folder(folder / "run" / "results", "results") as place:
        storage.write_text(place / "runs" / "toy.test.trec", runs)
        storage.write_json(place / "metrics.json", {"RR@10": 1.0})
        (place / "report.md").write_text(str(np.random.default_rng().random()))


def compared(tmp_path, **changes) -> golden.Comparison:
    folders = [tmp_path / "old" / "toy", tmp_path / "new" / "toy"]
    for folder, told in zip(folders, ({}, changes), strict=True):
        write_run(folder, **told)
    found = [golden_runs.collect(folder) for folder in folders]
    return golden.compare(*found, lambda old, new: golden.largest_difference(folders, old, new))


def test_equal_runs_are_equal_in_all_that_is_final(tmp_path):
    found = compared(tmp_path)
    assert found.problems == [] and found.notes == [] and found.elsewhere == found.extra == 0
    assert (found.parameters.equal, found.parameters.all) == (2, 2)
    assert (found.others.equal, found.others.all) == (4, 4)  # two tables, one mined, the index's
    assert (found.runs.equal, found.runs.all) == (3, 3)
    assert found.values()["parameters equal"] == found.values()["runs equal"] == 1.0


def test_an_array_that_differs_in_its_last_bit_is_found(tmp_path):
    found = compared(tmp_path, scale=np.nextafter(np.float32(1), np.float32(2)))
    ulp = 5 * np.finfo(np.float32).eps
    assert found.problems == [f"model/encoder/parameters.safetensors:kernel differs by {found.largest:.3g}"]
    assert found.largest == pytest.approx(ulp, rel=0.3)
    assert found.values()["parameters equal"] == 0.5 and found.values()["other arrays equal"] == 1.0


def test_an_array_that_is_missing_is_found_among_several_of_its_name(tmp_path):
    found = compared(tmp_path, negatives=1)
    assert found.problems == ["negatives/bm25/documents.npy is missing"]
    assert found.values()["other arrays equal"] == 0.75


def test_one_of_two_artefacts_of_a_stage_that_differs_is_found(tmp_path):
    folders = [tmp_path / "old" / "toy", tmp_path / "new" / "toy"]
    for folder in folders:
        write_run(folder)
    table = folders[1] / "shared" / f"negatives-{0:016x}" / "bm25" / "documents.npy"
    np.save(table, np.full((2, 2), 7))
    found = golden.compare(
        *(golden_runs.collect(folder) for folder in folders),
        lambda old, new: golden.largest_difference(folders, old, new),
    )
    assert found.problems == ["negatives/bm25/documents.npy differs by 7"] and found.largest == 7


def test_what_stands_under_another_name_is_not_missing(tmp_path):
    found = compared(tmp_path, home="other_index")
    assert found.problems == [] and (found.elsewhere, found.extra) == (1, 1)
    assert found.notes == ["index/words.txt differs"]  # said, not judged


def test_a_table_that_training_mined_need_not_be_kept_and_is_looked_at_where_it_is(tmp_path):
    folders = [tmp_path / "old" / "toy", tmp_path / "new" / "toy"]
    for folder in folders:
        write_run(folder)
    (file,) = folders[1].glob("run/work/*/negatives/*/documents.npy")
    np.save(file, np.zeros((2, 2)))

    def problems(new):
        return golden.compare(golden_runs.collect(folders[0]), new, lambda one, other: None).problems

    title = "model, mined at step_00000006/documents.npy"
    new = golden_runs.collect(folders[1])
    assert problems(new) == [f"{title} differs"]
    new["arrays"] = [array for array in new["arrays"] if "mined" not in array["stage"]]
    found = golden.compare(golden_runs.collect(folders[0]), new, lambda one, other: None)
    assert found.problems == [] and found.notes == [f"{title} is not kept"] and found.others.all == 3


def test_two_arrays_that_changed_places_differ():
    def side(one, other):
        arrays = [{"stage": "s", "name": n, "sha256": d, "file": "x.npy"} for n, d in (("a", one), ("b", other))]
        return {"arrays": arrays, "runs": {}, "artefacts": []}

    found = golden.compare(side("1", "2"), side("2", "1"), lambda old, new: None)
    assert found.problems == ["s/a differs", "s/b differs"] and found.others.equal == 0


def test_runs_that_differ_or_are_missing_are_found(tmp_path):
    found = compared(tmp_path, runs="b a")
    assert found.problems == ["runs/toy.test.trec differs"] and found.values()["runs equal"] == pytest.approx(2 / 3)
    old, new = (golden_runs.collect(tmp_path / side / "toy") for side in ("old", "new"))
    del new["runs"]["metrics.json"]
    assert "metrics.json is missing" in golden.compare(old, new, lambda a, b: None).problems


def test_what_training_saw_on_dev_counts_and_its_losses_do_not(tmp_path):
    assert compared(tmp_path, dev=0.25).problems == ["model on dev differs"]


def test_a_comparison_is_recorded_with_both_commits_and_judged(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(golden, "SYSTEMS", (SYSTEM,))
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    run_harness = harness.main
    monkeypatch.setattr(harness, "main", lambda *args: run_harness(*args, results=harness.RESULTS))
    for side in golden_systems.SIDES:
        write_run(tmp_path / side / "toy")
        told = {"side": side, "command": SYSTEM.arguments(side), "corpus": "c", "commit": f"of {side}", "kills": []}
        found = golden_runs.collect(tmp_path / side / "toy")
        storage.write_json(tmp_path / side / "toy.json", {**told, **found, "environment": {}})
    assert golden.main(["--check"]) == 1 and "toy: missing" in capsys.readouterr().err
    compare = ["--compare", str(tmp_path / "old"), str(tmp_path / "new")]
    assert golden.main(compare) == 0
    row = json.loads((tmp_path / "results" / "golden.json").read_text())["rows"]["toy"]
    assert (row["config"]["old"], row["config"]["new"]) == ("of old", "of new")
    assert golden.main(["--check"]) == 0  # by what is recorded alone
    record = json.loads((tmp_path / "new" / "toy.json").read_text())
    record["runs"]["runs/toy.test.trec"] = "another"
    storage.write_json(tmp_path / "new" / "toy.json", record)
    capsys.readouterr()
    assert golden.main(compare) == 1
    assert "toy: runs equal 0.6667 is short" in capsys.readouterr().err
    storage.write_json(tmp_path / "new" / "toy.json", {**record, "command": ["another"]})
    assert golden.main(compare) == 1 and "not the run of the new side" in capsys.readouterr().err
    (tmp_path / "new" / "toy.json").unlink()
    assert golden.main(compare) == 1 and "no such run" in capsys.readouterr().err
    assert golden.main(["--make", "--side=new", "--only=nothing"]) == 2


PROGRAM = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
starts = folder.parent / "starts"
starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
for stage in ("encoder", "model"):
    checkpoints = folder / "work" / f"{stage}-0123456789abcdef" / "checkpoints"
    for step in (0, 2, 4):
        (checkpoints / f"step_{step:08d}").mkdir(parents=True, exist_ok=True)
        (checkpoints / f"half_{step:08d}").mkdir(exist_ok=True)
    if len(starts.read_text()) <= ("encoder", "model").index(stage) + 1 and "hang" in sys.argv:
        time.sleep(60)
    if "wait" in sys.argv:
        time.sleep(0.3)
sys.exit("fail" in sys.argv)
"""


@pytest.fixture
def checkout(tmp_path) -> pathlib.Path:
    (tmp_path / "checkout" / "launch").mkdir(parents=True)
    (tmp_path / "checkout" / "launch" / "recipe.py").write_text(textwrap.dedent(PROGRAM))
    (tmp_path / "toy").mkdir()
    return tmp_path / "checkout"


def test_every_training_is_killed_once(checkout, tmp_path):
    kills = golden_runs.run([str(tmp_path / "toy" / "run"), "hang"], checkout, tmp_path / "toy", kill=True)
    assert [kill["stage"] for kill in kills] == ["encoder", "model"] and (
        tmp_path / "toy" / "starts"
    ).read_text() == "xxx"
    assert all({0, 2} <= set(kill["steps"]) for kill in kills)


def test_a_training_that_is_finished_is_not_killed(checkout, tmp_path):
    """A kill behind its end would say nothing of it."""
    for file in ("shared/encoder-0123456789abcdef/manifest.json", "run/model/manifest.json"):
        storage.write_text(tmp_path / "toy" / file, "{}")
    arguments = [str(tmp_path / "toy" / "run"), "wait"]
    assert golden_runs.run(arguments, checkout, tmp_path / "toy", kill=True) == []


def test_a_run_that_fails_says_so(checkout, tmp_path):
    with pytest.raises(InputError, match="ended with status 1"):
        golden_runs.run([str(tmp_path / "toy" / "run"), "fail"], checkout, tmp_path / "toy", kill=False)


def test_the_new_side_takes_the_same_settings_under_other_names():
    for system in golden_systems.SYSTEMS:
        names = [{argument.partition("=")[0] for argument in system.arguments(side)} for side in ("old", "new")]
        assert len(names[0]) == len(system.settings) + len(system.only_old) + 3  # gin files, CORPUS and MODEL_DIR
        assert not any("document_encoder/" in name or "query_side/" in name for name in names[1])
    assert len({system.name for system in golden_systems.SYSTEMS}) == len(golden_systems.SYSTEMS)
