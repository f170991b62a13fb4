"""The trie of texts whose tokens can be written in several ways."""

from __future__ import annotations

import copy
import dataclasses
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from gr_jax import storage
from gr_jax.constraints.base import Candidates, Scores, normalize_over
from gr_jax.constraints.trie import Trie, TrieState
from gr_jax.constraints.trie_arrays import END
from gr_jax.docids.docids import Docids
from gr_jax.errors import InputError

KIND = "token_text_trie"
UNUSED = -1  # a decoder id that writes no text


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenTextTrie:
    """Allows exactly the texts of a set, each token of which may be written with any of its decoder ids.

    A decoder whose vocabulary holds contextualized token embeddings (CGR, arXiv 2210.02068, section 3 and A.1) has
    several ids for the text of one token. The nodes of the tree are texts: allowing a token allows all its ids. A text
    so has as many sequences as its tokens have ids, multiplied; their states, and so their keys, are equal, by which
    beam search merges them (`merge="max"` or "sum").

    Hypotheses that are merged after every step are never two of one text, so that equal ones are only the ids of one
    token behind one hypothesis: a merged trie gives one candidate for all of them, and nothing need be sorted.

    Attributes:
      trie: of the texts; its tokens are text tokens.
      ids: int32[text_tokens, most]; the decoder ids of each text token, ascending, then −1.
      text_of: int32[vocab]; the text token that each decoder id writes; −1: none.
      vocab_size, eos_id: of the decoder. One id alone ends a text.
      merge: what becomes of the ids of a token: "max": the best is its candidate; "sum": it gets the log of the sum of
        their probabilities; None: each is one. See `merged`.
    """

    trie: Trie
    ids: Int[Array, "text_tokens most"]
    text_of: Int[Array, " vocab"]
    vocab_size: int = dataclasses.field(metadata={"static": True})
    eos_id: int | None = dataclasses.field(metadata={"static": True})
    merge: str | None = dataclasses.field(metadata={"static": True}, default=None)
    open_ended = False

    @classmethod
    def from_docids(cls, docids: Docids, text_of: Int[np.ndarray, " vocab"]) -> TokenTextTrie:
        """Builds the trie.

        Args:
          docids: of text tokens, which are numbered from 1.
          text_of: the text token that each decoder id writes; −1 for ids that write none (padding and the like). Id 0
            may be one like others: with `np.arange(vocab) + 1` a decoder whose token 0 is a piece of text writes docids
            whose tokens are its own plus 1, as `docids.titles` makes them.

        Raises:
          InputError: a token of the docids, or their EOS, that no id writes; an EOS of several ids; an id of a token
            that is not there; what `Trie` refuses.
        """
        text_of = np.asarray(text_of)
        if text_of.ndim != 1 or text_of.dtype.kind not in "iu" or not len(text_of):
            raise InputError(
                "no map from decoder ids to text tokens", "Give integers [vocab].", value=(text_of.dtype, text_of.shape)
            )
        outside = (text_of < UNUSED) | (text_of >= docids.vocab_size)
        if outside.any():
            first = int(np.argmax(outside))
            raise InputError(
                f"decoder id {first} writes a text token that is not there",
                f"Give tokens below {docids.vocab_size}, or −1.",
                value=int(text_of[first]),
            )
        ids = _ids_of(text_of, _used(docids))
        eos_id = None
        if docids.eos_id is not None:
            count = int(np.sum(ids[docids.eos_id] != UNUSED))
            if count != 1:
                raise InputError(f"{count} decoder ids write EOS", "Leave one, as for all special tokens.")
            eos_id = int(ids[docids.eos_id, 0])
        return cls(
            trie=Trie.from_docids(docids),
            ids=jnp.asarray(ids),
            text_of=jnp.asarray(text_of.astype(np.int32)),
            vocab_size=len(text_of),
            eos_id=eos_id,
        )

    def add(self, more: Docids) -> TokenTextTrie:
        """The trie of these and further texts; see `Trie.add`.

        Args:
          more: of further documents: document i of them becomes document num_documents + i.

        Raises:
          InputError: a token that no decoder id writes; what `Trie.add` refuses.
        """
        trie = self.trie.add(more)
        used = _used(more) | np.any(np.asarray(self.ids) != UNUSED, axis=1)
        return dataclasses.replace(self, trie=trie, ids=jnp.asarray(_ids_of(np.asarray(self.text_of), used)))

    def save(self, folder: str | os.PathLike, *, corpus: str = "", made_from: str = "") -> None:
        """Writes a folder of plain arrays (see `gr_jax.storage`). A filter belongs to queries and is not written."""
        meta = {"vocab_size": self.vocab_size, "eos_id": self.eos_id}
        with storage.write_folder(folder, KIND, corpus=corpus, made_from=made_from, meta=meta) as path:
            self.trie.save(path / "trie", corpus=corpus, made_from=made_from)
            np.save(path / "ids.npy", np.asarray(self.ids))
            np.save(path / "text_of.npy", np.asarray(self.text_of))

    @classmethod
    def load(cls, folder: str | os.PathLike, *, mmap: bool = False, vocab_size: int | None = None) -> TokenTextTrie:
        """Reads what `save` wrote, checksums and contents verified.

        Args:
          folder: the folder.
          mmap: map the trie's arrays instead of reading them.
          vocab_size: of the decoder, where it is to be compared.

        Raises:
          InputError: the folder is not there, truncated, altered, of another kind; its contents are no such trie, or
            one over another vocabulary.
        """
        meta = storage.read_folder(folder, KIND).meta
        ids, text_of = (storage.load_array(os.path.join(folder, f"{name}.npy")) for name in ("ids", "text_of"))
        trie = Trie.load(os.path.join(folder, "trie"), mmap=mmap)
        problem = _problem(trie, ids, text_of, meta)
        if problem:
            raise InputError(f"these arrays are no trie of token texts: {problem}", "Make it again.", file=folder)
        if vocab_size not in (None, len(text_of)):
            raise InputError(
                f"a trie over {len(text_of)} decoder ids where {vocab_size} are expected",
                "Load the trie of the contextualized vocabulary that the model was trained with.",
                file=folder,
            )
        return cls(trie, jnp.asarray(ids), jnp.asarray(text_of), meta["vocab_size"], meta["eos_id"])

    @property
    def num_documents(self) -> int:
        """Documents that the texts lead to."""
        return self.trie.num_documents

    @property
    def max_steps(self) -> int:
        """Decoding steps of the longest text, its EOS included."""
        return self.trie.max_steps

    def initial_state(self, batch: int, view: Any = None) -> TrieState:
        return self.trie.initial_state(batch, view)

    def merged(self, how: str) -> TokenTextTrie:
        """The trie whose candidates are tokens, each written by its best id, for searches whose hypotheses are all of
        different texts.

        Args:
          how: "max" or "sum"; see `decoding.beam_search`.
        """
        return dataclasses.replace(self, merge=how)

    def candidates(self, state: TrieState, scores: Scores, k: int, steps: range | None = None) -> Candidates:
        """The decoder ids of all texts that may follow; of states that are not distinct perhaps only those that the k
        best ids belong to (see `Trie.candidates`). Of a merged trie one id each; states must be distinct then."""
        if scores.normalize == "constraint":
            k = self.trie.vocab_size  # what is normalised over must be there whole
        # Of a merged trie the states are distinct, but for hypotheses that are none: these stand behind the others, and
        # what they add to the list of all children is its end. What is normalised has a row for each state.
        distinct = self.merge is not None and scores.normalize != "constraint"
        texts = self.trie.candidates(state, TextScores(scores, self.ids), k, steps, distinct=distinct)
        ids = self.ids[texts.token]  # --> [..., width, most]
        valid = texts.valid[..., None] & (ids != UNUSED)
        most = ids.shape[-1]

        def spread(leaf: Array) -> Array:  # [..., width] --> [..., width · most]
            return jnp.repeat(leaf, most, axis=-1)

        token = _flatten(jnp.maximum(ids, 0))
        next_state = jax.tree.map(spread, texts.next_state)
        valid = _flatten(valid)
        next_state = next_state._replace(node=jnp.where(valid, next_state.node, -1))
        if texts.parent is None:
            parent, log_prob = None, scores.at(token)
            if scores.normalize == "constraint":
                log_prob = normalize_over(log_prob, valid)
        else:
            parent = spread(texts.parent)
            log_prob = scores.at_parents(parent, token)
        if self.merge is not None:
            return self._one_of_each(texts, ids, log_prob)
        return Candidates(token, log_prob, next_state, valid, ending=texts.ending * most, parent=parent)

    def _one_of_each(self, texts: Candidates, ids: Int[Array, "... width most"], log_prob: Array) -> Candidates:
        """The candidates of a merged trie, from the log-probabilities of all ids [..., width · most]."""
        apart = jnp.where(ids != UNUSED, log_prob.reshape(ids.shape), -jnp.inf)
        best = jnp.argmax(apart, axis=-1)[..., None]
        token = jnp.take_along_axis(jnp.maximum(ids, 0), best, axis=-1)[..., 0]
        value = jnp.max(apart, axis=-1) if self.merge == "max" else jax.nn.logsumexp(apart, axis=-1)
        return dataclasses.replace(texts, token=token, log_prob=value)

    def advance(self, state: TrieState, token: Int[Array, ...]) -> TrieState:
        text = self.text_of.at[token].get(mode="fill", fill_value=UNUSED)
        return self.trie.advance(state, jnp.where(token < 0, UNUSED, text))

    def allowed(self, state: TrieState) -> Bool[Array, "... vocab"]:
        return self.trie.allowed(state)[..., jnp.maximum(self.text_of, 0)] & (self.text_of != UNUSED)

    def accepts(self, state: TrieState) -> Bool[Array, ...]:
        return self.trie.accepts(state)

    def key(self, state: TrieState) -> Int[Array, "... n"]:
        """Of the text: equal whichever decoder ids wrote it."""
        return self.trie.key(state)

    def documents(self, state: TrieState, limit: int) -> tuple[Int[Array, "... limit"], Int[Array, ...]]:
        return self.trie.documents(state, limit)

    def restrict(self, allowed: Bool[Array, "batch docs"]) -> TokenTextTrie:
        return dataclasses.replace(self, trie=self.trie.restrict(allowed))


def _used(docids: Docids) -> Bool[np.ndarray, " text_tokens"]:
    """The text tokens that docids have, their EOS included."""
    used = np.zeros(docids.vocab_size, bool)
    used[docids.tokens[np.arange(docids.tokens.shape[1]) < docids.lengths[:, None]]] = True
    if docids.eos_id is not None:
        used[docids.eos_id] = True
    return used


def _ids_of(
    text_of: Int[np.ndarray, " vocab"], used: Bool[np.ndarray, " text_tokens"]
) -> Int[np.ndarray, "text_tokens most"]:
    """The decoder ids of each text token that is used, ascending, then −1.

    Raises:
      InputError: a token without any.
    """
    # Only what is used takes room: a column more costs a candidate for each child.
    writing = np.flatnonzero((text_of != UNUSED) & used[text_of])
    order = writing[np.argsort(text_of[writing], kind="stable")]
    counts = np.bincount(text_of[order], minlength=len(used))
    unwritten = used & (counts == 0)
    if unwritten.any():
        raise InputError(
            f"no decoder id writes text token {int(np.argmax(unwritten))}, nor {int(unwritten.sum()) - 1} others",
            "Give every token of the docids, and their EOS, at least one decoder id.",
        )
    ids = np.full((len(used), int(counts.max())), UNUSED, np.int32)
    column = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    ids[text_of[order], column] = order
    return ids


def _problem(trie: Trie, ids: np.ndarray, text_of: np.ndarray, meta: dict) -> str:
    """What is wrong with loaded contents; "" if nothing is."""
    if ids.ndim != 2 or text_of.ndim != 1 or {ids.dtype, text_of.dtype} != {np.dtype(np.int32)}:
        return "the maps between ids and texts have other shapes or types"
    if len(ids) != trie.vocab_size or len(text_of) != meta.get("vocab_size"):
        return "the maps between ids and texts are not as long as the vocabularies"
    if ids.min() < UNUSED or ids.max() >= len(text_of):
        return "decoder ids are outside of the vocabulary"
    text, column = np.nonzero(ids != UNUSED)
    if (text_of[ids[text, column]] != text).any():
        return "the maps between ids and texts contradict each other"
    if any(
        (ids[tokens[tokens != END], 0] == UNUSED).any() for tokens in map(np.asarray, (trie.edge_tokens, trie.rests))
    ):
        return "no decoder id writes a token of a text"
    eos_id = UNUSED if trie.eos_id is None else int(ids[trie.eos_id, 0])
    if (UNUSED if meta.get("eos_id") is None else meta["eos_id"]) != eos_id or (trie.eos_id is not None and eos_id < 0):
        return "the id that ends a text is another one"
    return ""


def text_of_ids(
    offsets: Int[np.ndarray, " text_tokens_plus_1"], ids: Int[np.ndarray, " entries"], vocab_size: int
) -> Int[np.ndarray, " vocab"]:
    """The inverse of lists of decoder ids: ids[offsets[t]:offsets[t + 1]] write text token t.

    Raises:
      InputError: an id out of the decoder's vocabulary, or one that would write two tokens; offsets that do not fit.
    """
    offsets, ids = np.asarray(offsets), np.asarray(ids)
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(ids) or (np.diff(offsets) < 0).any():
        raise InputError("offsets do not fit the decoder ids", "Give ascending offsets from 0 to their number.")
    outside = (ids < 0) | (ids >= vocab_size)
    if outside.any():
        raise InputError(
            "a decoder id outside of the vocabulary", f"Give ids below {vocab_size}.", value=int(ids[outside][0])
        )
    counts = np.bincount(ids, minlength=vocab_size)
    if (counts > 1).any():
        twice = int(np.argmax(counts > 1))
        tokens = np.searchsorted(offsets, np.flatnonzero(ids == twice), side="right") - 1
        raise InputError(f"decoder id {twice} writes several tokens", "Give each id one text.", value=tokens.tolist())
    text_of = np.full(vocab_size, UNUSED, np.int32)
    text_of[ids] = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    return text_of


class TextScores:
    """Scores of text tokens: that of the best decoder id of each. So the texts of the k best ids are among the k best
    texts."""

    def __init__(self, scores: Scores, ids: Int[Array, "text_tokens most"]):
        self.normalize = scores.normalize
        self._scores, self._ids = scores, ids

    def __copy__(self) -> TextScores:
        """What a copy's scores cache stays with it."""
        return TextScores(copy.copy(self._scores), self._ids)

    def at(self, tokens: Int[Array, "... width"]) -> Float[Array, "... width"]:
        ids = self._ids[tokens]  # --> [..., width, most]
        return self._best(self._scores.at(_flatten(jnp.maximum(ids, 0))), ids)

    def at_parents(self, parent: Int[Array, "batch n"], tokens: Int[Array, "batch n"]) -> Float[Array, "batch n"]:
        ids = self._ids[tokens]
        parent = jnp.repeat(parent, ids.shape[-1], axis=-1)
        return self._best(self._scores.at_parents(parent, _flatten(jnp.maximum(ids, 0))), ids)

    def _best(self, values: Array, ids: Array) -> Array:
        return jnp.max(values.reshape(ids.shape), axis=-1, where=ids != UNUSED, initial=-jnp.inf)

    def top(self, n: int, below: int | None = None) -> tuple[Int[Array, "... n"], Float[Array, "... n"]]:
        raise InputError("texts are not ranked without a trie", "Ask for the scores of those that may follow.")

    def log_normalizer(self) -> Float[Array, ...]:
        return self._scores.log_normalizer()


def _flatten(x: Array) -> Array:
    return x.reshape(*x.shape[:-2], -1)
