"""Killed writers, full disks and readers at work: what stood there stays, whole, until the new stands there, whole."""

import errno
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.storage import (
    atomic,
    beside,
    check_writable,
    load_array,
    read_folder,
    write_bytes,
    write_folder,
    write_json,
)

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]


def _write(path: pathlib.Path, value: int, size: int = 1000) -> None:
    with write_folder(path, "docids", meta={"value": value}) as folder:
        for part in range(4):
            np.save(folder / f"{part}.npy", np.full(size, value, np.int32))


def _assert_whole(path: pathlib.Path) -> int:
    value = read_folder(path, "docids").meta["value"]
    for part in range(4):
        assert (load_array(path / f"{part}.npy") == value).all()
    return value


def _start(code: str, *arguments: object) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], cwd=CHECKOUT, stdout=subprocess.PIPE
    )


_WRITE_FOR_EVER = """
    import itertools, pathlib, sys
    import numpy as np
    from gr_jax.storage import write_folder, write_json
    print("ready", flush=True)
    for value in itertools.count(int(sys.argv[2])):
        with write_folder(sys.argv[1], "docids", meta={"value": value}) as folder:
            for part in range(4):
                np.save(folder / f"{part}.npy", np.full(1000, value, np.int32))
        write_json(sys.argv[1] + ".json", {"value": value, "again": [value] * 200})
"""


def test_a_writer_killed_at_any_moment_leaves_a_whole_folder_and_no_debris_that_stays(tmp_path):
    path = tmp_path / "docids"
    _write(path, 0)
    moments = np.random.default_rng(0).uniform(0.001, 0.05, size=5)
    for start, moment in enumerate(moments):
        process = _start(_WRITE_FOR_EVER, path, start * 1_000_000)
        process.stdout.readline()
        time.sleep(moment)
        process.kill()
        process.wait()
        _assert_whole(path)
        if (tmp_path / "docids.json").exists():
            raw = json.loads((tmp_path / "docids.json").read_text())
            assert raw["again"] == [raw["value"]] * 200
    _write(path, 7)
    write_json(tmp_path / "docids.json", {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["docids", "docids.json"]


def test_readers_beside_a_writer_always_get_one_whole_folder(tmp_path):
    """Manifests are checked while their folder is exchanged again and again: no reader sees a mixture or an absence."""
    path = tmp_path / "docids"
    _write(path, 0)
    stop, failures, values = threading.Event(), [], set()

    def read() -> None:
        while not stop.is_set():
            try:
                values.add(read_folder(path, "docids").meta["value"])
            except InputError as error:
                failures.append(error)
                return

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for value in range(1, 60):
        _write(path, value)
    stop.set()
    for reader in readers:
        reader.join()
    assert not failures and len(values) > 1
    assert _assert_whole(path) == 59


def test_writers_of_the_same_folder_do_not_disturb_each_other(tmp_path):
    path = tmp_path / "docids"
    failures: list[BaseException] = []

    def write(first: int) -> None:
        try:
            for value in range(first, first + 15):
                _write(path, value)
        except BaseException as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(first,)) for first in (0, 100, 200)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not failures
    assert _assert_whole(path) in (14, 114, 214)
    assert [p.name for p in tmp_path.iterdir()] == ["docids"]


@pytest.fixture
def without_exchange(monkeypatch):
    """A file system that cannot exchange two names, as network file systems."""
    monkeypatch.setattr(beside, "_exchange", lambda a, b: False)


def test_without_exchange_the_folder_is_replaced_too(tmp_path, without_exchange):
    _write(tmp_path / "docids", 1)
    _write(tmp_path / "docids", 2)
    assert _assert_whole(tmp_path / "docids") == 2
    assert [p.name for p in tmp_path.iterdir()] == ["docids"]


def test_without_exchange_a_failing_rename_puts_the_old_folder_back(tmp_path, without_exchange, monkeypatch):
    path = tmp_path / "docids"
    _write(path, 1)
    rename = os.rename

    def fail(source, target):
        if str(source).endswith(".partial") and not path.exists():
            raise OSError(errno.EIO, "the disk failed")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="the disk failed"):
        _write(path, 2)
    assert _assert_whole(path) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["docids"]


_DIE_BETWEEN_RENAMES = """
    import os, signal, sys
    import numpy as np
    from gr_jax.storage import beside, write_folder
    beside._exchange = lambda a, b: False
    rename = os.rename
    def die(source, target):
        if str(source).endswith(".partial") and not os.path.exists(target):
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target)
    os.rename = die
    with write_folder(sys.argv[1], "docids", meta={"value": 2}) as folder:
        np.save(folder / "0.npy", np.zeros(3))
"""


@pytest.mark.parametrize("first", ["a reader", "a writer"])
def test_without_exchange_a_kill_between_the_renames_is_repaired(tmp_path, first):
    path = tmp_path / "docids"
    _write(path, 1)
    process = _start(_DIE_BETWEEN_RENAMES, path)
    process.wait()
    assert process.returncode == -signal.SIGKILL and not path.exists()
    if first == "a reader":
        assert _assert_whole(path) == 1
    _write(path, 3)
    assert _assert_whole(path) == 3
    assert [p.name for p in tmp_path.iterdir()] == ["docids"]


def test_a_living_writer_is_not_taken_for_dead(tmp_path):
    path = tmp_path / "docids"
    with write_folder(path, "docids", meta={"value": 1}) as first:
        np.save(first / "0.npy", np.zeros(3))
        _write(path, 2)
        assert (first / "0.npy").exists()
        _assert_whole(path)
    assert read_folder(path).meta == {"value": 1}


_LIMITED = """
    import resource, sys
    import numpy as np
    from gr_jax.storage import write_bytes, write_folder
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        if sys.argv[2] == "folder":
            with write_folder(sys.argv[1], "docids", meta={"value": 2}) as folder:
                with open(folder / "0.npy", "wb") as file:
                    file.write(bytes(10_000_000))
        else:
            write_bytes(sys.argv[1], bytes(10_000_000))
    except ValueError as error:
        print(error)
"""


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_write_that_the_system_cuts_short_leaves_the_old(tmp_path, what):
    path = tmp_path / "a"
    _write(path, 1) if what == "folder" else write_bytes(path, b"old")
    output = _start(_LIMITED, path, what).communicate()[0].decode()
    assert str(path) in output and "larger than the file system allows" in output and "is as it was" in output
    assert _assert_whole(path) == 1 if what == "folder" else path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_full_disk_in_mid_write(small_disk):
    """A real one: both Python's and NumPy's writes run out of space, and what stood there is whole."""
    path = small_disk / "docids"
    _write(path, 1)
    with pytest.raises(InputError, match="docids: the disk took only a part.*Free some space"):
        _write(path, 2, size=1_000_000)
    with pytest.raises(InputError, match="the disk is full"), write_folder(path, "docids") as folder:
        (folder / "x").write_bytes(bytes(3 << 20))
    write_bytes(small_disk / "metrics.json", b"old")
    with pytest.raises(InputError, match=r"metrics\.json: the disk is full"):
        write_bytes(small_disk / "metrics.json", bytes(3 << 20))
    assert _assert_whole(path) == 1
    assert (small_disk / "metrics.json").read_bytes() == b"old"
    assert sorted(p.name for p in small_disk.iterdir()) == ["docids", "metrics.json"]


@pytest.mark.parametrize("moment", ["fsync", "replace", "rename"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_is_full_at_the_last_moment(tmp_path, monkeypatch, moment, code):
    """Some file systems say so only when the data is flushed, or when a name is needed."""
    _write(tmp_path / "docids", 1)
    write_bytes(tmp_path / "run.trec", b"old")

    def fail(*arguments, **options):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, moment, fail)
    monkeypatch.setattr(beside, "_exchange", fail)
    with pytest.raises(InputError, match="docids: the disk"):
        _write(tmp_path / "docids", 2)
    if moment != "rename":
        with pytest.raises(InputError, match=r"run\.trec: the disk"):
            write_bytes(tmp_path / "run.trec", b"new")
    monkeypatch.undo()
    assert _assert_whole(tmp_path / "docids") == 1
    assert (tmp_path / "run.trec").read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["docids", "run.trec"]


def test_failures_that_are_not_about_this_path_are_passed_on(tmp_path):
    with pytest.raises(FileNotFoundError), write_folder(tmp_path / "a", "docids"):
        open(tmp_path / "not there")
    with pytest.raises(OSError, match="Input/output"), atomic.explain_full_disk(tmp_path / "a"):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_write_bytes_makes_folders_follows_links_and_refuses_folders(tmp_path):
    write_bytes(tmp_path / "deep" / "er" / "a", b"1")
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "er" / "a")
    write_bytes(tmp_path / "link", b"2")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "deep" / "er" / "a").read_bytes() == b"2"
    with pytest.raises(InputError, match="deep: a folder stands where a file"):
        write_bytes(tmp_path / "deep", b"3")
    with pytest.raises(InputError, match="is a file, not a folder"):
        write_bytes(tmp_path / "link" / "b", b"3")
    with pytest.raises(InputError, match="longer than the file system allows"):
        write_bytes(tmp_path / ("n" * 400), b"3")


def test_a_pipe_is_written_straight(tmp_path):
    """`--output=/dev/stdout` must not put a file in the place of the device."""
    os.mkfifo(tmp_path / "pipe")
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    write_bytes(tmp_path / "pipe", b"metrics")
    reader.join()
    assert got == [b"metrics"]
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]


def test_a_pipe_on_standard_output_is_written_straight():
    """Where its links lead, /dev/stdout has a name that cannot be opened: /proc/7/fd/pipe:[123]."""
    process = _start("from gr_jax.storage import write_bytes; write_bytes('/dev/stdout', b'metrics')")
    assert process.communicate()[0] == b"metrics" and process.returncode == 0


def test_whether_a_file_can_be_written_is_tried_beforehand(tmp_path):
    write_bytes(tmp_path / "a", b"1")
    check_writable(tmp_path / "a")
    check_writable(tmp_path / "b")
    check_writable("/dev/stdout")
    assert [p.name for p in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_bytes() == b"1"
    for wrong in (tmp_path, tmp_path / "a" / "c", tmp_path / ("n" * 400)):
        with pytest.raises(InputError):
            check_writable(wrong)


def test_names_are_cut_by_their_bytes(tmp_path):
    """255 bytes are what a file system takes, and a name of 240 needs another one beside it for a moment."""
    write_bytes(tmp_path / ("漢" * 80), b"1")
    _write(tmp_path / ("é" * 110), 1)
    assert len(list(tmp_path.iterdir())) == 2


def test_json_is_sorted_utf8(tmp_path):
    write_json(tmp_path / "a.json", {"b": "é", "a": [1]})
    assert (tmp_path / "a.json").read_bytes() == '{\n  "a": [\n    1\n  ],\n  "b": "é"\n}\n'.encode()


def test_what_threads_still_write_into_a_failed_folder_is_removed_too(tmp_path):
    """They go on for a moment after the error, and a folder in which files appear cannot be removed."""
    busy = threading.Event()

    def write_on(folder: pathlib.Path) -> None:
        for number in range(300):
            try:
                (folder / str(number)).write_bytes(b"")
            except FileNotFoundError:
                return
            busy.set()

    with pytest.raises(ZeroDivisionError), write_folder(tmp_path / "docids", "docids") as folder:
        thread = threading.Thread(target=write_on, args=(folder,))
        thread.start()
        busy.wait()
        raise ZeroDivisionError
    thread.join()
    assert not list(tmp_path.iterdir())
