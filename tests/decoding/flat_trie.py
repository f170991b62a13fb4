"""A trie that gives its candidates as one flat list of all beams, in an order of its own, padding left out."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from gr_jax.constraints import Trie


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FlatTrie:
    trie: Trie
    open_ended = False

    def __getattr__(self, name):
        return getattr(self.trie, name)

    def candidates(self, state, scores, k, steps=None):
        ours = self.trie.candidates(state, _Asked(scores), k, steps)
        batch, beam, width = ours.token.shape
        going_on = width - ours.ending
        # Backwards by beam, those that complete a docid last of all.
        order = np.arange(beam * width).reshape(beam, width)[::-1]
        order = np.concatenate([order[:, :going_on].ravel(), order[:, going_on:].ravel()])
        flat = jax.tree.map(lambda leaf: leaf.reshape(batch, beam * width, *leaf.shape[3:])[:, order], ours)
        parent = jnp.broadcast_to(jnp.asarray(order // width, jnp.int32), flat.token.shape)
        log_prob = scores.at_parents(parent, flat.token)
        if scores.normalize == "constraint":
            log_prob = flat.log_prob
        return dataclasses.replace(flat, parent=parent, log_prob=log_prob, ending=ours.ending * beam)


@dataclasses.dataclass
class _Asked:
    """Scores of which the trie's own are not asked, except where it has to normalise."""

    scores: object

    @property
    def normalize(self):
        return self.scores.normalize

    def at(self, tokens):
        return self.scores.at(tokens) if self.normalize == "constraint" else jnp.full(tokens.shape, jnp.nan)
