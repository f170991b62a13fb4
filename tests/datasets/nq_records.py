"""Crafted records of Natural Questions: pages with and without headings, paragraphs and lists, many of them alike."""

from __future__ import annotations

import random
from typing import Any

_WORDS = ("ale", "Bee", "co", "dé", "e.g.", "``", "fig", "-", "go", "'s")
_TITLES = ("The Mother", "the mother", "Ship ( boat )", "Ship", "Café", "A.B.", "", "42", "X-ray")
_OF_DEV = ("New", "Older")


def records(seed: int, count: int, *, dev: bool) -> list[dict[str, Any]]:
    """Raw records, of the original form where `dev`; their first page has a paragraph."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        title = rng.choice((*_TITLES, *_OF_DEV) if dev else _TITLES)
        page = _page(rng, title, paragraph=number == 0 or rng.random() < 0.75, heading=rng.random() < 0.9)
        tokens = page.split(" ")
        start = rng.randrange(len(tokens))
        url = f"https://en.wikipedia.org//w/index.php?title={title.replace(' ', '_')}&amp;oldid={rng.randrange(3)}"
        record: dict[str, Any] = {
            "example_id": (10_000 if dev else 0) + number,
            "question_text": f"question {number}",
            "document_url": url,
            "annotations": [
                {
                    "long_answer": {"start_token": rng.choice((-1, start)), "end_token": start + 3},
                    "short_answers": rng.choice(([], [{"start_token": start, "end_token": start + 2}])),
                    "yes_no_answer": "NONE",
                }
            ],
        }
        if dev:
            record |= {"document_tokens": [{"token": one} for one in tokens], "document_title": title}
        else:
            record["document_text"] = page
        made.append(record)
    return made


def _page(rng: random.Random, title: str, *, paragraph: bool, heading: bool) -> str:
    parts = [f"{title} - wikipedia"]
    if heading:
        parts.append(f"<H1> {title} </H1>")
    parts.append(_text(rng, 3))
    for _ in range(rng.randrange(1, 3) if paragraph else 0):
        parts.append(f"<P> {_text(rng, 4)} <Sup> 1 </Sup> </P>")
    for _ in range(rng.randrange(4)):
        parts.append(f"<Ul> <Li> {_text(rng, 3)} </Li> </Ul> {_text(rng, 2)}")
    return " ".join(parts)


def _text(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(_WORDS, k=count))
