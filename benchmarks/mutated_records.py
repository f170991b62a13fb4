"""Damaged records for every reader of raw files: each is read, or refused with file and line; nothing else happens.

A record of a valid file is damaged as files are on their way: bytes flip, go missing or come twice, lines are cut, a
value is of another type, a name of a field is another one. Around it stand valid records.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gr_jax.corpus import Qrels, Queries, beir, dpr_files, kilt, kilt_pages, kilt_predictions, lines, ms_marco, nq
from gr_jax.datasets import samples
from gr_jax.errors import InputError

VALUES: tuple[Any, ...] = (None, True, -1, 2**70, 0.5, "", " ", "\ud800", "\x00", [], [None], {}, {"a": 1}, "x" * 300)
TEXTS = (b"", b"\xff", b"\x00", b'"', b"\\", b"{", b"]", b"\t", b"\r", b"\xef\xbb\xbf", "\u2028".encode(), b"NaN")


@dataclasses.dataclass(frozen=True)
class Reader:
    """What reads a raw file.

    Attributes:
      file: of a sample, whose lines are the valid records.
      read: yields something for every line, or raises.
      numbered: whether an error names a line; a list as a whole has none that must be named.
    """

    file: str
    read: Callable[[pathlib.Path], Iterator[Any]]
    numbered: bool = True


def _beir(file: pathlib.Path) -> Iterator[Any]:
    for number, record in lines.read_json_lines(file):
        yield beir.document(record, file, number)


def _qrels(file: pathlib.Path) -> Iterator[Any]:
    yield from Qrels.load(file).items()


def _queries(file: pathlib.Path) -> Iterator[Any]:
    yield from Queries.load(file).ids


READERS: Mapping[str, Reader] = {
    "Natural Questions, train": Reader("v1.0-simplified_simplified-nq-train.jsonl", nq.read_nq),
    "Natural Questions, dev": Reader("nq-dev-00.jsonl", nq.read_nq),
    "KILT, pages": Reader("kilt_knowledgesource.json", kilt_pages.read_pages),
    "KILT, a task": Reader("nq-train-kilt.jsonl", kilt.read_kilt),
    "KILT, predictions": Reader(
        "nq-train-kilt.jsonl", lambda file: iter(kilt_predictions.read_predictions(file).items())
    ),
    "MS MARCO, passages": Reader("collection.tsv", ms_marco.read_collection),
    "MS MARCO, questions": Reader("queries.train.tsv", _queries),
    "MS MARCO, judgements": Reader("qrels.train.tsv", _qrels),
    "DPR, passages": Reader("psgs_w100.tsv", dpr_files.read_passages),
    "MS MARCO, runs": Reader("run.tsv", lambda file: iter(ms_marco.read_run(file).items()), numbered=False),
    "DPR, questions": Reader("nq-test.qa.csv", dpr_files.read_questions),
    "DPR, pairs": Reader("biencoder-nq-dev.json", dpr_files.read_examples),
    "BEIR, documents": Reader("corpus.jsonl", _beir),
}


def write_samples(folder: pathlib.Path) -> None:
    """The valid files, all in one folder, none of them gzipped."""
    import gzip

    for write in (samples.nq, samples.kilt, samples.ms_marco, samples.dpr):
        write(folder)
    for file in folder.glob("*.gz"):
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
    judged = (line.split("\t") for line in (folder / "qrels.train.tsv").read_text().splitlines())
    (folder / "run.tsv").write_text("".join(f"{query}\t{passage}\t1\n" for query, _, passage, _ in judged))
    with open(folder / "corpus.jsonl", "w", encoding="utf-8") as corpus:
        for document in kilt_pages.read_pages(folder / "kilt_knowledgesource.json"):
            corpus.write(json.dumps({"_id": document.doc_id, "title": document.title, "text": document.text}) + "\n")


def damaged(line: bytes, rng: random.Random) -> bytes:
    """One line, damaged in one way."""
    kind = rng.randrange(7)
    place = rng.randrange(len(line) + 1)
    if kind == 0:
        return line[:place]
    if kind == 1:
        return line[:place] + bytes([rng.randrange(256)]) + line[place + 1 :]
    if kind == 2:
        return line[:place] + rng.choice(TEXTS) + line[place:]
    if kind == 3:
        end = rng.randrange(place, len(line) + 1)
        return line[:place] + line[end:] if rng.random() < 0.5 else line[:end] + line[place:end] + line[end:]
    if line.lstrip().startswith(b"{"):
        try:
            return json.dumps(_changed(json.loads(line), rng)).encode()
        except ValueError:
            return line[:place]
    fields = line.split(b"\t")
    chosen = rng.randrange(len(fields))
    fields[chosen : chosen + rng.randrange(2)] = [rng.choice(TEXTS)]
    return b"\t".join(fields)


def _changed(record: Any, rng: random.Random) -> Any:
    """A JSON value with one part, at any depth, replaced, renamed or removed."""
    if isinstance(record, dict) and record and rng.random() < 0.9:
        name = rng.choice(list(record))
        if rng.random() < 0.15:
            return {(f"{one}_" if one == name else one): value for one, value in record.items()}
        if rng.random() < 0.15:
            return {one: value for one, value in record.items() if one != name}
        return {**record, name: _changed(record[name], rng)}
    if isinstance(record, list) and record and rng.random() < 0.8:
        place = rng.randrange(len(record))
        return [*record[:place], _changed(record[place], rng), *record[place + 1 :]]
    return rng.choice(VALUES)


@dataclasses.dataclass
class Outcome:
    """What became of damaged records.

    Attributes:
      read, refused: how many.
      wrong: what should not have happened: (reader, seed, what).
    """

    read: int = 0
    refused: int = 0
    wrong: list[tuple[str, int, str]] = dataclasses.field(default_factory=list)


def try_reader(name: str, folder: pathlib.Path, seeds: range) -> Outcome:
    """Reads a file with one damaged record for each seed.

    Args:
      name: of `READERS`.
      folder: with the samples; the damaged file is written there.
      seeds: one a file.
    """
    reader, outcome = READERS[name], Outcome()
    valid = (folder / reader.file).read_bytes().splitlines()
    whole = reader.file.startswith("biencoder")  # records of a list have several lines, and all of it is one
    file = folder / f"damaged-{reader.file}"
    for seed in seeds:
        rng = random.Random(f"{name} {seed}")
        first = rng.randrange(len(valid) - 2)
        chosen = list(valid) if whole else valid[first : first + 3]
        place = rng.randrange(len(chosen)) if whole else 1
        chosen[place] = damaged(chosen[place], rng)
        data = b"\n".join(chosen) + b"\n"
        file.write_bytes(data)
        given = sum(1 for line in data.split(b"\n") if line.strip(b" \t\r\x0b\x0c\n") or b"\x00" in line)
        try:
            found = list(reader.read(file))
        except InputError as error:
            outcome.refused += 1
            if error.file is None or (error.line is None and reader.numbered and "no judgements" not in error.problem):
                outcome.wrong.append((name, seed, f"no place: {error}"))
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            outcome.wrong.append((name, seed, f"{type(error).__name__}: {error}"))
        else:
            outcome.read += 1
            expected = _expected(reader.file, chosen, given)
            if expected is not None and len(found) != expected:
                outcome.wrong.append((name, seed, f"{len(found)} of {expected} records"))
    file.unlink(missing_ok=True)
    return outcome


def _expected(file: str, chosen: list[bytes], given: int) -> int | None:
    """How many records a file gives; None where lines may be one record."""
    if file.startswith("biencoder"):
        return None
    if file.startswith(("qrels", "run")):
        return None  # questions, not lines
    return given - (1 if file == "psgs_w100.tsv" and chosen[0] == b"id\ttext\ttitle" else 0)
