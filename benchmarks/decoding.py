"""Constrained beam search beside its peers, and its exactness. `python -m benchmarks.decoding`.

Speed: the whole decode (cross-attention's keys and values, every step, top-K) of the same weights from the same encoder
output, 100,000 random docids of 6 codes × 256, a vocabulary of 33,664, T5-small's shape, float32, 2 CPU threads each
(on a larger machine: `taskset -c 0,1 python -m benchmarks.decoding`). The sides take turns; "times faster" is the
median of the ratios of neighbouring turns. What is compared of the answers is the top-K under the peer's normaliser, in
the rows that time ours by level, too: no peer has that one.

* `transformers`: `generate` with a dict trie as `prefix_allowed_tokens_fn`, 6 steps: its best case, no EOS.
* `grtools` (PyPI), in an interpreter of its own, since it wants another Keras. Without its CUDA packages:

      python -m venv grtools && grtools/bin/pip install 'jax>=0.10' 'keras<3.15' flax einops beartype etils safetensors
      grtools/bin/pip install --no-deps grtools 'keras-hub<0.31' && export GR_JAX_GRTOOLS_PYTHON=$PWD/grtools/bin/python

  It normalises over the constraint, so its top-K is compared with ours of that normaliser. See `grtools_peer`.

How far ours is ahead depends on the machine, so rows are kept for each kind.

Exactness: see `exactness`. A GPU's rows (T5-base, steps against the roofline) exist where JAX sees a GPU; what
is timed there builds the cross-attention's keys and values, too, which the roofline leaves out. About 8 minutes on 2
cores.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import exactness, harness
from benchmarks.random_decoder import CODES, DOCIDS, LEVELS, VOCABULARY, decode, random_setting
from benchmarks.roofline import roofline
from gr_jax.constraints import Trie
from gr_jax.decoding import beam_search
from gr_jax.decoding.backoff import Backoff
from gr_jax.errors import InputError

GRTOOLS = "GR_JAX_GRTOOLS_PYTHON"
# name → batch, beams, source length
SHAPES = {"8×10": (8, 10, 32), "1×100": (1, 100, 64), "1×100, long source": (1, 100, 256)}


def _pairs(theirs: Callable[[], float], ours: Callable[[], Any], pairs: int) -> dict[str, float]:
    """Medians over turns; `theirs` says itself how many seconds it took."""
    theirs(), jax.block_until_ready(ours())  # compiled, caches warm
    both = []
    for _ in range(pairs):
        start = time.perf_counter()
        jax.block_until_ready(ours())
        both.append((time.perf_counter() - start, theirs()))
    return {
        "times faster": statistics.median(peer / own for own, peer in both),
        "ms": 1e3 * statistics.median(own for own, _ in both),
        "peer ms": 1e3 * statistics.median(peer for _, peer in both),
    }


def _agreement(sequences: np.ndarray, scores: np.ndarray, found: Any) -> dict[str, float]:
    """The share of ranks that hold the same docid (1 = the same top-K), and the largest difference of scores."""
    return {
        "same docids": float((sequences == np.asarray(found.sequences)).all(-1).mean()),
        "score difference": float(np.abs(scores - np.asarray(found.scores)).max()),
    }


def against_transformers(shape: str, normalize: str, pairs: int) -> dict[str, float]:
    """`transformers` with a dict trie; it always normalises over the vocabulary."""
    import torch
    from transformers import T5ForConditionalGeneration
    from transformers.modeling_outputs import BaseModelOutput

    harness.two_threads("decoding")
    torch.set_num_threads(2)
    setting, (batch, beams, length) = random_setting(), SHAPES[shape]
    model = T5ForConditionalGeneration.from_pretrained(setting.folder).eval()
    tokens, encoded = setting.encoded(batch, length)
    root: dict = {}
    for docid in setting.docids.tokens.tolist():
        node = root
        for token in docid:
            node = node.setdefault(token, {})

    def allowed(_, written):
        node = root
        for token in written.tolist()[1:]:
            node = node.get(token, {})
        return list(node) or [1]

    states, mask = torch.from_numpy(np.array(encoded)), torch.ones(batch, length, dtype=torch.long)

    def generate():
        start = time.perf_counter()
        with torch.no_grad():
            answer = model.generate(
                encoder_outputs=BaseModelOutput(states),
                attention_mask=mask,
                num_beams=beams,
                num_return_sequences=beams,
                max_new_tokens=LEVELS,
                do_sample=False,
                length_penalty=0.0,
                prefix_allowed_tokens_fn=allowed,
                return_dict_in_generate=True,
                output_scores=True,
            )
        return answer, time.perf_counter() - start

    def ours(normalize=normalize):
        return decode(setting.decoder, tokens, encoded, setting.trie, beams=beams, normalize=normalize)

    answer, _ = generate()
    found = answer.sequences[:, 1 : 1 + LEVELS].reshape(batch, beams, LEVELS).numpy()
    agreement = _agreement(found, answer.sequences_scores.reshape(batch, beams).numpy(), ours("vocabulary"))
    return {**_pairs(lambda: generate()[1], ours, pairs), **agreement}


def against_grtools(shape: str, normalize: str, pairs: int) -> dict[str, float]:
    """`grtools`, in the interpreter that GR_JAX_GRTOOLS_PYTHON names."""
    harness.two_threads("decoding")
    setting, (batch, beams, length) = random_setting(), SHAPES[shape]
    tokens, encoded = setting.encoded(batch, length)
    np.save(setting.folder / "encoded.npy", np.asarray(encoded))

    def ours(normalize=normalize):
        return decode(setting.decoder, tokens, encoded, setting.trie, beams=beams, normalize=normalize)

    with _grtools(setting.folder, beams) as ask:
        expected = ours("constraint")
        ask(mask_future=False)
        answer = np.load(setting.folder / "answer.npz")
        published = _agreement(answer["sequences"], answer["scores"], expected)["same docids"]
        ask(mask_future=True)
        answer = np.load(setting.folder / "answer.npz")
        agreement = _agreement(answer["sequences"], answer["scores"], expected)
        return {**_pairs(lambda: ask(mask_future=True), ours, pairs), **agreement, "same as published": published}


@contextlib.contextmanager
def _grtools(folder: pathlib.Path, beams: int) -> Iterator[Callable[..., float]]:
    """A function that lets the peer answer once and gives the seconds that it took."""
    python = os.environ.get(GRTOOLS, "")
    if not python:
        raise InputError(
            "grtools lives in an environment of its own, and none is named",
            f"Make it as benchmarks/decoding.py says and set {GRTOOLS} to its python.",
        )
    peer = subprocess.Popen(
        [python, pathlib.Path(__file__).with_name("grtools_peer.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    to_peer, from_peer = peer.stdin, peer.stdout
    assert to_peer is not None and from_peer is not None
    request = {
        "folder": str(folder),
        "encoded": str(folder / "encoded.npy"),
        "answer": str(folder / "answer.npz"),
        "beams": beams,
    }

    def ask(*, mask_future: bool) -> float:
        print(json.dumps({**request, "mask_future": mask_future}), file=to_peer, flush=True)
        line = from_peer.readline()
        if not line:
            raise InputError("grtools ended without an answer", "See what it wrote above.", value=peer.wait())
        return json.loads(line)["seconds"]

    try:
        yield ask
    finally:
        to_peer.close()
        peer.wait()


def backoff_quality(threshold: float, *, beams: int, extra: int, documents: int, count: int) -> dict[str, float]:
    """How often the best docid of all is found, by siblings that re-enter and by plain beams of the same cost.

    The cost is the hypotheses that are fed to the network at a step, in the mean over queries decoded one by one.
    """
    docids = exactness.SCHEMES["hierarchical k-means, tokens by position"](documents, 0)
    model, params = exactness.network(docids, 2, 0)
    decoder = model.decoder(exactness.train(model, params, docids, 1000, 0))
    trie, queries = Trie.from_docids(docids), exactness.queries(np.arange(count))

    @functools.partial(jax.jit, static_argnames=("beams", "backoff"))
    def best(decoder, trie, queries, *, beams, backoff=None):
        slots = beams + (backoff.extra if backoff else 0)
        cache = decoder.start(queries, beams=slots, max_len=docids.max_steps)
        settings = {"beams": beams, "max_len": docids.max_steps, "history": True, "backoff": backoff}
        found = beam_search(decoder, cache, trie, **settings)
        assert found.history is not None
        live = found.history.valid[:, :, :slots].any(-1)  # --> [batch, steps]: a step whose result is fed again
        wide = found.history.valid[:, :, beams:slots].any(-1) & live
        fed = jnp.where(live, beams + wide * (slots - beams), 0).sum() / live.sum()
        return found.sequences[:, 0], fed

    truth, _ = best(decoder, trie, queries, beams=exactness.widest_level(docids))
    backed, fed = best(decoder, trie, queries, beams=beams, backoff=Backoff(extra, threshold))
    share = lambda found: float((found == truth).all(-1).mean())  # noqa: E731
    few, same_cost, many = (
        share(best(decoder, trie, queries, beams=k)[0]) for k in (beams, round(float(fed)), beams + extra)
    )
    return {
        "best found": share(backed),
        "hypotheses a step": float(fed),
        f"by {beams} beams": few,
        "by as many beams": same_cost,
        f"by {beams + extra} beams": many,
    }


def top_k(scheme: str) -> dict[str, float]:
    """Random and trained networks; see `exactness.measure`."""
    runs = [
        exactness.measure(scheme, documents=5000, trained=trained, few=50, count=2, steps=2000)
        for trained in (False, True)
    ]
    return {name: max(run[name] for run in runs) for name in ("wrong", "difference")}


def rows() -> list[harness.Row]:
    """The table."""
    network = {"docids": DOCIDS, "levels": LEVELS, "codes": CODES, "vocabulary": VOCABULARY, "shape": "T5-small"}
    found = []
    floors = {
        ("8×10", "vocabulary"): 2.8,
        ("1×100", "vocabulary"): 4.0,
        ("8×10", "level"): 4.8,
        ("1×100", "level"): 7.5,
    }
    for (shape, normalize), floor in floors.items():
        found.append(
            harness.Row(
                name=f"transformers, {shape}, {normalize}",
                config={**network, "batch, beams, source": SHAPES[shape], "normalize": normalize, "pairs": 9},
                measure=functools.partial(against_transformers, shape, normalize, 9),
                at_least={"times faster": floor, "same docids": 1.0},
                at_most={"score difference": exactness.TOLERANCE},
                seeds=(0, 1),
                speed=True,
            )
        )
    for shape in SHAPES:
        for normalize, floor in (("vocabulary", 3.0), ("level", 5.0)):
            found.append(
                harness.Row(
                    name=f"grtools, {shape}, {normalize}",
                    config={**network, "batch, beams, source": SHAPES[shape], "normalize": normalize, "pairs": 9},
                    measure=functools.partial(against_grtools, shape, normalize, 9),
                    at_least={"times faster": floor, "same docids": 1.0},
                    at_most={"score difference": exactness.TOLERANCE},
                    seeds=(0, 1),
                    speed=True,
                )
            )
    for scheme in exactness.SCHEMES:
        found.append(
            harness.Row(
                name=f"top-K, {scheme}",
                config={
                    "documents": 5000,
                    "beams": "50 and the widest level",
                    "queries": 2,
                    "steps": 2000,
                    "rate": "3e-3 to 0",
                },
                measure=functools.partial(top_k, scheme),
                at_most={"wrong": 0.0, "difference": exactness.TOLERANCE},
                seeds=(0,),
            )
        )
    for threshold in (-0.5, -1.0, -2.0):
        settings = {"beams": 2, "extra": 6, "documents": 2000, "count": 500}
        found.append(
            harness.Row(
                name=f"backoff below {threshold}",
                config={"threshold": threshold, **settings},
                measure=functools.partial(backoff_quality, threshold, **settings),
                note="no better than as many plain beams",
                seeds=(0,),
            )
        )
    if jax.default_backend() == "gpu":
        for batch in (1, 32, 256):
            for beams in (10, 100):
                for normalize in ("vocabulary", "level"):
                    found.append(
                        harness.Row(
                            name=f"GPU, {batch}×{beams}, {normalize}",
                            config={**network, "shape": "T5-base", "dtype": "bfloat16", "normalize": normalize},
                            measure=functools.partial(roofline, batch, beams, normalize),
                            seeds=(0,),
                            speed=True,
                        )
                    )
    else:
        print("decoding: JAX sees no GPU, so its rows are left out", file=sys.stderr)
    return found


if __name__ == "__main__":
    sys.exit(harness.main("decoding", rows()))
