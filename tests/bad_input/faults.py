"""What may befall a file of an artefact: accidents, which checksums show, and alterations that leave them right."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gr_jax import storage
from gr_jax.storage import folder as implementation

Random = np.random.Generator
HUGE = (10**9, -1, 2**31, 2**63, 10**400, 1e308)
NONSENSE = (None, "", "x", [], {}, True, -1, 0.5, [[]], "\ud800", {"": None})


MEMORY = 6 * 2**30  # bytes that a case may ask for; its threads' stacks count


class TooSlow(BaseException):
    """Not an Exception, so that nobody takes it for one that a library raised."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fails what takes longer, also what waits for a pipe, and what takes more memory than any of it needs."""

    def stop(*_: Any) -> None:
        raise TooSlow(f"more than {seconds} seconds")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _truncated(file: pathlib.Path, random: Random) -> None:
    os.truncate(file, int(random.integers(0, file.stat().st_size)))


def _empty(file: pathlib.Path, random: Random) -> None:
    os.truncate(file, 0)


def _longer(file: pathlib.Path, random: Random) -> None:
    file.write_bytes(file.read_bytes() + random.bytes(int(random.integers(1, 9))))


def _flipped(file: pathlib.Path, random: Random) -> None:
    data = bytearray(file.read_bytes() or b"\0")  # a kill may have left an empty one
    data[int(random.integers(len(data)))] ^= 1 << int(random.integers(8))
    file.write_bytes(data)


def _random(file: pathlib.Path, random: Random) -> None:
    file.write_bytes(random.bytes(file.stat().st_size))


def _swapped(file: pathlib.Path, random: Random) -> None:
    """With another file whose bytes are others."""
    others = [one for one in sorted(file.parent.iterdir()) if one.is_file() and one.read_bytes() != file.read_bytes()]
    if not others:
        return _random(file, random)
    other = others[int(random.integers(len(others)))]
    mine, its = file.read_bytes(), other.read_bytes()
    file.write_bytes(its)
    other.write_bytes(mine)


def _gone(file: pathlib.Path, random: Random) -> None:
    file.unlink()


def _folder(file: pathlib.Path, random: Random) -> None:
    file.unlink()
    file.mkdir()


def _pipe(file: pathlib.Path, random: Random) -> None:
    file.unlink()
    os.mkfifo(file)


def _link(file: pathlib.Path, random: Random) -> None:
    """To itself, to nothing, or to what has no end."""
    file.unlink()
    file.symlink_to((file, "nowhere", "/dev/zero")[int(random.integers(3))])


def _numbers(file: pathlib.Path, random: Random) -> None:
    """One number of a file is one that nothing can be counted with."""
    _alter(file, random, lambda value: isinstance(value, int | float) and not isinstance(value, bool), HUGE)


def _types(file: pathlib.Path, random: Random) -> None:
    """One value of a file is of another type."""
    _alter(file, random, lambda value: True, NONSENSE)


def _nested(file: pathlib.Path, random: Random) -> None:
    """One value of a JSON file is nested nearly as deeply as Python reads; other files hold this."""
    depth = int(random.choice([300, 900, 960, 980, 990]))
    deep = "[" * depth + "0" + "]" * depth
    if file.suffix == ".json":
        _alter(file, random, lambda value: True, ("DEEP",))
        file.write_text(file.read_text().replace('"DEEP"', deep))
    else:
        file.write_text(deep)


def _other_bytes(file: pathlib.Path, random: Random) -> None:
    [_truncated, _longer, _random, _flipped][int(random.integers(4))](file, random)


ACCIDENTS: dict[str, Callable[[pathlib.Path, Random], None]] = {
    "truncated": _truncated,
    "empty": _empty,
    "longer": _longer,
    "flipped": _flipped,
    "random": _random,
    "swapped": _swapped,
    "gone": _gone,
    "folder": _folder,
    "pipe": _pipe,
    "link": _link,
}
# After these the checksums are made to hold again.
ALTERATIONS: dict[str, Callable[[pathlib.Path, Random], None]] = {
    "numbers": _numbers,
    "types": _types,
    "nested": _nested,
    "other bytes": _other_bytes,
}


def _alter(file: pathlib.Path, random: Random, chosen: Callable[[Any], bool], values: tuple[Any, ...]) -> None:
    """Replaces one value of a JSON file, one of an array, or bytes of another file."""
    value = values[int(random.integers(len(values)))]
    if file.suffix == ".json":
        content = json.loads(file.read_bytes())
        places = [place for place in _places(content) if chosen(place[0][place[1]])] or [({"": content}, "")]
        parent, key = places[int(random.integers(len(places)))]
        parent[key] = value
        file.write_text(json.dumps(content, sort_keys=True))
    elif file.suffix == ".npy":
        array = np.load(file)
        if array.size and isinstance(value, int | float) and abs(value) < 2**63:
            with np.errstate(all="ignore"):
                array = array.copy()
                array.reshape(-1)[int(random.integers(array.size))] = np.array(value).astype(array.dtype)
        else:
            changed = (array.astype(np.float64), array[None], array[::-1], array[:-1], array.astype("S3"), array[:0])
            array = changed[int(random.integers(len(changed)))]
        np.save(file, array)
    else:
        _other_bytes(file, random)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every value within a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield value, key
        yield from _places(one)


def sign(folder: pathlib.Path, altered: pathlib.Path) -> None:
    """Makes every checksum of an artefact hold again, those of the manifest that was altered itself but for its own."""
    for manifest in sorted(folder.rglob(storage.MANIFEST), key=lambda path: -len(path.parts)):
        try:
            raw = json.loads(manifest.read_bytes())
            raw.pop("manifest_sha256", None)
            if manifest != altered:
                names = implementation._list_files(manifest.parent)
                raw["files"] = {name: implementation._describe(manifest.parent / name) for name in names}
            manifest.write_bytes(implementation._render(raw))
        except (ValueError, TypeError, AttributeError, RecursionError):
            pass  # altered beyond what can be signed


def files_of(folder: pathlib.Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def inflict(folder: pathlib.Path, name: str, fault: str, random: Random) -> None:
    """Does a fault to a file of an artefact."""
    file = folder / name
    if fault in ACCIDENTS:
        ACCIDENTS[fault](file, random)
    else:
        ALTERATIONS[fault](file, random)
        sign(folder, file)


def copy_of(folder: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    shutil.rmtree(to, ignore_errors=True)
    return pathlib.Path(shutil.copytree(folder, to))
