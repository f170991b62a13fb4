r"""Starts a program on several hosts, or prints what would start it.

  gr-jax cluster slurm --nodes=2 --dry -- recipe --gin_file=gin_configs/systems/gdr.gin \
      --gin.CORPUS=\"/shared/my_beir_folder\" --gin.MODEL_DIR=\"/shared/runs/gdr\"

slurm writes a batch script, gke a JobSet, tpu a gcloud command, bare a command for each host. Without --dry the first
three are handed to sbatch, kubectl and gcloud. A job that ends by a fault is started again, and goes on from its latest
checkpoint: how often is --restarts. Everything that a run writes has to be on a disk that all hosts see.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Sequence

from absl import flags

from gr_jax.errors import InputError

from .. import hosts, program
from ..main import PROGRAMS

_NODES = flags.DEFINE_integer("nodes", 2, "Hosts.", lower_bound=1)
_PER_NODE = flags.DEFINE_integer("processes_per_node", 1, "Processes a host.", lower_bound=1)
_RESTARTS = flags.DEFINE_integer("restarts", 3, "How often a job that failed is started again.", lower_bound=0)
_IMAGE = flags.DEFINE_string("image", None, "Container image; with slurm by pyxis, with gke required.")
_GPUS = flags.DEFINE_integer("gpus_per_node", 0, "GPUs of a host.", lower_bound=0)
_TIME = flags.DEFINE_string("time", "24:00:00", "With slurm, how long at most.")
_TPU = flags.DEFINE_string("tpu", None, "With tpu, the name of the TPU VM.")
_ZONE = flags.DEFINE_string("zone", None, "With tpu, its zone.")
_ADDRESSES = flags.DEFINE_list("addresses", None, "With bare, the hosts' addresses, the coordinator's first.")
_NAME = flags.DEFINE_string("name", "gr-jax", "Of the job.")
_DRY = flags.DEFINE_bool("dry", False, "Print what would be started, and start nothing.")

_ENDED = "0|2|143"  # exit codes of what is not started again: it is finished, of bad input, or was asked to stop
# The flags of which each kind makes something; --name and --dry are for all.
_USED = {
    "slurm": ("nodes", "processes_per_node", "restarts", "image", "gpus_per_node", "time"),
    "gke": ("nodes", "processes_per_node", "restarts", "image", "gpus_per_node"),
    "tpu": ("restarts", "tpu", "zone"),
    "bare": ("nodes", "processes_per_node", "addresses"),
}
# How a scheduler is handed what it starts: text on standard input, or the command itself.
_HANDED = {"slurm": ["sbatch"], "gke": ["kubectl", "apply", "-f", "-"], "tpu": ["bash"]}


def command_of(words: Sequence[str], kind: str) -> str:
    """The command of a process."""
    return shlex.join(["gr-jax", words[0], f"--hosts={kind}", *words[1:]])


def slurm(words: Sequence[str]) -> str:
    """A batch script. `--requeue` starts it again after a host's fault, and the script itself after the command's."""
    inside = f" --container-image={shlex.quote(_IMAGE.value)} --container-mounts=$PWD:$PWD" if _IMAGE.value else ""
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={_NAME.value}",
        f"#SBATCH --nodes={_NODES.value}",
        f"#SBATCH --ntasks-per-node={_PER_NODE.value}",
        *([f"#SBATCH --gpus-per-node={_GPUS.value}"] if _GPUS.value else []),
        f"#SBATCH --time={_TIME.value}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        f"#SBATCH --output={_NAME.value}-%j-%t.log",
        "# The coordinator is the first host, at port 20000 + job id mod 20000.",
        f"srun --kill-on-bad-exit=1 --output={_NAME.value}-%j-host%t.log{inside} {command_of(words, 'slurm')}",
        "status=$?",
        "case $status in",
        f"  {_ENDED}) ;;  # finished, bad input, asked to stop",
        f'  *) [ "${{SLURM_RESTART_COUNT:-0}}" -ge {_RESTARTS.value} ] || scontrol requeue $SLURM_JOB_ID ;;',
        "esac",
        "exit $status",
    ]
    return "\n".join(lines)


def gke(words: Sequence[str]) -> str:
    """A JobSet of one replicated job, whose failures start it again as a whole."""
    if not _IMAGE.value:
        raise InputError("a JobSet runs a container", "Give --image; docker/Dockerfile builds one.")
    count, name = _NODES.value * _PER_NODE.value, _NAME.value
    gpus = (
        f"\n                    limits: {{nvidia.com/gpu: {_GPUS.value // _PER_NODE.value}}}" if _GPUS.value else " {}"
    )
    return f"""apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: {name}
spec:
  network: {{enableDNSHostnames: true}}
  failurePolicy: {{maxRestarts: {_RESTARTS.value}}}
  replicatedJobs:
    - name: workers
      replicas: 1
      template:
        spec:
          completionMode: Indexed
          completions: {count}
          parallelism: {count}
          backoffLimit: 0
          template:
            spec:
              restartPolicy: Never
              containers:
                - name: worker
                  image: {_IMAGE.value}
                  ports: [{{containerPort: {hosts.PORT}}}]
                  env:
                    - {{name: JAX_COORDINATOR_ADDRESS, value: "{name}-workers-0-0.{name}:{hosts.PORT}"}}
                    - {{name: GR_JAX_PROCESSES, value: "{count}"}}
                  command: [bash, -c, {_quoted(command_of(words, "gke"))}]
                  resources:{gpus}"""


def tpu(words: Sequence[str]) -> str:
    """A command on every worker of a TPU VM, again where it ends by a fault: the VM itself starts nothing again."""
    if not _TPU.value or not _ZONE.value:
        raise InputError("a TPU VM has a name and a zone", "Give --tpu and --zone.")
    again = (
        f"for attempt in $(seq 0 {_RESTARTS.value}); do {command_of(words, 'tpu')} "
        f">> {_NAME.value}-host$TPU_WORKER_ID.log 2>&1; status=$?; case $status in {_ENDED}) break ;; esac; done; "
        "exit $status"
    )
    return shlex.join(
        ["gcloud", "compute", "tpus", "tpu-vm", "ssh", _TPU.value, f"--zone={_ZONE.value}", "--worker=all",
         f"--command={again}"]
    )  # fmt: skip


def bare(words: Sequence[str]) -> str:
    """A command for each process."""
    addresses = _ADDRESSES.value or []
    if len(addresses) != _NODES.value:
        raise InputError(f"{_NODES.value} hosts have as many addresses", "Give --addresses.", value=addresses)
    lines, count = [], _NODES.value * _PER_NODE.value
    for process in range(count):
        who = [f"--coordinator={addresses[0]}:{hosts.PORT}", f"--processes={count}", f"--process={process}"]
        command = shlex.join(["gr-jax", words[0], "--hosts=bare", *who, *words[1:]])
        lines.append(f"# on {addresses[process // _PER_NODE.value]}\n{command} > {_NAME.value}-host{process}.log 2>&1")
    return "\n".join(lines)


SCHEDULERS = {"slurm": slurm, "gke": gke, "tpu": tpu, "bare": bare}


def _quoted(text: str) -> str:
    """As YAML's text in single quotes."""
    return "'" + text.replace("'", "''") + "'"


def main(words: Sequence[str]) -> None:
    if len(words) < 2 or words[0] not in SCHEDULERS or words[1] not in PROGRAMS:
        raise InputError(
            "a scheduler and a program are wanted", f"Write one of {', '.join(SCHEDULERS)}, flags, -- recipe ….",
            value=" ".join(words),
        )  # fmt: skip
    known = {name for names in _USED.values() for name in names}
    program.refuse_unused(sorted(known.difference(_USED[words[0]])), f"with {words[0]}")
    text = SCHEDULERS[words[0]](words[1:])
    if _DRY.value or words[0] == "bare":
        print(text)
        return
    handed = _HANDED[words[0]]
    if shutil.which(handed[0]) is None:
        raise InputError(f"{handed[0]} is not installed here", "Give --dry, and hand on what it prints.")
    subprocess.run(handed, input=text, text=True, check=True)


main.takes_words = True  # type: ignore[attr-defined]

if __name__ == "__main__":
    program.run(main)
