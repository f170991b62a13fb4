"""Folders of data made of others: some of the documents, few questions, few labels, a question for every document. They
stand in `runs/subsets`."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import pathlib
import re
import shutil
from collections.abc import Mapping

import numpy as np

from benchmarks import harness
from gr_jax import storage
from gr_jax.corpus import Corpus, read_beir
from gr_jax.docids.pseudo_queries import pseudo_queries
from gr_jax.errors import InputError

_COPIED = ("corpus.", "queries.")
_SPLITS = ("train", "dev", "test")
_HEAD = "query-id\tcorpus-id\tscore\n"
OWN_QUERY = "own-"  # begins the id of a query that a document gets of its own words
OWN_KIND = "span"  # of pseudo-query that this is

NINE_TENTHS = "nine_tenths"


def subset(folder: pathlib.Path, name: str) -> pathlib.Path:
    """A file of document ids: of the data, or, where it has none of that name, so many thousand ("3k") of its documents
    at equal distances. "nine_tenths" is all but the documents of every tenth title, "10k-nine_tenths" the same of
    "10k".

    Raises:
      InputError: the data has neither.
    """
    if name.endswith(NINE_TENTHS):
        return _nine_tenths(folder, name.removesuffix(NINE_TENTHS).rstrip("-"))
    given = folder / "subsets" / f"{name}.ids.gz"
    if given.is_file() or not folder.is_dir():
        return given
    if not re.fullmatch(r"[1-9]\d*k", name):
        raise InputError("no such part of the documents", 'Name a file of theirs, or a number like "3k".', value=name)
    made = harness.CHECKOUT / "runs" / "subsets" / f"{folder.name}-{name}.ids"
    if not made.is_file():
        every = read_beir(folder).corpus.doc_ids
        number = 1000 * int(name.removesuffix("k"))
        if number > len(every):
            raise InputError(f"there are {len(every)} documents", "Name a smaller part.", value=name)
        chosen = np.linspace(0, len(every) - 1, number).astype(int)
        storage.write_text(made, "".join(f"{every[place]}\n" for place in chosen))
    return made


@functools.cache
def _nine_tenths(folder: pathlib.Path, of: str) -> pathlib.Path:
    corpus = read_beir(folder, subset=subset(folder, of) if of else None).corpus
    named = "-".join(filter(None, (folder.name, corpus.fingerprint[:8], of, NINE_TENTHS)))
    made = harness.CHECKOUT / "runs" / "subsets" / f"{named}.ids"
    if not made.is_file():
        left_out = set(sorted(set(corpus.titles))[::10])
        kept = (one for one, title in zip(corpus.doc_ids, corpus.titles, strict=True) if title not in left_out)
        storage.write_text(made, "".join(f"{one}\n" for one in kept))
    return made


@functools.cache
def with_questions(folder: pathlib.Path, number: int) -> pathlib.Path:
    """A folder of the first training questions, which are those of dev and test too, the documents that answer them,
    and others at equal distances, up to four times as many documents as questions."""
    whole = read_beir(folder)
    made = harness.CHECKOUT / "runs" / "subsets" / f"{folder.name}-{whole.corpus.fingerprint[:8]}-{number}-questions"
    if (made / "corpus.jsonl").is_file():  # written last
        return made
    judged = dict(itertools.islice(whole.split("train").items(), number))
    texts = dict(zip(judged, whole.query_texts(list(judged)), strict=True))
    answers = {whole.corpus.index_of(doc_id) for grades in judged.values() for doc_id in grades}
    others = [place for place in range(len(whole.corpus)) if place not in answers]
    spread = np.linspace(0, len(others) - 1, max(0, 4 * number - len(answers))).astype(int)
    chosen = sorted(answers | {others[place] for place in spread})
    qrels = "".join(f"{one}\t{doc_id}\t{grade}\n" for one, grades in judged.items() for doc_id, grade in grades.items())
    for split in _SPLITS:
        storage.write_text(made / "qrels" / f"{split}.tsv", f"{_HEAD}{qrels}")
    _write_texts(made, texts, whole.corpus.subset(chosen))
    return made


@functools.cache
def with_every_document(folder: pathlib.Path, name: str) -> pathlib.Path:
    """A folder of some of the documents where every one answers a training question. Beside the data's own questions
    each document has one that is made of it by rules: 4 to 16 words of its text that stand together (`OWN_KIND` of
    `gr_jax.docids.pseudo_queries`), or its title where it has no text. It is the same whatever the other documents are.

    Args:
      folder: of the data.
      name: of the documents; see `subset`.

    Raises:
      InputError: there is no such part, or a document that has neither text nor title.
    """
    part = read_beir(folder, subset=subset(folder, name))
    made = (
        harness.CHECKOUT / "runs" / "subsets" / f"{folder.name}-{part.corpus.fingerprint[:8]}-{name}-{OWN_KIND}-of-each"
    )
    if (made / "corpus.jsonl").is_file():  # written last
        return made
    own = _own_queries(part.corpus)
    texts = {one: part.queries.text(one) for split in _SPLITS for one in part.qrels.get(split, ())}
    for split in _SPLITS:
        rows = [(one, *at) for one, grades in part.qrels.get(split, {}).items() for at in grades.items()]
        if split == "train":
            rows += [(f"{OWN_QUERY}{doc_id}", doc_id, 1) for doc_id in own]
        if rows:
            lines = "".join(f"{one}\t{doc_id}\t{grade}\n" for one, doc_id, grade in rows)
            storage.write_text(made / "qrels" / f"{split}.tsv", f"{_HEAD}{lines}")
    texts |= {f"{OWN_QUERY}{doc_id}": text for doc_id, text in own.items()}
    _write_texts(made, texts, part.corpus)
    return made


def _own_queries(corpus: Corpus) -> dict[str, str]:
    """Document → a query of its own words."""
    found = pseudo_queries(corpus, kinds={OWN_KIND: 1, "title": 1})
    own: dict[str, str] = {}
    for text, place in zip(found.texts, found.documents.tolist(), strict=True):
        own.setdefault(corpus.doc_ids[place], text)  # spans come before titles
    if len(own) < len(corpus):
        lacking = next(doc_id for doc_id in corpus.doc_ids if doc_id not in own)
        raise InputError("a document has neither text nor title", "Leave it out.", value=lacking)
    return own


def _write_texts(folder: pathlib.Path, queries: Mapping[str, str], corpus: Corpus) -> None:
    """Writes queries, and then documents, which says that a folder is complete."""
    asked = ({"_id": one, "text": text} for one, text in queries.items())
    documents = ({"_id": one.doc_id, "title": one.title, "text": one.text} for one in corpus)
    for name, rows in (("queries", asked), ("corpus", documents)):
        storage.write_text(folder / f"{name}.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))


@functools.cache
def with_labels(folder: pathlib.Path, number: int) -> pathlib.Path:
    """A folder of the same documents and questions where so many training questions, drawn at random, keep their
    judgements. With none, no question of any split has one.

    Raises:
      InputError: there are fewer.
    """
    train = list(read_beir(folder).split("train").items())
    if not 0 <= number <= len(train):
        raise InputError(f"there are {len(train)} training questions", "Give as many or fewer.", value=number)
    files = [*(folder / "qrels").iterdir(), *(one for one in folder.iterdir() if one.name.startswith(_COPIED))]
    digest = hashlib.sha256(b"".join(hashlib.sha256(one.read_bytes()).digest() for one in sorted(files))).hexdigest()
    made = harness.CHECKOUT / "runs" / "subsets" / f"{folder.name}-{digest[:8]}-{number}-labels"
    if (made / "complete").is_file():  # written last
        return made
    (made / "qrels").mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        if file.name.startswith(_COPIED):
            shutil.copyfile(file, made / file.name)
    if number:
        for file in (folder / "qrels").iterdir():
            if not file.name.startswith("train."):
                shutil.copyfile(file, made / "qrels" / file.name)
        kept = [train[place] for place in np.sort(np.random.default_rng(0).permutation(len(train))[:number])]
        lines = (f"{one}\t{doc_id}\t{grade}\n" for one, grades in kept for doc_id, grade in grades.items())
        storage.write_text(made / "qrels" / "train.tsv", f"{_HEAD}{''.join(lines)}")
    else:
        (made / "qrels").rmdir()
    storage.write_text(made / "complete", "")
    return made
