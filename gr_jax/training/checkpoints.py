"""Checkpoints: parameters, optimiser state and the place in the data, all of one step or nothing.

Each is a folder `step_00000040` with Orbax's files in `state/` and, beside them, our manifest: a checksum of every
file, the shape of every array, the settings that made it, the place in the data, and what dev has said so far. It takes
its name only when all of that is on disk, so there is no moment at which a kill leaves half of one.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from gr_jax import storage
from gr_jax.errors import InputError
from gr_jax.training.train_state import Flat, flatten, unflatten

KIND = "checkpoint"
HOOKS = "hooks"  # group of arrays that hooks made, or run on
_NAME = re.compile(r"step_(\d{8,})")
_REMOVED = ".removed"
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
      keep: how many of the latest are kept; the one that is named best is kept besides.
    """

    def __init__(self, folder: str | os.PathLike, settings: Mapping[str, Any], *, keep: int = 2):
        self.folder, self._settings, self._keep = pathlib.Path(folder), dict(settings), max(keep, 1)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
        self._writing: concurrent.futures.Future | None = None

    def save(self, snapshot: Snapshot, arrays: Mapping[str, Flat], *, best: int | None = None) -> None:
        """Copies the arrays and writes them in the background; waits for the one before.

        Args:
          snapshot: of the same step as the arrays.
          arrays: group ("params", "opt_state", "hooks") → flat dict of arrays; may be donated as soon as this returns.
          best: step that is to be kept besides the latest.

        Raises:
          InputError: the one before could not be written (a full disk); older ones are as they were.
        """
        self.wait()
        if jax.process_count() > 1:
            raise InputError(
                "checkpoints of several processes are not supported yet",
                "Train on one host.",
                value=jax.process_count(),
            )
        # Copied, not viewed: on CPU the view would be the very buffer that the next step writes into.
        copies = {group: {path: np.array(x, copy=True) for path, x in flat.items()} for group, flat in arrays.items()}
        host = {group: flat for group, flat in copies.items() if flat}
        self._writing = self._thread.submit(self._write, snapshot, host, best)

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

    def read(
        self,
        step: int,
        like: Mapping[str, Flat],
        hooks: Callable[[int, Any], Flat] | None = None,
    ) -> tuple[Snapshot, dict[str, Flat]]:
        """Reads and checks one checkpoint.

        Args:
          step: which.
          like: group → flat dict of arrays or shapes as they must be.
          hooks: from the step and its state of hooks to the shapes of their arrays; None where there are no hooks.

        Returns:
          What it says, and NumPy arrays in the structure of `like`.

        Raises:
          InputError: it was made with other settings, its arrays do not fit the model, or it is damaged.
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
            arrays = _restore(folder, manifest.meta["arrays"], list(like))
        return Snapshot(step, manifest.meta["data"], manifest.meta["progress"], state), arrays

    def _write(self, snapshot: Snapshot, host: Any, best: int | None) -> None:
        folder = path_of(self.folder, snapshot.step)
        meta = {
            "step": snapshot.step,
            "data": snapshot.data,
            "progress": snapshot.progress,
            "hooks": snapshot.hooks,
            "settings": self._settings,
            "arrays": _describe(host),
        }
        try:
            with storage.write_folder(folder, KIND, meta=meta) as new, _quiet():
                _orbax().save(new.absolute() / "state", {group: unflatten(flat) for group, flat in host.items()})
        except InputError:
            raise
        except Exception as error:  # Orbax and tensorstore report a full disk as they please
            latest = self.latest()
            before = "no checkpoint had been written before." if latest is None else f"step {latest} is as it was."
            raise InputError(
                f"the checkpoint could not be written: {_first_line(error)}",
                f"Free some space, or name a folder on another disk, and start again: {before}",
                file=folder,
            ) from error
        self._remove_old({snapshot.step, best})

    def _remove_old(self, needed: set[int | None]) -> None:
        latest = sorted(steps(self.folder))[-self._keep :]
        for step in steps(self.folder):
            if step not in needed and step not in latest:
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
    return unflatten(_restore(folder, _read_manifest(folder).meta["arrays"], ["params"])["params"])


def load_hooks(folder: str | os.PathLike) -> tuple[dict[str, Any], Flat]:
    """What one checkpoint folder keeps of hooks, verified: what `HookRuns.state` gave.

    Raises:
      InputError: it is no checkpoint, or damaged.
    """
    folder = pathlib.Path(folder)
    meta = _read_manifest(folder).meta
    return meta["hooks"], _restore(folder, meta["arrays"], [HOOKS])[HOOKS]


def _read_manifest(folder: pathlib.Path) -> storage.Manifest:
    try:
        manifest = storage.read_folder(folder, KIND)
    except InputError as error:
        others = [step for step in steps(folder.parent) if path_of(folder.parent, step) != folder]
        remedy = f"go on from step {max(others)}" if others else "begin anew"
        raise InputError(
            f"damaged or foreign checkpoint: {error.problem} [{os.fsdecode(error.file or folder)}]",
            f"Restore the folder from a copy, or remove it to {remedy}.",
            file=folder,
        ) from error
    missing = {"step", "settings", "arrays", "data", "progress", "hooks"} - manifest.meta.keys()
    if missing:
        raise InputError(f"foreign checkpoint: its manifest lacks {sorted(missing)}", "Name another.", file=folder)
    if (name := _NAME.fullmatch(folder.name)) and int(name[1]) != manifest.meta["step"]:
        raise InputError(
            "damaged or foreign checkpoint: it is of another step than its name says",
            "Give the folder back the name of its step.",
            file=folder,
            value=manifest.meta["step"],
        )
    return manifest


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


def _restore(folder: pathlib.Path, described: Mapping[str, Any], groups: list[str]) -> dict[str, Flat]:
    """Reads `groups`; the others stay on disk."""
    import orbax.checkpoint as ocp

    item = {
        group: {path: jax.ShapeDtypeStruct(tuple(shape), dtype) for path, (shape, dtype) in described[group].items()}
        for group in groups
        if described.get(group)
    }
    if not item:
        return {group: {} for group in groups}
    tree = {group: unflatten(flat) for group, flat in item.items()}
    args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    wanted = ocp.args.PyTreeRestore(item=tree, restore_args=args, partial_restore=True)
    with _quiet():
        try:
            restored = _orbax().restore(folder.absolute() / "state", args=wanted)
        except Exception as error:
            raise InputError(
                f"Orbax cannot read this checkpoint: {_first_line(error)}",
                "Read it with the version of orbax-checkpoint that wrote it, or remove it.",
                file=folder,
            ) from error
    return {group: flatten(restored.get(group, {})) for group in groups}


def _orbax() -> Any:
    import orbax.checkpoint as ocp  # half a second, needed only here

    # Trained weights hardly compress: without, saving takes two thirds of the time and loading half.
    return ocp.PyTreeCheckpointer(use_compression=False)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Orbax warns once per array that is a NumPy array; errors still pass."""
    logger = logging.getLogger("absl")

    def serious(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    logger.addFilter(serious)
    try:
        yield
    finally:
        logger.removeFilter(serious)


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
