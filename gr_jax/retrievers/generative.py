"""Generative retrieval: the model writes docids under the constraint that they exist, the docids name documents."""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from gr_jax import docids as docids_lib
from gr_jax import models, storage, text
from gr_jax.constraints import Trie
from gr_jax.decoding import Beams, beam_search
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from gr_jax.models import network_folder
from gr_jax.retrievers.base import Evidence, Ranking, check_question, checked_allowed
from gr_jax.retrievers.network_checks import check_network
from gr_jax.retrievers.query_reader import QueryReader

KIND = "generative"


class GenerativeRetriever:
    """An encoder-decoder, the docids it writes, and the trie that keeps it to them.

    Args:
      module, params: the network.
      vocabulary: of the queries.
      docids: of the documents.
      transform: name of the text transform that the network was trained with.
      beams: hypotheses kept; raised to k where more documents are asked for. At least the widest level of the docids
        makes the search exhaustive; with fewer, what is found is among the allowed documents, but need not be the best
        of them. Where documents have several docids, one may take several beams: raise them for long rankings.
      normalize: scores are log-probabilities over the "vocabulary", the "level" or the "constraint".
      max_query_length: tokens read of a query; the rest is cut.
      batch_size: queries decoded at a time.
    """

    def __init__(
        self,
        module: models.EncoderDecoder,
        params: Any,
        vocabulary: text.Vocabulary,
        docids: Docids,
        *,
        transform: str = "none",
        beams: int = 100,
        normalize: str = "vocabulary",
        max_query_length: int = 64,
        batch_size: int = 32,
    ):
        check_network(module, vocabulary, docids, normalize)
        if beams < 1:
            raise InputError("there must be at least one beam", "Set beams to 1 or more.", value=beams)
        self.module, self.vocabulary, self.docids = module, vocabulary, docids
        self.params = jax.tree.map(jnp.asarray, params)
        self.transform, self.normalize, self.beams = transform, normalize, beams
        self.max_query_length = max_query_length
        self._reader = QueryReader(vocabulary, transform, max_query_length, batch_size)
        self.trie = Trie.from_docids(docids)
        self._most_documents = int(np.diff(docids.offsets).max())
        self._decoder = models.GenerativeDecoder(module, self.params, docids.levels, docids.eos_id)

    def with_parameters(self, params: Any) -> GenerativeRetriever:
        """The same retriever around other parameters, as evaluation during training needs it; nothing is rebuilt."""
        copy = object.__new__(GenerativeRetriever)
        copy.__dict__.update(self.__dict__)
        copy.params = params
        copy._decoder = models.GenerativeDecoder(self.module, params, self.docids.levels, self.docids.eos_id)
        return copy

    @property
    def num_documents(self) -> int:
        """Documents of the corpus that it answers from."""
        return self.docids.num_documents

    def retrieve(
        self,
        queries: Sequence[str],
        k: int,
        *,
        allowed: Bool[np.ndarray, " documents"] | Bool[np.ndarray, "batch documents"] | None = None,
        explain: bool = False,
    ) -> Ranking:
        """See `Retriever.retrieve`. A document reached by several docids gets the best of their scores; its evidence is
        all of them, best first.

        Raises:
          InputError: an empty query, or `k` is not positive.
        """
        check_question(queries, k)
        tokens, lengths = self._reader.read(queries)
        mask = checked_allowed(allowed, len(queries), self.docids.num_documents)
        doc_index = np.full((len(queries), k), -1, np.int32)
        score = np.full((len(queries), k), -np.inf, np.float32)
        evidence: list[tuple[tuple[Evidence, ...], ...]] = [()] * len(queries)
        for rows in self._reader.batches(lengths):
            found, documents = self._decode(
                tokens[rows], int(lengths[rows].max()), None if mask is None else mask[rows], k
            )
            for at, row in enumerate(rows):
                best = _best_documents(documents[at], k, stop=not explain)
                doc_index[row, : len(best)] = list(best)
                score[row, : len(best)] = [found.scores[at, beams[0]] for beams in best.values()]
                if explain:
                    evidence[row] = tuple(
                        tuple(self._evidence(found, at, beam) for beam in beams) for beams in best.values()
                    )
        return Ranking(doc_index, score, tuple(evidence) if explain else None)

    def save(
        self, folder: str | os.PathLike, *, corpus: str, meta: dict[str, Any] | None = None, gin: str = ""
    ) -> None:
        """Writes everything that answering needs as an artefact of kind "generative"."""
        settings = {
            "transform": self.transform,
            "beams": self.beams,
            "normalize": self.normalize,
            "max_query_length": self.max_query_length,
        }
        with storage.write_folder(folder, KIND, corpus=corpus, meta={**(meta or {}), **settings}, gin=gin) as new:
            network_folder.save_network(new, self.module, self.params)
            self.docids.save(new / "docids")
            self.vocabulary.save(new / "vocabulary")

    @classmethod
    def load(cls, folder: str | os.PathLike, *, verify: bool = True) -> GenerativeRetriever:
        """Reads what `save` wrote.

        Raises:
          InputError: it is not such a folder, or was truncated or altered.
        """
        folder = pathlib.Path(folder)
        meta = storage.read_folder(folder, KIND, verify=verify).meta
        module, params = network_folder.load_network(folder)
        return cls(
            module,
            params,
            text.load_vocabulary(folder / "vocabulary"),
            docids_lib.Docids.load(folder / "docids"),
            transform=meta["transform"],
            beams=meta["beams"],
            normalize=meta["normalize"],
            max_query_length=meta["max_query_length"],
        )

    def kept_prefixes(self, queries: Sequence[str]) -> list[list[set[tuple[int, ...]]]]:
        """What the search kept on its way, and so where it lost the rest.

        Returns:
          For each query, for each depth 1, 2, … the first tokens of docids, so many (or all, where a docid is shorter),
          that were among its beams.

        Raises:
          InputError: an empty query.
        """
        tokens, lengths = self._reader.read(queries)
        kept: list[list[set[tuple[int, ...]]]] = [[] for _ in queries]
        for rows in self._reader.batches(lengths):
            found, _ = self._decode(tokens[rows], int(lengths[rows].max()), None, self.beams, history=True)
            assert found.history is not None
            sequences, is_prefix = np.asarray(found.history.sequences()), found.history.valid.copy()
            if self.docids.eos_id is not None:
                is_prefix &= found.history.tokens != self.docids.eos_id  # without EOS it was kept a step before
            for at, row in enumerate(rows):
                whole = {self._docid_of(found, at, int(beam)) for beam in np.flatnonzero(found.valid[at])}
                for depth in range(1, self.docids.tokens.shape[1] + 1):
                    going_on = sequences[at, depth - 1][is_prefix[at, depth - 1], :depth]
                    kept[row].append(
                        {*map(tuple, going_on.tolist()), *(docid for docid in whole if len(docid) < depth)}
                    )
        return kept

    def _decode(
        self,
        tokens: Int[np.ndarray, "rows length"],
        longest: int,
        mask: np.ndarray | None,
        k: int,
        history: bool = False,
    ) -> tuple[Beams, Int[np.ndarray, "rows beam limit"]]:
        """Beams and their documents for some queries, padded to one of few shapes so that little is compiled."""
        rows = len(tokens)
        padded = self._reader.padded(tokens, longest)
        allowed = None
        if mask is not None:
            allowed = jnp.asarray(np.concatenate([mask, np.ones((len(padded) - rows, mask.shape[1]), bool)]))
        beams, documents = _search(
            self._decoder,
            self.trie,
            padded,
            allowed,
            beams=max(self.beams, k),
            max_len=self.docids.max_steps,
            normalize=self.normalize,
            limit=self._most_documents,
            history=history,
        )
        beams, documents = jax.device_get((beams, documents))
        return jax.tree.map(lambda leaf: leaf[:rows], beams), documents[:rows]

    def _docid_of(self, found: Beams, query: int, beam: int) -> tuple[int, ...]:
        return tuple(int(token) for token in found.sequences[query, beam] if token not in (0, self.docids.eos_id))

    def _evidence(self, found: Beams, query: int, beam: int) -> Evidence:
        tokens = list(self._docid_of(found, query, beam))
        row = None if self.docids.texts is None else self.docids.row_of(tokens)
        written = "-".join(map(str, tokens)) if row is None else self.docids.name(row)
        return Evidence("docid", written, float(found.scores[query, beam]), tuple(tokens))


@functools.partial(jax.jit, static_argnames=("beams", "max_len", "normalize", "limit", "history"))
def _search(
    decoder: models.GenerativeDecoder,
    trie: Trie,
    tokens: Int[Array, "rows length"],
    allowed: Bool[Array, "rows documents"] | None,
    *,
    beams: int,
    max_len: int,
    normalize: str,
    limit: int,
    history: bool,
) -> tuple[Beams, Int[Array, "rows beam limit"]]:
    """One program: encode, search under the constraint, look the documents up."""
    constraint = trie if allowed is None else trie.restrict(allowed)
    cache = decoder.start(tokens, beams=beams, max_len=max_len)
    found = beam_search(decoder, cache, constraint, beams=beams, max_len=max_len, normalize=normalize, history=history)
    documents, _ = constraint.documents(found.states, limit)
    return found, jnp.where(found.valid[..., None], documents, -1)


def _best_documents(documents: Int[np.ndarray, "beam limit"], k: int, *, stop: bool) -> dict[int, list[int]]:
    """The first k documents along the beams (which are best first), each with the beams that found it.

    Args:
      documents: of each beam, −1 where it has fewer.
      k: how many are wanted.
      stop: as soon as there are k, whatever other beams lead to them.
    """
    best: dict[int, list[int]] = {}
    for beam, named in enumerate(documents.tolist()):
        for document in named:
            if document in best:
                best[document].append(beam)
            elif document >= 0 and len(best) < k:
                best[document] = [beam]
        if stop and len(best) == k:
            break
    return best
