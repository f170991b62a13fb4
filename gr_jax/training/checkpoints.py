"""Checkpoints: parameters, optimiser state and the place in the data, all of one step or nothing.

Each is a folder `step_00000040` with files of arrays (`checkpoint_arrays`), one of each process, and our manifest: the
shape of every array, the settings that made it, the place in the data, and what dev has said so far. It takes its name
only when all of that is on disk, so there is no moment at which a kill leaves half of one.

Of several processes each writes its part into one folder, and process 0 gives it its name when all are done. All need
to see one disk. It can be read by another number of processes and on other devices.

The arrays are plain bytes and not Orbax's files: those have no checksums, so that Orbax restores an altered bit in
silence. Checkpoints that earlier versions wrote with Orbax are read as before.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import json
import os
import pathlib
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from gr_jax import processes, storage
from gr_jax.errors import DamagedError, InputError, InputWarning
from gr_jax.training import checkpoint_arrays, orbax_checkpoints
from gr_jax.training.train_state import Flat, unflatten

KIND = "checkpoint"
HOOKS = "hooks"  # group of arrays that hooks made, or run on
_NAME = re.compile(r"step_(\d{8,})")
_REMOVED, _DAMAGED = ".removed", ".damaged"
_ORBAX, _FORMAT = 1, 2  # how arrays lie: as Orbax writes them, as `checkpoint_arrays` does
_DEADLINE_S = 1800.0  # for a process to have written its part
_MODEL = "model"  # among settings: fields of the model


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """What one checkpoint holds besides arrays.

    Attributes:
      step: updates so far.
      data: place in the data, what `get_state()` of the batches gave.
      progress: what training knows besides: evaluations so far, the best step, whether it has stopped.
      hooks: which of their arrays are in the group "hooks", as `HookRuns.state` says it.
    """

    step: int
    data: Any
    progress: dict[str, Any]
    hooks: dict[str, Any] = dataclasses.field(default_factory=dict)


class Checkpoints:
    """The checkpoints of one run.

    Args:
      folder: where they lie, one folder each.
      settings: all that decides the parameters, JSON; a checkpoint made with other settings is refused. Of those under
        "model" only what both have is compared.
      keep: how many of the latest are kept; what these name best is kept besides, as none is whole without it.
    """

    def __init__(self, folder: str | os.PathLike, settings: Mapping[str, Any], *, keep: int = 2):
        self.folder, self._settings, self._keep = pathlib.Path(folder), dict(settings), max(keep, 1)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
        self._writing: concurrent.futures.Future | None = None

    def save(self, snapshot: Snapshot, arrays: Mapping[str, Flat], *, best: int | None = None) -> None:
        """Copies this process's part of the arrays and writes it in the background; waits for the one before.

        Args:
          snapshot: of the same step as the arrays.
          arrays: group ("params", "opt_state", "hooks") → flat dict of arrays; may be donated as soon as this returns.
          best: step that is to be kept besides the latest.

        Raises:
          InputError: the one before could not be written by one of the processes (a full disk); older ones are as they
            were.
        """
        self.wait()
        pieces = checkpoint_arrays.own_pieces(arrays)
        self._writing = self._thread.submit(self._write, snapshot, pieces, _describe(arrays), best)

    def wait(self) -> None:
        """Until what was saved is on disk."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def close(self) -> None:
        """`wait`, and end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def latest(self) -> int | None:
        """Step of the latest checkpoint, None if there is none."""
        return max(steps(self.folder), default=None)

    def newest(
        self,
        like: Mapping[str, Flat],
        hooks: Callable[[int, Any], Flat] | None = None,
        shardings: Mapping[str, Flat] | None = None,
    ) -> tuple[Snapshot, dict[str, Flat]] | None:
        """Reads the newest checkpoint that is whole; None where there is none, and training begins anew.

        Where one of the processes finds a checkpoint damaged, all pass it over with a warning; it is put aside as
        `step_00000040.damaged`.

        Args:
          like, hooks, shardings: see `read`.

        Raises:
          InputError: one was made with other settings, by another version, or its arrays do not fit the model.
        """
        for step in reversed(processes.by_first("checkpoints", lambda: steps(self.folder))):
            found, said = None, ("", "")
            try:
                found = self.read(step, like, hooks, shardings)
                self._check_best(step, found[0])
            except DamagedError as error:
                said = ("damaged", error.problem)
            except InputError as error:
                if processes.count() == 1:
                    raise
                said = ("refused", processes.as_json(error))  # type: ignore[assignment]
            everywhere = processes.gather("checkpoint read", said)
            for process, (verdict, what) in enumerate(everywhere):
                if verdict == "refused":
                    raise processes.of_json(what, process)
            damage = [f"process {process}: {what}" for process, (verdict, what) in enumerate(everywhere) if verdict]
            if not damage:
                return found
            processes.by_first("damaged checkpoint", functools.partial(self._put_aside, step, damage))
        return None

    def _check_best(self, step: int, snapshot: Snapshot) -> None:
        """Raises DamagedError where the best of the evaluations so far is gone: training could not end with it."""
        best = snapshot.progress.get("best_step")
        if best is None or best == step:
            return
        if not processes.first() and _format_of(path_of(self.folder, best)) != _ORBAX:
            return  # Orbax itself waits for all processes where one reads
        try:
            load_params(path_of(self.folder, best))
        except InputError as error:
            raise DamagedError(
                f"it needs the best one before it, of step {best}: {error.problem}", "Restore that folder from a copy.",
                file=path_of(self.folder, step),
            ) from error  # fmt: skip

    def _put_aside(self, step: int, damage: list[str]) -> None:
        folder = path_of(self.folder, step)
        older = [one for one in steps(self.folder) if one < step]
        whats_next = f"An older one, of step {max(older)}, is tried" if older else "Training begins anew"
        said = damage[0].partition(": ")[2] if processes.count() == 1 else "; ".join(damage)
        aside = folder.with_suffix(_DAMAGED)
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(folder, aside)
        warnings.warn(
            InputWarning(f"The checkpoint of step {step} is passed over: {said}. {whats_next}. It is kept as {aside}."),
            stacklevel=2,
        )

    def read(
        self,
        step: int,
        like: Mapping[str, Flat],
        hooks: Callable[[int, Any], Flat] | None = None,
        shardings: Mapping[str, Flat] | None = None,
    ) -> tuple[Snapshot, dict[str, Flat]]:
        """Reads and checks one checkpoint.

        Args:
          step: which.
          like: group → flat dict of arrays or shapes as they must be.
          hooks: from the step and its state of hooks to the shapes of their arrays; None where there are no hooks.
          shardings: group → path → where an array is to lie. Each process reads the parts that its devices need.

        Returns:
          What it says, and the arrays in the structure of `like`: JAX's where there is a sharding, else NumPy's.

        Raises:
          InputError: it was made with other settings, or its arrays do not fit the model.
          DamagedError: something of it is not as it was written.
        """
        folder = path_of(self.folder, step)
        manifest = _read_manifest(folder)
        state = manifest.meta["hooks"]
        with storage.explain_content(folder):
            self._check_settings(folder, manifest.meta["settings"])
            try:
                like = {**like, HOOKS: {} if hooks is None else hooks(step, state)}
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise InputError(
                    f"damaged or foreign checkpoint: its state of hooks makes no sense: {error!r}",
                    "Restore the folder from a copy, or remove it to go on from another or begin anew.",
                    file=folder,
                ) from error
            _check_arrays(folder, manifest.meta["arrays"], like)
            arrays = _restore(folder, manifest.meta, list(like), shardings or {})
        return Snapshot(step, manifest.meta["data"], manifest.meta["progress"], state), arrays

    def _write(self, snapshot: Snapshot, pieces: list, described: Mapping[str, Any], best: int | None) -> None:
        """This process's part; process 0 makes the folder, and gives it its name when all have written."""
        folder = path_of(self.folder, snapshot.step)
        meta = {
            "step": snapshot.step,
            "data": snapshot.data,
            "progress": snapshot.progress,
            "hooks": snapshot.hooks,
            "settings": self._settings,
            "arrays": described,
            "format": _FORMAT,
            "processes": processes.count(),
        }
        try:
            if processes.first():
                self._publish(folder, meta, pieces)
            else:
                said = processes.broadcast("checkpoint folder")
                if "failed" in said:
                    raise processes.of_json(said["failed"], 0)
                self._write_part(folder.with_name(said["name"]), folder, pieces)
        except Exception as error:
            failure = error if isinstance(error, InputError) else self._explained(folder, error)
            _raise_first(failure, processes.gather("checkpoint", processes.as_json(failure)))
        _raise_first(None, processes.gather("checkpoint", None))
        if processes.first():
            self._remove_old({snapshot.step, best})

    def _publish(self, folder: pathlib.Path, meta: dict[str, Any], pieces: list) -> None:
        told = False
        try:
            files = checkpoint_arrays.unlisted(processes.count())
            with storage.write_folder(folder, KIND, meta=meta, unlisted=files) as new:
                processes.broadcast("checkpoint folder", {"name": new.name})
                told = True
                self._write_part(new, folder, pieces)
        except Exception as error:
            if not told:
                processes.broadcast("checkpoint folder", {"failed": processes.as_json(error)})
            raise

    def _write_part(self, new: pathlib.Path, folder: pathlib.Path, pieces: list) -> None:
        def write() -> None:
            with storage.explaining(folder):
                checkpoint_arrays.write(new, pieces)

        processes.agree("checkpoint part", write, deadline=_DEADLINE_S)

    def _explained(self, folder: pathlib.Path, error: Exception) -> InputError:
        latest = self.latest()
        before = "no checkpoint had been written before." if latest is None else f"step {latest} is as it was."
        said = InputError(
            f"the checkpoint could not be written: {_first_line(error)}",
            f"Free some space, or name a folder on another disk, and start again: {before}",
            file=folder,
        )
        said.__cause__ = error
        return said

    def _remove_old(self, needed: set[int | None]) -> None:
        latest = sorted(steps(self.folder))[-self._keep :]
        needed = needed | set(latest) | {_best_of(path_of(self.folder, step)) for step in latest}
        for step in steps(self.folder):
            if step not in needed:
                # Renamed first: half a checkpoint must not keep the name of a whole one.
                removed = path_of(self.folder, step).with_suffix(_REMOVED)
                os.rename(path_of(self.folder, step), removed)
        for left in self.folder.glob(f"*{_REMOVED}"):
            shutil.rmtree(left, ignore_errors=True)

    def _check_settings(self, folder: pathlib.Path, found: Mapping[str, Any]) -> None:
        settings = _as_json(self._settings)
        # A field that a model had not when the checkpoint was made says nothing: older ones have none of them at all.
        known = found.get(_MODEL) or {}
        if isinstance(settings.get(_MODEL), dict):
            settings[_MODEL] = {name: value for name, value in settings[_MODEL].items() if name in known}
            found = {**found, _MODEL: {name: value for name, value in known.items() if name in settings[_MODEL]}}
        differences = list(_differences("", found, settings))
        if differences:
            shown = "; ".join(differences[:4]) + (f"; and {len(differences) - 4} more" if len(differences) > 4 else "")
            raise InputError(
                f"this checkpoint was made with other settings: {shown}",
                "Restore these settings, or train into another folder (or remove this one to begin anew).",
                file=folder,
            )


def steps(folder: str | os.PathLike) -> list[int]:
    """Steps of which there is a whole checkpoint, ascending."""
    folder = pathlib.Path(folder)
    if not folder.is_dir():
        return []
    matches = [(_NAME.fullmatch(entry.name), entry) for entry in folder.iterdir()]
    return sorted(int(match[1]) for match, entry in matches if match and entry.is_dir())


def path_of(folder: str | os.PathLike, step: int) -> pathlib.Path:
    """The folder of one step's checkpoint."""
    return pathlib.Path(folder) / f"step_{step:08d}"


def load_params(folder: str | os.PathLike) -> dict[str, Any]:
    """The nested parameters of one checkpoint folder, NumPy arrays, verified.

    Raises:
      InputError: it is no checkpoint, or damaged.
    """
    folder = pathlib.Path(folder)
    return unflatten(_restore(folder, _read_manifest(folder).meta, ["params"], {})["params"])


def load_hooks(folder: str | os.PathLike) -> tuple[dict[str, Any], Flat]:
    """What one checkpoint folder keeps of hooks, verified: what `HookRuns.state` gave.

    Raises:
      InputError: it is no checkpoint, or damaged.
    """
    folder = pathlib.Path(folder)
    meta = _read_manifest(folder).meta
    return meta["hooks"], _restore(folder, meta, [HOOKS], {})[HOOKS]


def _format_of(folder: pathlib.Path) -> int:
    """How its arrays lie; what cannot be read counts as ours, and is refused by whoever reads it."""
    try:
        return int(storage.read_folder(folder, KIND, verify=False).meta.get("format", _ORBAX))
    except InputError:
        return _FORMAT


def _best_of(folder: pathlib.Path) -> int | None:
    """The step that a checkpoint names best; None where it names none, or cannot be read."""
    try:
        return storage.read_folder(folder, KIND, verify=False).meta["progress"].get("best_step")
    except (InputError, LookupError, AttributeError):
        return None


def _read_manifest(folder: pathlib.Path) -> storage.Manifest:
    try:
        manifest = storage.read_folder(folder, KIND)
    except InputError as error:
        raise _damaged(folder, error) from error
    missing = {"step", "settings", "arrays", "data", "progress", "hooks"} - manifest.meta.keys()
    if missing:
        raise InputError(f"foreign checkpoint: its manifest lacks {sorted(missing)}", "Name another.", file=folder)
    if (found := manifest.meta.get("format", _ORBAX)) not in (_ORBAX, _FORMAT):
        raise InputError(
            f"this checkpoint was written by another version of gr_jax, in format {found}; this one reads formats "
            f"{_ORBAX} and {_FORMAT}",
            "Go on with the version that wrote it, or train into another folder.",
            file=folder,
        )
    if (name := _NAME.fullmatch(folder.name)) and int(name[1]) != manifest.meta["step"]:
        raise InputError(
            "damaged or foreign checkpoint: it is of another step than its name says",
            "Give the folder back the name of its step.",
            file=folder,
            value=manifest.meta["step"],
        )
    return manifest


def _damaged(folder: pathlib.Path, error: InputError) -> InputError:
    """The error that says what to do about it, of the same class."""
    others = [step for step in steps(folder.parent) if path_of(folder.parent, step) != folder]
    remedy = f"go on from step {max(others)}" if others else "begin anew"
    return type(error)(
        f"damaged or foreign checkpoint: {error.problem} [{os.fsdecode(error.file or folder)}]",
        f"Restore the folder from a copy, or remove it to {remedy}.",
        file=folder,
    )


def _check_arrays(folder: pathlib.Path, found: Mapping[str, Any], like: Mapping[str, Flat]) -> None:
    wanted = _describe(like)
    remedy = "Train this model into another folder, or restore the model that made the checkpoint."
    for group in ("params", *sorted({*wanted, *found} - {"params"})):
        here, there = wanted.get(group, {}), found.get(group, {})
        for path in sorted({*here, *there}):
            if path not in there:
                problem = f"the model has a parameter {path} in {group}, the checkpoint has not"
            elif path not in here:
                problem = f"the checkpoint has a parameter {path} in {group}, the model has not"
            elif list(there[path]) != here[path]:
                shapes = [f"{dtype}{tuple(shape)}" for shape, dtype in (there[path], here[path])]
                problem = (
                    f"the parameter {path} in {group} is {shapes[0]} in the checkpoint and {shapes[1]} in the model"
                )
            else:
                continue
            raise InputError(f"foreign checkpoint: {problem}", remedy, file=folder)


def _restore(
    folder: pathlib.Path, meta: Mapping[str, Any], groups: list[str], shardings: Mapping[str, Flat]
) -> dict[str, Flat]:
    """Reads `groups`; the others stay on disk."""
    described = meta["arrays"]
    if meta.get("format", _ORBAX) == _ORBAX:
        return orbax_checkpoints.restore(folder, described, groups)
    where = {group: {path: shardings.get(group, {}).get(path) for path in described.get(group, {})} for group in groups}
    try:
        arrays = checkpoint_arrays.Arrays(folder, meta["processes"], described)
        return {
            group: {path: arrays.placed(group, path, sharding) for path, sharding in flat.items()}
            for group, flat in where.items()
        }
    except DamagedError as error:
        raise _damaged(folder, error) from error


def _raise_first(own: InputError | None, everywhere: list[Any]) -> None:
    """The error of this process, or else that of the first that has one."""
    if own is not None:
        raise own
    for process, said in enumerate(everywhere):
        if said is not None:
            raise processes.of_json(said, process)


def _describe(arrays: Mapping[str, Flat]) -> dict[str, dict[str, list]]:
    """Group → path → [shape, dtype]."""
    return {
        group: {path: [list(np.shape(leaf)), str(leaf.dtype)] for path, leaf in flat.items()}
        for group, flat in arrays.items()
    }


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [repr(error)])[0]


def _differences(path: str, old: Any, new: Any) -> Iterator[str]:
    """Readable differences of two JSON values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _differences(f"{path}.{key}" if path else key, old.get(key), new.get(key))
    elif old != new:
        yield f"{path} was {old!r} and is {new!r}"


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))
