"""Who takes part, as schedulers say it; and real processes on loopback that start, agree or do not."""

import json
import re
import shlex
import socket
import subprocess
import sys

import pytest

from gr_jax.errors import InputError
from launch import hosts
from launch.hosts import Cluster
from tests.bad_input.conftest import launch as forked
from tests.bad_input.conftest import refused

SLURM = {
    "SLURM_JOB_ID": "123456", "SLURM_STEP_NODELIST": "gpu[07-09,12]", "SLURM_NTASKS": "8", "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x4)",
}  # fmt: skip


def test_slurm_says_who_takes_part():
    assert hosts.of_slurm(SLURM) == Cluster(f"gpu07:{20_000 + 123456 % 20_000}", 8, 5, (1,))
    assert hosts.of_slurm({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "1(x8)"}).local_devices is None
    assert hosts.of_slurm({}) is None
    for wrong in ("²", "", "12a"):
        with pytest.raises(InputError, match="SLURM_JOB_ID is no number"):
            hosts.of_slurm({**SLURM, "SLURM_JOB_ID": wrong})
    for name in ("SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID"):
        with pytest.raises(InputError, match=f"{name} is n.*srun"):
            hosts.of_slurm({one: value for one, value in SLURM.items() if one != name})


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("gpu[07-09,12]", "gpu07"), ("node1", "node1"), ("a,b[1-2]", "a"), ("n[3]-x", "n3"), ("cpu-01,cpu-02", "cpu-01")],
)
def test_the_first_of_slurm_s_hosts(nodes, first):
    assert hosts.first_node(nodes) == first


def test_gke_and_tpu_say_who_takes_part():
    jobset = {"JOB_COMPLETION_INDEX": "3", "GR_JAX_PROCESSES": "4", "JAX_COORDINATOR_ADDRESS": "run-workers-0-0.run"}
    assert hosts.of_gke(jobset) == Cluster(f"run-workers-0-0.run:{hosts.PORT}", 4, 3)
    vm = {"TPU_WORKER_HOSTNAMES": "10.0.0.2,10.0.0.3", "TPU_WORKER_ID": "1"}
    assert hosts.of_tpu(vm) == Cluster(f"10.0.0.2:{hosts.PORT}", 2, 1)
    assert hosts.of_tpu({"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}) is None
    assert hosts.found("auto", {**vm, "PATH": ""}) == hosts.of_tpu(vm) and hosts.found("auto", SLURM).processes == 8
    with pytest.raises(InputError, match="asked: tpu, gke, slurm"):
        hosts.found("auto", {})
    with pytest.raises(InputError, match="asked: slurm"):
        hosts.found("slurm", vm)
    with pytest.raises(InputError, match="GR_JAX_PROCESSES is no number"):
        hosts.of_gke({"JOB_COMPLETION_INDEX": "0"})


@pytest.mark.parametrize(
    "wrong", [("h:²", 2, 0), ("h:1", 2, 2), ("h:1", 2, -1), ("h", 2, 0), (":1", 2, 0), ("h:0", 2, 0), ("h:x", 2, 0)]
)
def test_clusters_that_are_none(wrong):
    with pytest.raises(InputError):
        Cluster(*wrong)


PROGRAM = """
import json, sys
from gr_jax.errors import InputError
from launch import hosts
port, processes, process, *told = json.loads(sys.argv[1])
hosts.START_S = 8
try:
    hosts.start(hosts.Cluster(f"127.0.0.1:{port}", processes, process))
    for said in told:
        hosts.agree(said)
        print("said: agreed", file=sys.stderr)
except InputError as error:
    print("said: error:", error, file=sys.stderr)
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def together(*told: list[str]) -> list[list[str]]:
    """What each process says of the configurations that it is told."""
    port = free_port()
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps([port, len(told), process, *one])],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for process, one in enumerate(told)
    ]  # fmt: skip
    lines = [one.communicate(timeout=240)[1].splitlines() for one in started]
    return [[line.removeprefix("said: ") for line in its if line.startswith("said: ")] for its in lines]


def test_real_processes_start_and_agree_until_each_names_another_configuration():
    for agreed, said in together(["the same", "one"], ["the same", "another"]):
        assert agreed == "agreed"
        assert said.startswith("error: processes differ in configuration (got 'process 0 and process 1')")


def test_a_taken_port_is_named():
    with socket.socket() as listening:
        listening.bind(("", 0))
        listening.listen()
        port = listening.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps([port, 2, 0, ""])], capture_output=True, text=True, timeout=60
        )
    assert f"the coordinator's port is taken: Address already in use (got {port})" in done.stderr


def test_who_takes_part_is_not_passed_over():
    for flag in ("--coordinator=h:1", "--processes=2", "--process=1"):
        refused(forked("recipe", flag), f"{flag.partition('=')[0]} is not used without --hosts=bare")
    told = ("--hosts=slurm", "--process=1", "--watch=x", "--", "recipe")
    refused(forked("supervise", *told), "--process is not used without --hosts=bare")


def test_what_would_be_started():
    command = ("--dry", "--", "recipe", '--gin.CORPUS="a b"')
    told = ("--nodes=2", "--restarts=5", *command)
    slurm = forked("cluster", "slurm", "--processes_per_node=4", *told).stdout
    assert "--ntasks-per-node=4" in slurm and "-ge 5 ]" in slurm and "scontrol requeue" in slurm
    assert "gr-jax recipe --hosts=slurm '--gin.CORPUS=\"a b\"'" in slurm
    gke = forked("cluster", "gke", "--image=gr_jax", *told).stdout
    assert "maxRestarts: 5" in gke and "completions: 2" in gke
    assert f'value: "gr-jax-workers-0-0.gr-jax:{hosts.PORT}"' in gke
    tpu = forked("cluster", "tpu", "--tpu=v", "--zone=z", "--restarts=5", *command).stdout
    assert tpu.startswith("gcloud compute tpus tpu-vm ssh v --zone=z --worker=all") and "seq 0 5" in tpu
    bare = forked("cluster", "bare", "--addresses=10.0.0.1,10.0.0.2", *command).stdout
    assert len(re.findall(r"--coordinator=10\.0\.0\.1:\d+ --processes=2 --process=[01] ", bare)) == 2
    refused(forked("cluster", "gke", *told), "--image")
    refused(forked("cluster", "bare", *command), "--addresses")
    for kind, flag in (("gke", "--time=1:00"), ("tpu", "--image=x"), ("tpu", "--nodes=2"), ("bare", "--restarts=1"),
                       ("tpu", "--processes_per_node=2"), ("bare", "--image=x")):  # fmt: skip
        refused(forked("cluster", kind, flag, *command), f"{flag.partition('=')[0]} is not used with {kind}")
    asked = forked("cluster", "slurm", "--dry", "--", "recipe", "--help").stdout
    assert "gr-jax recipe --hosts=slurm --help" in asked and asked.startswith("#!/bin/bash")
    refused(forked("cluster", "pbs", *told), "slurm, gke, tpu, bare")
    refused(forked("cluster", "slurm", "--nodes=2", "--", "recipe"), "sbatch is not installed")


@pytest.mark.parametrize(("codes", "ends"), [((1, 0), 0), ((2, 0), 2), ((1, 143), 143), ((1, 1, 1), 1)])
def test_a_tpu_starts_again_what_failed_and_keeps_its_log(tmp_path, codes, ends):
    told = ("--tpu=v", "--zone=z", "--restarts=2", "--dry", "--", "recipe")
    (_, inside) = shlex.split(forked("cluster", "tpu", *told).stdout)[-1].split("=", maxsplit=1)
    attempt = "$(wc -l < gr-jax-host.log) - 1"
    script = f"codes=({' '.join(map(str, codes))})\necho attempt\nexit ${{codes[{attempt}]}}\n"
    (tmp_path / "gr-jax").write_text(f"#!/bin/bash\n{script}")
    (tmp_path / "gr-jax").chmod(0o755)
    done = subprocess.run(["bash", "-c", inside], cwd=tmp_path, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert done.returncode == ends
    assert (tmp_path / "gr-jax-host.log").read_text() == "attempt\n" * (1 + codes.index(ends) if ends != 1 else 3)
