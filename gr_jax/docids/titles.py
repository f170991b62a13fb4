"""Docids that are titles, written in a text vocabulary (GENRE, De Cao et al. 2021, section 3)."""

from __future__ import annotations

from collections.abc import Sequence

from gr_jax.docids.docids import Docids
from gr_jax.errors import InputError
from gr_jax.text import Vocabulary, get_transform

DUPLICATES = ("number", "share", "refuse")
WORDS_OF_A_TITLE = 8


def title_of(title: str, content: str) -> str:
    """A document's title on one line; of one without title the first words of its content."""
    return " ".join(title.split() or content.split()[:WORDS_OF_A_TITLE])


def titles(
    texts: Sequence[str],
    vocabulary: Vocabulary,
    *,
    duplicates: str = "number",
    untitled: str = "",
    max_length: int = 32,
    names: Sequence[str] | None = None,
    beside: Docids | None = None,
    transform: str = "none",
) -> Docids:
    """One docid for each document: the tokens of its title, ended by the vocabulary's end of sequence.

    A token is the vocabulary's id where the vocabulary pads with 0, as those of T5, ByT5 and BERT do; where id 0 is a
    piece of text or the end of sequence, a token is the id + 1. `meta["shift"]` says which, 0 or 1. Special tokens
    that a title spells out ("[SEP]") are left out.

    Args:
      texts: the titles.
      vocabulary: cuts them into tokens.
      duplicates: of titles that have the same tokens. "number": " (2)", " (3)" … is written after the later ones, in
        document order, passing over what another title already is. "share": one docid stands for all of them.
        "refuse": an error that names two of them.
      untitled: what documents without a title (or with one that has no tokens) are called; "" refuses them.
      max_length: tokens kept of a title, its number included, EOS not.
      names: names of the documents, for messages.
      beside: titles of other documents, made with the same settings, that these stand beside: one that is among them
        already is numbered, where titles are.
      transform: name of the text transform that titles are rewritten by before they are cut into tokens.

    Raises:
      InputError: a document without title; a title of which the vocabulary writes nothing but its unknown token; equal
        titles under "refuse"; an unknown policy; a max_length that has no room for a number.
    """
    if duplicates not in DUPLICATES:
        raise InputError("unknown policy for equal titles", f"Use one of {', '.join(DUPLICATES)}.", value=duplicates)
    if max_length < 1:
        raise InputError("titles need room for a token", "Give max_length ≥ 1.", value=max_length)
    writer = _Writer(vocabulary, max_length)
    rewrite = get_transform(transform)
    called = [rewrite(str(text)) for text in texts]
    written = writer.write(called)
    empty = [index for index, tokens in enumerate(written) if not tokens]
    if empty:
        (stand_in,) = writer.write([untitled])
        if not stand_in:
            name = empty[0] if names is None else repr(names[empty[0]])
            raise InputError(
                f"document {name} has no title",
                'Say what such documents are called, as untitled="untitled", or use another scheme.',
                value=called[empty[0]],
            )
        for index in empty:
            written[index], called[index] = stand_in, untitled
    unwritten = next((index for index, tokens in enumerate(written) if set(tokens) == {vocabulary.unk_id}), None)
    if unwritten is not None:
        name = unwritten if names is None else repr(names[unwritten])
        raise InputError(
            f"the vocabulary cannot write the title of document {name}",
            "Give the document a title in letters that the vocabulary has, or use a vocabulary of bytes.",
            value=called[unwritten],
        )
    shift = writer.shift
    if duplicates == "number":
        before = [] if beside is None else [beside.sequence(row) for row in range(len(beside))]
        _number(called, written, writer, {tuple(token - shift for token in tokens) for tokens in before})
    return Docids.build(
        [[token + shift for token in tokens] for tokens in written],
        vocab_size=vocabulary.size + shift,
        eos_id=vocabulary.eos_id + shift,
        texts=called,
        names=names,
        duplicates="refuse" if duplicates == "refuse" else "share",
        scheme="titles",
        meta={
            "duplicates": duplicates,
            "untitled": untitled,
            "max_length": max_length,
            "shift": shift,
            "transform": transform,
            "vocabulary": vocabulary.fingerprint,
        },
    )


class _Writer:
    """Titles as tokens of a vocabulary, without special tokens, cut to `max_length`."""

    def __init__(self, vocabulary: Vocabulary, max_length: int):
        self._vocabulary, self._max_length = vocabulary, max_length
        self.shift = int(vocabulary.pad_id != 0 or vocabulary.eos_id == 0)
        self._left_out = {vocabulary.pad_id, vocabulary.eos_id}

    def write(self, titles: Sequence[str]) -> list[tuple[int, ...]]:
        return [tokens[: self._max_length] for tokens in self.encode(titles)]

    def write_numbered(self, titles: Sequence[str], endings: Sequence[str]) -> list[tuple[int, ...]]:
        """`write` of each title and its ending; where both are too long, the title is cut and the ending kept."""
        whole = self.encode([title + ending for title, ending in zip(titles, endings, strict=True)])
        long = [i for i, tokens in enumerate(whole) if len(tokens) > self._max_length]
        tails = self.encode([endings[i] for i in long])
        for i, head, tail in zip(long, self.encode([titles[i] for i in long]), tails, strict=True):
            if len(tail) >= self._max_length:
                raise InputError(
                    "titles have no room for a number", f"Give max_length > {len(tail)}.", value=self._max_length
                )
            whole[i] = head[: self._max_length - len(tail)] + tail
        return whole

    def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """The same, whole."""
        if not texts:
            return []
        return [
            tuple(token for token in tokens if token not in self._left_out)
            for tokens in self._vocabulary.encode_batch(texts)
        ]


def _number(called: list[str], written: list[tuple[int, ...]], writer: _Writer, before: set[tuple[int, ...]]) -> None:
    """Tells equal titles apart, and from those that were there before, in place. Titles that occur as they are keep
    their tokens: they were there first."""
    taken = {*before, *written}
    first = set(before)
    place: dict[tuple[int, ...], int] = {}  # the last number given out under a title's tokens
    waiting: list[tuple[int, str, tuple[int, ...]]] = []
    for index, tokens in enumerate(written):
        if tokens in first:
            waiting.append((index, called[index], tokens))
        first.add(tokens)
    if waiting and len(set(writer.encode([f"({digit})" for digit in range(10)]))) < 10:
        raise _no_numbers(waiting[0][1])
    refused: dict[int, tuple[int, ...]] = {}
    while waiting:
        numbers = []
        for _, _, tokens in waiting:
            place[tokens] = place.get(tokens, 1) + 1
            numbers.append(place[tokens])
        endings = [f" ({number})" for number in numbers]
        again = []
        candidates = writer.write_numbered([title for _, title, _ in waiting], endings)
        for entry, ending, tokens in zip(waiting, endings, candidates, strict=True):
            index, title, _ = entry
            if tokens in taken:
                if refused.get(index) == tokens:  # with another number
                    raise _no_numbers(title)
                refused[index] = tokens
                again.append(entry)
                continue
            taken.add(tokens)
            written[index], called[index] = tokens, title + ending
        waiting = again


def _no_numbers(title: str) -> InputError:
    return InputError(
        "documents have the same title, and the vocabulary cannot write the numbers that would tell them apart",
        'Use a vocabulary that has the digits, or duplicates="share".',
        value=title,
    )
