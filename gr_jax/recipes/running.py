"""What every recipe does with its stages: reads the documents, makes what is wanted, opens the index."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import gin

from gr_jax import corpus as corpus_lib
from gr_jax import storage
from gr_jax.errors import InputError
from gr_jax.recipes import documents
from gr_jax.recipes.sources import BeirFolder, Source
from gr_jax.recipes.stages import Runner, Stage
from gr_jax.retrievers import Searcher, index


def run_stages(
    source: Source | str | os.PathLike,
    stages_of: Callable[[Source], Sequence[Stage]],
    model_dir: str | os.PathLike,
    *,
    shared_dir: str | os.PathLike | None = None,
    until: str | None = None,
    say: Callable[[str], None] = print,
) -> Searcher | None:
    """Runs a recipe.

    Args:
      source: a BEIR folder's path, or a `Source`.
      stages_of: the recipe's stages for a source; the first reads the documents, one is named "index".
      model_dir, shared_dir: see `Runner`.
      until: the last stage to make; None makes all.
      say: receives a line per stage.

    Returns:
      A searcher over the index; None where `until` ends before it.

    Raises:
      InputError: bad documents or settings, named with what would be right.
    """
    stages = list(stages_of(BeirFolder(os.fspath(source)) if isinstance(source, str | os.PathLike) else source))
    names = [stage.name for stage in stages]
    if until is not None and until not in names:
        raise InputError("no such stage", f"Name one of: {', '.join(names)}.", value=until)
    runner = Runner(model_dir, shared_dir=shared_dir, gin=gin.config_str(), say=say)
    dataset = documents.load_dataset(runner.run(stages[:1])["corpus"])
    say(dataset.summary())
    _say_what_is_missing(dataset, names, say)
    wanted = stages if until is None else stages[: names.index(until) + 1]
    runner.run(wanted[1:], corpus=dataset.corpus.fingerprint)
    runner.say_what_is_stale(stages[len(wanted) :])
    storage.write_text(runner.model_dir / "config.gin", gin.config_str())
    return index.load(runner.model_dir / "index") if "index" in names[: len(wanted)] else None


def _say_what_is_missing(dataset: corpus_lib.Dataset, names: Sequence[str], say: Callable[[str], None]) -> None:
    if "pseudo_queries" not in names:  # nothing is trained, or nothing that could be without training queries
        return
    if not len(dataset.qrels.get("train", ())):
        say("! There are no training queries: training has pseudo-queries alone.")
    if not len(dataset.qrels.get("dev", ())):
        say("! There is no dev split: training keeps its last parameters, or the best on questions that it holds out.")
