"""From what was written to documents: the last part of generative retrieval, and the seam at which systems differ.

A `DocumentsOf` has two halves. `look_up` is part of the compiled search and sees all of it: beams, kept hypotheses, the
constraint with its counts and postings, the decoder and its cache. `rank` makes documents of one query from what came
back, on the host.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from gr_jax.constraints import Constraint
from gr_jax.decoding import Beams, Decoder
from gr_jax.decoding.decoder import Cache
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from gr_jax.retrievers.base import Evidence
from gr_jax.storage import load_array


class Searched(NamedTuple):
    """A search of a batch, inside the compiled program. Rows are queries, or views of queries.

    Attributes:
      beams: what was found, with every kept hypothesis (`beams.history`) where the look-up asked for them.
      constraint: what could be written, without what a filter excludes.
      unfiltered: the same without the filter: what a count is in the whole corpus. States fit both.
      decoder, cache: the network, and what it knew of the queries before the first step, to score more sequences.
      tokens, lengths: what was read, padded with 0.
    """

    beams: Beams
    constraint: Constraint
    unfiltered: Constraint
    decoder: Decoder
    cache: Cache
    tokens: Int[Array, "rows length"]
    lengths: Int[Array, " rows"]


class LookUp(Protocol):
    """What `rank` needs that only the device has. A pytree, an argument of the compiled search: arrays of its own are
    leaves, and what decides shapes is static and compares by value.

    Attributes:
      history: whether it needs the kept hypotheses.
    """

    @property
    def history(self) -> bool: ...

    def __call__(self, searched: Searched) -> Any:
        """Arrays that lead with the rows of the batch."""
        ...


class Written(NamedTuple):
    """What was written for one query, on the host.

    Attributes:
      beams: leaves lead with [views, beam]; without states and history.
      looked_up: what `look_up` gave, leaves lead with [views].
    """

    beams: Beams
    looked_up: Any


class FoundDocument(NamedTuple):
    """A document with its score, why, where that was asked for, and what gives its identifier."""

    document: int
    score: float
    evidence: tuple[Evidence, ...] = ()
    docid: Callable[[], str] = str  # gives ""


class DocumentsOf(Protocol):
    """Makes documents of what was written.

    Attributes:
      kind: its registered name (`gr_jax.registry.DOCUMENTS_OF`).
      look_up: its half on the device.
      beam_each: whether a document takes a beam, so that there must be as many beams as documents are asked for.
    """

    kind: str

    @property
    def look_up(self) -> LookUp: ...
    @property
    def beam_each(self) -> bool: ...

    def check(self, constraint: Constraint) -> None:
        """Raises InputError where it can do nothing with what this constraint lets a model write."""
        ...

    def rank(
        self, written: Written, k: int, *, explain: bool, allowed: Bool[np.ndarray, " documents"] | None = None
    ) -> Sequence[FoundDocument]:
        """The k best documents of a query, best first, each once.

        Args:
          written: what was written for it.
          k: how many documents at most.
          explain: say why.
          allowed: which documents may be found; what was written leads to others too only where `look_up` asked the
            unfiltered constraint.
        """
        ...

    def settings(self) -> dict[str, Any]:
        """All that `load` needs besides files, as JSON."""
        ...

    def save(self, folder: pathlib.Path) -> None:
        """Writes its files, if it has any, into the retriever's folder."""
        ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DocumentsOfBeams:
    """The first `limit` documents of every beam, −1 where it has fewer: int32[rows, beam, limit]."""

    limit: int = dataclasses.field(metadata={"static": True})
    history = False

    def __call__(self, searched: Searched) -> Int[Array, "rows beam limit"]:
        documents, _ = searched.constraint.documents(searched.beams.states, self.limit)
        return jnp.where(searched.beams.valid[..., None], documents, -1)


class BestDocid:
    """A document gets the best of the scores of the identifiers that lead to it; those are its evidence.

    For complete identifiers: docids, titles, and also n-grams whose documents are few.

    Args:
      docids: what the documents are called; they say how many documents one may have, and what evidence reads.
      text_of: the docid token that each token of the decoder writes, where those differ (`TokenTextTrie`); −1: none.
      limit: without docids, how many documents of an identifier are looked up.

    Raises:
      InputError: neither docids nor a limit.
    """

    kind = "best_docid"
    beam_each = True

    def __init__(
        self,
        docids: Docids | None = None,
        *,
        text_of: Int[np.ndarray, " vocab"] | None = None,
        limit: int | None = None,
    ):
        if docids is None and (limit is None or limit < 1):
            raise InputError("nothing says how many documents to look up", "Give docids, or limit ≥ 1.", value=limit)
        self.docids, self.text_of = docids, None if text_of is None else np.asarray(text_of, np.int32)
        self._limit = limit
        most = limit if docids is None else int(np.diff(docids.offsets).max())
        assert most is not None
        self.look_up = DocumentsOfBeams(most)

    def check(self, constraint: Constraint) -> None:
        """See `DocumentsOf.check`."""
        documents = num_documents_of(constraint)
        if self.docids is not None and documents != self.docids.num_documents:
            raise InputError(
                f"docids of {self.docids.num_documents} documents, and a constraint that leads to {documents}",
                "Make the constraint of these docids.",
            )

    def rank(
        self, written: Written, k: int, *, explain: bool, allowed: Bool[np.ndarray, " documents"] | None = None
    ) -> list[FoundDocument]:
        """See `DocumentsOf.rank`. Evidence is all identifiers that lead to the document, best first."""
        del allowed  # the constraint leads to no others
        documents, scores = written.looked_up, written.beams.scores  # [views, beam, limit], [views, beam]
        places = [divmod(place, scores.shape[1]) for place in range(scores.size)]
        if len(scores) > 1:  # beams of one view are sorted
            places = [places[i] for i in np.argsort(-scores.reshape(-1), kind="stable")]
        best = _best_documents([documents[place].tolist() for place in places], k, stop=not explain)
        found = []
        for document, beams in best.items():
            reasons = [self._evidence(written.beams, places[beam]) for beam in beams] if explain else []
            best_place = places[beams[0]]
            docid = functools.partial(self._docid, written.beams, best_place)
            found.append(FoundDocument(document, float(scores[best_place]), tuple(reasons), docid))
        return found

    def _docid(self, beams: Beams, place: tuple[int, int]) -> str:
        return self._evidence(beams, place).text

    def _evidence(self, beams: Beams, place: tuple[int, int]) -> Evidence:
        tokens = beams.sequences[place][: beams.lengths[place]].tolist()
        text = tokens if self.text_of is None else self.text_of[tokens].tolist()
        if self.docids is not None and text[-1:] == [self.docids.eos_id]:
            tokens, text = tokens[:-1], text[:-1]
        row = None if self.docids is None or self.docids.texts is None else self.docids.row_of(text)
        name = "-".join(map(str, text)) if row is None or self.docids is None else self.docids.name(row)
        return Evidence("docid", name, float(beams.scores[place]), tuple(tokens))

    def settings(self) -> dict[str, Any]:
        """See `DocumentsOf.settings`."""
        return {"docids": self.docids is not None, "text_of": self.text_of is not None, "limit": self._limit}

    def save(self, folder: pathlib.Path) -> None:
        """Writes the docids."""
        if self.docids is not None:
            self.docids.save(folder / "docids")
        if self.text_of is not None:
            np.save(folder / "text_of.npy", self.text_of)

    @classmethod
    def load(cls, folder: str | os.PathLike, settings: dict[str, Any]) -> BestDocid:
        """Reads what `save` wrote."""
        folder = pathlib.Path(folder)
        return cls(
            Docids.load(folder / "docids") if settings["docids"] else None,
            text_of=load_array(folder / "text_of.npy") if settings["text_of"] else None,
            limit=settings["limit"],
        )


def num_documents_of(constraint: Constraint) -> int:
    """How many documents a constraint leads to.

    Raises:
      InputError: it leads to none.
    """
    number = getattr(constraint, "num_documents", None)
    if number is None:
        raise InputError(
            "this constraint leads to no documents",
            "Use one of docids, titles or n-grams of documents.",
            value=type(constraint).__name__,
        )
    return int(number)


def _best_documents(documents: Sequence[Sequence[int]], k: int, *, stop: bool) -> dict[int, list[int]]:
    """The first k documents along the beams (which are best first), each with the beams that found it.

    Args:
      documents: of each beam, −1 where it has fewer.
      k: how many are wanted.
      stop: as soon as there are k, whatever other beams lead to them.
    """
    best: dict[int, list[int]] = {}
    for beam, named in enumerate(documents):
        for document in named:
            if document in best:
                best[document].append(beam)
            elif document >= 0 and len(best) < k:
                best[document] = [beam]
        if stop and len(best) == k:
            break
    return best
