"""Text cut into sentences and words, with scripts that write no spaces in mind."""

from __future__ import annotations

import re

_END = re.compile(r"(?<=[.!?])[\"'”’)\]]*\s+(?=[\"'“‘(\[]*[A-Z0-9À-ÞΑ-ΩА-Я])|(?<=[。！？])[」』）]*|\n\s*\n")
# A period after these, or after a single capital, ends no sentence.
_ABBREVIATION = re.compile(
    r"(?:\b(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|e\.g|i\.e|cf|No|Fig|Eq|Vol|Inc|Ltd|Co|Corp|Gen|Col|Lt|Sgt|Rev|Hon|approx"
    r"|ca|c|U\.S|U\.K|Ph\.D))\.$"
)
# Han, Hiragana, Katakana and Thai stand without spaces: each character is a word.
UNSPACED = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_WORD = re.compile(rf"{UNSPACED.pattern}|(?:(?!{UNSPACED.pattern})\S)+")


def split_sentences(text: str) -> list[str]:
    """The sentences of `text`, in order, without surrounding white space; none of them blank."""
    sentences = []
    start = 0
    for match in _END.finditer(text):
        if match.end() > start and not _ABBREVIATION.search(text, max(start, match.start() - 12), match.start()):
            sentences.append(text[start : match.end()].strip())
            start = match.end()
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]


def word_spans(text: str) -> list[tuple[int, int]]:
    """(start, end) of each word: a run without white space, or one character of a script without spaces."""
    return [match.span() for match in _WORD.finditer(text)]


def is_unspaced(text: str) -> bool:
    """Whether a good part of `text` is in a script without spaces."""
    return not text.isascii() and 4 * len(UNSPACED.findall(text)) > len(text)
