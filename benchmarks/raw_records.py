"""Large raw files of made-up records: Natural Questions with pages of the published sizes, and lines of passages."""

from __future__ import annotations

import functools
import gzip
import json
import pathlib
from collections.abc import Iterator

import numpy as np

from benchmarks import harness
from gr_jax.corpus import read_beir

MEAN_BYTES, SPREAD = 100_000, 0.9  # of a page, and of the logarithm of its size
_LEVEL = 1  # of gzip: what is measured is reading


@functools.cache
def sentences() -> list[str]:
    """Real text, of which pages are put together; one space between words, as the raw files have it."""
    corpus = read_beir(harness.data_folder("wiki_intro_179k")).corpus
    return [" ".join(corpus.texts[index].split()) for index in range(0, len(corpus), 18)]


def _text(rng: np.random.Generator, size: int) -> str:
    """About so many bytes of real text."""
    pieces, filled, known = [], 0, sentences()
    start = int(rng.integers(len(known)))
    while filled < size:
        pieces.append(known[start % len(known)])
        filled += len(pieces[-1]) + 1
        start += 1
    return " ".join(pieces)


def nq_record(number: int, rng: np.random.Generator, *, dev: bool) -> dict:
    """One record, whose page has a heading, paragraphs, a table and lists."""
    size = int(MEAN_BYTES * np.exp(SPREAD * rng.standard_normal() - SPREAD**2 / 2))
    title = f"Page {number // 3}"
    parts = [f"{title} - wikipedia <H1> {title} </H1> <P> {_text(rng, 600)} </P>"]
    while sum(map(len, parts)) < size:
        parts.append(f"<H2> {number} </H2> <P> {_text(rng, 1500)} </P>")
        parts.append("<Table> " + " ".join(f"<Tr> <Td> {cell} </Td> </Tr>" for cell in range(30)) + " </Table>")
        parts.append("<Ul> " + " ".join(f"<Li> item {item} </Li>" for item in range(20)) + " </Ul>")
    page = " ".join(parts)
    record: dict = {
        "example_id": number + 10_000_000 * dev,
        "question_text": f"what is said on page {number}",
        "document_url": f"https://en.wikipedia.org//w/index.php?title=Page_{number // 3}&amp;oldid={number}",
        "annotations": [
            {"long_answer": {"start_token": 5, "end_token": 40}, "short_answers": [], "yes_no_answer": "NONE"}
        ],
    }
    if dev:
        return {**record, "document_title": title, "document_tokens": [{"token": one} for one in page.split(" ")]}
    return {**record, "document_text": page}


def write_nq(folder: pathlib.Path, size: int) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    """Train files of about so many bytes together, unzipped, and a small one of dev; those that are there stay."""
    folder.mkdir(parents=True, exist_ok=True)
    train, dev = folder / f"train-{size}.jsonl.gz", folder / "dev.jsonl.gz"
    for file, wanted in ((dev, size // 100), (train, size)):
        if not file.exists():
            rng = np.random.default_rng(wanted)
            partial = file.with_suffix(".partial")
            with gzip.open(partial, "wb", compresslevel=_LEVEL) as stream:
                filled, number = 0, 0
                while filled < wanted:
                    line = json.dumps(nq_record(number, rng, dev=file is dev)).encode() + b"\n"
                    stream.write(line)
                    filled, number = filled + len(line), number + 1
            partial.rename(file)
    return [train], [dev]


def passages(count: int) -> Iterator[tuple[int, str, str]]:
    """(number, text of about 100 words, title)."""
    words = " ".join(sentences()[:2000]).split()
    for number in range(count):
        start = number * 37 % (len(words) - 100)
        yield number, " ".join(words[start : start + 100]), f"Title {number // 7}"


def write_passages(file: pathlib.Path, count: int, *, dpr: bool) -> pathlib.Path:
    """`psgs_w100.tsv` or `collection.tsv`; one that is there stays."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        with open(partial, "w", encoding="utf-8") as stream:
            if dpr:
                stream.write("id\ttext\ttitle\n")
            for number, text, title in passages(count):
                if dpr:
                    stream.write('{}\t"{}"\t{}\n'.format(number + 1, text.replace('"', '""'), title))
                else:
                    stream.write(f"{number}\t{text}\n")
        partial.rename(file)
    return file
