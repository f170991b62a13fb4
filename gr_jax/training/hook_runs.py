"""The hooks of one training: when they begin, when what they made takes effect, what a checkpoint keeps of them."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from gr_jax import processes
from gr_jax.errors import InputError
from gr_jax.training import on_hosts
from gr_jax.training.hooks import Arrays, Given, Hook, HookError, Outputs, checked
from gr_jax.training.train_state import Flat, Trainer, place, unflatten

_numbers = itertools.count()


class HookRuns:
    """Runs hooks for the training loop.

    A checkpoint does not wait for a hook that is running: it may run for many steps, and the best step is often the
    very one at which it began. The checkpoint keeps the parameters that it runs on instead, less those frozen ones that
    the checkpoint has anyway, and whoever goes on runs it again. A run whose output is due only after the last step is
    not begun, but its parameters are kept likewise, so that a training that is given more steps goes on as if it had
    had them from the start.

    Of several processes each runs every hook, on its own devices and with the same result; within a hook they may share
    what it does, as within `processes.together`.

    Args:
      hooks: all of them.
      trainer: has the shapes and places of all parameters.
      steps: of the training.

    Raises:
      InputError: two hooks of one name or of one parameter, or a parameter that is not there or not frozen.
    """

    def __init__(self, hooks: Sequence[Hook], trainer: Trainer, steps: int):
        self._hooks, self._trainer, self._steps = tuple(hooks), trainer, steps
        _check(self._hooks, trainer)
        self._outputs: dict[str, Outputs] = {}
        self._queues: dict[str, queue.SimpleQueue[int | None]] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._local: dict[int, Any] = {}
        self._kept: list[Any] = []
        # Trainings come in one order in all processes; what an earlier one gave up may still run.
        self._number = next(_numbers)

    @property
    def settings(self) -> dict[str, Any]:
        """What must be the same when training goes on, JSON."""
        return {hook.name: hook.describe() for hook in self._hooks}

    def start(
        self,
        step: int = 0,
        frozen: Flat | None = None,
        state: Mapping[str, Any] | None = None,
        arrays: Flat | None = None,
    ) -> None:
        """Begins; with all arguments it goes on from a checkpoint.

        Args:
          step: updates so far.
          frozen: parameters of the checkpoint.
          state, arrays: what `state` gave for it.
        """
        for hook in self._hooks:
            outputs, waiting = Outputs(hook.name), queue.SimpleQueue()  # type: ignore[var-annotated]
            outputs.drop(hook.source(step - 1))
            for source in _steps_of(hook, step) if state is not None else ():
                assert state is not None and arrays is not None and frozen is not None
                if source in state[hook.name]["made"]:
                    outputs.put(source, _below(arrays, f"{hook.name}/made/{source}/"))
                    continue
                learn, others = self._trainer.split(_below(arrays, f"{hook.name}/given/{source}/"))
                outputs.begin(source, Given(learn, {**frozen, **others}))
                self._note_local({**frozen, **others})
                if source + hook.lag < self._steps:
                    waiting.put(source)
            thread = threading.Thread(
                target=self._work, args=(hook, outputs, waiting), daemon=True, name=f"hook {hook.name}"
            )
            self._outputs[hook.name], self._queues[hook.name], self._threads[hook.name] = outputs, waiting, thread
            hook.outputs = outputs
            thread.start()

    def begin(self, step: int, learn: Flat, frozen: Flat) -> None:
        """Runs what is to run on the parameters of this step; raises what an earlier run raised."""
        for hook in self._hooks:
            outputs = self._outputs[hook.name]
            outputs.check()
            outputs.drop(hook.source(step - 1))
            if not step or step % hook.every:
                continue
            given = Given(on_hosts.copies(self._trainer.cut(learn)), dict(frozen))
            self._note_local(frozen)
            if outputs.begin(step, given) and step + hook.lag < self._steps:
                self._queues[hook.name].put(step)

    def swap(self, step: int, frozen: Flat) -> Flat:
        """The frozen parameters that update `step` uses; waits for them if it must."""
        for hook in self._hooks:
            source = hook.source(step)
            if hook.parameters and source and source + hook.lag == step:
                made = self._outputs[hook.name].wait(source)
                shardings = self._trainer.shardings
                new = self._trainer.pad({path: made[path] for path in hook.parameters})
                frozen = {**frozen, **{path: place(value, shardings[path]) for path, value in new.items()}}
        return frozen

    def tables(self, step: int) -> dict[str, Arrays]:
        """Hook → tables that the parameters of this step were trained with last."""
        return {hook.name: hook.at(max(step - 1, 0)) for hook in self._hooks}

    def finish(self) -> None:
        """Waits for what is running; raises what it raised."""
        for hook in self._hooks:
            self._queues[hook.name].put(None)
            self._threads[hook.name].join()
            self._outputs[hook.name].check()

    def close(self) -> None:
        """Ends without waiting: what is running may run on, and nobody will see what it makes."""
        for hook in self._hooks:
            if hook.name in self._outputs:
                self._outputs[hook.name].close()
                self._queues[hook.name].put(None)

    def state(self, step: int, frozen: Flat) -> tuple[dict[str, Any], Flat]:
        """What a checkpoint of this step keeps: (JSON, arrays by path)."""
        described: dict[str, Any] = {}
        arrays: Flat = {}
        for hook in self._hooks:
            made, begun = self._outputs[hook.name].all()
            described[hook.name] = {"made": [], "given": {}}
            for source in _steps_of(hook, step):
                if source in made:
                    described[hook.name]["made"].append(source)
                    arrays |= {f"{hook.name}/made/{source}/{n}": made[source][n] for n in _kept(hook, source, step)}
                    continue
                given = begun[source]
                others = [path for path, value in given.frozen.items() if value is not frozen[path]]
                described[hook.name]["given"][str(source)] = others
                parameters = self._trainer.cut({**given.learn, **{path: given.frozen[path] for path in others}})
                arrays |= {f"{hook.name}/given/{source}/{path}": value for path, value in parameters.items()}
        return described, arrays

    def abstract(self, step: int, state: Any) -> Flat:
        """The shapes of the arrays that belong to what `state` gave.

        Raises:
          ValueError, LookupError, TypeError, AttributeError: no checkpoint of these hooks at this step says so.
        """
        shapes: Flat = {}
        for hook in self._hooks:
            like = self._like(hook)
            made = [int(source) for source in state[hook.name]["made"]]
            given = {int(source): list(others) for source, others in state[hook.name]["given"].items()}
            if sorted([*made, *given]) != _steps_of(hook, step):
                raise ValueError(f"{hook.name!r} ran at {sorted([*made, *given])}")
            for source in made:
                for name in _kept(hook, source, step):
                    shapes[f"{hook.name}/made/{source}/{name}"] = jax.ShapeDtypeStruct(*like[name])
            for source, others in given.items():
                for path in [*(path for path, factor in self._trainer.factors.items() if factor), *others]:
                    shapes[f"{hook.name}/given/{source}/{path}"] = self._trainer.shapes[path]
        return shapes

    def tables_of(self, step: int, state: Mapping[str, Any], arrays: Flat) -> dict[str, Arrays]:
        """`tables` of a checkpoint's step, of what `state` gave then."""
        found: dict[str, Arrays] = {}
        for hook in self._hooks:
            source = hook.source(step - 1)
            made = _below(arrays, f"{hook.name}/made/{source}/")
            found[hook.name] = {name: made[name] for name in hook.tables} if source else hook.tables
        return found

    def _note_local(self, frozen: Mapping[str, Any]) -> None:
        """Brings what is spread over processes onto this host: a thread that runs a hook could not, alone."""
        for value in frozen.values():
            if isinstance(value, jax.Array) and not value.is_fully_addressable and id(value) not in self._local:
                self._local[id(value)] = on_hosts.local(value)
                self._kept.append(value)  # so that no other array gets its id

    def _like(self, hook: Hook) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        like = {name: (array.shape, array.dtype) for name, array in hook.tables.items()}
        shapes = self._trainer.shapes
        return like | {path: (shapes[path].shape, np.dtype(shapes[path].dtype)) for path in hook.parameters}

    def _work(self, hook: Hook, outputs: Outputs, waiting: queue.SimpleQueue[int | None]) -> None:
        """One run after the other, so that no more memory is needed than for one."""
        while (step := waiting.get()) is not None:
            given = outputs.given(step)
            frozen = {path: np.asarray(self._local.get(id(value), value)) for path, value in given.frozen.items()}
            params = {**self._trainer.cut(frozen), **given.learn}
            try:
                with processes.together(f"hooks {self._number}, {hook.name} of step {step}"):
                    made = hook.run(unflatten(params), step)
            except BaseException as error:  # raised where training, or a batch, comes to it
                outputs.fail(_explained(hook, step, error))
                return
            try:
                outputs.put(step, checked(hook, step, made, self._like(hook)))
            except InputError as error:
                outputs.fail(error)
                return


def _steps_of(hook: Hook, step: int) -> list[int]:
    """The runs that a checkpoint of this step keeps: the one in effect before it, and all that began since."""
    return list(range(max(hook.source(step - 1), hook.every), step, hook.every))


def _kept(hook: Hook, source: int, step: int) -> list[str]:
    """What a checkpoint of this step keeps of an output: parameters that are in effect stand among the parameters."""
    return [*hook.tables, *(hook.parameters if source + hook.lag >= step else ())]


def _below(arrays: Flat, prefix: str) -> Flat:
    return {path.removeprefix(prefix): value for path, value in arrays.items() if path.startswith(prefix)}


def _explained(hook: Hook, step: int, error: BaseException) -> BaseException:
    """The same error, saying whose it is."""
    where = f"the hook {hook.name!r}, run at step {step}"
    explained: BaseException
    if isinstance(error, InputError):
        explained = InputError(
            f"{where}: {error.problem}", error.remedy, file=error.file, line=error.line, value=error.value
        )
    else:
        explained = HookError(
            f"{where}, failed: {type(error).__name__}: {error}. The checkpoints before are as they were."
        )
    explained.__cause__ = error
    return explained


def _check(hooks: Sequence[Hook], trainer: Trainer) -> None:
    names: set[str] = set()
    owner: dict[str, str] = {}
    for hook in hooks:
        if hook.name in names:
            raise InputError("two hooks have one name", "Name them apart.", value=hook.name)
        names.add(hook.name)
        for path in hook.parameters:
            if path not in trainer.shapes:
                raise InputError(
                    f"the hook {hook.name!r} swaps a parameter that is none of the model's",
                    f"Name one such as {min(trainer.shapes)}.",
                    value=path,
                )
            if trainer.factors[path]:
                raise InputError(
                    f"the hook {hook.name!r} swaps a parameter that learns",
                    "Give it a learning-rate multiplier of 0.",
                    value=path,
                )
            if path in owner:
                raise InputError(
                    f"the hooks {owner[path]!r} and {hook.name!r} swap one parameter", "Let one do it.", value=path
                )
            owner[path] = hook.name
