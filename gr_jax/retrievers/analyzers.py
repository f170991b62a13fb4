"""From texts to the terms by which BM25 finds them."""

from __future__ import annotations

import importlib
import re
from typing import Any, Protocol

from gr_jax.errors import InputError
from gr_jax.text.transforms import get_transform

ANALYZERS = ("english", "character_bigrams")

# Lucene's. Those of bm25s are the same, but to import it takes a second and brings JAX.
_STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with".split()
)
_WORD = re.compile(r"(?u)\b\w\w+\b")
_IDENTIFIER = re.compile(r"(?u)\w+")


class Analyzer(Protocol):
    """Two steps, the second of which is of each word by itself, so that it can be remembered."""

    def words(self, text: str) -> list[str]:
        """What a text is split into."""
        ...

    def terms(self, words: list[str]) -> list[str]:
        """The terms of words, without those that are none."""
        ...


class _English:
    """Lower-cased words of two letters and more, without stop words; Snowball stems."""

    def __init__(self, transform: str):
        self._prepare = get_transform(transform)
        self._stem = import_package("Stemmer").Stemmer("english").stemWords

    def words(self, text: str) -> list[str]:
        return _WORD.findall(self._prepare(text).lower())

    def terms(self, words: list[str]) -> list[str]:
        return self._stem([word for word in words if word not in _STOP_WORDS])


class _CharacterBigrams:
    """Lower-cased pairs of neighbouring characters within words."""

    def __init__(self, transform: str):
        self._prepare = get_transform(transform)

    def words(self, text: str) -> list[str]:
        words = _IDENTIFIER.findall(self._prepare(text).lower())
        return [word[start : start + 2] for word in words for start in range(max(len(word) - 1, 1))]

    def terms(self, words: list[str]) -> list[str]:
        return words


def make_analyzer(name: str, transform: str) -> Analyzer:
    """The analyzer of one of `ANALYZERS`, after one of `gr_jax.text.TRANSFORMS`.

    Raises:
      InputError: another name, or a package is missing.
    """
    if name not in ANALYZERS:
        raise InputError("no such analyzer", f"Choose among {', '.join(ANALYZERS)}.", value=name)
    return _English(transform) if name == "english" else _CharacterBigrams(transform)


def import_package(name: str) -> Any:
    """Imports what BM25 needs.

    Raises:
      InputError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = {"Stemmer": "PyStemmer"}.get(name, name.partition(".")[0])
        raise InputError(f"BM25 needs the package {package}", "pip install 'gr_jax[eval]'") from error
