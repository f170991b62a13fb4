"""Where a system's dataset comes from. A source knows what identifies its content before it reads it."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import shutil
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import gin

from gr_jax import corpus as corpus_lib
from gr_jax.corpus import cutting, lines
from gr_jax.corpus.beir import find_files
from gr_jax.corpus.python_docs import DEFAULT_PACKAGES
from gr_jax.errors import InputError
from gr_jax.stages import keys
from gr_jax.stages.settings import Settings, setting
from gr_jax.text import TRANSFORMS


class Source(Protocol):
    """A dataset that is not read yet."""

    def identity(self) -> dict[str, Any]:
        """What identifies the content: equal values mean an equal dataset."""
        ...

    def load(self, store: pathlib.Path) -> corpus_lib.Dataset:
        """Reads it, with the documents' columns written under `store`."""
        ...


@dataclasses.dataclass(frozen=True)
class InMemory:
    """A dataset that was made in this process. Gin cannot name it.

    Attributes:
      dataset: the documents, queries and judgements.
    """

    dataset: corpus_lib.Dataset

    def identity(self) -> dict[str, Any]:
        """Fingerprints all that reports and training read."""
        dataset = self.dataset
        rest = {
            "queries": list(zip(dataset.queries.ids, dataset.queries.texts, strict=True)),
            "qrels": [[split, [[q, list(grades.items())] for q, grades in qrels.items()]]
                      for split, qrels in dataset.qrels.items()],
            "notes": dict(dataset.notes),
        }  # fmt: skip
        names = {"name": dataset.name, "transform": dataset.transform}
        return {"corpus": dataset.corpus.fingerprint, "rest": keys.digest(rest), **names}

    def load(self, store: pathlib.Path) -> corpus_lib.Dataset:
        return self.dataset


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class BeirFolder(Settings):
    """A folder in BEIR layout: `corpus.jsonl[.gz]`, and where there are any, `queries.jsonl[.gz]` and `qrels/*.tsv`.

    Attributes:
      folder: its path.
      subset: a file of document ids, one a line, plain or .gz, to which the corpus is cut; "" takes all.
      transform: applied to every text before it is tokenised: "none" or "split_identifiers".
    """

    folder: str
    subset: str = ""
    transform: str = setting("none", choices=tuple(TRANSFORMS))

    def identity(self) -> dict[str, Any]:
        """Hashes the files' bytes: one pass over the disk, and no mistaking an edited folder for the old one."""
        root = pathlib.Path(self.folder)
        find_files(root)
        files = sorted(p for pattern in ("corpus.jsonl*", "queries.jsonl*", "qrels/*") for p in root.glob(pattern))
        names = [(p, p.relative_to(root).as_posix()) for p in files if os.path.isfile(p)]
        if self.subset:
            if not os.path.isfile(self.subset):
                raise InputError("no such file of document ids", "Give one id a line, plain or .gz.", file=self.subset)
            names.append((pathlib.Path(self.subset), "subset"))
        hashes = {name: lines.digest(path).hexdigest()[:16] for path, name in names}
        return {"beir": hashes, "name": root.resolve().name, "transform": self.transform}

    def load(self, store: pathlib.Path) -> corpus_lib.Dataset:
        dataset = corpus_lib.read_beir(self.folder, store=store, subset=self.subset or None)
        return dataclasses.replace(dataset, transform=self.transform)


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class BeirPassages(BeirFolder):
    """A folder in BEIR layout whose documents are cut into passages; see `gr_jax.corpus.cutting`.

    Attributes:
      rule: "first", "windows" or "sentences".
      words: of a passage at most.
      stride: words between the beginnings of windows; 0 is `words`.
      title_words: of a document without a title, so many of its first sentence become one; 0 leaves it without.
    """

    rule: str = setting("windows", choices=tuple(cutting.RULES))
    words: int = setting(100, at_least=1)
    stride: int = setting(0, at_least=0)
    title_words: int = setting(0, at_least=0)

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "passages": dataclasses.asdict(self._cut())}

    def load(self, store: pathlib.Path) -> corpus_lib.Dataset:
        whole = store.with_name(f"{store.name}_whole")  # neither has to fit into memory
        try:
            return cutting.cut(super().load(whole), self._cut(), store)
        finally:
            shutil.rmtree(whole, ignore_errors=True)

    def _cut(self) -> cutting.Rule:
        return cutting.Rule(self.rule, self.words, self.stride, self.title_words)


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class PythonDocs(Settings):
    """The documentation of installed Python packages.

    Attributes:
      packages: import names; None takes the default of `gr_jax.corpus.python_docs`.
    """

    packages: Sequence[str] | None = None

    def identity(self) -> dict[str, Any]:
        packages = DEFAULT_PACKAGES if self.packages is None else tuple(self.packages)
        versions = {name: _version(name) for name in packages}
        return {"python_docs": versions, "python": platform.python_version()}

    def load(self, store: pathlib.Path) -> corpus_lib.Dataset:
        if self.packages is None:
            return corpus_lib.python_docs(store=store)
        return corpus_lib.python_docs(tuple(self.packages), store=store)


def source_of(given: Source | corpus_lib.Dataset | corpus_lib.Corpus | str | os.PathLike) -> Source:
    """The source of documents that were given: a folder in BEIR layout, a dataset, a corpus, or a source itself.

    Raises:
      InputError: it is none of these.
    """
    if isinstance(given, str | os.PathLike):
        return BeirFolder(os.fspath(given))
    if isinstance(given, corpus_lib.Corpus):
        given = corpus_lib.Dataset(given, name="corpus")
    if isinstance(given, corpus_lib.Dataset):
        return InMemory(given)
    if isinstance(given, type) or not (hasattr(given, "identity") and hasattr(given, "load")):
        raise InputError(
            "this is no source of documents",
            "Give a folder's path, a Dataset, a Corpus or a source; of a list of texts Dataset.from_texts(texts).",
            value=given,
        )
    return given


def _version(package: str) -> str:
    """The version of what is imported by this name; of what was never installed a hash of its source; of Python, ""."""
    for name in (package, f"{package}-checkpoint"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    top = package.partition(".")[0]
    if top in sys.stdlib_module_names:
        return ""
    distributions = sorted(set(importlib.metadata.packages_distributions().get(top, ())))
    if distributions:
        return " ".join(f"{name} {importlib.metadata.version(name)}" for name in distributions)
    spec = importlib.util.find_spec(top)
    digest = hashlib.sha256()
    for root in (spec.submodule_search_locations or [spec.origin or ""]) if spec else []:
        for file in sorted(pathlib.Path(root).rglob("*.py")) or [pathlib.Path(root)]:
            digest.update(f"{file.relative_to(root)}\n".encode())
            digest.update(file.read_bytes() if file.is_file() else b"")
    return digest.hexdigest()[:16]
