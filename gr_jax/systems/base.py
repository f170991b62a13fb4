"""What a system is: settings, and the stages that they make."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import ClassVar

import gr_jax.opening  # noqa: F401  what indexes are read back by
from gr_jax import corpus as corpus_lib
from gr_jax import processes, storage
from gr_jax.errors import InputError
from gr_jax.retrievers import Searcher, index
from gr_jax.stages import calibration, documents
from gr_jax.stages.graph import Stage, in_order
from gr_jax.stages.runner import Runner
from gr_jax.stages.settings import Settings
from gr_jax.stages.sources import BeirFolder, Source, source_of
from gr_jax.systems import configuration

TRAINED = "everything that trains"


class System(Settings):
    """A system from a paper: a frozen dataclass whose fields are its settings and whose docstring is its documentation.

    Its defaults are those of the shipped configuration. `stages` reads like the paper's list of steps.
    """

    paper: ClassVar[str]

    def stages(self, corpus: Stage) -> Stage:
        """The last stage, usually the results; all others are what it reads. One is named "index".

        Args:
          corpus: the documents.
        """
        raise NotImplementedError

    def check_data(self, dataset: corpus_lib.Dataset) -> None:
        """Raises InputError where the system cannot learn from these documents and questions; before it trains."""

    def run(
        self,
        source: Source | corpus_lib.Dataset | corpus_lib.Corpus | str | os.PathLike,
        model_dir: str | os.PathLike,
        *,
        shared_dir: str | os.PathLike | None = None,
        until: str = "",
        calibrate: bool = False,
        say: Callable[[str], None] = print,
    ) -> Searcher | None:
        """Makes what is missing or stale, up to the index and its results.

        Every finished stage is a folder; calling again skips what is there and unchanged.

        Args:
          source: a BEIR folder's path; a `Dataset` or a `Corpus`, which count by their content; or a `Source`.
          model_dir: folder of this run; the index is `model_dir/index`.
          shared_dir: where stages that runs share are kept; by default `shared` beside `model_dir`.
          until: the stage to make, with all that it reads; `TRAINED` makes everything that trains; "" makes all.
          calibrate: measure how sure answers are, on dev, into `model_dir/calibration`; then `search(query,
            probability=True)` says it of every hit. Only where all is made.
          say: receives a line per stage.

        Returns:
          A searcher over the index; None where the index was not wanted.

        Raises:
          InputError: bad documents or settings, named with what would be right.
        """
        found = source_of(source)
        corpus = documents.corpus(found)
        last = self.stages(corpus)
        every = in_order(last)
        wanted = _wanted(every, until)
        measured = calibration.of_system(last, every) if calibrate and not until else None
        config = configuration.to_gin(self, found, model_dir, shared_dir)
        runner = Runner(model_dir, shared_dir=shared_dir, config=config, say=say)
        _check_places(runner, found)
        runner.run([corpus])
        dataset = documents.load_dataset(runner.folder(corpus))
        runner.say(dataset.summary())
        self.check_data(dataset)
        if measured is not None:
            calibration.check_data(dataset)
        _say_what_is_missing(dataset, every, runner.say)
        runner.run([one for one in wanted if one is not corpus], corpus=dataset.corpus.fingerprint)
        if measured is not None:
            runner.run([measured], corpus=dataset.corpus.fingerprint)
            processes.by_first("calibration", lambda: calibration.keep(measured, runner.folder))
        runner.say_what_is_stale([one for one in every if one not in wanted])
        processes.by_first("config.gin", lambda: storage.write_text(runner.model_dir / "config.gin", config))
        return index.load(runner.model_dir / "index") if "index" in [one.name for one in wanted] else None


def _check_places(runner: Runner, source: Source) -> None:
    """Raises InputError where no folder can have a name, or is the documents' own."""
    for name, folder in (("MODEL_DIR", runner.model_dir), ("shared_dir", runner.shared_dir)):
        place = storage.resolved(folder)
        if isinstance(source, BeirFolder) and place == storage.resolved(source.folder):
            raise InputError(
                f"{name} is the folder of the documents", f"Name another folder as {name}.", file=os.fspath(folder)
            )


def _wanted(every: list[Stage], until: str) -> list[Stage]:
    if not until:
        return every
    if until == TRAINED:
        return in_order(*(one for one in every if one.function.trains)) or every[:1]
    chosen = [one for one in every if one.name == until]
    if not chosen:
        raise InputError("no such stage", f"Name one of: {', '.join(one.name for one in every)}.", value=until)
    return in_order(*chosen)


def _say_what_is_missing(dataset: corpus_lib.Dataset, stages: list[Stage], say: Callable[[str], None]) -> None:
    if not any(one.kind == "pseudo_queries" for one in stages):  # nothing is trained, or not without training queries
        return
    if not len(dataset.qrels.get("train", ())):
        say("! There are no training queries: training has pseudo-queries alone.")
    if not len(dataset.qrels.get("dev", ())):
        say("! There is no dev split: training keeps its last parameters, or the best on questions that it holds out.")
