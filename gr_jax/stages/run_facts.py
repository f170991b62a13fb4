"""What a report says of a run besides its data: settings, weights, minutes of stages, latency, bytes of the index."""

from __future__ import annotations

import pathlib
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gr_jax import storage
from gr_jax.errors import InputError
from gr_jax.retrievers.base import Retriever

TIMED, SECONDS = 20, 3.0
_WEIGHTS = {"minilm": "MiniLM, pretrained", "t5": "random, from scratch", "lsa": "none: LSA"}


def stages_behind(read: Sequence[pathlib.Path]) -> dict[pathlib.Path, storage.Manifest]:
    """Finished stages and all that they were made from, as far as the folders are still there.

    Args:
      read: folders of stages; those that they read lie beside them.
    """
    parents = list(dict.fromkeys(folder.parent for folder in read))
    found: dict[pathlib.Path, storage.Manifest] = {}
    waiting: list[tuple[pathlib.Path, str | None]] = [(folder, None) for folder in read]
    while waiting:
        folder, key = waiting.pop(0)
        if folder in found or not (folder / storage.MANIFEST).is_file():
            continue
        try:
            manifest = storage.read_folder(folder, verify=False)
        except InputError:
            continue
        if key in (None, manifest.made_from):
            found[folder] = manifest
            for name, upstream in manifest.meta.get("inputs", {}).items():
                places = [place for parent in parents for place in (parent / name, *parent.glob(f"*-{upstream}"))]
                waiting += [(place, upstream) for place in places]
    return found


def minutes(stages: Mapping[pathlib.Path, storage.Manifest]) -> str:
    """The minutes of each stage, longest first, and of all; those of shared stages too, whichever run made them."""
    took = {_name(folder, one): one.meta["seconds"] / 60 for folder, one in stages.items() if "seconds" in one.meta}
    longest = sorted((name for name in took if took[name] >= 0.05), key=lambda name: -took[name])
    named = [f"{name} {took[name]:.1f}" for name in longest]
    return f"{sum(took.values()):.1f} in all{': ' if named else ''}{', '.join(named)}"


def weights(stages: Mapping[pathlib.Path, storage.Manifest]) -> str:
    """What each network of these stages started from."""
    said = {}
    for folder, manifest in stages.items():
        config = manifest.meta.get("config", {}) if manifest.kind != "vocabulary" else {}
        for field, value in _encoders(config):
            value = value[0] if isinstance(value, list) else value
            known = f"folder with content {value['content']}" if isinstance(value, dict) else _WEIGHTS.get(value, value)
            said[f"{field} of {_name(folder, manifest)}"] = known
    grouped: dict[str, list[str]] = {}
    for where, known in said.items():
        grouped.setdefault(known, []).append(where)
    return "; ".join(f"{known} ({', '.join(sorted(where))})" for known, where in grouped.items())


def _encoders(config: Any) -> Iterator[tuple[str, Any]]:
    """Fields that name a pretrained network, at any depth of a stage's settings."""
    for field, value in config.items() if isinstance(config, dict) else ():
        content = isinstance(value, dict) and "content" in value
        if field in ("encoder", "decoder") and (isinstance(value, str | list) or content):
            yield field, value
        else:
            yield from _encoders(value)


def latency(retriever: Retriever, queries: Sequence[str], k: int) -> str:
    """Milliseconds of a query, asked one at a time for k documents: the median of at most 20 queries, fewer where they
    take long. A first one, which compiles, is not counted. "" where there is no query."""
    took: list[float] = []
    if queries:
        retriever.retrieve(queries[:1], k)
    for query in queries[:TIMED]:
        started = time.perf_counter()
        retriever.retrieve([query], k)
        took.append(time.perf_counter() - started)
        if sum(took) > SECONDS:
            break
    return f"{1000 * statistics.median(took):.3g} ms (median of {len(took)})" if took else ""


def size(index: storage.Manifest) -> str:
    """Bytes of an index: all, and how many of them are the documents' texts."""
    parts = {True: 0, False: 0}
    for file, entry in index.files.items():
        parts[file.startswith("corpus/")] += entry["bytes"]
    return f"{sum(parts.values()):,} bytes, {parts[True]:,} of them documents' texts"


def _name(folder: pathlib.Path, manifest: storage.Manifest) -> str:
    return folder.name.removesuffix(f"-{manifest.made_from}")
