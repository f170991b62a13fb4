"""The processes of one run: which this is, and what they say to each other beside the devices.

They talk through the key-value store of JAX's coordinator. Any thread may wait there, which it may not for a collective
of the devices: those have to come in one order everywhere. A process that is alone says and hears nothing.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gr_jax import progress
from gr_jax.errors import InputError

# How long processes wait for what another one fills: the longest stage has to fit in.
DEADLINE_S = 48 * 3600.0
_SLICE_MS = 2000  # so that a signal or an interrupt is noticed while waiting
STOPPED = 143  # exit code of a process that was asked to end: 128 + SIGTERM

_lock = threading.Lock()
_rounds: collections.Counter[str] = collections.Counter()
_asked = threading.Event()
_points = 0
_held = 0
_own = threading.local()
_ROOT = "gr_jax/"
# The place of what all processes do now, in this thread; _ALONE: this one does it by itself; None: nobody said.
_occasion: contextvars.ContextVar[str | None] = contextvars.ContextVar("occasion", default=None)
_ALONE = ""


class Stopped(SystemExit):
    """All processes were asked to end and have kept what they did; the same command goes on from there."""

    def __init__(self, where: str):
        super().__init__(STOPPED)
        self.where = where

    def __str__(self) -> str:
        return f"Stopped {self.where}, as asked. The same command goes on from there."


def index() -> int:
    """Which this is, from 0; asks no device."""
    return _state().process_id if _state().client is not None else 0


def count() -> int:
    """How many there are; asks no device."""
    return _state().num_processes if _state().client is not None else 1


def first() -> bool:
    """Whether this is the process that writes files, logs and reports for all."""
    return index() == 0


def gather(name: str, said: Any, *, deadline: float = DEADLINE_S) -> list[Any]:
    """What every process says, in their order; all have to come here.

    Args:
      name: of the occasion. Occasions of one name come in one order in all processes.
      said: JSON.
      deadline: seconds.

    Raises:
      InputError: a process did not come in time; names it.
    """
    if count() == 1:
        return [said]
    place = _round(name)
    _client().key_value_set(f"{place}/{index()}", json.dumps(said))
    heard = [json.loads(_hear(f"{place}/{one}", one, name, deadline)) for one in range(count())]
    _forget(place, f"/{index()}")
    return heard


def broadcast(name: str, said: Any = None, *, deadline: float = DEADLINE_S) -> Any:
    """What process 0 says; the others wait for it. See `gather`."""
    if count() == 1:
        return said
    place = _round(name)
    if first():
        _client().key_value_set(place, json.dumps(said))
        return said
    return json.loads(_hear(place, 0, name, deadline))


@contextlib.contextmanager
def together(name: str) -> Iterator[None]:
    """Inside, in this thread, all processes do the same in the same order, and may share it: see `share`. What one of
    them raises there is raised in those that wait for it.

    Args:
      name: of the occasion. Occasions of one name come in one order in all processes.
    """
    if count() == 1:
        yield
        return
    token = _occasion.set(_round(f"together/{name}").removeprefix(_ROOT))
    try:
        yield
    except Exception as error:
        with contextlib.suppress(Exception):  # another said so first, or the coordinator is gone
            _client().key_value_set(_failure(), json.dumps({"process": index(), **as_json(error)}))
        raise
    finally:
        _occasion.reset(token)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Inside, in this thread, this process shares nothing of what it does."""
    if count() == 1:
        yield
        return
    token = _occasion.set(_ALONE)
    try:
        yield
    finally:
        _occasion.reset(token)


def is_alone() -> bool:
    """Whether this is within `alone`."""
    return _occasion.get() == _ALONE


def share() -> tuple[int, int]:
    """(index, count) of this process among those that do what this thread does now, within `together`; else (0, 1)."""
    return (index(), count()) if _occasion.get() else (0, 1)


def exchange(name: str, said: bytes, *, deadline: float = DEADLINE_S) -> list[bytes]:
    """What every process says, in their order, within `together`; see `gather`."""
    place = _round(name)
    _client().key_value_set_bytes(f"{place}/{index()}", said)
    listen = _client().blocking_key_value_get_bytes
    heard = [said if one == index() else _hear(f"{place}/{one}", one, name, deadline, listen) for one in range(count())]
    # Whoever has heard all knows that all have left what this thread said before.
    if hasattr(_own, "said"):
        _client().key_value_delete(_own.said)
    _own.said = f"{place}/{index()}"
    return heard


def agree(name: str, work: Callable[[], Any], *, deadline: float = DEADLINE_S) -> Any:
    """Does in every process what any may fail in: where one does, all raise its error.

    Args:
      name: of the occasion.
      work: returns JSON.
      deadline: seconds.

    Returns:
      What it returned here.

    Raises:
      InputError: of the first process that raised one, which it names.
    """
    if count() == 1:
        return work()
    made, failed = None, None
    try:
        made = work()
    except Exception as error:
        failed = error
    for process, said in enumerate(gather(name, None if failed is None else as_json(failed), deadline=deadline)):
        if said is not None:
            if failed is not None and process == index():
                raise failed
            raise of_json(said, process) from failed
    return made


def by_first(name: str, work: Callable[[], Any], *, deadline: float = DEADLINE_S) -> Any:
    """What process 0 makes, JSON, in every process; where it raises, all raise.

    Raises:
      InputError: what process 0 raised.
    """
    if count() == 1:
        return work()
    said: dict[str, Any] | None = None
    failed: Exception | None = None
    if first():
        try:
            with alone():
                said = {"made": work()}
        except Exception as error:
            failed, said = error, {"failed": as_json(error)}
    said = broadcast(name, said, deadline=deadline)
    assert said is not None
    if failed is not None:
        raise failed
    if "failed" in said:
        raise of_json(said["failed"], 0)
    return said["made"]


def by_all(name: str, work: Callable[[], Any], *, deadline: float = DEADLINE_S) -> Any:
    """What process 0 makes, JSON, in every process. Within `together` all make it, so that they may share it out;
    elsewhere it is `by_first`.

    Raises:
      InputError: what a process raised.
    """
    if share() == (0, 1):
        return by_first(name, work, deadline=deadline)
    return broadcast(name, work(), deadline=deadline)


def as_json(error: Exception) -> dict[str, Any]:
    """An error as another process can be told it."""
    if isinstance(error, InputError):
        file = None if error.file is None else str(error.file)
        return {"problem": error.problem, "remedy": error.remedy, "file": file}
    return {"problem": f"{type(error).__name__}: {error}"[:500], "remedy": "See its log.", "file": None}


def of_json(said: Mapping[str, Any], process: int) -> InputError:
    """The error that another process told."""
    return InputError(f"process {process}: {said['problem']}", said["remedy"], file=said["file"])


def ask_to_stop(*_: Any) -> None:
    """Asks this process to end where it can go on later; a handler of SIGTERM. A second one ends it at once."""
    if _asked.is_set():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    _asked.set()


@contextlib.contextmanager
def ends_itself() -> Iterator[None]:
    """Inside, nothing ends this process but what is outside: training does so when it has kept a checkpoint."""
    global _held
    _held += 1
    try:
        yield
    finally:
        _held -= 1


def may_end() -> bool:
    """Whether this may be a place to end: not within `ends_itself`, and not in a thread beside the main one."""
    return not _held and threading.current_thread() is threading.main_thread()


def stop_here() -> bool:
    """Whether all processes end here: one of them was asked to, and all have come to this very point.

    Every process has to come to the same points in the same order. A process that is alone says what it was asked.
    """
    global _points
    if count() == 1:
        return _asked.is_set()
    from jax.experimental import multihost_utils

    _points += 1
    return bool(multihost_utils.reached_preemption_sync_point(_points))


def _state() -> Any:
    from jax._src import distributed  # no public way asks without starting the devices

    return distributed.global_state


def _client() -> Any:
    return _state().client


def _round(name: str) -> str:
    """The place of the next round of this name, of what is done together: what failed there leaves no round behind."""
    name = "/".join(filter(None, (_occasion.get(), name)))
    with _lock:
        _rounds[name] += 1
        return f"{_ROOT}{name}/{_rounds[name]}"


def _forget(place: str, own: str) -> None:
    """Whoever has heard all of a round knows that all have left the one before."""
    name, _, number = place.rpartition("/")
    if int(number) > 1:
        _client().key_value_delete(f"{name}/{int(number) - 1}{own}")


def _failure() -> str:
    """The key of what one of those failed in that do together what this thread does."""
    return f"{_ROOT}{_occasion.get()}/failed"


def _raise_another_s() -> None:
    """Raises what another process failed in, of what all do together."""
    if not _occasion.get():
        return
    try:
        said = json.loads(_client().key_value_try_get(_failure()))
    except Exception as error:  # of XLA's client
        if "NOT_FOUND" not in str(error):
            raise
        return
    if said["process"] != index():
        raise of_json(said, said["process"])


def _hear(key: str, process: int, name: str, deadline: float, listen: Callable[[str, int], Any] | None = None) -> Any:
    listen = listen or _client().blocking_key_value_get
    until = time.monotonic() + deadline
    with progress.waiting(f"waits for process {process}"):
        while True:
            left = until - time.monotonic()
            try:
                return listen(key, max(1, min(_SLICE_MS, int(1000 * left))))
            except Exception as error:  # of XLA's client; it has no class for each cause
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
                _raise_another_s()
                if left <= 0:
                    raise InputError(
                        f"process {process} did not come to {name!r} within {deadline:.0f} s",
                        "See its log; the same command goes on from what is finished.",
                    ) from error
