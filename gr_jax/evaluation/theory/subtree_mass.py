"""A decoder that writes any distribution over documents (Theorem 3.4, appendix C).

At each node of the tree of docids the next token has the share of its subtree in the node's mass (Eq. 13). The product
along a docid is then what its documents have, whatever the distribution.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gr_jax.decoding import LogitScores
from gr_jax.docids import Docids
from gr_jax.errors import InputError


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SubtreeMass:
    """A `Decoder` whose cache holds the logarithms of each node's shares, for each query; for small trees.

    Attributes:
      child: int32 [nodes, vocabulary], the node behind a token; 0, the root, where there is none.
    """

    child: Int[Array, "nodes vocabulary"]
    start_token = 0

    @classmethod
    def of(cls, docids: Docids) -> SubtreeMass:
        """The tree of some docids."""
        paths = _paths(docids)
        child = np.zeros((len(paths), docids.vocab_size), np.int32)
        for path, node in paths.items():
            if path:
                child[paths[path[:-1]], path[-1]] = node
        return cls(jnp.asarray(child))

    @staticmethod
    def log_shares(
        docids: Docids, target: Float[np.ndarray, "batch documents"]
    ) -> Float[np.ndarray, "batch nodes vocabulary"]:
        """log p*(token | node) of Eq. 13; −inf where no mass is.

        Args:
          docids: of the documents, one each.
          target: the distribution of each query over the documents.

        Raises:
          InputError: a target that is no distribution over these documents.
        """
        target = np.asarray(target, np.float64)
        if target.shape[1:] != (docids.num_documents,) or (target < 0).any() or not np.allclose(target.sum(axis=1), 1):
            raise InputError(
                f"a target is a distribution over {docids.num_documents} documents",
                "Let each row have the sum 1.",
                value=target.shape,
            )
        paths = _paths(docids)
        mass = np.zeros((len(target), len(paths)))
        for row in range(len(docids)):
            tokens, of = tuple(docids.target(row)), target[:, docids.documents_of(row)].sum(axis=1)
            for length in range(len(tokens) + 1):
                mass[:, paths[tokens[:length]]] += of
        shares = np.zeros((len(target), len(paths), docids.vocab_size))
        for path, node in paths.items():
            if path:
                above = mass[:, paths[path[:-1]]]
                shares[:, paths[path[:-1]], path[-1]] = np.divide(
                    mass[:, node], above, out=np.zeros_like(above), where=above > 0
                )
        with np.errstate(divide="ignore"):
            return np.log(shares)

    def start(self, log_shares: Float[Array, "batch nodes vocabulary"], beams: int, max_len: int) -> dict[str, Array]:
        """The cache of some queries."""
        visited = jnp.zeros((len(log_shares), max_len, beams), jnp.int32)
        return {"log_shares": jnp.asarray(log_shares, jnp.float32), "visited": visited}

    def step(self, tokens, step, ancestors, cache):
        """See `Decoder.step`; features are the shares of each hypothesis' node."""
        batch, beams = tokens.shape
        rows = jnp.arange(batch)[:, None]
        before = jnp.maximum(step - 1, 0)
        above = cache["visited"][rows, before, ancestors[:, :, before]]
        node = jnp.where(step == 0, 0, self.child[above, tokens])
        visited = jax.lax.dynamic_update_slice(cache["visited"], node[:, None], (0, step, 0))
        return cache["log_shares"][rows, node], cache | {"visited": visited}

    def scores(self, features, level, normalize):
        """See `Decoder.scores`."""
        return LogitScores(jnp.maximum(features, -1e30), normalize)  # −inf − (−inf) would be no number


def _paths(docids: Docids) -> dict[tuple[int, ...], int]:
    """Every prefix of a docid, with its end → its node; the root is 0."""
    paths: dict[tuple[int, ...], int] = {(): 0}
    for row in range(len(docids)):
        tokens = tuple(docids.target(row))
        for length in range(1, len(tokens) + 1):
            paths.setdefault(tokens[:length], len(paths))
    return paths
