"""Residual quantisation beside faiss's, on real embeddings. `python -m benchmarks.residual_quantization`.

Both learn 6 codebooks of 256 from the same 100,000 vectors and encode them, in one process with the same number of
threads, faiss with its default settings (beams of 5 in training and encoding, k-means in growing dimensions on 65,536
residuals). They take turns, three times; ratios are medians of neighbouring turns. Ours compiles in the first turn,
whose seconds stand by themselves. The vectors are MiniLM's, made once (about 10 minutes on 2 cores) and kept in
`runs/benchmarks/`; then about 4 minutes.

The other row is of codebooks that are fitted together, which is for few documents: the 2,067 of `squad_dev`, beside
faiss with `Train_refine_codebook`, as many rounds each.
"""

from __future__ import annotations

import functools
import os
import statistics
import sys
import time
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.derived_data import subset
from gr_jax.corpus import read_beir
from gr_jax.errors import InputError

RUNS = harness.CHECKOUT / "runs" / "benchmarks"
PARTS = {"100k": ("wiki_intro_179k", "100k", 0), "squad_dev": ("squad_dev", "", 6)}  # data, its part, refits
TURNS = 3
VECTORS: dict[str, Any] = {"encoder": "minilm", "max_length": 64, "passages": "document", "most_sentences": 12}


def embeddings(data: str, part: str) -> np.ndarray:
    """float32 [documents, 384]: MiniLM's vectors of titles and texts; made once, kept under their content key."""
    from gr_jax.stages import documents
    from gr_jax.stages.runner import Runner
    from gr_jax.stages.sources import BeirFolder
    from gr_jax.stages.vectors import Vectors, load_vectors, vectors_of

    folder = harness.data_folder(data)
    corpus = documents.corpus(BeirFolder(str(folder), subset=str(subset(folder, part)) if part else ""))
    vectors, runner = vectors_of(corpus, Vectors(**VECTORS)), Runner(RUNS, shared_dir=RUNS)
    runner.run([corpus, vectors])
    return np.asarray(load_vectors(runner.folder(vectors)))


def measure(name: str, levels: int, bits: int, seed: int) -> dict[str, float]:
    """Error (mean squared distance) and seconds of both, and ours by faiss's."""
    try:
        import faiss
    except ImportError as missing:
        raise InputError("this benchmark compares against faiss", "pip install faiss-cpu") from missing
    from gr_jax.clustering import reconstruct, residual_quantization

    data, part, refits = PARTS[name]
    points = embeddings(data, part)
    faiss.omp_set_num_threads(len(os.sched_getaffinity(0)))  # as many as XLA takes
    turns = []
    for _ in range(TURNS):
        started = time.monotonic()
        ours = residual_quantization(points, levels=levels, bits=bits, seed=seed, refits=refits, progress=True)
        between = time.monotonic()
        theirs = faiss.ResidualQuantizer(points.shape[1], levels, bits)
        if refits:
            theirs.train_type = faiss.ResidualQuantizer.Train_default | faiss.ResidualQuantizer.Train_refine_codebook
            theirs.niter_codebook_refine = refits
        theirs.train(points)
        packed = theirs.compute_codes(points)
        turns.append((between - started, time.monotonic() - between))
    error = _error(points, reconstruct(ours.codes, ours.codebooks))
    peer_error = _error(points, theirs.decode(packed))
    return {
        "error of peer's": error / peer_error,
        "time of peer's": statistics.median(own / peer for own, peer in turns),
        "error": error,
        "seconds": statistics.median(own for own, _ in turns),
        "seconds of the first turn": turns[0][0],
        "peer's error": peer_error,
        "peer's seconds": statistics.median(peer for _, peer in turns),
    }


def _error(points: np.ndarray, approximations: np.ndarray) -> float:
    return float(((points - approximations) ** 2).sum(axis=1).mean(dtype=np.float64))


@functools.cache
def _fingerprint(data: str, part: str) -> str:
    folder = harness.data_folder(data)
    return read_beir(folder, subset=subset(folder, part) if part else None).corpus.fingerprint


def rows() -> list[harness.Row]:
    """The table."""
    levels, bits, seed = 6, 8, 0
    return [
        harness.Row(
            name=f"{name} {levels} × {1 << bits}",
            config={
                **{"data": data, "subset": part, "levels": levels, "bits": bits, "vectors": VECTORS, "turns": TURNS},
                **({"refits": refits} if refits else {}),
            },
            measure=functools.partial(measure, name, levels, bits, seed),
            at_most={"error of peer's": 1.02, "time of peer's": 2.0},
            note="peer: faiss ResidualQuantizer",
            corpus=functools.partial(_fingerprint, data, part),
            seeds=(seed,),
            speed=True,
        )
        for name, (data, part, refits) in PARTS.items()
    ]


if __name__ == "__main__":
    sys.exit(harness.main("residual_quantization", rows()))
