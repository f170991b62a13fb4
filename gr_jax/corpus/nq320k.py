"""NQ-320k: Natural Questions as one collection of pages, by the rule that a paper's numbers rest on.

Several collections are in circulation under this name. They differ in what a page's title is, in which pages count as
one, and in a fault of a script; `VARIANTS` names them. The first page of each is kept, train before dev.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping

from gr_jax.corpus import nq
from gr_jax.corpus.documents import Document
from gr_jax.errors import InputError

TITLES = ("heading", "name")
NORMALISERS = ("bert", "none")
DUPLICATES = ("title", "page", "revision")


@dataclasses.dataclass(frozen=True)
class Rules:
    """What makes one collection of the raw files.

    Attributes:
      title: "heading", the first `<H1>` of pages of train and the title beside pages of dev; or "name", the title
        beside the page, or of the simplified form what stands before " - wikipedia".
      normaliser: "bert", a title is taken to bert-base-uncased's tokens and back; or "none".
      duplicates: pages are one that have the same "title", address without revision ("page"), or address
        ("revision").
      own_abstract: False begins the content of a page without `<P>` where the abstract of the record before ended, as
        the published script does, and leaves the abstract's tags in.
      documents: how many were published; None where nobody did.
      whose: which papers' collection it is.
    """

    title: str = "heading"
    normaliser: str = "bert"
    duplicates: str = "title"
    own_abstract: bool = True
    documents: int | None = None
    whose: str = ""

    def __post_init__(self):
        for name, known in (("title", TITLES), ("normaliser", NORMALISERS), ("duplicates", DUPLICATES)):
            if getattr(self, name) not in known:
                raise InputError(f"no such rule for {name}", f"Use {' or '.join(known)}.", value=getattr(self, name))


VARIANTS: Mapping[str, Rules] = {
    "nci": Rules(documents=109_739, whose="NCI (Wang et al. 2022) and what follows it, with abstracts of their own"),
    "nci_as_published": Rules(
        own_abstract=False, documents=109_739, whose="NCI (Wang et al. 2022), byte for byte, its fault included"
    ),
    "document_title": Rules(
        title="name", documents=109_650, whose="ports that read document.title instead of the page's heading"
    ),
    "page": Rules(duplicates="page", normaliser="none", whose="collections by address"),
    "revision": Rules(duplicates="revision", normaliser="none", whose="collections by address and revision"),
}


@dataclasses.dataclass(frozen=True)
class Extract:
    """What a collection needs of a record.

    Attributes:
      id, question: of the record.
      title, key: of the page: as it is shown, and by which it is told from others.
      text: abstract and content.
      unfinished: the page, where its text is not known before the record before is; else "".
      end: see `nq.Parts`.
      answers: short answers.
      paragraph: whether the page has a first paragraph, from its beginning to its end.
    """

    id: str
    question: str
    title: str
    key: str
    text: str
    unfinished: str
    end: int
    answers: tuple[str, ...]
    paragraph: bool


def extract(record: nq.Record, rules: Rules, normalise: Callable[[str], str], *, dev: bool) -> Extract:
    """What a collection needs of a record, but for a text that depends on the record before.

    Args:
      record: of a raw file.
      rules: of the collection.
      normalise: of titles; see `Rules.normaliser`.
      dev: whether the record is of the dev set, whose titles stand beside the pages.
    """
    title = record.name if dev or rules.title == "name" else record.heading
    title = normalise(title) if rules.normaliser == "bert" else title.strip()
    keys = {"title": title, "page": record.url_without_revision, "revision": record.url}
    parts = nq.parts_of(record.page)
    unfinished = record.page if not rules.own_abstract and parts.end < 0 else ""
    text = "" if unfinished else _text(parts, rules)
    return Extract(
        record.id, record.question, title, keys[rules.duplicates], text, unfinished, parts.end, record.short_answers,
        parts.end >= 0,
    )  # fmt: skip


def _text(parts: nq.Parts, rules: Rules) -> str:
    if rules.own_abstract:
        return f"{nq.without_tags(parts.abstract)} {parts.content}".strip()
    return parts.abstract + parts.content


def finished(extracts: Iterable[Extract], rules: Rules, before: int = -1) -> Iterator[Extract]:
    """The same with every text: what depends on the record before is known in order alone.

    Args:
      extracts: in the order in which their records were read.
      rules: of the collection.
      before: where the abstract ended that was read before the first; −1 where there is none.
    """
    for one in extracts:
        if one.unfinished:
            parts = nq.parts_of(one.unfinished, before if before >= 0 else None)
            one = dataclasses.replace(one, text=_text(parts, rules), unfinished="", end=before)
        before = one.end
        yield one


@dataclasses.dataclass
class Collection:
    """Pages as they come, each once.

    Attributes:
      first: digest of a key → id of the page's document.
    """

    first: dict[bytes, str] = dataclasses.field(default_factory=dict)

    def add(self, one: Extract) -> tuple[str, Document | None]:
        """The id of an extract's document, and the document where it is new."""
        key = hashlib.blake2b(one.key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if key in self.first:
            return self.first[key], None
        self.first[key] = one.id
        return one.id, Document(one.id, one.title, one.text)
