"""Several FM-indexes, each of some of the documents, that allow and count what one of all documents would."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from gr_jax import storage
from gr_jax.constraints import fm_index_locate, ngram_walks, sharded_fm_candidates
from gr_jax.constraints.base import Candidates, Scores, check_filter
from gr_jax.constraints.fm_index import FMIndex, FMState
from gr_jax.errors import InputError
from gr_jax.text.vocabulary import Vocabulary

KIND = "sharded_fm_index"


class ShardedFMState(NamedTuple):
    """Where an n-gram stands in each part.

    Attributes:
      low, high: int32[..., parts]; the part's rows low … high − 1, as of `FMState`; none: it does not occur there.
      view: int32[...], whose n-grams are walked.
      depth: int32[...], tokens consumed, without EOS.
      ended: bool[...], EOS was written and nothing may follow.
    """

    low: Int[Array, "... parts"]
    high: Int[Array, "... parts"]
    view: Int[Array, ...]
    depth: Int[Array, ...]
    ended: Bool[Array, ...]

    def of_parts(self) -> list[FMState]:
        """The state of each part."""
        parts = range(self.low.shape[-1])
        return [FMState(self.low[..., i], self.high[..., i], *self[2:]) for i in parts]

    @classmethod
    def joined(cls, states: Sequence[FMState]) -> ShardedFMState:
        """Of the states of all parts."""
        low, high = (jnp.stack([getattr(state, name) for state in states], axis=-1) for name in ("low", "high"))
        return cls(low, high, *states[0][2:])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ShardedFMIndex:
    """An FM-index in parts: each part has its own documents, which are numbered one part after the other.

    It allows and counts exactly what an `FMIndex` of all documents does: an n-gram may follow where it may in any part,
    and its occurrences add up. Of tokens with exactly the same score it may take others: such ties are broken by how
    rows lie. Documents can join an index by a part of their own, which is built from them alone. A step costs what it
    costs in each part, so few parts are best; `fm_index_shards.updated` sees to that.

    Attributes:
      parts: built with the same vocabulary, views and EOS.

    Raises:
      InputError: no parts, or such as differ in vocabulary, views or EOS.
    """

    parts: tuple[FMIndex, ...]
    open_ended = True

    def __post_init__(self):
        if not isinstance(self.parts, Sequence) or not self.parts:
            raise InputError("an FM-index of no parts", "Give at least one FMIndex.", value=self.parts)
        object.__setattr__(self, "parts", tuple(self.parts))
        for name in ("view_names", "vocab_size", "vocabulary", "eos_id"):
            values = [getattr(part, name) for part in self.parts]
            if any(value != values[0] for value in values):
                raise InputError(
                    f"parts of an FM-index that differ in their {name}", "Build all of them alike.", value=values
                )

    @property
    def view_names(self) -> tuple[str, ...]:
        """See `TokenText`."""
        return self.parts[0].view_names

    @property
    def vocab_size(self) -> int:
        """Tokens of the decoder."""
        return self.parts[0].vocab_size

    @property
    def vocabulary(self) -> str:
        """Fingerprint of the vocabulary; "" where it is not known."""
        return self.parts[0].vocabulary

    @property
    def corpus(self) -> str:
        """Of no one corpus: ""."""
        return ""

    @property
    def eos_id(self) -> int | None:
        """Ends an n-gram; None: n-grams are cut where decoding stops."""
        return self.parts[0].eos_id

    @property
    def sample_rate(self) -> int:
        """See `FMIndex.from_text`; of the first part."""
        return self.parts[0].sample_rate

    @property
    def num_documents(self) -> int:
        """Of all parts."""
        return sum(part.num_documents for part in self.parts)

    @property
    def first_documents(self) -> tuple[int, ...]:
        """The number of each part's first document, and how many there are."""
        return tuple(np.cumsum([0, *(part.num_documents for part in self.parts)]).tolist())

    @property
    def row_documents(self) -> Int[np.ndarray, " rows"] | None:
        """The document of each row, the parts' rows one after the other, on the host; None: not kept."""
        found = []
        for part, first in zip(self.parts, self.first_documents, strict=False):
            if part.row_documents is None:
                return None
            found.append(np.asarray(part.row_documents) + np.int32(first))
        return np.concatenate(found)

    @property
    def nbytes(self) -> dict[str, int]:
        """As `FMIndex.nbytes`, of all parts."""
        of_parts = [part.nbytes for part in self.parts]
        return {name: sum(one[name] for one in of_parts) for name in of_parts[0]}

    def save(self, folder: str | os.PathLike) -> None:
        """Writes an artefact of kind "sharded_fm_index": a folder for each part, without what `restrict` made.

        Raises:
          InputError: `folder` holds something else, or cannot be written.
        """
        with storage.write_folder(folder, KIND, meta={"parts": len(self.parts)}) as new:
            for number, part in enumerate(self.parts):
                part.save(new / f"part_{number}")

    @classmethod
    def load(
        cls, folder: str | os.PathLike, *, vocabulary: Vocabulary | None = None, verify: bool = True
    ) -> ShardedFMIndex:
        """Maps what `save` wrote; see `FMIndex.load`.

        Raises:
          InputError: `folder` is no such index, or a truncated or altered one, or of another vocabulary.
        """
        meta = storage.read_folder(folder, KIND, verify=verify).meta
        storage.check_counts(folder, meta, "parts")
        folders = [pathlib.Path(folder) / f"part_{number}" for number in range(meta["parts"] or 0)]
        with storage.explain_content(folder):
            return cls(tuple(FMIndex.load(one, vocabulary=vocabulary, verify=False) for one in folders))

    def initial_state(self, batch: int, view: Any = None) -> ShardedFMState:
        """See `FMIndex.initial_state`."""
        return ShardedFMState.joined([part.initial_state(batch, view) for part in self.parts])

    def view_number(self, view: str | int) -> int:
        """What `initial_state` takes for a view's name."""
        return ngram_walks.view_number(self.view_names, view)

    def candidates(self, state: ShardedFMState, scores: Scores, k: int, steps: range | None = None) -> Candidates:
        """See `FMIndex.candidates`: the k best of each state over all parts, each once.

        Raises:
          InputError: normalize="level", of which n-grams have none.
        """
        return sharded_fm_candidates.candidates(self, state, scores, k)

    def advance(self, state: ShardedFMState, token: Int[Array, ...]) -> ShardedFMState:
        after = self.extend(state, token)
        if self.eos_id is None:
            return after
        ends = (token == self.eos_id) & self.accepts(state) & ~state.ended
        return ngram_walks.choose(ends, state._replace(ended=ends), after)

    def extend(self, state: ShardedFMState, token: Int[Array, ...]) -> ShardedFMState:
        """States after a token each that is not EOS; dead after −1, and where no allowed document has the n-gram.

        Where an allowed document of any part has it, the ranges of all parts stay whole: they say how often it stands
        in all documents, as those of an `FMIndex` do.
        """
        inside = (token >= 0) & (token < self.vocab_size)
        place = jnp.clip(token, 0, self.vocab_size - 1)
        ranges, counts = [], []
        for part, own in zip(self.parts, state.of_parts(), strict=True):
            symbol = jnp.where(inside, part.symbols[place], 0)
            low, high = part.follow(own, symbol)
            has = (symbol > 0) & (low < high)
            ranges.append((jnp.where(has, low, 0), jnp.where(has, high, 0)))
            counts.append(part.occurrences(*ranges[-1]))
        live = ~state.ended & (_sum(counts) > 0)
        low, high = (jnp.where(live[..., None], jnp.stack(ends, axis=-1), 0) for ends in zip(*ranges, strict=True))
        return ShardedFMState(low, high, state.view, state.depth + 1, jnp.zeros_like(live))

    def accepts(self, state: ShardedFMState) -> Bool[Array, ...]:
        """Every n-gram is an identifier; the empty one is none."""
        return jnp.any(state.low < state.high, axis=-1) & (state.depth > 0)

    def count(self, state: ShardedFMState) -> Int[Array, ...]:
        """See `FMIndex.count`: that of all parts together."""
        return _sum([part.count(own) for part, own in zip(self.parts, state.of_parts(), strict=True)])

    def next_counts(self, state: ShardedFMState) -> Int[Array, "... vocab"]:
        """How often each token follows: all that can be written next, with counts."""
        return _sum([part.next_counts(own) for part, own in zip(self.parts, state.of_parts(), strict=True)])

    def allowed(self, state: ShardedFMState) -> Bool[Array, "... vocab"]:
        mask = self.next_counts(state) > 0
        if self.eos_id is None:
            return mask
        may_end = (self.accepts(state) & ~state.ended)[..., None]
        return mask | may_end & (jnp.arange(self.vocab_size) == self.eos_id)

    def key(self, state: ShardedFMState) -> Int[Array, "... n"]:
        """See `FMIndex.key`; two numbers for each part, and three."""
        rest = jnp.stack([state.view, state.depth, state.ended.astype(jnp.int32)], axis=-1)
        return jnp.concatenate([state.low, state.high, rest], axis=-1)

    def walk(self, ngrams: Int[Array, "batch length"], view: Any = None) -> ShardedFMState:
        """States [batch, 1] after whole n-grams, padded on the right with −1."""
        return ngram_walks.walk(self, ngrams, view)

    def find(self, ngrams: Sequence[Sequence[int]], view: str | int | None = None) -> ShardedFMState:
        """`walk` of lists of tokens, on the host; leaves [batch, 1]."""
        return ngram_walks.find(self, ngrams, view)

    def rows(self, state: ShardedFMState) -> tuple[Int[Array, "... parts"], Int[Array, "... parts"]]:
        """The ranges of `row_documents` in which each n-gram's occurrences are, low and high: one of each part.

        Raises:
          InputError: 2³¹ rows or more.
        """
        first = np.cumsum([0, *(part.num_rows for part in self.parts)])
        if first[-1] >= 2**31:
            raise InputError("2³¹ rows or more cannot be numbered", "Use fewer documents.", value=int(first[-1]))
        shift = jnp.asarray(first[:-1], jnp.int32)
        return state.low + shift, state.high + shift

    def documents(self, state: ShardedFMState, limit: int) -> tuple[Int[Array, "... limit"], Int[Array, ...]]:
        """See `FMIndex.documents`; those of the first part are first."""
        found, numbers = [], []
        for part, own, first in zip(self.parts, state.of_parts(), self.first_documents, strict=False):
            documents, number = fm_index_locate.documents(part, own, limit)
            found.append(jnp.where(documents >= 0, documents + first, -1))
            numbers.append(number)
        every = jnp.concatenate(found, axis=-1)  # --> [..., parts · limit]
        order = jnp.argsort(every < 0, axis=-1, stable=True)[..., :limit]
        return jnp.take_along_axis(every, order, axis=-1), jnp.minimum(_sum(numbers), limit + 1)

    def restrict(self, allowed: Bool[Array, "batch docs"]) -> ShardedFMIndex:
        """See `FMIndex.restrict`: each part gets the columns of its documents.

        Raises:
          InputError: a part was built without `filters`; another number of columns than documents, or of rows than a
            filter before.
        """
        before = self.parts[0].filter
        allowed = check_filter(allowed, self.num_documents, None if before is None else before.shape[0])
        ends = self.first_documents
        columns = [allowed[:, first:last] for first, last in zip(ends, ends[1:], strict=False)]
        return ShardedFMIndex(tuple(part.restrict(own) for part, own in zip(self.parts, columns, strict=True)))


NgramIndex: TypeAlias = FMIndex | ShardedFMIndex


def _sum(counts: Sequence[Array]) -> Array:
    total = counts[0]
    for count in counts[1:]:
        total = total + count
    return total
