"""Training on many devices, on several hosts, and on one fast device: `python -m benchmarks.several_hosts`.

What an update of a T5 costs is counted by `model_flops` (six operations a token for each parameter that multiplies, and
attention), and compared with XLA's own count. On a GPU these operations a second are judged as a share of what its
maker states for bfloat16: T5-base, 223 million parameters, float32 parameters and AdamW, products in bfloat16, dropout
off, random tokens without padding. Beam search of a T5-base decoder on 32 queries with 100 beams each is judged by the
least time that the GPU's memory and arithmetic allow (`roofline`). Both exist where JAX sees a GPU.

Small networks of T5, T5 1.1, BERT with a T5's decoder, CGR and GDR are trained under every set of sharding rules on 8
simulated devices beside one (`small_training`), whose sizes divide none of the tables; three of them in bfloat16, and
with layers computed again for gradients, over 200 steps beside float32 that remembers all. An update of a T5 on a CPU
is timed beside that of `transformers` (`transformers_training`), on 2 threads:

    JAX_PLATFORMS=cpu taskset -c 0,1 python -m benchmarks.several_hosts --rows='transformers*'

Processes over loopback stand for hosts. DSI and GDR are made from documents to results by one, two and four of them
(`several_hosts_stages`). Two are killed at random, stopped, and their checkpoints damaged (`several_hosts_faults`). A
save of 1 GB is timed (`several_hosts_saving`).
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from typing import Any

import jax

from benchmarks import (
    harness,
    several_hosts_faults,
    several_hosts_saving,
    several_hosts_stages,
    small_training,
    transformers_training,
)
from benchmarks.model_flops import Lengths
from benchmarks.random_decoder import CODES, DOCIDS, LEVELS, VOCABULARY
from benchmarks.roofline import roofline
from benchmarks.training_speed import T5_BASE, counted_and_compiled, measure_updates
from gr_jax.models.t5 import T5Config

_SMALL = T5Config(
    vocab_size=2048,
    emb_dim=256,
    num_heads=4,
    num_encoder_layers=3,
    num_decoder_layers=2,
    mlp_dim=1024,
    logits_via_embedding=True,
    dropout_rate=0.0,
)
# Rows, input tokens, target tokens. What is needed per token differs: attention of 512 tokens is a quarter of it.
_BATCHES = (Lengths(512, 128, 32), Lengths(256, 256, 32), Lengths(128, 512, 64))


def gpu_rows() -> list[harness.Row]:
    """What is measured on a GPU."""
    found = []
    for batch in _BATCHES:
        found.append(
            harness.Row(
                name=f"T5-base, {batch.rows} × {batch.inputs} → {batch.targets}",
                config={"network": dataclasses.asdict(T5_BASE), "batch": dataclasses.asdict(batch), "updates": 20},
                measure=functools.partial(measure_updates, T5_BASE, batch),
                at_least={"share of peak": 0.35},
                seeds=(0,),
                speed=True,
            )
        )
    network = {"docids": DOCIDS, "levels": LEVELS, "codes": CODES, "vocabulary": VOCABULARY, "shape": "T5-base"}
    for normalize in ("level", "vocabulary"):
        found.append(
            harness.Row(
                name=f"beam search, 32 × 100, {normalize}",
                config={**network, "dtype": "bfloat16", "normalize": normalize},
                measure=functools.partial(roofline, 32, 100, normalize),
                at_most={"times the least": 1.5},
                seeds=(0,),
                speed=True,
            )
        )
    return found


def mesh_rows() -> list[harness.Row]:
    """What training is like on other meshes, in bfloat16 and with less remembered."""
    sizes = {"T5": dataclasses.asdict(small_training.T5), "BERT": dataclasses.asdict(small_training.BERT)}
    shape = {"rows": small_training.ROWS, "inputs": small_training.LENGTH, "pairs": small_training.PAIRS}
    found = []
    for sharding, mesh in small_training.MESHES.items():
        for name in small_training.MODELS:
            found.append(
                harness.Row(
                    name=f"{sharding}, {name}, 8 devices",
                    config={**sizes, **small_training.DIFFERENT.get(name, {}), **shape, "mesh": mesh, "steps": 20},
                    measure=functools.partial(small_training.on_eight_devices, name, sharding),
                    at_most={"loss difference": 1e-5, "parameter difference": 1e-5, "largest share": 1.1},
                    seeds=(0,),
                )
            )
    for name in ("T5", "BERT", "GDR"):
        kinds: dict[str, dict[str, Any]] = {"bfloat16": {"precision": "bfloat16"}, "layers again": {"remat": "layers"}}
        for what, settings in kinds.items():
            found.append(
                harness.Row(
                    name=f"{what}, {name}, 200 steps",
                    config={
                        **sizes,
                        **shape,
                        **settings,
                        "pairs": "squad_dev's questions and documents",
                        "steps": 200,
                        "means of": 20,
                    },
                    corpus=small_training.fingerprint,
                    measure=functools.partial(small_training.beside_float32, name, **settings),
                    at_most={"relative difference": 0.005},
                    seeds=(0,),
                )
            )
        found.append(
            harness.Row(
                name=f"remembered, {name}, layers again",
                config={**sizes, **shape, "remat": "layers"},
                measure=functools.partial(small_training.remembered, name, "layers"),
                at_most={"share of bytes": 0.5},
            )
        )
    return found


def peer_rows() -> list[harness.Row]:
    """Updates beside those of `transformers`."""
    found = []
    for packed, floor in ((False, 1.0), (True, 1.8)):
        config = {"network": dataclasses.asdict(transformers_training.CONFIG), "rows": transformers_training.ROWS}
        config |= {"packed": transformers_training.PACKED} if packed else {}
        found.append(
            harness.Row(
                name=f"transformers, {'packed' if packed else 'one question a row'}",
                config={**config, "questions": "squad_dev, in words", "turns": 5},
                measure=functools.partial(transformers_training.beside_transformers, packed=packed),
                at_least={"times faster": floor},
                at_most={} if packed else {"loss difference": 1e-3},
                seeds=(0,),
                speed=True,
            )
        )
    return found


def rows() -> list[harness.Row]:
    """The table."""
    size = Lengths(8, 128, 64)
    found = [
        harness.Row(
            name="operations of an update",
            config={"network": dataclasses.asdict(_SMALL), "batch": dataclasses.asdict(size)},
            measure=functools.partial(counted_and_compiled, _SMALL, size),
            at_least={"share of XLA's count": 0.9},
            at_most={"share of XLA's count": 1.0},
        )
    ]
    found += [*mesh_rows(), *peer_rows()]
    for part in (several_hosts_stages, several_hosts_faults, several_hosts_saving):
        found += part.rows()
    if jax.default_backend() == "gpu":
        return found + gpu_rows()
    print("several_hosts: JAX sees no GPU, so its rows are not run", file=sys.stderr)
    return found


if __name__ == "__main__":
    sys.exit(harness.main("several_hosts", rows()))
