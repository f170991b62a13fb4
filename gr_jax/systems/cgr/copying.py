"""How much likelier a token of a title is where it stands in the question: counted on training questions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Int

from gr_jax.corpus import Dataset
from gr_jax.docids import Docids
from gr_jax.models.copying_ids import UNCOPIED, CopyingEncoderDecoder
from gr_jax.models.encoder_decoder import EncoderDecoder
from gr_jax.text import Vocabulary, get_transform

# A token of the question that nobody counted is taken for as likely in the title as all are together, with the weight
# of so many questions.
PRIOR = 5.0
# Where no training question says how often, this share of a question's tokens stands in its title.
SHARE = 0.2
# The token behind the one written last, in the question: e^2 times as likely as it would be elsewhere there.
NEXT = 2.0


def copying_network(
    module: EncoderDecoder, params: dict, titles: Docids, text_of: Int[np.ndarray, " vocab"], start: dict
) -> tuple[CopyingEncoderDecoder, dict]:
    """The same network, which can copy.

    Args:
      module, params: the network.
      titles: as text.
      text_of: the text token of each decoder id.
      start: of `counted`.

    Returns:
      The network, and its parameters.
    """
    own = [field.name for field in dataclasses.fields(EncoderDecoder) if field.name not in ("parent", "name")]
    fields = {name: getattr(module, name) for name in own}
    tokens = np.where((text_of < 0) | (text_of == titles.eos_id), UNCOPIED, text_of - titles.meta["shift"])
    copying = CopyingEncoderDecoder(**fields, text_of=tuple(tokens.tolist()))
    return copying, {**params, **start}


def counted(dataset: Dataset, words: Vocabulary, titles: Docids, module: EncoderDecoder) -> dict[str, Any]:
    """What the further parameters start from: of each token the logarithm of how much more often it stands in the
    titles that answer training questions in which it stands than in any title. How often ids are written is left at
    nothing: where scores are sums of logits, it would pay for frequent words.

    Args:
      dataset: documents, and training questions, of which there may be none.
      words: the vocabulary of both.
      titles: of the documents, as text.
      module: the network, whose tables may have more rows than there are words.

    Returns:
      `id_bias` float32[written vocabulary], `copy_token` float32[read vocabulary], `copy_next` float32.
    """
    asked, copied, anywhere = (np.zeros(module.input_vocab_size) for _ in range(3))
    for row in range(len(titles)):
        anywhere[_tokens(titles, row)] += 1
    for question, answers in _answered(dataset):
        own = np.unique(np.asarray(words.encode_batch([question])[0], np.int64))
        asked[own] += 1
        rows = {int(row) for document in answers for row in titles.rows_of(document)}
        copied[np.intersect1d(own, np.concatenate([_tokens(titles, row) for row in sorted(rows)]))] += 1
    share = copied.sum() / asked.sum() if copied.sum() else SHARE
    rate = (copied + PRIOR * share) / (asked + PRIOR)
    chance = (anywhere + 1) / (len(titles) + 1)
    return {
        "id_bias": np.zeros(module.vocab_size, np.float32),
        "copy_token": np.log(rate / chance).astype(np.float32),
        "copy_next": np.float32(NEXT),
    }


def _tokens(titles: Docids, row: int) -> Int[np.ndarray, " n"]:
    """The tokens of a title as questions have them, each once."""
    return np.unique(titles.sequence(row)) - titles.meta["shift"]


def _answered(dataset: Dataset) -> Iterator[tuple[str, list[int]]]:
    """Training questions, and the documents that answer them."""
    rewrite = get_transform(dataset.transform)
    for query_id, grades in dataset.qrels.get("train", {}).items():
        answers = [dataset.corpus.index_of(doc_id) for doc_id, grade in grades.items() if grade > 0]
        if answers:
            yield rewrite(dataset.queries.text(query_id)), answers
