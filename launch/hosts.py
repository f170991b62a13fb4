"""Several processes as one run: who takes part, from what the scheduler says, and their start.

`--hosts=auto` finds out by itself on TPU VMs, in a JobSet on GKE and under Slurm. Elsewhere each process is told:

  --hosts=bare --coordinator=10.0.0.1:8476 --processes=2 --process=0

Without the flag a process is alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
import socket
from collections.abc import Mapping, Sequence

from absl import flags

import gr_jax
from gr_jax import progress
from gr_jax.errors import InputError

from . import program

# JAX's own defaults are 100 and 300 seconds, too long for a run that is to end within a minute of a fault.
HEARTBEAT_S, START_S, SHUTDOWN_S = 20, 50, 30
PORT = 8476  # of the coordinator, where the scheduler does not give each job one of its own
_SLURM_PORTS = (20_000, 20_000)  # the first, and how many: jobs on one host hardly meet
KINDS = ("auto", "tpu", "gke", "slurm", "bare")

HOSTS = flags.DEFINE_enum("hosts", None, KINDS, "Run on several processes; auto asks the scheduler who takes part.")
COORDINATOR = flags.DEFINE_string("coordinator", None, "With --hosts=bare: host:port of process 0.")
PROCESSES = flags.DEFINE_integer("processes", None, "With --hosts=bare: how many there are.", lower_bound=1)
PROCESS = flags.DEFINE_integer("process", None, "With --hosts=bare: which this is, from 0.", lower_bound=0)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Who takes part.

    Attributes:
      coordinator: host:port of process 0.
      processes: how many.
      process: which this is, from 0.
      local_devices: the devices of this process on its host; None takes all.
    """

    coordinator: str
    processes: int
    process: int
    local_devices: tuple[int, ...] | None = None

    def __post_init__(self):
        if not 0 <= self.process < self.processes:
            raise InputError(f"process {self.process} of {self.processes}", "Number them from 0.", value=self.process)
        host, colon, port = self.coordinator.rpartition(":")
        if not colon or not host or not _is_number(port) or not 0 < int(port) < 65536:
            raise InputError("a coordinator is host:port", "Write 10.0.0.1:8476, say.", value=self.coordinator)


def of_slurm(environ: Mapping[str, str]) -> Cluster | None:
    """From what `srun` sets; None where this is no step of Slurm's.

    Several tasks on a host have a device each, by their number there.

    Raises:
      InputError: some of it is missing, as where a container does not pass it on.
    """
    if "SLURM_JOB_ID" not in environ:
        return None
    names = ("SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_JOB_ID")
    given = _numbers(environ, names[1:], "srun sets it; start with srun, and pass it on into containers")
    nodes = environ.get(names[0])
    if not nodes:
        raise InputError(f"{names[0]} is not set", "Start with srun, and pass it on into containers.")
    port = _SLURM_PORTS[0] + given["SLURM_JOB_ID"] % _SLURM_PORTS[1]
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE", environ.get("SLURM_TASKS_PER_NODE", "1"))
    several = any(int(count) > 1 for count in re.findall(r"(\d+)(?:\(x\d+\))?", tasks))
    devices = (given["SLURM_LOCALID"],) if several else None
    return Cluster(f"{first_node(nodes)}:{port}", given["SLURM_NTASKS"], given["SLURM_PROCID"], devices)


def first_node(nodes: str) -> str:
    """The first host of Slurm's list: "gpu[07-09,12],cpu1" begins with gpu07."""
    found = re.match(r"([^,\[]+)(?:\[([^\]]+)\])?", nodes)
    if found is None:
        raise InputError("no list of hosts", "Slurm writes gpu[01-04].", value=nodes)
    name, numbers = found.groups()
    return name if numbers is None else name + re.split("[,-]", numbers)[0]


def of_gke(environ: Mapping[str, str]) -> Cluster | None:
    """From what a JobSet's manifest sets; see `gr-jax cluster gke`. None where this is no indexed job.

    Raises:
      InputError: the manifest does not say who coordinates or how many there are.
    """
    if "JOB_COMPLETION_INDEX" not in environ:
        return None
    given = _numbers(environ, ("JOB_COMPLETION_INDEX", "GR_JAX_PROCESSES"), "the manifest of gr-jax cluster gke has it")
    coordinator = environ.get("JAX_COORDINATOR_ADDRESS")
    if not coordinator:
        raise InputError("JAX_COORDINATOR_ADDRESS is not set", "The manifest of gr-jax cluster gke has it.")
    coordinator = coordinator if ":" in coordinator else f"{coordinator}:{PORT}"
    return Cluster(coordinator, given["GR_JAX_PROCESSES"], given["JOB_COMPLETION_INDEX"])


def of_tpu(environ: Mapping[str, str]) -> Cluster | None:
    """From what a TPU VM sets; None elsewhere, or where one host is all."""
    hosts = [host for host in environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if host]
    if len(hosts) < 2:
        return None
    given = _numbers(environ, ("TPU_WORKER_ID",), "a TPU VM sets it")
    return Cluster(f"{hosts[0]}:{PORT}", len(hosts), given["TPU_WORKER_ID"])


def _is_number(text: str) -> bool:
    """Whether `int` takes it; of other scripts' digits, such as "²", it does not take all."""
    return text.isascii() and text.isdigit()


def _numbers(environ: Mapping[str, str], names: Sequence[str], remedy: str) -> dict[str, int]:
    found = {}
    for name in names:
        value = environ.get(name, "")
        if not _is_number(value):
            raise InputError(f"{name} is no number", f"{remedy[0].upper()}{remedy[1:]}.", value=value or None)
        found[name] = int(value)
    return found


def of_flags() -> Cluster:
    """From --coordinator, --processes and --process.

    Raises:
      InputError: one is missing.
    """
    if not COORDINATOR.value or PROCESSES.value is None or PROCESS.value is None:
        raise InputError(
            "--hosts=bare says nothing of who takes part", "Give --coordinator=HOST:PORT, --processes and --process."
        )
    return Cluster(COORDINATOR.value, PROCESSES.value, PROCESS.value)


def refuse_unused() -> None:
    """Refuses what `of_flags` reads where nothing asks for it: each process would believe that it is alone.

    Raises:
      InputError: --coordinator, --processes or --process without --hosts=bare.
    """
    if HOSTS.value != "bare":
        names = [flag.name for flag in (COORDINATOR, PROCESSES, PROCESS)]
        program.refuse_unused(names, "without --hosts=bare", "Give --hosts=bare, or leave it out.")


SCHEDULERS = {"tpu": of_tpu, "gke": of_gke, "slurm": of_slurm}


def found(kind: str, environ: Mapping[str, str]) -> Cluster:
    """Who takes part.

    Args:
      kind: of `KINDS`.
      environ: of the process.

    Raises:
      InputError: the scheduler says nothing, or not all.
    """
    if kind == "bare":
        return of_flags()
    for name in SCHEDULERS if kind == "auto" else [kind]:
        cluster = SCHEDULERS[name](environ)
        if cluster is not None:
            return cluster
    asked = ", ".join(SCHEDULERS) if kind == "auto" else kind
    raise InputError(
        f"no scheduler says who takes part (asked: {asked})",
        "Give --hosts=bare with --coordinator, --processes and --process, or leave the flag out.",
    )


def start(cluster: Cluster) -> None:
    """Makes this process one of them, and waits for the others.

    Raises:
      InputError: the coordinator's port is taken, or the others do not come in time.
    """
    import jax

    if cluster.process:
        progress.silence()
    host, _, port = cluster.coordinator.rpartition(":")
    if cluster.process == 0:
        _refuse_taken(int(port))
    try:
        jax.distributed.initialize(
            coordinator_address=cluster.coordinator,
            num_processes=cluster.processes,
            process_id=cluster.process,
            local_device_ids=cluster.local_devices,
            heartbeat_timeout_seconds=HEARTBEAT_S,
            initialization_timeout=START_S,
            shutdown_timeout_seconds=SHUTDOWN_S,
        )
    except RuntimeError as error:  # what XLA's client raises
        raise InputError(
            f"process {cluster.process} of {cluster.processes} waited {START_S} s for the others",
            f"See that all run and reach {host} at port {port}.",
            value=" ".join(str(error).split())[:200],
        ) from error


def _refuse_taken(port: int) -> None:
    with contextlib.closing(socket.socket()) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError as error:
            raise InputError(
                f"the coordinator's port is taken: {error.strerror}", "Name another, or end what listens there.",
                value=port,
            ) from error  # fmt: skip


def agree(configuration: str) -> None:
    """Compares what processes are to do, and with which versions.

    Args:
      configuration: gin's, as text.

    Raises:
      InputError: in every process, where two differ; names them.
    """
    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return
    said = {"configuration": configuration, "gr_jax": gr_jax.__version__, "jax": jax.__version__}
    own = np.array([_digest(value) for value in said.values()], np.uint32)
    of_all = np.asarray(multihost_utils.process_allgather(own))
    for column, what in enumerate(said):
        others = np.flatnonzero(of_all[:, column] != of_all[0, column])
        if len(others):
            raise InputError(
                f"processes differ in {what}", "Start all with the same command and the same installation.",
                value=f"process 0 and process {int(others[0])}",
            )  # fmt: skip


def _digest(value: str) -> int:
    return int.from_bytes(hashlib.sha256(json.dumps(value).encode()).digest()[:4], "little")
