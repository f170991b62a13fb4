"""Checksums are remembered by size, time and inode, and never believed of a file that may have changed since."""

import hashlib
import json
import os
import pathlib
import time

import pytest

from gr_jax.storage import checksums
from gr_jax.storage.checksums import Checksums, sha256

LONG_AGO = 10_000_000_000


@pytest.fixture
def reads(monkeypatch) -> list[str]:
    """The files that are read, in order."""
    found: list[str] = []

    def counting(path):
        found.append(pathlib.Path(path).name)
        return sha256(path)

    monkeypatch.setattr(checksums, "sha256", counting)
    return found


def write(file: pathlib.Path, data: bytes, *, ago: int = LONG_AGO) -> str:
    file.write_bytes(data)
    os.utime(file, ns=(0, time.time_ns() - ago))
    return hashlib.sha256(data).hexdigest()


def test_sha256(tmp_path):
    expected = write(tmp_path / "a", b"some bytes")
    assert sha256(tmp_path / "a") == expected


def test_a_file_is_read_once_by_this_process_and_the_next(tmp_path, reads):
    expected = write(tmp_path / "a", b"1")
    known = Checksums(tmp_path / "known.json")
    assert known(tmp_path / "a") == known(tmp_path / "a") == expected and reads == ["a"]
    known.save()
    assert Checksums(tmp_path / "known.json")(tmp_path / "a") == expected and reads == ["a"]
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert Checksums(tmp_path / "known.json")(tmp_path / "link") == expected and reads == ["a"]


@pytest.mark.parametrize("change", ["size", "time", "inode"])
def test_a_file_that_changed_is_read_again(tmp_path, reads, change):
    file = tmp_path / "a"
    write(file, b"12")
    known = Checksums(tmp_path / "known.json")
    known(file)
    before = os.stat(file)
    if change == "size":
        expected = write(file, b"123")
        os.utime(file, ns=(0, before.st_mtime_ns))
    elif change == "time":
        expected = write(file, b"34", ago=LONG_AGO // 2)
    else:  # as `mv` and `cp -p` leave it
        expected = write(tmp_path / "b", b"34")
        os.utime(tmp_path / "b", ns=(0, before.st_mtime_ns))
        os.replace(tmp_path / "b", file)
    assert known(file) == expected and len(reads) == 2


def test_a_file_that_has_just_been_written_is_not_remembered(tmp_path, reads):
    """It may change again without its time showing it."""
    write(tmp_path / "a", b"1", ago=0)
    known = Checksums(tmp_path / "known.json")
    known(tmp_path / "a")
    expected = write(tmp_path / "a", b"2", ago=0)
    os.utime(tmp_path / "a", ns=(0, os.stat(tmp_path / "a").st_mtime_ns))
    assert known(tmp_path / "a") == expected and len(reads) == 2


def test_files_that_are_gone_are_forgotten(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / name, name.encode())
    known = Checksums(tmp_path / "known.json")
    known(tmp_path / "a"), known(tmp_path / "b")
    (tmp_path / "a").unlink()
    known.save()
    assert [pathlib.Path(path).name for path in json.loads((tmp_path / "known.json").read_text())] == ["b"]


def test_nothing_is_written_where_nothing_was_learnt(tmp_path):
    write(tmp_path / "a", b"1")
    known = Checksums(tmp_path / "known.json")
    known(tmp_path / "a")
    known.save()
    before = os.stat(tmp_path / "known.json").st_mtime_ns
    again = Checksums(tmp_path / "known.json")
    again(tmp_path / "a")
    again.save()
    assert os.stat(tmp_path / "known.json").st_mtime_ns == before


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"a": 3}', '{"a": [1, 2, 3, 4]}', "[" * 100_000, '"text"', "\x00"])
def test_what_cannot_be_read_of_earlier_times_is_forgotten(tmp_path, reads, broken):
    expected = write(tmp_path / "a", b"1")
    (tmp_path / "known.json").write_text(broken)
    assert Checksums(tmp_path / "known.json")(tmp_path / "a") == expected and reads == ["a"]


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        Checksums(tmp_path / "known.json")(tmp_path / "nothing")
