"""Which hypotheses of a beam search go on, by what they could still become instead of by what they are.

A text is found by the sum of its tokens' scores, and a beam is chosen after each token: a title whose first word fits
worse than many others is lost before its second is looked at. But the scores of all tokens are there before the first
one is written. So the sum of every text of a trie is known as it would be if what is written changed nothing, and a
hypothesis is as good as the best text below it, corrected by what its own tokens really got. Scores stay what they are,
and nothing of this is learned: it is an estimate of the rest, as in A* search.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from gr_jax.constraints import TokenTextTrie, Trie
from gr_jax.constraints.base import Scores, check_filter
from gr_jax.constraints.trie import TrieState
from gr_jax.docids import Docids


def check_lookahead(normalize: str, levels: object) -> str | None:
    """What is wrong with looking ahead to scores of this kind; None if nothing is.

    Args:
      normalize: of the search.
      levels: of the tokens of the docids, None where they have none.
    """
    if normalize not in ("vocabulary", "none"):
        return (
            "what a text could reach is not known before its first token where scores are normalised over what may "
            "follow"
        )
    if normalize == "none" and levels is not None:
        return "before the first token there are only scores of the first level of these docids"
    return None


class Ahead(NamedTuple):
    """What a query's texts are estimated to reach. Levels k are of runs of 2^k texts, from each on.

    Attributes:
      written: the estimated sum of the first tokens of each text.
      best: the best estimated score of a run, by the length penalty.
      penalty: of the text that has it.
    """

    written: Float[Array, "batch rows length"]
    best: Float[Array, "levels batch rows"]
    penalty: Float[Array, "levels batch rows"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Lookahead:
    """The texts of a trie, and which stand below each of its nodes.

    While they are searched, n texts of up to t tokens take 4 · n · (t + 2 · log2 n) bytes a query: with 32 queries
    10,000 texts of 24 tokens take 70 MB, and 180,000 about 1.4 GB.

    Attributes:
      tokens: of each text and its end, then 0.
      lengths: how many these are.
      first, last: rows of the first and last text below each node.
      text_of: the text token that each id of the decoder writes; −1: none.
      entries, documents: row and number of each document of a text.
      text_vocab: of the texts' tokens.
      num_documents: of the corpus.
      allowed: the texts that may be found; None: all.
    """

    tokens: Int[Array, "rows length"]
    lengths: Int[Array, " rows"]
    first: Int[Array, " nodes"]
    last: Int[Array, " nodes"]
    text_of: Int[Array, " vocab"]
    entries: Int[Array, " documents"]
    documents: Int[Array, " documents"]
    text_vocab: int = dataclasses.field(metadata={"static": True})
    num_documents: int = dataclasses.field(metadata={"static": True})
    allowed: Bool[Array, "batch rows"] | None = None

    @classmethod
    def of(cls, docids: Docids, constraint: Trie | TokenTextTrie) -> Lookahead:
        """Of a trie.

        Args:
          docids: what it was made of.
          constraint: the trie.
        """
        trie = constraint if isinstance(constraint, Trie) else constraint.trie
        text_of = np.arange(trie.vocab_size) if isinstance(constraint, Trie) else np.asarray(constraint.text_of)
        rows = [docids.target(row) for row in range(len(docids))]
        lengths = np.array([len(row) for row in rows], np.int32)
        tokens = np.zeros((len(rows), int(lengths.max())), np.int32)
        tokens[np.arange(tokens.shape[1]) < lengths[:, None]] = np.concatenate(rows)
        nodes = jnp.arange(len(trie.edge_tokens) + 1, dtype=jnp.int32)
        return cls(
            tokens=jnp.asarray(tokens),
            lengths=jnp.asarray(lengths),
            first=trie.outermost_row(nodes, last=False).astype(jnp.int32),
            last=trie.outermost_row(nodes, last=True).astype(jnp.int32),
            text_of=jnp.asarray(text_of, jnp.int32),
            entries=jnp.asarray(np.repeat(np.arange(len(docids)), np.diff(docids.offsets)), jnp.int32),
            documents=jnp.asarray(docids.documents, jnp.int32),
            text_vocab=trie.vocab_size,
            num_documents=docids.num_documents,
        )

    def restrict(self, allowed: Bool[Array, "batch docs"]) -> Lookahead:
        """The same, of texts that lead to an allowed document; see `Constraint.restrict`."""
        allowed = check_filter(allowed, self.num_documents, None if self.allowed is None else len(self.allowed))
        rows = jnp.zeros((len(allowed), len(self.tokens)), bool)
        rows = rows.at[:, self.entries].max(allowed[:, self.documents])
        rows = rows if self.allowed is None else rows & self.allowed
        return dataclasses.replace(self, allowed=rows)

    def begin(self, scores: Scores, batch: int, length_penalty: float, *, sums: bool = False) -> Ahead:
        """What texts are estimated to reach.

        Args:
          scores: at the states [batch, 1] before the first token.
          batch: queries.
          length_penalty: of the search.
          sums: whether the ids of one token add up, or the best of them counts.
        """
        ids = jnp.arange(len(self.text_of), dtype=jnp.int32)
        every = scores.at(jnp.broadcast_to(ids, (batch, 1, len(ids))))[:, 0]  # --> [batch, vocab]
        every = jnp.where(self.text_of >= 0, every, -jnp.inf)
        texts = jnp.maximum(self.text_of, 0)
        of_text = jnp.full((batch, self.text_vocab), -jnp.inf).at[:, texts].max(every)
        if sums:
            most = jnp.where(jnp.isfinite(of_text), of_text, 0.0)
            of_text = most + jnp.log(jnp.zeros_like(most).at[:, texts].add(jnp.exp(every - most[:, texts])))
        inside = jnp.arange(self.tokens.shape[1]) < self.lengths[:, None]
        written = jnp.cumsum(jnp.where(inside, of_text[:, self.tokens], 0.0), axis=-1)
        penalty = jnp.broadcast_to(((5.0 + self.lengths) / 6.0) ** length_penalty, (batch, len(self.lengths)))
        best = written[:, :, -1] / penalty
        if self.allowed is not None:
            best = jnp.where(self.allowed, best, -jnp.inf)
        levels = [(best, penalty)]
        for power in range((len(self.tokens) - 1).bit_length()):
            (value, its), run = levels[-1], 1 << power
            other, of_other = (jnp.pad(x[:, run:], ((0, 0), (0, run)), mode="edge") for x in levels[-1])
            levels.append((jnp.maximum(value, other), jnp.where(value >= other, its, of_other)))
        return Ahead(written, *(jnp.stack(one) for one in zip(*levels, strict=True)))

    def priorities(self, ahead: Ahead, states: TrieState, scores: Float[Array, "batch n"]) -> Float[Array, "batch n"]:
        """What hypotheses could become.

        Args:
          ahead: of `begin`.
          states: behind at least one token.
          scores: of what is written.
        """
        node = jnp.maximum(states.node, 0)
        first, last = self.first[node], self.last[node]
        level = 31 - lax.clz(last - first + 1)
        end = last + 1 - (1 << level)
        rows = jnp.arange(len(scores))[:, None]
        value, other = ahead.best[level, rows, first], ahead.best[level, rows, end]
        penalty = jnp.where(value >= other, ahead.penalty[level, rows, first], ahead.penalty[level, rows, end])
        estimated = ahead.written[rows, first, jnp.maximum(states.depth, 1) - 1]
        found = jnp.maximum(value, other) + (scores - estimated) / penalty
        return jnp.where((states.node >= 0) & (scores > -jnp.inf), found, -jnp.inf)
