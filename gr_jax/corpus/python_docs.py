"""`python_docs`: the documentation of the Python packages that are installed, as a corpus with queries.

Every documented public name is a document. The first sentence of its docstring says what it does in plain words: that
is a query, and it is taken out of the document, so that the answer must be found without it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import os
import platform
from collections import defaultdict
from collections.abc import Iterable, Sequence

from gr_jax.corpus.dataset import Dataset
from gr_jax.corpus.docstrings import split_docstring
from gr_jax.corpus.documents import Corpus, Document
from gr_jax.corpus.python_names import Library
from gr_jax.corpus.python_source import STDLIB, Definition, read_modules
from gr_jax.corpus.queries import Queries
from gr_jax.corpus.trec import Qrels
from gr_jax.errors import InputError

DEFAULT_PACKAGES = ("jax", "flax", "optax", "orbax", "numpy", STDLIB)
MIN_TOKENS = 20

# Shares of the documents none of whose queries is trained on, for testing and for choosing.
_UNSEEN_TEST, _UNSEEN_DEV = 0.085, 0.03
# Shares of the second queries of the other documents; the rest is trained on.
_SECOND_TEST, _SECOND_DEV = 0.45, 0.20


def python_docs(packages: Sequence[str] = DEFAULT_PACKAGES, store: str | os.PathLike | None = None) -> Dataset:
    """The documentation of installed Python packages, read from their source; nothing is imported.

    A document is a public module, class, function or method with a docstring: its id and title are the name under which
    it is imported, its text is the signature and the docstring. The docstring's first sentence is a query and is not
    part of the document; where the opening prose has three sentences, the second is another query, taken out too.
    Documents with fewer than 20 words left are dropped, and so are repetitions of the same docstring; both are counted
    in `Dataset.notes`. Equal queries share their documents.

    Splits depend on hashes of names and texts alone, not on order or on what else is installed: `train` (first
    sentences and a part of the second), `test` (second sentences of documents whose first is in train), `test_unseen`
    (documents none of whose queries is in train), `dev` (some of both kinds).

    Texts are as written. `Dataset.transform` is "split_identifiers".

    Args:
      packages: importable names; "stdlib" is the standard library of the running Python.
      store: see `Corpus.from_documents`.

    Raises:
      InputError: a package is not installed or has no source, or nothing is documented.
    """
    if not packages:
        raise InputError("no packages to read", "Name at least one package.", value=packages)
    modules = read_modules(dict.fromkeys(packages))
    entries, counts = _entries(sorted(Library(modules).public_definitions(), key=lambda item: item[0]))
    if not entries:
        raise InputError("nothing in these packages is documented", "Name other packages.", value=tuple(packages))
    corpus = Corpus.from_documents((entry.document for entry in entries), store)
    queries, qrels = split(entries)
    notes = {"packages": {package: _version(package) for package in packages}, **counts}
    return Dataset(corpus, queries, qrels, "python_docs", "split_identifiers", notes)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A document and its queries: none, its first sentence, or the first two."""

    document: Document
    queries: tuple[str, ...]


def _entries(definitions: Iterable[tuple[str, Definition]]) -> tuple[list[Entry], dict[str, int]]:
    """Documents with their queries, and how many definitions were left out for what reason."""
    entries: list[Entry] = []
    seen: dict[str, set[str]] = {"name": set(), "doc": set()}
    counts = {"too_short": 0, "repeated": 0}
    for name, definition in definitions:
        queries, rest = split_docstring(definition.doc)
        text = f"{definition.signature}\n{rest}".strip()
        if len(text.split()) < MIN_TOKENS:
            counts["too_short"] += 1
        elif name in seen["name"] or definition.doc in seen["doc"]:
            counts["repeated"] += 1
        else:
            seen["name"].add(name)
            seen["doc"].add(definition.doc)
            entries.append(Entry(Document(name, name, text), queries))
    return entries, counts


def split(entries: Iterable[Entry]) -> tuple[Queries, dict[str, Qrels]]:
    """Queries and their split, by hash.

    A document is held out by the hash of its name, unless one of its queries is another document's trained one: then it
    has been seen. A query whose documents are partly seen is used for choosing only.
    """
    documents: dict[str, list[str]] = defaultdict(list)
    train: dict[str, None] = {}
    for entry in entries:
        held_out = _share(entry.document.doc_id) < _UNSEEN_TEST + _UNSEEN_DEV
        for place, query in enumerate(entry.queries):
            documents[query].append(entry.document.doc_id)
            if not held_out and (place == 0 or _share(query) >= _SECOND_TEST + _SECOND_DEV):
                train[query] = None
    seen = {doc_id for query in train for doc_id in documents[query]}
    splits: dict[str, dict[str, dict[str, int]]] = {name: {} for name in ("train", "dev", "test", "test_unseen")}
    for query, doc_ids in documents.items():
        known = [doc_id in seen for doc_id in doc_ids]
        if query in train:
            name = "train"
        elif all(known):
            name = "test" if _share(query) < _SECOND_TEST else "dev"
        elif not any(known) and all(_share(doc_id) < _UNSEEN_TEST for doc_id in doc_ids):
            name = "test_unseen"
        else:
            name = "dev"
        splits[name][_query_id(query)] = dict.fromkeys(doc_ids, 1)
    queries = Queries(tuple(map(_query_id, documents)), tuple(documents))
    return queries, {name: Qrels(judgements) for name, judgements in splits.items() if judgements}


def _share(text: str) -> float:
    """A number in [0, 1) that depends on `text` alone, and spreads evenly."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def _query_id(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _version(package: str) -> str:
    if package == STDLIB:
        return platform.python_version()
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        # A package of another name (orbax is of orbax-checkpoint), which takes longer to find.
        names = importlib.metadata.packages_distributions().get(package, [])
        return " ".join(f"{name} {importlib.metadata.version(name)}" for name in sorted(set(names))) or "unknown"
