"""Makes what is missing or stale, and nothing else.

A stage is identified by content, its key, which stands in its folder's manifest. A folder whose manifest carries the
wanted key, and whose files have the checksums that it says, is used as it is. Any other is said to be stale, with the
settings that changed, and is made again.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gr_jax import processes, storage
from gr_jax.errors import InputError
from gr_jax.stages.graph import Place, Stage

_LATEST = 1e11  # seconds since 1970, thousands of years from now
_STARTS, _CHECKSUMS, _LOCKS = "starts.json", "checksums.json", ".locks"
_WAITING = "… {}: another process is making it"


class Runner:
    """Runs stages under one MODEL_DIR.

    Args:
      model_dir: folder of this run.
      shared_dir: folder of the stages that runs share; by default `shared` beside `model_dir`.
      config: the full resolved configuration, written into every manifest.
      say: receives one line per event.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike,
        *,
        shared_dir: str | os.PathLike | None = None,
        config: str = "",
        say: Callable[[str], None] = print,
    ):
        self.model_dir = pathlib.Path(model_dir)
        self.shared_dir = self.model_dir.parent / "shared" if shared_dir is None else pathlib.Path(shared_dir)
        self.config = config
        self.say = say if processes.first() else lambda line: None
        self._checksums: storage.Checksums | None = None

    def folder(self, stage: Stage) -> pathlib.Path:
        """Where the stage's artefact lives."""
        return self.shared_dir / f"{stage.kind}-{stage.key}" if stage.shared else self.model_dir / stage.name

    def run(self, stages: Sequence[Stage], *, corpus: str = "") -> None:
        """Makes what is missing or stale, in order.

        Args:
          stages: in an order in which every stage comes after its inputs; see `graph.in_order`.
          corpus: the corpus' fingerprint, for the manifests.

        Raises:
          InputError: a folder that a stage would replace was not written by this library.
        """

        def refuse() -> None:  # before anything is made: training takes hours, and the refusal would come after it
            for stage in stages:
                storage.refuse_to_replace_others(self.folder(stage))

        processes.by_first("folders of stages", refuse)
        try:
            for stage in stages:
                if processes.stop_here():
                    raise processes.Stopped(f"before the stage {stage.name}")
                if processes.by_first(f"stage {stage.name}, looked for", functools.partial(self._finished, stage)):
                    self.say(f"✓ {stage.name}: already made, {self.folder(stage)}")
                elif processes.count() > 1 and stage.function.together:
                    self._make_together(stage, corpus)
                else:
                    processes.by_first(f"stage {stage.name}", functools.partial(self._make_alone, stage, corpus))
        finally:
            if processes.first():
                self._remember()

    def _make_alone(self, stage: Stage, corpus: str) -> None:
        with self._maker(stage) as makes:
            if makes:
                self._make(stage, corpus)

    def _make_together(self, stage: Stage, corpus: str) -> None:
        """What all processes work at. Process 0 writes the folder; what the others write is thrown away.

        Where one of them fails, the others raise its error as soon as they wait for it.
        """
        name = f"stage {stage.name}"
        with processes.together(name):
            if processes.first():
                with self._maker(stage) as makes:
                    processes.broadcast(f"{name} is to be made", makes)
                    if makes:
                        self._make(stage, corpus)
            elif processes.broadcast(f"{name} is to be made"):
                self._help(stage)
            processes.gather(name, None)

    def _help(self, stage: Stage) -> None:
        """Makes a stage's part of what processes share out, and throws away the rest."""
        work = self._work(stage)
        own = work.with_name(f".{work.name}.process_{processes.index():05d}")
        shutil.rmtree(own, ignore_errors=True)
        try:
            (own / "folder").mkdir(parents=True)
            place = Place(own / "folder", own / "work", {}, work)
            stage.function.function(place, **self._inputs(stage), **stage.settings)
        finally:
            shutil.rmtree(own, ignore_errors=True)

    def _work(self, stage: Stage) -> pathlib.Path:
        return self.model_dir / "work" / f"{stage.name}-{stage.key}"

    def say_what_is_stale(self, stages: Sequence[Stage]) -> None:
        """Says which of these stages, which are not to be made now, have a folder of an earlier run."""
        for stage in stages if processes.first() else ():
            if self.folder(stage).exists() and not self._finished(stage):
                self.say(f"! {stage.name}: {self.folder(stage)} is of an earlier run. It stays until its stage is run.")
        if processes.first():
            self._remember()

    def _finished(self, stage: Stage) -> bool:
        """Whether its folder is there, of this very key, and every checksum holds: the stages after it rely on that."""
        if self._checksums is None:
            self._checksums = storage.Checksums(self.model_dir / "work" / _CHECKSUMS)
        try:
            manifest = storage.read_folder(self.folder(stage), stage.kind, checksum=self._checksums)
        except InputError:
            return False
        return manifest.made_from == stage.key

    def _remember(self) -> None:
        if self._checksums is not None and (self.model_dir / "work").is_dir():
            self._checksums.save()

    @contextlib.contextmanager
    def _maker(self, stage: Stage) -> Iterator[bool]:
        """Who makes a stage: whoever comes first. Others wait, and find it made. The system lets go of the lock of a
        process that dies."""
        root = self.shared_dir if stage.shared else self.model_dir
        # As its folder is named: two systems may call one shared stage by two names.
        lock = root / _LOCKS / f"{stage.kind if stage.shared else stage.name}-{stage.key}"
        with storage.locked(lock, lambda: self.say(_WAITING.format(stage.name))):
            yield not self._finished(stage)

    def _make(self, stage: Stage, corpus: str) -> None:
        self._explain(stage)
        folder, started, core_started = self.folder(stage), time.monotonic(), time.process_time()
        work = self._work(stage)
        in_one_go, notes = not work.exists(), dict[str, Any]()
        before = _seconds_of_earlier_starts(work)
        with (
            _without_trace(work),
            storage.write_folder(
                folder, stage.kind, corpus=corpus, made_from=stage.key, meta=notes, gin=self.config
            ) as new,
        ):
            stage.function.function(Place(new, work, notes), **self._inputs(stage), **stage.settings)
            seconds = before + time.monotonic() - started  # of all starts together
            notes["seconds"] = seconds
            if in_one_go and processes.count() == 1:  # of all cores together: what it took however busy the machine was
                notes["core_seconds"] = time.process_time() - core_started
            notes |= {"config": stage.config, "version": stage.version, "inputs": _names(stage)}
        if stage.shared or not stage.function.trains:  # kept against interruptions; a model's checkpoints stay
            shutil.rmtree(work, ignore_errors=True)
        self.say(f"✓ {stage.name}: {seconds:.0f}s, {folder}")

    def _inputs(self, stage: Stage) -> dict[str, Any]:
        """parameter → the folder, or the folders, of what is bound to it."""
        return {
            name: self.folder(value) if isinstance(value, Stage) else [self.folder(one) for one in value]
            for name, value in stage.inputs.items()
        }

    def _explain(self, stage: Stage) -> None:
        """Says why a folder that is there is not used."""
        folder = self.folder(stage)
        if not folder.exists() or not any(folder.iterdir()):
            return
        try:
            old = storage.read_folder(folder, stage.kind)
        except InputError as error:
            self.say(f"! {stage.name}: {error} It is made again.")
            return
        changes = list(dict.fromkeys(self._changes(stage, old)))
        self.say(f"! {stage.name}: {'; '.join(changes) or 'made by another version'}. It is made again.")

    def _changes(self, stage: Stage, old: storage.Manifest, prefix: str = "") -> list[str]:
        """The settings that differ from those that an earlier folder was made with, its inputs' included."""
        changes = changed_settings(old.meta.get("config", {}), stage.config, prefix)
        if old.meta.get("version", stage.version) != stage.version:
            changes.append(f"{prefix}version: {old.meta['version']} → {stage.version}")
        known = old.meta.get("inputs", {})
        for upstream in stage.upstream():
            its = known.get(upstream.name)
            if its == upstream.key:
                continue
            # Of stages that runs share the earlier folder is usually still there, and says what was different.
            before = self.shared_dir / f"{upstream.kind}-{its}"
            try:
                deeper = self._changes(upstream, storage.read_folder(before, verify=False), f"{upstream.name}.")
            except InputError:
                deeper = []
            changes += deeper or [f"{upstream.name} was made anew"]
        return changes


def changed_settings(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The settings that differ, as "a.b: 1 → 2", in sorted order."""
    changes = []
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            changes += changed_settings(before, after, f"{prefix}{name}.")
        elif json.dumps(before, sort_keys=True) != json.dumps(after, sort_keys=True):
            changes.append(f"{prefix}{name}: {before!r} → {after!r}")
    return changes


def _names(stage: Stage) -> dict[str, str]:
    """name → key of what a stage read."""
    return {one.name: one.key for one in stage.upstream()}


@contextlib.contextmanager
def _without_trace(work: pathlib.Path) -> Iterator[None]:
    """What bad input ends before it has kept anything leaves nothing."""
    try:
        yield
    except InputError:
        if [path.name for path in work.iterdir()] == [_STARTS]:
            shutil.rmtree(work)
            with contextlib.suppress(OSError):
                work.parent.rmdir()
        raise


def _seconds_of_earlier_starts(work: pathlib.Path) -> float:
    """How long the starts before this one worked, up to their last sign of life under `work`; notes this start.

    A training budget is what all starts used together, however often the process was killed in between. Where the note
    of them is damaged, only what is still to come is counted.
    """
    file, now = work / _STARTS, time.time()
    noted = storage.read_note(file)
    starts = noted if isinstance(noted, list) and all(map(_is_start, noted)) else []
    if starts:
        signs = [_changed(path) for path in work.rglob("*") if path != file]
        starts[-1]["end"] = max([starts[-1]["start"], *(sign for sign in signs if sign < now)])
    storage.write_json(file, [*starts, {"start": now}])
    return sum(start.get("end", start["start"]) - start["start"] for start in starts)


def _changed(path: pathlib.Path) -> float:
    """Seconds since 1970; 0 where it is gone: other processes may be at work there already."""
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0


def _is_start(noted: Any) -> bool:
    """Whether a note is {"start": seconds, "end": seconds}; the last one has no end yet."""
    times: list[Any] = list(noted.values()) if isinstance(noted, dict) and "start" in noted else [None]
    return all(isinstance(time, int | float) and not isinstance(time, bool) and 0 <= time < _LATEST for time in times)
