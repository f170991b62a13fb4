"""Indexes and checkpoints that are truncated, altered or of somebody else; questions that are none."""

import json
import pathlib
import shutil

import pytest

from gr_jax import storage
from tests.bad_input.conftest import content, launch, recipe_flags, refused
from tests.bad_input.faults import sign


@pytest.fixture
def run_folder(finished, tmp_path) -> pathlib.Path:
    """A copy of the finished runs that a test may damage."""
    return shutil.copytree(finished / "runs", tmp_path / "runs") / "mine"


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    return [file for file in sorted(folder.rglob("*")) if file.is_file() and file.stat().st_size]


def test_a_truncated_or_altered_index_is_refused(run_folder):
    """A file of each kind, each with a fault of its own; every byte of every file is fuzzed in test_fuzz.py."""
    index = run_folder / "index"
    by_kind = {file.suffix: file for file in _files(index)}
    for kind, fault in ((".npy", "flipped"), (".json", "cut"), (".safetensors", "empty"), (".npy", "gone")):
        file = by_kind[kind]
        original = file.read_bytes()
        altered = {"flipped": original[:-1] + bytes([original[-1] ^ 1]), "cut": original[:-1], "empty": b""}
        if fault == "gone":
            file.unlink()
        else:
            file.write_bytes(altered[fault])
        refused(launch("search", f"--index={index}", "the red cat"), index if fault == "gone" else file)
        file.write_bytes(original)


@pytest.mark.parametrize("program", ["search", "retrieve"])
def test_what_is_no_index(finished, tmp_path, program):
    more = ["the red cat"]
    if program == "retrieve":
        more = [f"--queries={finished / 'mine' / 'queries.jsonl'}", f"--output={tmp_path / 'run.trec'}"]
    (tmp_path / "file").write_text("x")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "manifest.json").write_text('{"name": "an extension", "version": 3}')
    model = finished / "runs" / "mine" / "model"
    for folder in (tmp_path / "nowhere", tmp_path / "file", tmp_path, tmp_path / "theirs", model):
        refused(launch(program, f"--index={folder}", *more), folder)
    refused(launch(program, f"--index={model}", *more), "'model'", "'index'")
    assert not (tmp_path / "run.trec").exists()


def test_parts_of_two_indexes_do_not_make_one(run_folder):
    """Somebody copies the retriever of another run over an index: whole in itself, with checksums of its own."""
    retriever = run_folder / "index" / "retriever"
    file = retriever / "parameters.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    sign(retriever, file)
    storage.read_folder(retriever)
    refused(launch("search", f"--index={run_folder / 'index'}", "the red cat"), run_folder / "index")


@pytest.mark.parametrize("question", ["", "   "])
def test_an_empty_question(finished, question):
    done = launch("search", f"--index={finished / 'runs' / 'mine' / 'index'}", question)
    refused(done, "empty")


def test_an_over_long_question_is_answered_and_said_to_be_cut(finished):
    done = launch("search", f"--index={finished / 'runs' / 'mine' / 'index'}", "where is the red cat " * 2000)
    assert done.returncode == 0, done.stderr
    assert "1." in done.stdout
    assert "cut" in done.stderr


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ('{"_id": "q9", "text": " "}', ["queries.jsonl:2", "'q9'"]),
        ('{"text": "nameless"}', ["queries.jsonl:2", "_id"]),
        ('{"_id": "q9"', ["queries.jsonl:2", "JSON"]),
    ],
)
def test_bad_queries_leave_the_old_run(finished, tmp_path, line, wanted):
    queries, output = tmp_path / "queries.jsonl", tmp_path / "run.trec"
    queries.write_text('{"_id": "q1", "text": "the red cat"}\n' + line + "\n")
    output.write_text("old")
    index = finished / "runs" / "mine" / "index"
    refused(launch("retrieve", f"--index={index}", f"--queries={queries}", f"--output={output}"), queries, *wanted)
    assert output.read_text() == "old"


@pytest.mark.slow  # tests/stages/test_runner.py shows the same of small stages
def test_a_damaged_stage_is_said_and_made_again(finished, run_folder):
    """Never used, never silently."""
    before = content(run_folder / "index")
    (run_folder / "model" / "parameters.safetensors").write_bytes(b"short")
    done = launch("recipe", *recipe_flags(finished / "mine", run_folder))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "! model: " in done.stdout and "truncated" in done.stdout
    after = content(run_folder / "index")
    assert {k: v for k, v in after.items() if "manifest" not in k} == {
        k: v for k, v in before.items() if "manifest" not in k
    }


def _checkpoints(run_folder: pathlib.Path) -> pathlib.Path:
    return next((run_folder / "work").glob("model-*")) / "checkpoints"


@pytest.mark.parametrize(
    "damage",
    ["flipped", "foreign", *(pytest.param(one, marks=pytest.mark.slow) for one in ("truncated", "missing"))],
)
def test_a_damaged_checkpoint_is_not_gone_on_from(finished, run_folder, damage):
    """An older one is, or training begins anew: both end as it would have; what another program wrote is left alone."""
    expected = (run_folder / "model" / "parameters.safetensors").read_bytes()
    shutil.rmtree(run_folder / "model")  # so that the stage is made again, from its checkpoint
    folder = _checkpoints(run_folder)
    newest = max(folder.glob("step_*"))
    largest = max(_files(newest), key=lambda file: file.stat().st_size)
    data = largest.read_bytes()
    if damage == "truncated":
        largest.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        largest.write_bytes(data[:-100] + bytes([data[-100] ^ 255]) + data[-99:])
    elif damage == "foreign":
        for file in _files(folder):
            if file.name == "manifest.json":
                file.write_text(json.dumps({"written": "by another program"}))
    else:
        largest.unlink()
    done = launch("recipe", *recipe_flags(finished / "mine", run_folder))
    if damage == "foreign":
        refused(done, folder)
        assert not (run_folder / "model").exists()
        return
    assert done.returncode == 0, done.stderr
    assert f"note: The checkpoint of step {int(newest.name[5:])} is passed over: " in done.stderr
    assert (run_folder / "model" / "parameters.safetensors").read_bytes() == expected
    assert newest.with_suffix(".damaged").is_dir() and newest.is_dir()
