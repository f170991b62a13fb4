"""Records of Natural Questions (Kwiatkowski et al. 2019), and the documents that papers on generative retrieval make of
them.

Files come in two forms. In the simplified one, of the train set, a page is one text. In the original one, of the dev
set, it is a list of tokens, and its title stands beside it. Tags are tokens in both.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gr_jax.corpus import lines
from gr_jax.corpus.records import Place

_TAG = re.compile(r"<[^<][^<>]*>")  # what "<[^<]+?>" finds, in two thirds of the time
_SPACES = re.compile(r"  +")  # of two and more: to find every single one takes most of the time
_PAGE_NAME = re.compile(r"^(.*?) - [Ww]ikipedia(?= |$)")
_REVISION = re.compile(r"(&amp;|&)oldid=[0-9]+")


@dataclasses.dataclass(frozen=True)
class Record:
    """One question and the page that it was asked of.

    Attributes:
      id: of the example, as a text.
      question: text.
      url: of the page, with its revision; "" where the record has none.
      page: the page's text, tokens and tags with spaces between.
      title: as the record says it beside the page; None in the simplified form.
      annotations: what people marked, as it stands there.
    """

    id: str
    question: str
    url: str
    page: str
    title: str | None
    annotations: tuple[Mapping[str, Any], ...]

    @property
    def heading(self) -> str:
        """The text of the first `<H1>`, with the spaces around it; "" where there is none."""
        start = self.page.find("<H1>")
        end = self.page.find("</H1>", start)
        return "" if start < 0 or end < 0 else self.page[start + len("<H1>") : end]

    @property
    def name(self) -> str:
        """The title beside the page; in the simplified form what stands before " - wikipedia" at its start."""
        if self.title is not None:
            return self.title
        found = _PAGE_NAME.match(self.page)
        return found.group(1) if found else ""

    @property
    def url_without_revision(self) -> str:
        """The address of the page, whichever its revision."""
        return _REVISION.sub("", self.url)

    @property
    def long_answer(self) -> str:
        """The first long answer, without tags; "" where the first annotation has none."""
        if not self.annotations or self.annotations[0]["long_answer"]["start_token"] < 0:
            return ""
        span = self.annotations[0]["long_answer"]
        return without_tags(" ".join(self.page.split(" ")[span["start_token"] : span["end_token"]]))

    @property
    def short_answers(self) -> tuple[str, ...]:
        """Those of the first annotation, without tags."""
        spans = self.annotations[0].get("short_answers", ()) if self.annotations else ()
        words = self.page.split(" ") if spans else []
        return tuple(without_tags(" ".join(words[span["start_token"] : span["end_token"]])) for span in spans)


def without_tags(text: str) -> str:
    """A text without tags, line ends, and spaces around it; those between words stay."""
    return _TAG.sub("", text).replace("\n", "").strip()


def read_nq(file: str | os.PathLike) -> Iterator[Record]:
    """Streams the records of a file, plain or gzipped, of either form.

    Raises:
      InputError: a line that is not such a record.
    """
    for number, line in lines.read_lines(file):
        yield parse_nq(line, file, number)


def parse_nq(line: str | bytes, file: str | os.PathLike, number: int) -> Record:
    """The record of a line; InputError where it is none."""
    at = Place(file, number)
    record = lines.parse_json(line, file, number)
    tokens = record.get("document_tokens")
    if tokens is None:
        page, title = at.text(record, "document_text"), None
    else:
        try:
            page = " ".join([one["token"] for one in tokens])
        except (TypeError, KeyError) as error:
            raise at.error("document_tokens are no tokens", 'Give [{"token": …}, …].', tokens) from error
        title = at.text(record, "document_title")
    annotations = at.objects(record, "annotations")
    for one in annotations:
        _check_spans(one, at)
    return Record(
        at.identifier(record, "example_id"),
        at.text(record, "question_text"),
        at.text(record, "document_url", ""),
        page,
        title,
        tuple(annotations),
    )


def _check_spans(annotation: Mapping[str, Any], at: Place) -> None:
    spans = [annotation.get("long_answer"), *at.objects(annotation, "short_answers")]
    for span in spans:
        ends = [span.get(name) if isinstance(span, dict) else None for name in ("start_token", "end_token")]
        if not all(isinstance(end, int) and not isinstance(end, bool) for end in ends):
            raise at.error("an answer has no start_token and end_token", "Give whole numbers for both.", span)
        start, end = ends
        if span is not annotation.get("long_answer") and [start, end] != [-1, -1] and not 0 <= start <= end:  # type: ignore[operator]
            raise at.error("an answer ends before it starts", "Give tokens of the page, in their order.", span)


@dataclasses.dataclass(frozen=True)
class Parts:
    """A page as abstract and content.

    Attributes:
      abstract: the text of the first `<P>`, tags inside and spaces around it as they stand there; "" where there is
        none.
      content: what follows up to the second-to-last `</Ul>`, or the last where there is one alone, without tags.
      end: where the abstract ends in the page, or what took its place; −1 where nothing did.
    """

    abstract: str
    content: str
    end: int


def parts_of(page: str, before: int | None = None) -> Parts:
    """Cuts a page as NCI's script does (Wang et al. 2022, arXiv 2206.02743).

    Args:
      page: text with tags.
      before: where the abstract of the record before ended. That script begins the content of a page without `<P>`
        there, as its variable still says so. None: behind the page's `</H1>`, or at its start.
    """
    start = page.find("<P>")
    end = page.find("</P>") if start >= 0 else -1  # the first of the page, as in the script
    abstract = page[start + len("<P>") : end] if end >= 0 else ""
    if end >= 0:
        first = end + len("</P>")
    elif before is None:
        first = page.find("</H1>") + len("</H1>") if "</H1>" in page else 0
    else:
        end, first = before, before + len("</P>")
    last = page.rfind("</Ul>")
    second = page.rfind("</Ul>", 0, last) if last >= 0 else -1
    until = second if second >= 0 else last if last >= 0 else len(page)
    return Parts(abstract, _plain(page[first:until]), end)


def _plain(text: str) -> str:
    """A text without tags, line ends, spaces around it and runs of spaces within."""
    plain = _without_marks(text)
    return _SPACES.sub(" ", without_tags(text)) if plain is None else plain.replace("\n", "").strip()


def _without_marks(text: str) -> str | None:
    """A text without tags and runs of spaces, by array code, which takes half the time of two expressions; None where
    brackets are no tags, as in "a < b", or line ends would have to be taken out first."""
    data = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
    opens, closes = np.flatnonzero(data == ord("<")), np.flatnonzero(data == ord(">"))
    if len(opens) != len(closes) or "\n" in text:
        return None
    if len(opens) and not ((closes - opens > 1).all() and (opens[1:] > closes[:-1]).all()):
        return None
    depth = np.zeros(len(data) + 1, np.int8)
    depth[opens], depth[closes + 1] = 1, -1
    depth[opens[1:][opens[1:] == closes[:-1] + 1]] = 0  # one tag behind another
    kept = data[np.cumsum(depth[:-1], dtype=np.int8) == 0]
    spaces = kept == ord(" ")
    first = np.ones(len(kept), bool)
    first[1:] = ~(spaces[1:] & spaces[:-1])
    return kept[first].tobytes().decode("utf-8", "surrogatepass")
