"""A folder in BEIR layout that is small enough to train on in a test and large enough for a tree of two levels."""

from __future__ import annotations

import gzip
import json
import pathlib
from collections.abc import Iterable

from gr_jax.corpus import Dataset

_COLOURS = ("red", "green", "blue", "black", "white", "yellow", "brown", "grey")
_ANIMALS = ("cat", "dog", "horse", "owl", "eel", "bee", "crab", "goat")
_PLACES = ("in the garden", "near the river", "under the bridge", "at the harbour")


def documents(count: int = 64) -> list[dict[str, str]]:
    """`count` documents, each a colour and an animal, no two alike; at most 256."""
    pairs = [(c, a, p) for p in _PLACES for c in _COLOURS for a in _ANIMALS][:count]
    return [
        {
            "_id": f"d{number}",
            "title": f"{colour} {animal}",
            "text": f"There is a {animal} {place}. It is {colour}. Few people have seen this {colour} {animal}.",
        }
        for number, (colour, animal, place) in enumerate(pairs)
    ]


def write_jsonl(path: pathlib.Path, rows: Iterable[dict]) -> None:
    """One JSON object a line; compressed where the name ends in .gz."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def write_asked(folder: pathlib.Path, dataset: Dataset) -> None:
    """The questions of train, as a finished stage has those that are asked."""
    folder.mkdir(parents=True, exist_ok=True)
    train = dataset.split_queries("train")
    write_jsonl(folder / "queries.jsonl", [{"_id": i, "text": t} for i, t in zip(train.ids, train.texts, strict=True)])


def write_grades(folder: pathlib.Path, grade: int) -> pathlib.Path:
    """Gives every judgement of train of a BEIR folder another grade; returns `folder`."""
    file = folder / "qrels" / "train.tsv"
    head, *rows = file.read_text().splitlines()
    file.write_text("".join([f"{head}\n", *("\t".join([*row.split("\t")[:2], f"{grade}\n"]) for row in rows)]))
    return folder


def write_beir(
    folder: pathlib.Path, *, count: int = 64, queries: bool = True, compressed: bool = False
) -> pathlib.Path:
    """Writes a BEIR folder of `count` documents; with queries for train, dev and test; returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    suffix = ".jsonl.gz" if compressed else ".jsonl"
    rows = documents(count)
    write_jsonl(folder / f"corpus{suffix}", rows)
    if queries:
        asked = []
        splits: dict[str, list[str]] = {"train": [], "dev": [], "test": []}
        for number, row in enumerate(rows):
            for split, question in (
                ("train", f"where is the {row['title']}"),
                ("dev" if number % 2 else "test", f"who saw a {row['title']}"),
            ):
                asked.append({"_id": f"q{len(asked)}", "text": question})
                splits[split].append(f"{asked[-1]['_id']}\t{row['_id']}\t1\n")
        write_jsonl(folder / f"queries{suffix}", asked)
        (folder / "qrels").mkdir(exist_ok=True)
        for split, lines in splits.items():
            (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    return folder
