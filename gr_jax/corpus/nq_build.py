"""Builds a collection of Natural Questions from the raw files, as a folder in BEIR's layout.

Raw files have tens of gigabytes. They are read once, a few hundred records at a time, on several processes; what was
read is kept in parts, so that a build that was interrupted goes on with the next one. The folder is the same whatever
the number of processes and of interruptions.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import hashlib
import json
import multiprocessing
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gr_jax import progress, storage
from gr_jax.corpus import lines, nq
from gr_jax.corpus.nq320k import Collection, Extract, Rules, extract, finished
from gr_jax.errors import InputError

VERSION = 1  # raise it when the same raw files give other parts
PART = 200  # records
ABOUT = "about.json"
_PARTS = ".parts-"


@dataclasses.dataclass(frozen=True)
class Built:
    """What was built.

    Attributes:
      documents: pages.
      questions: split → how many.
      without_title: records whose page has none; they share one document where titles tell pages apart.
    """

    documents: int
    questions: Mapping[str, int]
    without_title: int


def build_nq(
    train: Sequence[str | os.PathLike],
    dev: Sequence[str | os.PathLike],
    folder: str | os.PathLike,
    rules: Rules,
    *,
    tokenizer: str | os.PathLike | None = None,
    processes: int = 1,
    show: bool = True,
) -> Built:
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
    if processes < 1:
        raise InputError("records are read by 1 process or more", "Use 1.", value=processes)
    folder = pathlib.Path(folder)
    _refuse_others(folder)
    parts = folder / f"{_PARTS}{_key(train, dev, rules)}"
    parts.mkdir(parents=True, exist_ok=True)
    worker = _Worker(rules, None if tokenizer is None else os.fspath(tokenizer))
    made: dict[str, list[pathlib.Path]] = {}
    for split, files in (("train", train), ("dev", dev)):
        made[split] = []
        for place, file in enumerate(files):
            stem = parts / f"{split}-{place}"
            made[split] += _extracted(worker, file, stem, split == "dev", processes, show)
    built = _assembled(folder, made, rules, show)
    storage.write_json(
        folder / ABOUT, {"rules": dataclasses.asdict(rules), "version": VERSION, **dataclasses.asdict(built)}
    )
    for left in folder.glob(f"{_PARTS}*"):  # of builds by other rules, too
        shutil.rmtree(left)
    return built


def _refuse_others(folder: pathlib.Path) -> None:
    """Raises InputError for a folder that holds what no build put there: somebody's documents, say."""
    if not folder.is_dir():
        return
    names = sorted(path.name for path in folder.iterdir())
    if names and ABOUT not in names and not any(name.startswith(_PARTS) for name in names):
        raise InputError("this folder holds something else", "Name a new folder.", file=folder, value=names[0])


def _key(train: Sequence[str | os.PathLike], dev: Sequence[str | os.PathLike], rules: Rules) -> str:
    """Of what parts are made of: files by size and time, for reading them is what parts are to save."""
    said: list[Any] = [VERSION, PART, dataclasses.asdict(rules)]
    for file in (*train, *dev):
        try:
            found = os.stat(file)
        except OSError as error:
            raise InputError(
                f"cannot be read: {error.strerror}", "Name a raw file that is there.", file=file
            ) from error
        said.append([os.path.realpath(file), found.st_size, found.st_mtime_ns])
    return hashlib.sha256(json.dumps([said, len(train)]).encode()).hexdigest()[:16]


class _Worker:
    """Reads records; what a process has of its own is made when it is asked first."""

    def __init__(self, rules: Rules, tokenizer: str | None):
        self._rules, self._tokenizer = rules, tokenizer
        self._normalise: Callable[[str], str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_normalise": None}

    def __call__(self, raw: Sequence[tuple[int, bytes]], file: str, dev: bool) -> list[str]:
        """A line of JSON for each record."""
        if self._normalise is None:
            self._normalise = _through_bert(self._tokenizer) if self._rules.normaliser == "bert" else str
        normalise, found = self._normalise, []
        for number, line in raw:
            record = nq.parse_nq(lines.decoded(line, file, number), file, number)
            if self._rules.duplicates != "title" and not record.url:  # all without one would be one page
                raise InputError(
                    "a page without an address, by which pages are told apart",
                    'Take rules with duplicates "title", or files with document_url.',
                    file=file,
                    line=number,
                    value=record.id,
                )
            found.append(json.dumps(vars(extract(record, self._rules, normalise, dev=dev))))
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
    if isinstance(count, int):
        return [_part(stem, place) for place in range(count)]
    places = []
    with progress.bar(f"Reading {os.path.basename(file)}", os.path.getsize(file), enabled=show) as bar:
        for place, made in _made(worker, file, stem, dev, processes, lambda at: bar.advance(at - bar.done)):
            if made is not None:
                storage.write_bytes(_part(stem, place), "".join(f"{line}\n" for line in made).encode())
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
) -> Iterator[tuple[int, list[str] | None]]:
    """(number, lines) of each part in order; None instead of lines where the part is there."""
    name = os.fspath(file)
    batches = enumerate(_batches(lines.read_raw_lines(file, watch)))
    if processes == 1:
        for place, batch in batches:
            yield place, None if _part(stem, place).exists() else worker(batch, name, dev)
        return
    waiting: collections.deque[tuple[int, concurrent.futures.Future | None]] = collections.deque()
    context = multiprocessing.get_context("spawn")  # this process may have threads
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as pool:
        for place, batch in batches:
            there = _part(stem, place).exists()
            waiting.append((place, None if there else pool.submit(worker, batch, name, dev)))
            while len(waiting) > 2 * processes:
                number, future = waiting.popleft()
                yield number, None if future is None else future.result()
        for number, future in waiting:
            yield number, None if future is None else future.result()


def _batches(raw: Iterator[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    batch: list[tuple[int, bytes]] = []
    for one in raw:
        batch.append(one)
        if len(batch) == PART:
            yield batch
            batch = []
    if batch:
        yield batch


def _part(stem: pathlib.Path, place: int) -> pathlib.Path:
    return stem.with_name(f"{stem.name}-{place:06}.jsonl")


def _read(parts: Sequence[pathlib.Path]) -> Iterator[Extract]:
    for part in parts:
        for _, record in lines.read_json_lines(part):
            yield Extract(**{**record, "answers": tuple(record["answers"])})


def _last_end(parts: Sequence[pathlib.Path]) -> int:
    """Where the last abstract ends that has an end; −1 where none has."""
    for part in reversed(parts):
        for one in reversed(list(_read([part]))):
            if one.end >= 0:
                return one.end
    return -1


def _assembled(folder: pathlib.Path, made: Mapping[str, Sequence[pathlib.Path]], rules: Rules, show: bool) -> Built:
    """Writes the folder, of parts."""
    pages, seen, without = Collection(), set[str](), 0
    qrels: dict[str, list[str]] = {name: [] for name in ("train", "test", "test_seen", "test_unseen")}
    asked: set[str] = set()

    def in_order() -> Iterator[tuple[str, Extract]]:
        # The published script reads dev first, and what it knows of dev's last page when it comes to train's first.
        for split, before in (("train", _last_end(made["dev"])), ("dev", -1)):
            for one in finished(_read(made[split]), rules, before):
                yield split, one

    total = sum(map(len, made.values())) * PART
    with (
        progress.bar("Writing pages", total, enabled=show) as bar,
        storage.writing(folder / "corpus.jsonl") as corpus,
        storage.writing(folder / "queries.jsonl") as queries,
    ):  # fmt: skip
        for split, one in in_order():
            bar.advance()
            if one.id in asked:
                raise InputError("an example that came before", "Give every raw file once.", value=one.id)
            asked.add(one.id)
            without += not one.title
            page, document = pages.add(one)
            if document is not None:
                corpus.write(_json({"_id": page, "title": document.title, "text": document.text}))
            queries.write(_json({"_id": one.id, "text": one.question, "metadata": {"answers": list(one.answers)}}))
            row = f"{one.id}\t{page}\t1"
            if split == "train":
                seen.add(page)
                qrels["train"].append(row)
            else:
                qrels["test"].append(row)
                qrels["test_seen" if page in seen else "test_unseen"].append(row)
    for split, rows in qrels.items():
        if not rows:  # a file without judgements would be refused
            (folder / "qrels" / f"{split}.tsv").unlink(missing_ok=True)
            continue
        lines.write_lines(folder / "qrels" / f"{split}.tsv", ["query-id\tcorpus-id\tscore", *rows])
    return Built(len(pages.first), {split: len(rows) for split, rows in qrels.items()}, without)


def _json(record: Mapping[str, Any]) -> bytes:
    return (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8", "replace")
