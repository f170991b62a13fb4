"""The senses of titles' words as one HTML page: which documents share one (CGR, Lee et al. 2022, arXiv 2210.02068,
section 3.1)."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from jaxtyping import Int

from gr_jax.docids import Docids
from gr_jax.evaluation.html import escape, page
from gr_jax.text import Vocabulary

_TOKENS, _TITLES = 500, 12  # of a page, and of a sense


def senses_of(titles: Docids, written: Docids, text_of: Int[np.ndarray, " vocab"]) -> dict[int, dict[int, list[int]]]:
    """Text token → id → the pages whose titles have it, for tokens of several ids.

    Args:
      titles: as text, one row a page.
      written: the same in decoder ids.
      text_of: the text token of each id.
    """
    found: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in range(len(titles)):
        (own,) = written.rows_of(int(titles.documents_of(row)[0]))
        for one in dict.fromkeys(written.sequence(int(own))):
            found[int(text_of[one])][one].append(row)
    return {token: dict(ids) for token, ids in found.items() if len(ids) > 1}


def senses_page(titles: Docids, written: Docids, text_of: Int[np.ndarray, " vocab"], words: Vocabulary) -> str:
    """The page: the tokens that stand in the most titles, in the order of their texts, each with its senses, and of
    each sense the first titles.

    Args:
      titles, written, text_of: see `senses_of`.
      words: what titles are cut into.
    """
    found = senses_of(titles, written, text_of)
    often = sorted(found, key=lambda token: -sum(map(len, found[token].values())))[:_TOKENS]
    text = {token: words.decode([token - titles.meta["shift"]]) for token in often}
    body = [
        "<h1>Senses of titles' words</h1>",
        f"<p>{len(titles):,} titles. {len(found):,} tokens have several senses, of which the {len(often):,} that stand "
        f"in the most titles are here. A sense is a cluster of what the encoder made of the token in its documents; "
        f"of each the first {_TITLES} titles are shown.</p>",
    ]
    for token in sorted(often, key=lambda one: (text[one], one)):
        senses = sorted(found[token].values(), key=len, reverse=True)
        count = sum(map(len, senses))
        body.append(f"<details><summary><b>{escape(text[token])}</b> in {count:,} titles</summary><ol>")
        for pages in senses:
            shown = " · ".join(escape(titles.name(row)) for row in pages[:_TITLES])
            more = f" … and {len(pages) - _TITLES:,} more" if len(pages) > _TITLES else ""
            body.append(f"<li>{shown}{more}</li>")
        body.append("</ol></details>")
    return page("Senses of titles' words", body)
