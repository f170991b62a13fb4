"""Conversions of raw files line by line: interruptions, damaged notes, lines at fault, processes that are killed."""

import os
import signal
import subprocess
import sys
import time

import pytest

from gr_jax.datasets import convert, workers
from gr_jax.errors import InputError


def shout(line, at):
    if line == "stop":
        raise at.error("stopped", "Go on.", line)
    made = b"" if line == "none" else f"{at.number} {line.upper()}".encode()
    return made, (("b",) if "b" in line else ())


@pytest.mark.parametrize("processes", [1, 2])
def test_interruptions_change_no_byte(tmp_path, monkeypatch, processes):
    """Killed after any batch, with what was noted of it or not."""
    monkeypatch.setattr(convert, "LINES", 3)
    monkeypatch.setattr(convert, "_NOTED_EVERY", 2)
    text = "".join(f"{line}\n" for line in ["ab", "none", "", "c", "bb", *map(str, range(50))])
    (tmp_path / "raw.txt").write_text(text)
    whole = convert.convert(tmp_path / "raw.txt", tmp_path / "whole", shout, version="1", show=False)
    assert whole == {"made": 53, "b": 2}
    write_json = convert.storage.write_json
    for stop in range(1, 9) if processes == 1 else (3,):
        made = tmp_path / f"cut{stop}"
        noted = []

        def failing(file, value, stop=stop, noted=noted):
            write_json(file, value)
            noted.append(value)
            if len(noted) == stop:
                raise KeyboardInterrupt

        monkeypatch.setattr(convert.storage, "write_json", failing)
        with pytest.raises(KeyboardInterrupt):
            convert.convert(tmp_path / "raw.txt", made, shout, version="1", processes=processes, show=False)
        monkeypatch.setattr(convert.storage, "write_json", write_json)
        partial = made.with_name(f"{made.name}.partial")
        if partial.exists():  # what was written behind the note is cut off
            partial.write_bytes(partial.read_bytes() + b"half a li")
        counts = convert.convert(tmp_path / "raw.txt", made, shout, version="1", processes=processes, show=False)
        assert counts == whole and made.read_bytes() == (tmp_path / "whole").read_bytes()
        assert not partial.exists()


def test_another_version_or_a_changed_file_is_made_anew(tmp_path):
    file, made = tmp_path / "raw.txt", tmp_path / "made"
    file.write_text("a\n")
    convert.convert(file, made, shout, version="1", show=False)
    made.write_text("x A\n")  # of the same size: taken as it is
    convert.convert(file, made, shout, version="1", show=False)
    assert made.read_text() == "x A\n"
    convert.convert(file, made, shout, version="2", show=False)
    assert made.read_text() == "1 A\n"
    file.write_text("ab\n")
    convert.convert(file, made, shout, version="2", show=False)
    assert made.read_text() == "1 AB\n"


@pytest.mark.parametrize("note", ["{", "[]", '{"key": "KEY", "lines": -1, "bytes": 3, "counts": {}}', '{"key": 1}'])
def test_a_damaged_note_is_none(tmp_path, note):
    file, made = tmp_path / "raw.txt", tmp_path / "made"
    file.write_text("a\n")
    (tmp_path / "made.partial").write_text("zzz")
    (tmp_path / "made.partial.json").write_text(note.replace("KEY", convert._key(file, "1")))
    convert.convert(file, made, shout, version="1", show=False)
    assert made.read_text() == "1 A\n"


@pytest.mark.parametrize("processes", [1, 2])
def test_a_line_at_fault_is_named(tmp_path, processes):
    (tmp_path / "raw.txt").write_text("a\n\nstop\n")
    with pytest.raises(InputError, match=r"raw\.txt:3: stopped"):
        convert.convert(tmp_path / "raw.txt", tmp_path / "made", shout, version="1", processes=processes, show=False)
    with pytest.raises(InputError, match="1 process or more"):
        list(workers.in_order(len, [[]], 0))


@pytest.mark.slow
def test_killed_while_it_runs(tmp_path):
    """Twenty times, at whatever moment; then to its end."""
    lines = "".join(f"{n}\tpassage number {n} about nothing\n" for n in range(300_000))
    (tmp_path / "collection.tsv").write_text(lines)
    code = (
        "import sys; from gr_jax.datasets import convert, ms_marco\n"
        "convert.convert(sys.argv[1], sys.argv[2], ms_marco.passage_line, version='1', show=False)"
    )
    unfinished = 0
    for attempt in range(20):
        process = subprocess.Popen([sys.executable, "-c", code, tmp_path / "collection.tsv", tmp_path / "cut"])
        time.sleep(0.4 + 0.07 * attempt)
        os.kill(process.pid, signal.SIGKILL)
        unfinished += process.wait() == -signal.SIGKILL and not (tmp_path / "cut").exists()
    assert unfinished > 0
    for name in ("cut", "whole"):
        subprocess.run([sys.executable, "-c", code, tmp_path / "collection.tsv", tmp_path / name], check=True)
    assert (tmp_path / "cut").read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.slow
def test_workers_end_with_their_parent(tmp_path):
    """Killed, it cannot end them itself."""
    (tmp_path / "collection.tsv").write_text("".join(f"{n}\tpassage {n}\n" for n in range(400_000)))
    code = (
        "import sys; from gr_jax.datasets import convert, ms_marco\n"
        "convert.convert(sys.argv[1], sys.argv[2], ms_marco.passage_line, version='1', processes=2, show=False)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "collection.tsv", tmp_path / "made"], start_new_session=True
    )
    for _ in range(200):
        time.sleep(0.1)
        if len(_session(process.pid)) > 2:
            break
    process.kill()
    process.wait()
    for _ in range(100):
        time.sleep(0.1)
        if not _session(process.pid):
            return
    raise AssertionError(_session(process.pid))


def _session(leader: int) -> list[str]:
    said = subprocess.run(["ps", "-o", "pid=,stat=", "--sid", str(leader)], capture_output=True, text=True).stdout
    return [line for line in said.splitlines() if " Z" not in line]
