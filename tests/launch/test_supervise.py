"""Supervisors of processes that end, fall silent, stand still or fail too often; what they watch trains nothing."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from launch import supervise
from launch.supervise import Watch, file_of

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
WORKER = """
import os, pathlib, sys, time
from launch import signs
signs.EVERY_S = 0.2
signs.give()
folder, process, kind = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
first = not (folder / f"was_here_{process}").exists()
(folder / f"was_here_{process}").touch()
if kind == "fails" or (kind == "fails once" and first and process == "1"):
    sys.exit(9)
if kind == "bad input" and process == "1":
    sys.exit(2)
for _ in range(20 if first else 2):
    time.sleep(1 if first else 0.1)
"""
SUPERVISOR = """
import json, pathlib, sys
from launch import supervise
supervise._GATHER_S, supervise._LOOK_S = 20.0, 0.1
process, restarts, command, watch = json.loads(sys.argv[1])
def say(line): print(line, flush=True)
told = dict(restarts=restarts, within=600.0, silent=5.0, still=60.0, say=say)
sys.exit(supervise.Supervisor(command, pathlib.Path(watch), process, 2, **told).run())
"""


def supervised(folder, kind, restarts=3):
    started = []
    for process in range(2):
        command = [sys.executable, "-c", WORKER, str(folder), str(process), kind]
        told = json.dumps([process, restarts, command, str(folder / "watch")])
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", SUPERVISOR, told], env=environment, stdout=subprocess.PIPE, text=True
            )
        )
    return started


def ended(started):
    return [(one.communicate(timeout=120)[0], one.returncode) for one in started]


def sign_of(folder, attempt, process):
    """What a process has said of itself, as soon as it has."""
    file = file_of(folder / "watch" / f"attempt_{attempt:05d}", process)
    deadline = time.monotonic() + 60
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return json.loads(file.read_text())


def test_a_stopped_process_is_named_and_all_start_again(tmp_path):
    started = supervised(tmp_path, "runs")
    pid = sign_of(tmp_path, 1, 1)["pid"]
    sign_of(tmp_path, 1, 0)
    os.kill(pid, signal.SIGSTOP)
    said = ended(started)
    assert [code for _, code in said] == [0, 0]
    why = json.loads((tmp_path / "watch" / "attempt_00001" / "fault.json").read_text())["why"]
    assert why.startswith("process 1 on ") and f"(pid {pid}, " in why and "no sign of life for 5 s" in why
    for text, _ in said:
        assert why in text
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_one_that_fails_takes_all_to_the_next_attempt(tmp_path):
    said = ended(supervised(tmp_path, "fails once"))
    assert [code for _, code in said] == [0, 0]
    assert all("Attempt 1 ended: process 1 ended with code 9." in text for text, _ in said)


def test_bad_input_is_the_end_for_all(tmp_path):
    said = ended(supervised(tmp_path, "bad input"))
    assert [code for _, code in said] == [2, 2]
    assert len(list((tmp_path / "watch").glob("attempt_*"))) == 1


def test_too_many_faults_are_the_end(tmp_path):
    said = ended(supervised(tmp_path, "fails", restarts=1))
    assert all(code != 0 for _, code in said)
    assert all("2 starts have failed within 10 minutes: that is the end of it." in text for text, _ in said)


@pytest.mark.parametrize("links", [True, False])
def test_a_fault_is_seen_whole_or_not_at_all(tmp_path, monkeypatch, links):
    """Who sees half of it counts one too few, and starts again alone."""
    file, said = tmp_path / "fault.json", []
    moments = []

    def now():
        moments.append(file.exists())
        return 1000.0 + len(moments)

    def no_links(*_):
        raise PermissionError("no links here")

    monkeypatch.setattr(supervise.time, "time", now)
    if not links:
        monkeypatch.setattr(supervise.os, "link", no_links)
    told = dict(restarts=1, within=600.0, silent=5.0, still=60.0, say=said.append)
    for process in (0, 1):
        supervise.Supervisor([], tmp_path, process, 2, **told)._blame(tmp_path, f"process {process} ended")
        if process == 0:
            assert moments == [False]
            assert json.loads(file.read_text()) == {"why": "process 0 ended", "at": 1001.0, "by": 0}
    assert json.loads(file.read_text())["by"] == (0 if links else 1)
    assert said[0] == "Fault: process 0 ended." and len(said) == (1 if links else 2)


def test_a_request_to_stop_is_no_fault(tmp_path):
    started = supervised(tmp_path, "runs")
    for process in (0, 1):
        sign_of(tmp_path, 1, process)
    for one in started:
        one.send_signal(signal.SIGTERM)
    assert [code for _, code in ended(started)] == [143, 143]


def test_standing_still_is_told_from_silence(tmp_path):
    now = [0.0]
    watch = Watch(tmp_path, 2, 12.0, 100.0, lambda: now[0])

    def at(seconds, **said):
        now[0] = seconds
        for process, (beat, advances) in said.items():
            file = file_of(tmp_path, int(process[1:]))
            file.write_text(
                json.dumps({"host": "h", "pid": 7, "beat": beat, "advances": advances, "note": "Training: 3/9"})
            )
        return watch.fault()

    assert at(0, p0=(0, 0), p1=(0, 0)) == ""
    assert at(10, p0=(1, 1), p1=(1, 1)) == ""
    assert at(20, p0=(2, 2)) == ""
    silent = at(23, p0=(3, 3))
    assert silent.startswith("process 1 on h (pid 7, at Training: 3/9) has given no sign of life for 13 s")
    assert at(30, p0=(4, 3), p1=(2, 1)) == ""
    for seconds in range(35, 110, 5):
        assert at(seconds, p0=(seconds, seconds), p1=(seconds, 1)) == ""
    still = at(115, p0=(115, 115), p1=(115, 1))
    assert "process 1" in still and "is alive, and its work has stood still for 105 s" in still
