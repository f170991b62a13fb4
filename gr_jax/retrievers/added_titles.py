"""Titles of documents that join an index of titles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from gr_jax import docids as docids_lib
from gr_jax import models
from gr_jax.constraints import TokenTextTrie
from gr_jax.corpus import Corpus
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from gr_jax.models.contextual_states import own_encoder, states_in_context
from gr_jax.models.more_ids import with_more_ids
from gr_jax.text import Vocabulary, get_transform

READ = "read"  # in the meta of titles: how many tokens of titles and contents their encoder reads, 0: titles alone


def titles_of_added(add: Corpus, docids: Docids, vocabulary: Vocabulary) -> Docids:
    """Docids of further documents, by the rules by which those of an index were made.

    Args:
      add: the documents.
      docids: of the index, of the scheme "titles".
      vocabulary: that cuts titles into tokens.

    Raises:
      InputError: what `docids.titles` refuses.
    """
    meta, called = docids.meta, list(add.titles)
    if not meta["untitled"]:  # who gave no name for documents without title has them called by their first words
        called = list(map(docids_lib.title_of, add.titles, add.texts))
    return docids_lib.titles(
        called,
        vocabulary,
        duplicates=meta["duplicates"],
        untitled=meta["untitled"],
        max_length=meta["max_length"],
        names=add.doc_ids,
        beside=docids,
        transform=meta.get("transform", "none"),  # older folders have none
    )


class Grown(NamedTuple):
    """A model that writes tokens which stood in no title before.

    Attributes:
      model: with an id for each of them.
      text_of: the text token of each id.
    """

    model: models.GenerativeModel
    text_of: Int[np.ndarray, " vocab"]


def model_for(
    titles: Docids,
    add: Corpus,
    vocabulary: Vocabulary,
    model: models.GenerativeModel,
    trie: TokenTextTrie,
    meta: Mapping[str, Any],
) -> Grown:
    """A model that can write further titles. A token that no id writes gets one, whose vector is the mean of what the
    model's own encoder makes of it in these titles and their documents.

    Args:
      titles: of `add`.
      add: the documents.
      vocabulary: that cuts them into tokens.
      model, trie: of the index.
      meta: of the index's docids, where `READ` says how titles were read; without it ids have no such vectors.

    Raises:
      InputError: names the first document whose title cannot be written, and says why.
    """
    text_of = np.asarray(trie.text_of)
    written = np.zeros(titles.vocab_size, bool)
    written[text_of[text_of >= 0]] = True
    unwritten = [row for row in range(len(titles)) if not written[titles.sequence(row)].all()]
    if not unwritten:
        return Grown(model, text_of)
    read: int | None = meta.get(READ)
    if read is None or not isinstance(model, models.GenerativeDecoder):
        raise _unwritable(titles, unwritten[0], add.doc_ids)
    shift, fronts, texts = meta["shift"], [], []
    rewrite = get_transform(meta.get("transform", "none"))
    for row in unwritten:
        fronts.append([token - shift for token in titles.sequence(row)])
        texts.append(rewrite(" ".join(add.texts[document] for document in np.sort(titles.documents_of(row)))))
    config, params = own_encoder(model.module, model.params)
    states = states_in_context(
        models.TextEncoder(config),
        params,
        fronts,
        vocabulary.encode_batch(texts) if read else [()] * len(fronts),
        length=read or max(map(len, fronts)) + len(vocabulary.prefix) + len(vocabulary.suffix),
        prefix=vocabulary.prefix,
        suffix=vocabulary.suffix,
    )
    states /= np.linalg.norm(states, axis=1, keepdims=True)
    tokens = np.concatenate([titles.sequence(row) for row in unwritten])
    new = np.unique(tokens[~written[tokens]])
    vectors = np.stack([states[tokens == token].mean(axis=0) for token in new])
    try:
        grown = with_more_ids(model, vectors, new - shift)
    except InputError as error:
        raise _unwritable(titles, unwritten[0], add.doc_ids) from error
    of_grown = np.full(grown.output_vocab_size, -1, text_of.dtype)
    of_grown[: len(text_of)] = text_of
    of_grown[model.output_vocab_size :][: len(new)] = new
    return Grown(grown, of_grown)


def _unwritable(titles: Docids, row: int, names: Sequence[str]) -> InputError:
    return InputError(
        f"the title of document {names[int(titles.documents_of(row)[0])]!r} has a token that stood in no title when "
        "the decoder's vocabulary was made",
        "Make the index anew, or write the title in other words.",
        value=titles.name(row),
    )
