"""The stage of a system's index together with BM25, weighted on dev, and what a report says of it."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from gr_jax import evaluation, processes, retrievers, storage
from gr_jax.evaluation.render import format_value
from gr_jax.retrievers import hybrid as combining
from gr_jax.retrievers import index as indexes
from gr_jax.stages.bm25 import load_bm25
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, stage

# Of the combination in tables; the system's name stands for the rest.
NAME = "BM25 + {}"
_MEASURE = "RR@10"  # by which the weight is chosen


@stage(together=True)
def hybrid(place: Place, corpus: pathlib.Path, bm25: pathlib.Path, index: pathlib.Path, *, name: str) -> None:
    """An index of BM25 and the system's retriever together, `gr_jax.load(MODEL_DIR/hybrid/index)`.

    Normalisation and weight are the best on dev, and stand with the whole curve in `weights.json`; without a dev split
    both parts count alike.

    Args:
      index: the system's.
      name: of the system, as evidence calls its part.
    """
    dataset = load_dataset(corpus)
    parts = {"BM25": load_bm25(bm25, dataset), name: indexes.load(index).retriever}
    choice = combining.WeightChoice((0.5, 0.5), "min-max", ())
    if len(dataset.qrels.get("dev", ())):
        queries = dataset.split_queries("dev")
        lexical, own = (
            retrievers.retrieve_all(part, queries, k=combining.DEPTH, progress=True) for part in parts.values()
        )
        choice = combining.choose_weight(
            lexical, own, queries.ids, dataset.corpus, dataset.split("dev"), measure=_MEASURE
        )
    if not processes.first():
        return  # one index is enough
    indexes.save(place.folder / "index", choice.retriever(parts), dataset.corpus)
    storage.write_json(place.folder / "weights.json", choice.as_json())
    place.notes.update({"weights": list(choice.weights), "normalize": choice.normalize})


def load_hybrid(folder: pathlib.Path) -> Any:
    """The retriever of a finished stage."""
    return indexes.load(folder / "index").retriever


def how_combined(folder: pathlib.Path) -> str:
    """What a report says of a finished stage."""
    choice = _choice(folder)
    weights = " and ".join(f"{weight:.2f}" for weight in choice["weights"])
    why = "chosen on dev" if choice["curve"] else "for there is no dev split to choose on"
    return f"{choice['normalize']} of each part's scores, weights {weights}, {why}"


def what_dev_prefers(folder: pathlib.Path, name: str) -> str:
    """One sentence, with the command to use it, where the combination, or BM25 in it, is better on dev than the system;
    else "".

    Args:
      folder: of a finished stage.
      name: of the system.
    """
    said = _preferred(folder, name)
    return said and f'{said}: `gr-jax search --index={folder / "index"} "your question"` asks both.'


def best_on_dev(model_dir: str | os.PathLike) -> tuple[pathlib.Path, str]:
    """Of a finished run the index that is best on dev, and why in one sentence: that of the combination where it is
    better than the system's own; without a combination or a dev split the system's, and ""."""
    own, folder = pathlib.Path(model_dir) / "index", pathlib.Path(model_dir) / "hybrid"
    if not (folder / storage.MANIFEST).is_file():
        return own, ""
    made = storage.read_folder(folder, verify=False)
    if made.meta["inputs"].get("index") != storage.read_folder(own, verify=False).made_from:
        return own, ""  # another system was made here before
    why = _preferred(folder, made.meta["config"]["name"])
    return (folder / "index", f"{why}.") if why else (own, "")


def _preferred(folder: pathlib.Path, name: str) -> str:
    """What dev says for the combination and against the system alone; "" where it does not."""
    choice = _choice(folder)
    of_weight = {p["weight"]: p[_MEASURE] for p in choice["curve"] if p["normalize"] == choice["normalize"]}
    weight = choice["weights"][1]
    if not of_weight or of_weight[weight] <= of_weight[1.0]:
        return ""
    best, bm25, own = (f"{_MEASURE} {format_value(of_weight[one])}" for one in (weight, 0.0, 1.0))
    if of_weight[weight] <= of_weight[0.0]:
        return (
            f"On dev BM25 alone reaches {bm25}, {name} {own}, and both together no more than BM25, {name} with weight "
            f"{weight:.2f}"
        )
    return f"On dev {NAME.format(name)} reaches {best}, BM25 alone {bm25} and {name} alone {own}"


def _choice(folder: pathlib.Path) -> dict[str, Any]:
    return json.loads((folder / "weights.json").read_text(encoding="utf-8"))


def compare_with_parts(
    values: Mapping[str, Mapping[str, evaluation.Evaluation]], name: str
) -> dict[str, dict[str, dict[str, Any]]]:
    """split → other system → how `name` compares with it in RR@10, as `evaluation.compare` says. A split of one query
    is left out: it has nothing to test."""
    return {
        split: {
            system: dataclasses.asdict(evaluation.compare(rows[name], measured, "RR@10"))
            for system, measured in rows.items()
            if system != name
        }
        for split, rows in values.items()
        if len(rows[name].query_ids) > 1
    }
