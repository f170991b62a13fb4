"""What happens between training steps: mine negatives again, make a table anew, relabel targets.

A hook runs at every so many steps, on the parameters of that moment, in a thread of its own while training goes on.
What it returns takes effect at a declared step, so that what is trained on depends on steps alone and never on how long
the hook takes: a batch, or an update, that needs what is not made yet waits for it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from gr_jax.errors import InputError

Arrays = Mapping[str, np.ndarray]
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
A_ROUND = "What changes names or shapes is a round: train in another stage."


class HookError(RuntimeError):
    """A hook raised something; says which one, and at which step it ran. The cause is what it raised."""


class TableSource(Protocol):
    """Which arrays are in effect at which step: a `Hook`, or tables that stay as they are."""

    @property
    def name(self) -> str: ...
    def at(self, step: int) -> Arrays: ...


@dataclasses.dataclass(eq=False)
class Hook:
    """What happens at every `every`-th step. Given to `train` and, where batches read its tables, to batches.

    The parameters of step s are those after s updates. What `run` makes of them is in effect from update s + `lag` on,
    counted from 0: `lag` = 0 is the very next one, and training waits for the hook; `lag` = `every` lets it run while
    training goes on, as ANCE does (Xiong et al. 2021, section 4). The hook runs at `every`, 2 · `every`, …; never at
    step 0, and not where its output would be used only after the last step. An evaluation or a checkpoint of step s
    sees what the updates before s were made with.

    Attributes:
      name: letters, digits, "_", "." and "-"; in messages and checkpoints.
      run: (parameters, step) → arrays by name: one for each of `tables` and of `parameters`, of the same shapes and
        dtypes. The parameters are nested NumPy arrays that nothing overwrites. What it returns must follow from its
        arguments alone: after an interruption it is run again.
      every: steps between runs; an epoch is a number of steps, which the caller knows.
      lag: steps from the parameters to the use of what was made of them.
      tables: what batches read by `at` until the first output takes effect.
      parameters: paths of frozen parameters (of learning-rate factor 0) that the output replaces, "a/b/c". What the
        optimiser remembers stays as it is.
      settings: what decides `run` besides, JSON; must be the same when training goes on.
      outputs: what the latest training has made; None before there was any.

    Raises:
      InputError: a name, `every` or `lag` makes no sense.
    """

    name: str
    run: Callable[[Any, int], Arrays]
    every: int
    lag: int = 0
    tables: Arrays = dataclasses.field(default_factory=dict)
    parameters: Sequence[str] = ()
    settings: Any = None
    outputs: Outputs | None = dataclasses.field(default=None, init=False, repr=False)

    def __post_init__(self):
        if not _NAME.fullmatch(self.name):
            raise InputError("not a name of a hook", "Use letters, digits, _, . and -.", value=self.name)
        if self.every < 1 or self.lag < 0:
            raise InputError(
                f"the hook {self.name!r} runs every {self.every} steps, and is used {self.lag} steps later",
                "Give every ≥ 1 and lag ≥ 0.",
                value=(self.every, self.lag),
            )
        names = [*self.tables, *self.parameters]
        if not names or len(set(names)) < len(names):
            raise InputError(
                f"the hook {self.name!r} makes nothing, or one thing twice",
                "Name each of its tables and parameters once.",
                value=names,
            )
        if not all(_NAME.fullmatch(name) for name in self.tables):
            raise InputError(
                f"not names of tables of the hook {self.name!r}",
                "Use letters, digits, _, . and -.",
                value=list(self.tables),
            )
        self.tables = {name: _readonly(array) for name, array in self.tables.items()}

    def source(self, step: int) -> int:
        """Of which step's parameters is what update `step` uses; 0: of none, `tables` are as they were given."""
        return max((step - self.lag) // self.every * self.every, 0)

    def used(self, steps: int) -> int:
        """How many outputs took effect in the first `steps` updates."""
        return max((steps - 1 - self.lag) // self.every, 0)

    def at(self, step: int) -> Arrays:
        """The tables that the batch of update `step` reads; waits for them if it must.

        Raises:
          InputError: nobody is training, so that they will never be made, or they were let go of.
          HookError: the hook failed.
        """
        source = self.source(step)
        if not source:
            return self.tables
        if self.outputs is None:
            raise InputError(
                f"the tables of the hook {self.name!r} that step {step} uses are made while training goes on",
                "Read batches of later steps from `train` only.",
                value=step,
            )
        made = self.outputs.wait(source)
        return {name: made[name] for name in self.tables}

    def describe(self) -> dict[str, Any]:
        """What must be the same when training goes on, JSON."""
        return {
            "every": self.every,
            "lag": self.lag,
            "tables": {name: _fingerprint(array) for name, array in sorted(self.tables.items())},
            "parameters": sorted(self.parameters),
            "settings": self.settings,
        }


@dataclasses.dataclass(frozen=True)
class Given:
    """The parameters that a hook runs on.

    Attributes:
      learn: copies on the host: the next update overwrites the originals.
      frozen: of that moment, which no update overwrites.
    """

    learn: Arrays
    frozen: Mapping[str, Any]


class Outputs:
    """What one hook has made in one training, and what it is to be made of; shared by threads.

    Args:
      name: of the hook.
    """

    def __init__(self, name: str):
        self._name, self._changed = name, threading.Condition()
        self._made: dict[int, Arrays] = {}
        self._begun: dict[int, Given] = {}
        self._failure: BaseException | None = None
        self._oldest, self._closed = 0, False

    def begin(self, step: int, given: Given) -> bool:
        """Notes what step's run is to be made of; False where it was begun already."""
        with self._changed:
            if step in self._made or step in self._begun:
                return False
            self._begun[step] = given
            return True

    def given(self, step: int) -> Given:
        """What a run that was begun is made of."""
        with self._changed:
            return self._begun[step]

    def put(self, step: int, arrays: Arrays) -> None:
        """Notes what a run made."""
        with self._changed:
            self._made[step] = arrays
            self._begun.pop(step, None)
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """From now on, whoever waits gets this error."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def close(self) -> None:
        """Training has ended: nobody need wait any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def check(self) -> None:
        """Raises what the hook raised, if it did."""
        with self._changed:
            if self._failure is not None:
                raise self._failure

    def drop(self, before: int) -> None:
        """Lets go of what was made of the parameters of earlier steps."""
        with self._changed:
            self._oldest = before
            for step in [step for step in self._made if step < before]:
                del self._made[step]

    def wait(self, step: int) -> Arrays:
        """What was made of the parameters of this step, as soon as it is."""
        with self._changed:
            while step not in self._made:
                if self._failure is not None:
                    raise self._failure
                if self._closed or step < self._oldest:
                    raise InputError(
                        f"what the hook {self._name!r} made at step {step} is not there"
                        f"{': training has ended' if self._closed else ' any more'}",
                        "Read batches in order, and from `train` only.",
                        value=step,
                    )
                self._changed.wait()
            return self._made[step]

    def all(self) -> tuple[dict[int, Arrays], dict[int, Given]]:
        """(what was made, what is to be made of what), by step."""
        with self._changed:
            return dict(self._made), dict(self._begun)


def _readonly(array: np.ndarray) -> np.ndarray:
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


def checked(hook: Hook, step: int, made: Any, like: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> Arrays:
    """What a hook returned, on the host, if it fits.

    Args:
      hook: which.
      step: at which it ran.
      made: what it returned.
      like: name → (shape, dtype) as they must be.

    Raises:
      InputError: another name, shape or dtype.
    """
    where = f"the hook {hook.name!r}, run at step {step},"
    if not isinstance(made, Mapping) or set(made) != set(like):
        names = sorted(map(str, made)) if isinstance(made, Mapping) else type(made).__name__
        raise InputError(f"{where} must return {sorted(like)}", A_ROUND, value=names)
    arrays = {name: np.asarray(array) for name, array in made.items()}
    for name, array in arrays.items():
        shape, dtype = like[name]
        if array.shape != shape or array.dtype != dtype:
            raise InputError(
                f"{where} returned {name!r} as {array.dtype}{array.shape}, where {dtype}{shape} is swapped", A_ROUND
            )
    return {name: _readonly(array) for name, array in arrays.items()}


def _fingerprint(array: np.ndarray) -> str:
    digest = hashlib.sha256(f"{array.shape} {array.dtype} ".encode())
    digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return digest.hexdigest()[:16]
