"""What a killed run has left, damaged: the same command ends with the same parameters, or names what it cannot read.

Notes that only count seconds or save time stop nothing as long as they are files, nor do checkpoints: where the last
one has any fault, training goes on from the one before, or begins anew. A sample runs always, 57 faults among the
slow tests.
"""

import json
import os
import pathlib
import shutil
from collections.abc import Iterable

import numpy as np
import pytest

from gr_jax import storage, systems
from gr_jax.errors import InputError
from gr_jax.evaluation.results import read_training_metrics
from gr_jax.stages import runner
from gr_jax.training.metric_writers import MetricWriter, read_metrics
from tests import small_dsi
from tests.bad_input.faults import copy_of, files_of, inflict, within

FAULTS = 57
SAMPLE = (0, 3)  # a checkpoint that is cut, and one with another bit
DAMAGED = (
    b"", b"{", b"null", b"[1]", b'[{"start": "x"}]', b'{"step": "x"}\n', b"\xff\xfe\0", b"[" * 5000, b"9" * 5000,
    b'[{"start": 1e999}]', b'[{"start": 5, "end": null}]', b'{"step": 2, "loss": ' + b"9" * 400 + b"}\n",
)  # fmt: skip


@pytest.fixture(scope="module")
def killed(beir, tmp_path_factory):
    """A run that was killed after its checkpoints were written, and the parameters that it was to end with."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    _run(beir, folder)
    expected = (folder / "model" / "parameters.safetensors").read_bytes()
    shutil.rmtree(folder / "model")
    return folder, expected


def _run(beir: pathlib.Path, folder: pathlib.Path) -> None:
    small_dsi.dsi().run(beir, folder, until="model", say=small_dsi.quiet, shared_dir=folder / "shared")


def _ends(beir, folder: pathlib.Path, expected: bytes) -> bool:
    """Whether the run ends, as it would have; otherwise it says what it cannot read."""
    try:
        with within(120):
            _run(beir, folder)
    except InputError as error:
        assert str(folder) in str(error), error
        return False
    assert (folder / "model" / "parameters.safetensors").read_bytes() == expected
    return True


def _work(folder: pathlib.Path) -> list[str]:
    return [name for name in files_of(folder) if name.startswith("work/")]


def test_damaged_notes_stop_nothing(killed, beir, tmp_path):
    folder, expected = killed
    run = copy_of(folder, tmp_path / "run")
    for note, content in zip(("starts.json", "metrics.jsonl"), DAMAGED[4:], strict=False):
        (file,) = (run / "work").rglob(note)
        file.write_bytes(content)
    (run / "work" / "checksums.json").write_bytes(b"[" * 5000)
    assert _ends(beir, run, expected)


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_note_is_none(tmp_path, content):
    for note in ("starts.json", "metrics.jsonl", "checksums.json"):
        (tmp_path / note).write_bytes(content)
    assert runner._seconds_of_earlier_starts(tmp_path) == 0
    assert storage.Checksums(tmp_path / "checksums.json")._known == {}
    writer = MetricWriter(tmp_path, step=3)
    writer.write(4, {"loss": 0.5})
    writer.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 4, "loss": 0.5}]
    assert read_training_metrics(tmp_path / "metrics.jsonl") == [{"step": 4, "loss": 0.5}]


def test_a_note_that_is_no_file_is_named(tmp_path):
    for note in ("starts.json", "metrics.jsonl", "checksums.json"):
        os.mkfifo(tmp_path / note)
    for read in (
        lambda: runner._seconds_of_earlier_starts(tmp_path),
        lambda: storage.Checksums(tmp_path / "checksums.json"),
        lambda: MetricWriter(tmp_path, step=3),
    ):
        with within(5), pytest.raises(InputError, match="this is no file"):
            read()


def _faults(numbers: Iterable[int]) -> list[tuple[int, str]]:
    names = ["truncated", "empty", "longer", "flipped", "random", "swapped", "gone", "folder", "pipe", "link"]
    return [(number, names[number % len(names)]) for number in numbers]


def _check(killed, beir, tmp_path, number: int, fault: str) -> None:
    folder, expected = killed
    run = copy_of(folder, tmp_path / "run")
    names = _work(run)
    name = names[7 * number % len(names)]
    inflict(run, name, fault, np.random.default_rng(number))
    is_note = "checkpoints/" not in name
    stops = is_note and fault in ("folder", "pipe", "link")
    assert _ends(beir, run, expected) == (not stops), name


@pytest.mark.parametrize(("number", "fault"), _faults(SAMPLE))
def test_a_fault_in_a_work_folder(killed, beir, tmp_path, number, fault):
    _check(killed, beir, tmp_path, number, fault)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "fault"), _faults(n for n in range(FAULTS) if n not in SAMPLE))
def test_every_fault_in_a_work_folder(killed, beir, tmp_path, number, fault):
    _check(killed, beir, tmp_path, number, fault)


def test_a_checkpoint_of_another_step_is_not_gone_on_from(killed, beir, tmp_path):
    folder, _ = killed
    run = copy_of(folder, tmp_path / "run")
    last = max((run / "work").rglob("step_*"))
    last.rename(last.with_name("step_00000003"))
    with pytest.raises(InputError, match="another step than its name says"):
        _run(beir, run)
    assert json.loads((last.with_name("step_00000003") / "manifest.json").read_text())["meta"]["step"] == 4


def test_documents_and_runs_have_folders_of_their_own(beir, tmp_path):
    with pytest.raises(InputError, match="MODEL_DIR is the folder of the documents"):
        systems.BM25().run(beir, beir, say=small_dsi.quiet)
    (tmp_path / "link").symlink_to(beir)
    with pytest.raises(InputError, match="shared_dir is the folder of the documents"):
        systems.BM25().run(beir, tmp_path / "run", shared_dir=tmp_path / "link", say=small_dsi.quiet)
    with pytest.raises(InputError, match="no file can have this name"):
        systems.BM25().run(beir, "a\0b", say=small_dsi.quiet)
    assert sorted(path.name for path in beir.iterdir()) == ["corpus.jsonl", "qrels", "queries.jsonl"]
