"""Stages: each reads folders and writes one, whole; what is finished and unchanged is not made again.

A stage is identified by *content*: its key is a hash of its name, its settings and the keys of its inputs. The key is
written into the folder's manifest. A folder whose manifest carries the wanted key, and whose files have the checksums
that it says, is used as it is; any other is said to be stale, with the settings that changed, and is made again. Stages
that several systems share (a corpus, its embeddings, its clustering, its pseudo-queries) live in a common folder under
their key, so that they are made once.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gr_jax import storage
from gr_jax.errors import InputError

# Part of every key: raise it when the meaning of stage folders changes, and everything is made again.
STAGE_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Workplace:
    """Where a stage works.

    Attributes:
      folder: the folder to fill; it becomes the artefact when `make` returns.
      inputs: the finished folder of each input, by stage name.
      work: a folder that survives interruptions, for checkpoints; not part of the artefact.
      meta: counts to record in the manifest.
    """

    folder: pathlib.Path
    inputs: Mapping[str, pathlib.Path]
    work: pathlib.Path
    meta: dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Stage:
    """One step of a recipe.

    Attributes:
      name: what it makes; the folder's name.
      config: every setting that changes the result, as JSON values.
      inputs: the stages whose folders it reads.
      make: fills `Workplace.folder`.
      shared: live in the common folder under the key, for every recipe, instead of in MODEL_DIR.
    """

    name: str
    config: Mapping[str, Any]
    inputs: tuple[Stage, ...]
    make: Callable[[Workplace], None]
    shared: bool = False

    @functools.cached_property
    def key(self) -> str:
        """Content key: 16 hex digits over name, settings and the inputs' keys."""
        content = [STAGE_FORMAT, self.name, self.config, [stage.key for stage in self.inputs]]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


class Runner:
    """Runs stages under one MODEL_DIR.

    Args:
      model_dir: folder of this run.
      shared_dir: folder of the stages that runs share; by default `shared` beside `model_dir`.
      gin: the full resolved configuration, written into every manifest.
      say: receives one line per event.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike,
        *,
        shared_dir: str | os.PathLike | None = None,
        gin: str = "",
        say: Callable[[str], None] = print,
    ):
        self.model_dir = pathlib.Path(model_dir)
        self.shared_dir = self.model_dir.parent / "shared" if shared_dir is None else pathlib.Path(shared_dir)
        self.gin, self.say = gin, say

    def folder(self, stage: Stage) -> pathlib.Path:
        """Where the stage's artefact lives."""
        return self.shared_dir / f"{stage.name}-{stage.key}" if stage.shared else self.model_dir / stage.name

    def run(self, stages: Sequence[Stage], *, corpus: str = "") -> dict[str, pathlib.Path]:
        """Makes what is missing or stale, in order; returns each stage's folder by name.

        Args:
          stages: in an order in which every stage comes after its inputs.
          corpus: the corpus' fingerprint, for the manifests.

        Raises:
          InputError: a folder that a stage would replace was not written by this library.
        """
        for stage in stages:  # before anything is made: training takes hours, and the refusal would come after it
            storage.refuse_to_replace_others(self.folder(stage))
        for stage in stages:
            if self._finished(stage):
                self.say(f"✓ {stage.name}: already made, {self.folder(stage)}")
            else:
                self._make(stage, corpus)
        return {stage.name: self.folder(stage) for stage in stages}

    def say_what_is_stale(self, stages: Sequence[Stage]) -> None:
        """Says which of these stages, which are not to be made now, have a folder of an earlier run."""
        for stage in stages:
            if self.folder(stage).exists() and not self._finished(stage):
                self.say(f"! {stage.name}: {self.folder(stage)} is of an earlier run. It stays until its stage is run.")

    def _finished(self, stage: Stage) -> bool:
        """Whether its folder is there, of this very key, and every checksum holds: the stages after it rely on that."""
        try:
            return storage.read_folder(self.folder(stage), stage.name).made_from == stage.key
        except InputError:
            return False

    def _make(self, stage: Stage, corpus: str) -> None:
        self._explain(stage)
        folder, started, core_started = self.folder(stage), time.monotonic(), time.process_time()
        work = self.model_dir / "work" / f"{stage.name}-{stage.key}"
        in_one_go, meta = not work.exists(), dict[str, Any]()
        with storage.write_folder(
            folder, stage.name, corpus=corpus, made_from=stage.key, meta=meta, gin=self.gin
        ) as beside:
            inputs = {upstream.name: self.folder(upstream) for upstream in stage.inputs}
            stage.make(Workplace(beside, inputs, work, meta))
            seconds = time.monotonic() - started
            # What a stage measured itself (training time over several starts, say) stands.
            meta.setdefault("seconds", seconds)
            if in_one_go:  # of all cores together: what it took however busy the machine was
                meta["core_seconds"] = time.process_time() - core_started
            meta |= {"config": dict(stage.config), "inputs": {s.name: s.key for s in stage.inputs}}
        if stage.shared:  # what it kept against interruptions; a model's checkpoints stay
            shutil.rmtree(work, ignore_errors=True)
        self.say(f"✓ {stage.name}: {seconds:.0f}s, {folder}")

    def _explain(self, stage: Stage) -> None:
        """Says why a folder that is there is not used."""
        folder = self.folder(stage)
        if not folder.exists() or not any(folder.iterdir()):
            return
        try:
            old = storage.read_folder(folder, stage.name)
        except InputError as error:
            self.say(f"! {stage.name}: {error} It is made again.")
            return
        changes = list(dict.fromkeys(self._changes(stage, old)))
        self.say(f"! {stage.name}: {'; '.join(changes) or 'made by another version'}. It is made again.")

    def _changes(self, stage: Stage, old: storage.Manifest, prefix: str = "") -> list[str]:
        """The settings that differ from those that an earlier folder was made with, its inputs' included."""
        changes = changed_settings(old.meta.get("config", {}), stage.config, prefix)
        known = old.meta.get("inputs", {})
        for upstream in stage.inputs:
            if known.get(upstream.name) == upstream.key:
                continue
            # Of stages that runs share the earlier folder is usually still there, and says what was different.
            before = self.shared_dir / f"{upstream.name}-{known.get(upstream.name)}"
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
