"""Of several processes one makes a stage and the others wait; what a lock may not need, and what it leaves behind."""

import builtins
import errno
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from gr_jax import storage
from gr_jax.errors import InputError
from gr_jax.stages.graph import Place, stage
from gr_jax.stages.runner import Runner

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]


@stage(shared=True)
def words(place: Place, *, text: str) -> None:
    storage.write_text(place.folder / "words.txt", text)


_SLOW = """
import pathlib, sys, time
from gr_jax.stages.graph import stage
from gr_jax.stages.runner import Runner

root, model, who = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]

@stage(shared={shared})
def slow(place):
    (root / f"began_{{who}}").touch()
    deadline = time.monotonic() + 60  # where the test has failed
    while not (root / "go_on").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    (place.folder / "made").write_text(who)

Runner(root / model, say=lambda line: print(line, flush=True)).run([slow()])
"""


def start(root: pathlib.Path, who: str, *, shared: bool = True) -> subprocess.Popen:
    """A process that makes a stage once there is a file `go_on`."""
    code = _SLOW.format(shared=shared)
    model = who if shared else "mine"
    return subprocess.Popen(
        [sys.executable, "-c", code, str(root), model, who], cwd=CHECKOUT, text=True, stdout=subprocess.PIPE
    )


def wait_for(file: pathlib.Path) -> None:
    deadline = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("shared", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_of_two_processes_one_makes_a_stage_and_the_other_waits(tmp_path, shared):
    first = start(tmp_path, "one", shared=shared)
    wait_for(tmp_path / "began_one")
    second = start(tmp_path, "two", shared=shared)
    assert second.stdout.readline() == "… slow: another process is making it\n"
    (tmp_path / "go_on").touch()
    said = [process.communicate()[0] for process in (first, second)]
    assert first.returncode == second.returncode == 0
    assert "already made" not in said[0] and not (tmp_path / "began_two").exists()
    (made,) = tmp_path.glob("shared/slow-*" if shared else "mine/slow")
    assert (made / "made").read_text() == "one"
    storage.read_folder(made, "slow")


def test_a_killed_maker_leaves_the_lock_free(tmp_path):
    first = start(tmp_path, "one")
    wait_for(tmp_path / "began_one")
    second = start(tmp_path, "two")
    assert second.stdout.readline() == "… slow: another process is making it\n"
    second.send_signal(signal.SIGKILL)
    second.communicate()
    first.send_signal(signal.SIGKILL)
    first.communicate()
    made = [one for one in tmp_path.glob("shared/slow-*") if (one / "manifest.json").exists()]
    assert made == []
    third = start(tmp_path, "three")  # of the same key: it begins at once
    wait_for(tmp_path / "began_three")
    third.kill()
    third.communicate()


@stage(shared=True)
def missing(place: Place, *, file: str) -> None:
    open(file).close()


def test_a_file_that_a_stage_does_not_find_is_said_as_it_is(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Runner(tmp_path / "run").run([missing(file=str(tmp_path / "nowhere"))])
    assert not list(tmp_path.rglob(".locks"))


def test_a_shared_stage_has_one_lock_whatever_its_name(tmp_path):
    """Two systems may call it by two names; its folder is one."""
    holder = Runner(tmp_path / "run")
    with holder._maker(words(text="a").named("pairs")):
        locks = [one.name for one in tmp_path.rglob(".locks/*")]
        assert locks == [holder.folder(words(text="a").named("encoder_pairs")).name]


def test_a_run_below_a_file_is_refused_in_words(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="a part of this path is a file"):
        Runner(tmp_path / "file" / "run", shared_dir=tmp_path / "file" / "shared").run([words(text="a")])


def test_without_locks_of_the_file_system_stages_are_made(tmp_path, monkeypatch):
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    runner, one = Runner(tmp_path / "run"), words(text="a b")
    runner.run([one])
    assert (runner.folder(one) / "words.txt").read_text() == "a b"


def test_the_lock_is_made_anew_where_another_process_has_just_removed_its_folder(tmp_path, monkeypatch):
    tried: list[str] = []

    def opened(path: Any, *more: Any, **settings: Any) -> Any:
        if pathlib.Path(path).parent.name == ".locks" and not tried:
            tried.append(str(path))
            pathlib.Path(path).parent.rmdir()
        return original(path, *more, **settings)

    original = builtins.open
    monkeypatch.setattr(builtins, "open", opened)
    with storage.locked(tmp_path / ".locks" / "one", lambda: None):
        assert tried and (tmp_path / ".locks" / "one").exists()
    assert not (tmp_path / ".locks").exists()
