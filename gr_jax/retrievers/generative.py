"""Generative retrieval: a model writes identifiers under a constraint, and what it wrote names documents."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from gr_jax import models, storage, text
from gr_jax.constraints import Constraint, TokenTextTrie, Trie, load_constraint, save_constraint
from gr_jax.decoding import Beams
from gr_jax.decoding.lookahead import Lookahead, check_lookahead
from gr_jax.decoding.merging import WAYS
from gr_jax.dense.base import check_positions
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from gr_jax.models import network_folder
from gr_jax.registry import DOCUMENTS_OF
from gr_jax.retrievers.added_titles import model_for, titles_of_added
from gr_jax.retrievers.base import Ranking, check_question, checked_allowed
from gr_jax.retrievers.documents_of import BestDocid, DocumentsOf, FoundDocument, Written, num_documents_of
from gr_jax.retrievers.generative_search import search
from gr_jax.retrievers.network_checks import check_network
from gr_jax.retrievers.query_reader import QueryReader
from gr_jax.retrievers.views import View, views_from_json, views_to_json, walked

if TYPE_CHECKING:
    from gr_jax.corpus import Corpus

KIND = "generative"
_SETTINGS = ("merge", "transform", "beams", "max_len", "normalize", "length_penalty", "max_query_length", "lookahead")
NameDocuments = Callable[["Corpus", Docids], Docids]


class GenerativeRetriever:
    """Any model that writes, the constraint that keeps it to what exists, and what makes documents of the result.

    Args:
      model: the network.
      constraint: what it may write: a `Trie`, `TokenTextTrie`, `FMIndex`, `ShardedFMIndex`, or several (`Mixed`).
      vocabulary: of the queries.
      documents_of: from what was written to documents: `BestDocid`, `NgramAggregation`, or a system's own.
      views: the ways in which each query is asked, all in one batch.
      merge: what becomes of hypotheses that are the same text, written in several ways; see `beam_search`.
      transform: name of the text transform that the network was trained with.
      beams: hypotheses kept; raised to k where documents take a beam each and more are asked for. At least the widest
        level of the docids makes the search exhaustive; with fewer, what is found is among the allowed documents, but
        need not be the best of them. Where documents have several docids, one may take several beams: raise them for
        long rankings.
      max_len: most tokens that are written, EOS included; None: as many as the longest identifier has.
      normalize: scores are log-probabilities over the "vocabulary", the "level" or the "constraint", or with "none"
        sums of logits.
      length_penalty: of the beam search.
      max_query_length: tokens read of a query; the rest is cut.
      lookahead: hypotheses go on by what they could still become; see `decoding.Lookahead`. For docids of a trie.
      batch_size: rows (queries times views) decoded at a time.
      name_documents: (added documents, the docids that there are) → the docids of the added ones, where they can be
        named without training. It is not saved. Titles need none: they name themselves.

    Raises:
      InputError: parts that were not made for each other, unknown settings, fewer than one beam.
    """

    def __init__(
        self,
        model: models.GenerativeModel,
        constraint: Constraint,
        vocabulary: text.Vocabulary,
        *,
        documents_of: DocumentsOf,
        views: Sequence[View] = (View(),),
        merge: str | None = None,
        transform: str = "none",
        beams: int = 100,
        max_len: int | None = None,
        normalize: str = "vocabulary",
        length_penalty: float = 0.0,
        max_query_length: int = 64,
        lookahead: bool = False,
        batch_size: int = 32,
        name_documents: NameDocuments | None = None,
    ):
        check_network(model, vocabulary, constraint, normalize, model.levels)
        _check_settings(beams, merge, views)
        documents_of.check(constraint)
        self.num_documents = num_documents_of(constraint)  # of the corpus that it answers from
        walked(constraint, views, 1)
        _check_lookahead(lookahead, constraint, normalize, model.levels, documents_of)
        self.model, self.constraint, self.vocabulary, self.documents_of = model, constraint, vocabulary, documents_of
        self.views, self.merge, self.transform, self.beams = tuple(views), merge, transform, beams
        self.max_len, self.normalize, self.length_penalty = max_len, normalize, length_penalty
        self.max_query_length, self.name_documents = max_query_length, name_documents
        self._most_steps = self._steps()
        self._reader = QueryReader(vocabulary, transform, max_query_length, batch_size)
        self.lookahead = lookahead
        self._ahead = _ahead_of(constraint, documents_of) if lookahead else None
        self._is_trie_of_docids = False  # and so need not be saved

    @classmethod
    def over_docids(
        cls,
        module: models.EncoderDecoder,
        params: Any,
        vocabulary: text.Vocabulary,
        docids: Docids,
        *,
        normalize: str = "vocabulary",
        **settings: Any,
    ) -> GenerativeRetriever:
        """An encoder-decoder under the trie of the docids that it writes.

        Args:
          module, params: the network.
          vocabulary: of the queries.
          docids: of the documents.
          normalize, settings: of the class.

        Raises:
          InputError: as the class, before the trie is made.
        """
        check_network(module, vocabulary, docids, normalize, docids.levels)
        _check_settings(settings.get("beams", 1), settings.get("merge"), settings.get("views", (View(),)))
        params = jax.tree.map(jnp.asarray, params)
        model = models.GenerativeDecoder(module, params, docids.levels, docids.eos_id)
        constraint, documents_of = Trie.from_docids(docids), BestDocid(docids)
        made = cls(model, constraint, vocabulary, documents_of=documents_of, normalize=normalize, **settings)
        made._is_trie_of_docids = True
        return made

    def with_parameters(self, params: Any) -> GenerativeRetriever:
        """The same retriever around other parameters, as evaluation during training needs it; nothing is rebuilt."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy.model = self.model.with_parameters(params)
        return copy

    def searching(self, *, beams: int | None = None, lookahead: bool | None = None) -> GenerativeRetriever:
        """The same retriever with another search; nothing is rebuilt but what looks ahead.

        Args:
          beams, lookahead: see the class; None: as they are.
        """
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy.beams = self.beams if beams is None else beams
        copy.lookahead = self.lookahead if lookahead is None else lookahead
        _check_settings(copy.beams, copy.merge, copy.views)
        _check_lookahead(copy.lookahead, self.constraint, self.normalize, self.model.levels, self.documents_of)
        if copy.lookahead != self.lookahead:
            copy._ahead = _ahead_of(self.constraint, self.documents_of) if copy.lookahead else None
        return copy

    @property
    def docids(self) -> Docids:
        """What the documents are called.

        Raises:
          InputError: they have no docids.
        """
        found = getattr(self.documents_of, "docids", None)
        if found is None:
            raise InputError("this retriever's documents have no docids", "Use one that writes docids.")
        return found

    def retrieve(
        self,
        queries: Sequence[str],
        k: int,
        *,
        allowed: Bool[np.ndarray, " documents"] | Bool[np.ndarray, "batch documents"] | None = None,
        explain: bool = False,
    ) -> Ranking:
        """See `Retriever.retrieve`. What scores and evidence are is said where `documents_of` is.

        Raises:
          InputError: an empty query, or `k` is not positive; a filter for a constraint that cannot be restricted.
        """
        depth = check_question(queries, k, self.num_documents)
        mask = checked_allowed(allowed, len(queries), self.num_documents)
        doc_index = np.full((len(queries), k), -1, np.int32)
        score = np.full((len(queries), k), -np.inf, np.float32)
        found: list[Sequence[FoundDocument]] = [()] * len(queries)
        # Not `depth`: a document may have several docids, and each takes a beam.
        named = getattr(self.documents_of, "docids", None)
        most = depth if named is None else min(k, len(named))
        beams = max(self.beams, most) if self.documents_of.beam_each else self.beams
        for row, written in self.written(queries, mask, beams):
            own_mask = None if mask is None else mask[row]
            best = self.documents_of.rank(written, depth, explain=explain, allowed=own_mask)
            doc_index[row, : len(best)] = [one.document for one in best]
            score[row, : len(best)] = [one.score for one in best]
            found[row] = best
        evidence = tuple(tuple(one.evidence for one in best) for best in found) if explain else None
        return Ranking(doc_index, score, evidence, lambda query, rank: found[query][rank].docid())

    def written(
        self,
        queries: Sequence[str],
        mask: Bool[np.ndarray, "batch documents"] | None = None,
        beams: int | None = None,
    ) -> Iterator[tuple[int, Written]]:
        """What was written to each query, before documents are made of it: its place among the queries, and its beams,
        [views, …]. In batches of like lengths, so in no order.

        Args:
          queries: texts.
          mask: which documents may be found; None allows all.
          beams: hypotheses kept; None: as many as the retriever has.
        """
        for its, found, looked_up in self._decode(queries, mask, self.beams if beams is None else beams):
            own = found._replace(states=None, history=None)
            for at, row in enumerate(its.tolist()):
                rows = slice(at * len(self.views), (at + 1) * len(self.views))
                yield row, jax.tree.map(lambda leaf, rows=rows: leaf[rows], Written(own, looked_up))

    def kept_prefixes(self, queries: Sequence[str]) -> list[list[set[tuple[int, ...]]]]:
        """What the search kept on its way, and so where it lost the rest.

        Returns:
          For each query, for each depth 1, 2, … the first tokens of identifiers, so many (or all, where one is
          shorter), that were among its beams in any view.

        Raises:
          InputError: an empty query.
        """
        kept: list[list[set[tuple[int, ...]]]] = [[] for _ in queries]
        eos_id = getattr(self.constraint, "eos_id", None)
        for its, found, _ in self._decode(queries, None, self.beams, history=True):
            assert found.history is not None
            sequences, is_prefix = np.asarray(found.history.sequences()), found.history.valid.copy()
            if eos_id is not None:
                is_prefix &= found.history.tokens != eos_id  # without EOS it was kept a step before
            for place, query in enumerate(np.repeat(its, len(self.views)).tolist()):
                whole = {_without_end(found, place, int(b), eos_id) for b in np.flatnonzero(found.valid[place])}
                for step in range(self._most_steps - (eos_id is not None)):
                    going_on = sequences[place, step][is_prefix[place, step], : step + 1]
                    if len(kept[query]) <= step:
                        kept[query].append(set())
                    kept[query][step] |= {*map(tuple, going_on.tolist()), *(one for one in whole if len(one) <= step)}
        return kept

    def _decode(self, queries: Sequence[str], mask: np.ndarray | None, beams: int, history: bool = False):
        """Yields batches: places of the queries, their beams [queries · views, …], and what `look_up` gave.

        Batches are padded to one of few shapes so that little is compiled.
        """
        views = len(self.views)
        tokens, lengths = self._reader.read(queries, self.views)
        for its in self._reader.batches(lengths.reshape(-1, views).max(axis=1), views):
            rows = (its[:, None] * views + np.arange(views)).reshape(-1)
            padded = self._reader.padded(tokens[rows], int(lengths[rows].max()), views)
            missing = len(padded) - len(rows)
            allowed = None
            if mask is not None:
                its_own = np.repeat(mask[its], views, axis=0)
                allowed = jnp.asarray(np.concatenate([its_own, np.ones((missing, mask.shape[1]), bool)]))
            found = search(
                self.model,
                self.constraint,
                self.documents_of.look_up,
                padded,
                np.append(lengths[rows], np.ones(missing, np.int32)).astype(np.int32),
                allowed,
                walked(self.constraint, self.views, len(padded) // views),
                beams=beams,
                max_len=self._most_steps,
                normalize=self.normalize,
                length_penalty=self.length_penalty,
                merge=self.merge,
                history=history,
                lookahead=self._ahead,
            )
            found, looked_up = jax.tree.map(lambda leaf, rows=rows: leaf[: len(rows)], jax.device_get(found))
            if np.isnan(found.scores).any():
                raise InputError(
                    "the network gave scores that are no numbers", "Train it anew, or compute it in float32."
                )
            yield its, found, looked_up

    @property
    def nested(self) -> bool:
        """Whether shorter answers are the beginnings of longer ones. Where documents take beams they need not be: more
        hypotheses are kept for more documents."""
        return not self.documents_of.beam_each

    def _steps(self) -> int:
        """How many tokens are written at most, and may count."""
        steps = getattr(self.constraint, "max_steps", None) if self.max_len is None else self.max_len
        if steps is None or steps < 1:
            raise InputError(
                "nothing says how many tokens are written at most",
                "Give max_len ≥ 1: n-grams have none.",
                value=self.max_len,
            )
        most_tokens = getattr(self.documents_of, "most_tokens", None)
        if most_tokens is None:
            return int(steps)
        return min(int(steps), most_tokens(walked(self.constraint, self.views, 1)))

    @property
    def updatable(self) -> bool:
        """Whether documents can come and go without training."""
        named = self.name_documents is not None or self._names_by_titles
        return self._remade is not None or (self._can_remove and named)

    @property
    def _remade(self) -> Any:
        """What changes constraint and documents, where `documents_of` can: see `NgramAggregation.updated`."""
        return getattr(self.documents_of, "updated", None)

    @property
    def _can_remove(self) -> bool:
        return isinstance(self.documents_of, BestDocid) and isinstance(self.constraint, (Trie, TokenTextTrie))

    @property
    def _names_by_titles(self) -> bool:
        docids = getattr(self.documents_of, "docids", None)
        return (
            docids is not None
            and docids.scheme == "titles"
            and docids.meta.get("vocabulary") == self.vocabulary.fingerprint
        )

    def update(self, add: Corpus | None = None, remove: Sequence[int] = ()) -> GenerativeRetriever:
        """Adds and removes documents without training: docids of added ones are put into the trie, and what names
        removed ones alone leaves it; to an index of n-grams added documents are a further shard.

        Args:
          add: documents; they get the next positions, in their order.
          remove: positions of documents that are no longer found. The other positions stay as they are.

        Returns:
          This retriever, changed.

        Raises:
          InputError: a constraint that cannot change, no way to name documents, a docid that is there already or that
            the model cannot write, a position that no document has, no document left; nothing is changed then.
        """
        if not (self._can_remove or self._remade) or (add is not None and not self.updatable):
            raise InputError(
                "this retriever cannot take or leave documents",
                "Make the index anew, or give name_documents to a retriever of docids.",
                value=type(self.constraint).__name__,
            )
        gone = check_positions(remove, self.num_documents)
        if self._remade is not None:
            self.constraint, self.documents_of = self._remade(self.constraint, add, gone.tolist())
            self.num_documents = num_documents_of(self.constraint)
            self._most_steps = self._steps()
            return self
        docids, constraint, model = self.docids, self.constraint, self.model
        assert isinstance(constraint, (Trie, TokenTextTrie)) and isinstance(self.documents_of, BestDocid)
        text_of = self.documents_of.text_of
        if len(gone):
            docids = docids.without(gone)
            constraint = _same_kind(constraint, docids)
        if add is not None:
            more = self._name(add, docids)
            if more.num_documents != len(add):
                raise InputError(
                    f"docids of {more.num_documents} documents for {len(add)} that are to be added",
                    "Let name_documents give each of them one.",
                    value=more.num_documents,
                )
            if isinstance(constraint, TokenTextTrie):
                model, text_of = model_for(more, add, self.vocabulary, model, constraint, docids.meta)
                constraint = dataclasses.replace(
                    constraint, text_of=jnp.asarray(text_of, jnp.int32), vocab_size=len(text_of)
                )
            joined = docids.joined(more)
            shares = docids.shares and len(joined) < len(docids) + len(more)
            # A docid that is there already cannot be added to a trie, which is made anew with its further documents.
            constraint, docids = _same_kind(constraint, joined) if shares else constraint.add(more), joined
        documents_of = BestDocid(docids, text_of=text_of)
        ahead = _ahead_of(constraint, documents_of) if self.lookahead else None
        self.constraint, self.num_documents = constraint, constraint.num_documents
        self.model, self.documents_of, self._ahead = model, documents_of, ahead
        self._most_steps = self._steps()
        return self

    def _name(self, add: Corpus, docids: Docids) -> Docids:
        if self.name_documents is not None:
            return self.name_documents(add, docids)
        return titles_of_added(add, docids, self.vocabulary)

    def save(
        self, folder: str | os.PathLike, *, corpus: str, meta: dict[str, Any] | None = None, gin: str = ""
    ) -> None:
        """Writes everything that answering needs as an artefact of kind "generative"."""
        settings: dict[str, Any] = {name: getattr(self, name) for name in _SETTINGS}
        settings["views"] = views_to_json(self.views)
        settings["documents_of"] = {"kind": self.documents_of.kind, "settings": self.documents_of.settings()}
        settings["constraint"] = "docids" if self._is_trie_of_docids else "folder"
        with storage.write_folder(folder, KIND, corpus=corpus, meta={**(meta or {}), **settings}, gin=gin) as new:
            self.model.save(new)
            self.vocabulary.save(new / "vocabulary")
            self.documents_of.save(new)
            if not self._is_trie_of_docids:
                save_constraint(new / "constraint", self.constraint)

    @classmethod
    def load(
        cls, folder: str | os.PathLike, *, verify: bool = True, name_documents: NameDocuments | None = None
    ) -> GenerativeRetriever:
        """Reads what `save` wrote.

        Args:
          folder: the artefact.
          verify: check the checksums.
          name_documents: see the class.

        Raises:
          InputError: it is not such a folder, or was truncated or altered; a network or `documents_of` of a kind that
            nobody registered.
        """
        folder = pathlib.Path(folder)
        meta = storage.read_folder(folder, KIND, verify=verify).meta
        storage.check_counts(folder, meta, "beams", "max_len", "max_query_length")
        way = meta["documents_of"]
        documents_of = DOCUMENTS_OF.find(way["kind"], file=folder).load(folder, way["settings"])
        of_docids = meta["constraint"] == "docids"
        made = cls(
            network_folder.load_model(folder),
            Trie.from_docids(documents_of.docids)
            if of_docids
            else load_constraint(folder / "constraint", verify=False),
            text.load_vocabulary(folder / "vocabulary"),
            documents_of=documents_of,
            views=views_from_json(meta["views"]),
            name_documents=name_documents,
            **{name: meta[name] for name in _SETTINGS if name in meta},  # older folders have no lookahead
        )
        made._is_trie_of_docids = of_docids
        return made


def _check_settings(beams: int, merge: str | None, views: Sequence[View]) -> None:
    if beams < 1:
        raise InputError("there must be at least one beam", "Set beams to 1 or more.", value=beams)
    if merge is not None and merge not in WAYS:
        raise InputError("unknown way to merge", f"Use one of {', '.join(WAYS)}, or None.", value=merge)
    if not views:
        raise InputError("a query needs at least one view", "Give at least one view.")


def _without_end(found: Beams, row: int, beam: int, eos_id: int | None) -> tuple[int, ...]:
    """What a beam wrote, without EOS."""
    written = tuple(found.sequences[row, beam, : found.lengths[row, beam]].tolist())
    return written[:-1] if written and written[-1] == eos_id else written


def _check_lookahead(
    lookahead: bool, constraint: Constraint, normalize: str, levels: object, documents_of: object
) -> None:
    if not lookahead:
        return
    problem = check_lookahead(normalize, levels)
    if not isinstance(constraint, (Trie, TokenTextTrie)):
        problem = "only what a trie holds can be looked ahead to"
    elif getattr(documents_of, "docids", None) is None:
        problem = "only docids can be looked ahead to, and nothing says which documents have"
    if problem is not None:
        raise InputError(problem, 'Set lookahead=False; or use a trie, and normalize="vocabulary".', value=normalize)


def _ahead_of(constraint: Any, documents_of: Any) -> Lookahead:
    """Of a trie, and what documents are called."""
    return Lookahead.of(documents_of.docids, constraint)


def _same_kind(constraint: Trie | TokenTextTrie, docids: Docids) -> Trie | TokenTextTrie:
    """The trie of other docids."""
    if isinstance(constraint, Trie):
        return Trie.from_docids(docids)
    return TokenTextTrie.from_docids(docids, np.asarray(constraint.text_of))
