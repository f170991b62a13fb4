"""Builds a collection of Natural Questions from the raw files, as a folder in BEIR's layout.

Raw files have tens of gigabytes. They are read once, a few hundred records at a time, on several processes; what was
read is kept in parts, so that a build that was interrupted goes on with the next one. The folder is the same whatever
the number of processes and of interruptions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import orjson

from gr_jax import progress, storage
from gr_jax.corpus import lines, nq
from gr_jax.corpus.documents import Document, Ids
from gr_jax.corpus.nq320k import VARIANTS, Collection, Extract, Rules, extract, finished
from gr_jax.datasets import folder as folders
from gr_jax.datasets import raw, workers
from gr_jax.errors import InputError

VERSION = 3  # raise it when the same raw files give other parts
PART = 50  # records
WITHOUT_TITLE = "records whose page has no title; where titles tell pages apart, they share one document"
WITHOUT_PARAGRAPH = "records whose page has no first paragraph, or one that is never closed"
_PARTS = ".parts-"


def build_nq(
    train: Sequence[str | os.PathLike],
    dev: Sequence[str | os.PathLike],
    folder: str | os.PathLike,
    rules: Rules,
    *,
    tokenizer: str | os.PathLike | None = None,
    processes: int = 1,
    show: bool = True,
) -> folders.About:
    """Writes `corpus.jsonl`, `queries.jsonl`, `qrels/*.tsv` and `about.json`.

    Splits are "train"; "test", the published dev set; and of this "test_seen" and "test_unseen", whose page a training
    question asks for or none.

    Args:
      train, dev: raw files in order, plain or gzipped, of either form.
      folder: to write. What is kept for going on lies within it until the end.
      rules: see `nq320k.VARIANTS`.
      tokenizer: folder with bert-base-uncased's `tokenizer.json`, where titles go through it.
      processes: that read records.
      show: bars.

    Raises:
      InputError: a file that cannot be read, a record that is none, with file and line, no tokenizer, or a folder that
        holds something else.
    """
    if rules.normaliser == "bert" and tokenizer is None:
        raise InputError(
            "titles are to go through bert-base-uncased's tokens, and there is no tokenizer",
            'Name a folder with its tokenizer.json, or take rules with normaliser "none".',
        )
    folder = pathlib.Path(folder)
    variant = next((name for name, one in VARIANTS.items() if one == rules), "own")
    read_as = "" if tokenizer is None else lines.digest(pathlib.Path(tokenizer) / "tokenizer.json").hexdigest()[:16]
    key = _key(train, dev, rules, read_as)
    with folders.building(folder, "nq320k", variant):
        parts = folder / f"{_PARTS}{key}"
        parts.mkdir(exist_ok=True)
        worker = _Worker(rules, None if tokenizer is None else os.fspath(tokenizer))
        settings = {"version": VERSION, "tokenizer": read_as, **dataclasses.asdict(rules)}
        return _build(folder, train, dev, parts, worker, variant, settings, rules, processes, show)


def _build(
    folder: pathlib.Path,
    train: Sequence[str | os.PathLike],
    dev: Sequence[str | os.PathLike],
    parts: pathlib.Path,
    worker: _Worker,
    variant: str,
    settings: Mapping[str, Any],
    rules: Rules,
    processes: int,
    show: bool,
) -> folders.About:
    made: dict[str, list[pathlib.Path]] = {}
    for split, files in (("train", train), ("dev", dev)):
        made[split] = []
        for place, file in enumerate(files):
            stem = parts / f"{split}-{place}"
            made[split] += _extracted(worker, file, stem, split == "dev", processes, show)
    questions, notes = _assembled(folder, made, rules, show)
    about = folders.finish(
        folder, dataset="nq320k", variant=variant, whose=rules.whose, questions=questions, raw=[*train, *dev],
        notes=notes, settings=settings, show=show,
    )  # fmt: skip
    for left in folder.glob(f"{_PARTS}*"):  # of builds by other rules, too
        shutil.rmtree(left)
    return about


def _key(train: Sequence[str | os.PathLike], dev: Sequence[str | os.PathLike], rules: Rules, tokenizer: str) -> str:
    """Of what parts are made of: files by size and time, for reading them is what parts are to save."""
    said: list[Any] = [VERSION, PART, dataclasses.asdict(rules), tokenizer]
    for file in (*train, *dev):
        said.append(raw.state(file))
    return hashlib.sha256(json.dumps([said, len(train)]).encode()).hexdigest()[:16]


class _Worker:
    """Reads records; what a process has of its own is made when it is asked first."""

    def __init__(self, rules: Rules, tokenizer: str | None):
        self._rules, self._tokenizer = rules, tokenizer
        self._normalise: Callable[[str], str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_normalise": None}

    def __call__(self, raw: Sequence[tuple[int, bytes]], file: str, dev: bool) -> list[bytes]:
        """Two lines for each record: what is needed of it, and its page, "" where that is not known yet."""
        if self._normalise is None:
            self._normalise = _through_bert(self._tokenizer) if self._rules.normaliser == "bert" else str
        normalise, found = self._normalise, []
        for number, line in raw:
            record = nq.parse_nq(line, file, number)
            if self._rules.duplicates != "title" and not record.url:  # all without one would be one page
                raise InputError(
                    "a page without an address, by which pages are told apart",
                    'Take rules with duplicates "title", or files with document_url.',
                    file=file,
                    line=number,
                    value=record.id,
                )
            one = extract(record, self._rules, normalise, dev=dev)
            page, halves = b"", 0
            if not one.unfinished:  # the document as it will stand in the folder, which is copied and not read again
                page, counted = folders.document_line(Document(one.id, one.title, one.text))
                halves = len(counted)
            found += [_dumps([vars(one) | ({"text": ""} if page else {}), halves]), page]
        return found


def _through_bert(folder: str | None) -> Callable[[str], str]:
    """To tokens and back, as the published scripts do."""
    from gr_jax.text import HuggingFaceVocabulary

    assert folder is not None
    vocabulary = HuggingFaceVocabulary(folder)
    return lambda title: vocabulary.decode_all(vocabulary.encode(title))


def _extracted(
    worker: _Worker, file: str | os.PathLike, stem: pathlib.Path, dev: bool, processes: int, show: bool
) -> list[pathlib.Path]:
    """The parts of a raw file, in order; those that are there are not read again."""
    done = stem.with_name(f"{stem.name}.json")
    count = storage.read_note(done)
    parts = [_part(stem, place) for place in range(count)] if type(count) is int else []
    if parts and all(map(pathlib.Path.is_file, parts)):
        return parts
    places = []
    with progress.bar(f"Reading {os.path.basename(file)}", os.path.getsize(file), enabled=show) as bar:
        for place, made in _made(worker, file, stem, dev, processes, lambda at: bar.advance(at - bar.done)):
            if made is not None:
                storage.write_bytes(_part(stem, place), b"".join(line + b"\n" for line in made))
            places.append(_part(stem, place))
    if not places:
        raise InputError("the file has no records", "Name a file of Natural Questions.", file=file)
    storage.write_json(done, len(places))
    return places


def _made(
    worker: _Worker,
    file: str | os.PathLike,
    stem: pathlib.Path,
    dev: bool,
    processes: int,
    watch: Callable[[int], None],
) -> Iterator[tuple[int, list[bytes] | None]]:
    """(number, lines) of each part in order; None instead of lines where the part is there."""
    numbered = enumerate(workers.batches(file, PART, watch))
    wanted = (None if _part(stem, place).exists() else batch for place, batch in numbered)
    work = functools.partial(worker, file=os.fspath(file), dev=dev)
    yield from enumerate(workers.in_order(work, wanted, processes))


def _part(stem: pathlib.Path, place: int) -> pathlib.Path:
    return stem.with_name(f"{stem.name}-{place:06}.jsonl")


@dataclasses.dataclass(frozen=True)
class _Made:
    """What a part has of a record.

    Attributes:
      needed: of it.
      page: its document's line, with its end; empty where its text is not known yet.
      halves: see `folder.HALVES`.
    """

    needed: Extract
    page: bytes
    halves: int


def _read(parts: Sequence[pathlib.Path]) -> Iterator[_Made]:
    for part in parts:
        with open(part, "rb") as file:
            while said := file.readline():
                record, halves = lines.loads(said)
                page = file.readline()
                needed = Extract(**{**record, "answers": tuple(record["answers"])})
                yield _Made(needed, page if len(page) > 1 else b"", halves)


def _last_end(parts: Sequence[pathlib.Path]) -> int:
    """Where the last abstract ends that has an end; −1 where none has."""
    for part in reversed(parts):
        for one in reversed(list(_read([part]))):
            if one.needed.end >= 0:
                return one.needed.end
    return -1


def _assembled(
    folder: pathlib.Path, made: Mapping[str, Sequence[pathlib.Path]], rules: Rules, show: bool
) -> tuple[dict[str, int], dict[str, int]]:
    """Writes the folder, of parts; returns split → questions, and what was counted."""
    pages, seen, asked, notes = (
        Collection(),
        set[str](),
        Ids(),
        {WITHOUT_TITLE: 0, WITHOUT_PARAGRAPH: 0, folders.HALVES: 0},
    )
    judged = dict.fromkeys(("train", "test", "test_seen", "test_unseen"), 0)

    def in_order() -> Iterator[tuple[str, Extract, _Made]]:
        # The published script reads dev first, and what it knows of dev's last page when it comes to train's first.
        for split, before in (("train", _last_end(made["dev"])), ("dev", -1)):
            read, again = itertools.tee(_read(made[split]))
            for one, part in zip(finished((one.needed for one in read), rules, before), again, strict=True):
                yield split, one, part

    total = sum(map(len, made.values())) * PART
    with (
        progress.bar("Writing pages", total, enabled=show) as bar,
        storage.writing(folder / folders.CORPUS) as corpus,
        storage.writing(folder / folders.QUERIES) as queries,
        contextlib.ExitStack() as stack,
    ):  # fmt: skip
        qrels = {split: stack.enter_context(storage.writing(_qrels(folder, split))) for split in judged}
        for file in qrels.values():
            file.write(b"query-id\tcorpus-id\tscore\n")
        for split, one, part in in_order():
            bar.advance()
            asked.add(one.id)
            problem = folders.check_question(one.id, one.question)
            if problem:
                raise InputError(problem, f"Correct it in the raw file of {split}.", file=folder, value=one.id)
            notes[WITHOUT_TITLE] += not one.title
            notes[WITHOUT_PARAGRAPH] += not one.paragraph
            page, document = pages.add(one)
            if document is not None and part.page:
                corpus.write(part.page)
                notes[folders.HALVES] += part.halves
            elif document is not None:
                _write(corpus, folders.document_line(document), notes)
            question = {"_id": one.id, "text": one.question, "metadata": {"answers": list(one.answers)}}
            _write(queries, folders.json_line(question), notes)
            if split == "train":
                seen.add(page)
            for name in ("train",) if split == "train" else ("test", "test_seen" if page in seen else "test_unseen"):
                qrels[name].write(f"{one.id}\t{page}\t1\n".encode())
                judged[name] += 1
        read_again = itertools.chain.from_iterable(map(_read, made.values()))
        twice = asked.repeated(one.needed.id for one in read_again)
        if twice is not None:
            raise InputError("an example that came before", "Give every raw file once.", file=folder, value=twice)
    for split, count in judged.items():
        if not count:  # a file without judgements would be refused
            _qrels(folder, split).unlink()
    return (
        {split: count for split, count in judged.items() if count},
        {name: count for name, count in notes.items() if count},
    )


def _qrels(folder: pathlib.Path, split: str) -> pathlib.Path:
    return folder / "qrels" / f"{split}.tsv"


def _dumps(value: Any) -> bytes:
    """JSON; of half surrogate pairs, too, which orjson refuses."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value).encode()


def _write(file: BinaryIO, made: tuple[bytes, Sequence[str]], notes: dict[str, int]) -> None:
    line, counted = made
    file.write(line + b"\n")
    for name in counted:
        notes[name] += 1
