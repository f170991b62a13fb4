"""Titles of documents that join an index of titles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gr_jax import docids as docids_lib
from gr_jax.constraints import TokenTextTrie
from gr_jax.constraints.base import Constraint
from gr_jax.corpus import Corpus
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from gr_jax.text import Vocabulary


def titles_of_added(add: Corpus, docids: Docids, vocabulary: Vocabulary, constraint: Constraint) -> Docids:
    """Docids of further documents, by the rules by which those of an index were made.

    Args:
      add: the documents.
      docids: of the index, of the scheme "titles".
      vocabulary: that cuts titles into tokens.
      constraint: of the index.

    Raises:
      InputError: what `docids.titles` refuses; a title with a token that the decoder has no id for.
    """
    meta, called = docids.meta, list(add.titles)
    if not meta["untitled"]:  # who gave no name for documents without title has them called by their first words
        called = list(map(docids_lib.title_of, add.titles, add.texts))
    more = docids_lib.titles(
        called,
        vocabulary,
        duplicates=meta["duplicates"],
        untitled=meta["untitled"],
        max_length=meta["max_length"],
        names=add.doc_ids,
        beside=docids,
        transform=meta.get("transform", "none"),  # older folders have none
    )
    if isinstance(constraint, TokenTextTrie):
        _check_written(more, constraint, add.doc_ids)
    return more


def _check_written(titles: Docids, trie: TokenTextTrie, names: Sequence[str]) -> None:
    """Refuses titles with tokens that the decoder has no id for.

    Raises:
      InputError: names the first document with such a title.
    """
    text_of = np.asarray(trie.text_of)
    written = np.zeros(titles.vocab_size, bool)
    written[text_of[text_of >= 0]] = True
    for row in range(len(titles)):
        if not written[titles.sequence(row)].all():
            raise InputError(
                f"the title of document {names[int(titles.documents_of(row)[0])]!r} has a token that stood in no title "
                "when the decoder's vocabulary was made",
                "Make the index anew, or write the title in other words.",
                value=titles.name(row),
            )
