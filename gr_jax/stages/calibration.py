"""The stage that says how sure a system is of its answers: a temperature of dev, measured on the other splits."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Sequence

from gr_jax import corpus as corpus_lib
from gr_jax import storage
from gr_jax.errors import InputError
from gr_jax.evaluation.calibration_pages import Page
from gr_jax.evaluation.temperature import Calibration
from gr_jax.retrievers import Searcher
from gr_jax.retrievers import index as indexes
from gr_jax.stages import graph, results
from gr_jax.stages import hybrid as combination
from gr_jax.stages.bm25 import load_bm25
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, Stage, stage

NAME = "calibration"
_FILE = "calibrations.json"


def of_system(answered: Stage, every: Sequence[Stage]) -> Stage:
    """The stage for a system.

    Args:
      answered: its results.
      every: its stages.

    Raises:
      InputError: the system has no index or no results of its own.
    """
    by_name = {one.name: one for one in every}
    name = answered.settings.get("name")
    if "index" not in by_name or not name:
        raise InputError("this system answers nothing whose probability could be measured", "Take another system.")
    beside = None if name == results.BM25 else by_name.get("bm25")
    indices = {str(name): by_name["index"]}
    if "hybrid" in by_name:
        indices[combination.NAME.format(name)] = by_name["hybrid"]
    return calibration(by_name["corpus"], beside, list(indices.values()), answered, names=list(indices)).named(NAME)


def check_data(dataset: corpus_lib.Dataset) -> None:
    """Raises InputError where dev has fewer than two questions; before anything is made."""
    questions = len(dataset.qrels.get("dev", ()))
    if questions < 2:
        raise InputError(
            f"a temperature is fitted on two questions of dev or more, and {dataset.name} has {questions}",
            "Add qrels/dev.tsv; or calibrate the index on questions of your own: gr-jax calibrate.",
            value=questions,
        )


@stage()
def calibration(
    place: Place,
    corpus: pathlib.Path,
    bm25: pathlib.Path | None,
    indices: Sequence[pathlib.Path],
    answered: pathlib.Path,
    *,
    names: Sequence[str],
) -> None:
    """A temperature for each index, fitted on dev, with Brier score and calibration error before and after on every
    judged split; a page with reliability diagrams.

    Args:
      bm25: the stage beside which the system stands; None where it is that itself.
      indices: stages of indices.
      answered: the stage of results, whose runs are measured.
      names: of the indices, in tables and runs.
    """
    dataset = load_dataset(corpus)
    searchers = {} if bm25 is None else {results.BM25: Searcher(load_bm25(bm25, dataset), dataset.corpus)}
    for name, folder in zip(names, indices, strict=True):
        searchers[name] = indexes.load(_index(folder))
    page = Page(f"How sure is {names[0]} on {dataset.name}?")
    found = {}
    for name, searcher in searchers.items():
        made = searcher.calibrate(dataset.split_queries("dev"), dataset.split("dev"), progress=True)
        found[name] = made.as_json()
        page.add_fitted("dev", name, made)
        for split in results.judged_splits(dataset):
            if split != "dev":
                run = corpus_lib.Run.load(results.run_file(answered, name, split))
                page.add(split, name, run, dataset.split(split), made)
    storage.write_json(place.folder / _FILE, found)
    page.save(place.folder)
    page.print()


def keep(made: Stage, folder_of: Callable[[Stage], pathlib.Path]) -> None:
    """Puts each calibration of a finished stage into the folder of its index.

    Args:
      made: the stage.
      folder_of: a finished stage → its folder.
    """
    found = json.loads((folder_of(made) / _FILE).read_text(encoding="utf-8"))
    for name, of in zip(made.settings["names"], graph.each(made.inputs["indices"]), strict=True):
        indexes.save_calibration(_index(folder_of(of)), Calibration.from_json(found[name]))


def _index(folder: pathlib.Path) -> pathlib.Path:
    return folder / "index" if (folder / "index").is_dir() else folder
