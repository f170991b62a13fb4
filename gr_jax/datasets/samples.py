"""Made-up raw files of every data set in the form in which it is published: to try a build, and all that follows, on
something that takes seconds. Their pages are about towns that do not exist.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import pathlib
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gr_jax import storage

TOWNS, DEV = 60, 12
_FIRST = ("Ash", "Bram", "Crow", "Dun", "Elm", "Fern", "Glen", "Harp", "Ivel", "Kirk", "Lyn", "Marl")
_LAST = ("bridge", "ford", "ham", "holt", "mere", "stead", "wick")
_RIVERS = ("Alder", "Birch", "Calder", "Dove", "Esk", "Frome", "Greta", "Hodder")
_TRADES = ("cheese", "clocks", "glass", "lace", "pottery", "rope", "salt", "wool")
_LANDMARKS = ("a castle", "a lighthouse", "a library", "a market hall", "a windmill", "an abbey")


@dataclasses.dataclass(frozen=True)
class Town:
    """One page, and what may be asked about it.

    Attributes:
      title: of the page.
      sentences: what it says.
      questions: each with its answer.
    """

    title: str
    sentences: tuple[str, ...]
    questions: tuple[tuple[str, str], ...]


def towns(count: int = TOWNS, seed: int = 0) -> list[Town]:
    """Pages whose titles differ."""
    rng = random.Random(seed)
    names = [f"{first}{last}" for first in _FIRST for last in _LAST]
    made = []
    for name in rng.sample(names, count):
        river, trade, landmark, year = (
            rng.choice(_RIVERS), rng.choice(_TRADES), rng.choice(_LANDMARKS), str(rng.randrange(1100, 1900)),
        )  # fmt: skip
        sentences = (
            f"{name} is a town on the river {river}.",
            f"It was founded in {year} and is known for its {trade}.",
            f"Visitors come to see {landmark} above the river.",
        )
        questions = (
            (f"which river flows through {name.lower()}", river),
            (f"when was the town of {name.lower()} founded", year),
            (f"what is {name.lower()} known for", trade),
        )
        made.append(Town(name, sentences, questions))
    return made


def _asked(dev: bool) -> Iterable[tuple[int, Town, str, str]]:
    """(number, town, question, answer): two of each town for train, the third of some for dev."""
    number = 0
    for place, town in enumerate(towns()):
        chosen = town.questions[2:] if dev else town.questions[:2]
        if dev and place % (TOWNS // DEV):
            continue
        for question, answer in chosen:
            yield number, town, question, answer
            number += 1


def _write(file: pathlib.Path, lines: Iterable[str]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    storage.write_bytes(file, gzip.compress(data, mtime=0) if file.suffix == ".gz" else data)


def _records(file: pathlib.Path, records: Iterable[Mapping[str, Any]]) -> None:
    _write(file, map(json.dumps, records))


def nq(folder: pathlib.Path) -> None:
    """Natural Questions: train in the simplified form, dev in the original one."""
    _records(folder / "v1.0-simplified_simplified-nq-train.jsonl.gz", (_nq(*one, dev=False) for one in _asked(False)))
    _records(folder / "nq-dev-00.jsonl.gz", (_nq(*one, dev=True) for one in _asked(True)))


def _nq(number: int, town: Town, question: str, answer: str, *, dev: bool) -> dict[str, Any]:
    paragraph = " ".join(town.sentences[:2])
    page = (
        f"{town.title} - wikipedia <H1> {town.title} </H1> <P> {paragraph} </P> <Ul> <Li> {town.sentences[2]} </Li> "
        "</Ul> See also <Ul> <Li> Towns </Li> </Ul>"
    )
    tokens = page.split(" ")
    start, end = tokens.index("<P>"), tokens.index("</P>") + 1
    place = next(at for at in range(start, end) if tokens[at].rstrip(".") == answer)
    annotation = {
        "long_answer": {"start_token": start, "end_token": end},
        "short_answers": [{"start_token": place, "end_token": place + 1}],
        "yes_no_answer": "NONE",
    }
    record: dict[str, Any] = {
        "example_id": 1000 * dev + number,
        "question_text": question,
        "document_url": f"https://en.wikipedia.org//w/index.php?title={town.title}&amp;oldid=1",
        "annotations": [annotation],
    }
    if dev:
        return {**record, "document_title": town.title, "document_tokens": [_token(one) for one in tokens]}
    return {**record, "document_text": page}


def _token(token: str) -> dict[str, Any]:
    return {"token": token, "html_token": token.startswith("<")}


def kilt(folder: pathlib.Path) -> None:
    """KILT: a knowledge source, and the task nq."""
    pages = towns()
    _records(
        folder / "kilt_knowledgesource.json",
        (
            {
                "wikipedia_id": str(place), "wikipedia_title": town.title, "categories": "Towns", "anchors": [],
                "text": [f"{town.title}\n", *(f"{one}\n" for one in town.sentences)],
            }
            for place, town in enumerate(pages)
        ),
    )  # fmt: skip
    place_of = {town.title: place for place, town in enumerate(pages)}
    for split in ("train", "dev"):
        records = (
            {
                "id": f"{split}-{number}", "input": question,
                "output": [
                    {
                        "answer": answer,
                        "provenance": [
                            {"wikipedia_id": str(place_of[town.title]), "title": town.title, "bleu_score": 1.0}
                        ],
                    }
                ],
            }
            for number, town, question, answer in _asked(split == "dev")
        )  # fmt: skip
        _records(folder / f"nq-{split}-kilt.jsonl", records)


def ms_marco(folder: pathlib.Path) -> None:
    """MS MARCO: passages, train and dev, and a track."""
    passages = _passages()
    _write(folder / "collection.tsv", (f"{place}\t{text}" for place, (_, text) in enumerate(passages)))
    for split, questions, judgements in (
        ("train", "queries.train.tsv", "qrels.train.tsv"),
        ("dev", "queries.dev.small.tsv", "qrels.dev.small.tsv"),
        ("dl19", "msmarco-test2019-queries.tsv", "2019qrels-pass.txt"),
    ):
        asked = list(_asked(split != "train"))
        first = {"train": 0, "dev": 1000, "dl19": 2000}[split]
        _write(folder / questions, (f"{first + number}\t{question}" for number, _, question, _ in asked))
        rows = []
        for number, town, _, answer in asked:
            place = _answering(passages, town, answer)
            grade, tab = (3, " ") if split == "dl19" else (1, "\t")
            rows.append(tab.join([str(first + number), "0" if tab == "\t" else "Q0", str(place), str(grade)]))
        _write(folder / judgements, rows)


def dpr(folder: pathlib.Path) -> None:
    """DPR: passages, pairs of train and dev, and questions with answers alone."""
    passages = _passages()
    rows = (f'{place}\t"{text}"\t{town.title}' for place, (town, text) in enumerate(passages, start=1))
    _write(folder / "psgs_w100.tsv", ["id\ttext\ttitle", *rows])
    for split in ("train", "dev"):
        records = []
        for _, town, question, answer in _asked(split == "dev"):
            place = _answering(passages, town, answer)
            context = {"title": town.title, "text": passages[place][1], "score": 1000, "passage_id": str(place + 1)}
            records.append(
                {
                    "dataset": f"nq_{split}_psgs_w100", "question": question, "answers": [answer],
                    "positive_ctxs": [context], "negative_ctxs": [], "hard_negative_ctxs": [],
                }
            )  # fmt: skip
        storage.write_text(folder / f"biencoder-nq-{split}.json", json.dumps(records, indent=4) + "\n")
    _write(folder / "nq-test.qa.csv", (f"{question}\t{[answer]!r}" for _, _, question, answer in _asked(True)))


def _passages() -> Sequence[tuple[Town, str]]:
    """(town, text): two of each."""
    two = ((town, (" ".join(town.sentences[:2]), f"{town.title}: {town.sentences[2]}")) for town in towns())
    return [(town, text) for town, texts in two for text in texts]


def _answering(passages: Sequence[tuple[Town, str]], town: Town, answer: str) -> int:
    return next(place for place, (one, text) in enumerate(passages) if one.title == town.title and answer in text)
