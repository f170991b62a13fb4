"""Whether answering is the same program on the same index after a student was taught: a row of `benchmarks.dgr`."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence

import jax
from jax import monitoring
from jax.experimental.compilation_cache import compilation_cache

from benchmarks import harness
from benchmarks.recipe_runs import RecipeRun
from gr_jax import storage
from gr_jax.corpus import read_beir
from gr_jax.retrievers import index

QUESTIONS = 8
_HIT, _MISS = "/jax/compilation_cache/cache_hits", "/jax/compilation_cache/cache_misses"


@contextlib.contextmanager
def _counted() -> Iterator[dict[str, int]]:
    """Counts programs that XLA compiles anew, and those that it takes from a cache which starts empty."""
    counts = {_HIT: 0, _MISS: 0}

    def listen(event: str, **_: object) -> None:
        if event in counts:
            counts[event] += 1

    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        monitoring.register_event_listener(listen)
        for name, value in zip(names, (folder, 0.0), strict=True):
            jax.config.update(name, value)
        jax.clear_caches()
        compilation_cache.reset_cache()
        try:
            yield counts
        finally:
            for name, value in before.items():
                jax.config.update(name, value)
            compilation_cache.reset_cache()
            monitoring.unregister_event_listener(listen)


def _parts(folder: pathlib.Path) -> dict[str, tuple[str, int]]:
    """File → its digest and bytes."""
    files = storage.read_folder(folder / "retriever", verify=False).files
    return {name: (one["sha256"], one["bytes"]) for name, one in files.items() if name != storage.MANIFEST}


def inference_untouched(student: RecipeRun, taught: RecipeRun) -> Mapping[str, float]:
    """Files of both indices that differ, and programs that answering with the second compiles anew, after the first
    answered the same questions."""
    for run in (student, taught):
        run.make()
    files = [_parts(run.folder / "index") for run in (student, taught)]
    differing = {name for name in files[0].keys() | files[1].keys() if files[0].get(name) != files[1].get(name)}
    parameters = {name for name in differing if "parameters" in name}
    texts: Sequence[str] = read_beir(harness.data_folder(student.data)).split_queries("dev").texts[:QUESTIONS]
    with _counted() as counts:
        index.load(student.folder / "index").retriever.retrieve(texts, 100)
        first = counts[_MISS]
        jax.clear_caches()
        index.load(taught.folder / "index").retriever.retrieve(texts, 100)
    return {
        "files": len(files[0]),
        "files of parameters that differ": len(parameters),
        "other files that differ": len(differing - parameters),
        "bytes more": sum(size for _, size in files[1].values()) - sum(size for _, size in files[0].values()),
        "programs": first,
        "compiled anew": counts[_MISS] - first,
        "taken from the cache": counts[_HIT],
    }
