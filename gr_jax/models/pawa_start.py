"""Starting NCI's head from the vectors that its docids were made of.

A token that is a position among siblings stands for another cluster under each prefix, and one row of an output table
can only be the mean of them. What the head adds to the row for a prefix is linear in what it makes of that prefix, so
the kernel that comes nearest to the clusters' own centroids is a least-squares problem, one a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from gr_jax.models.encoder_decoder import EncoderDecoder

_AT_ONCE = 1024


def prefix_states(
    module: EncoderDecoder, params: Mapping[str, Any], prefixes: Int[np.ndarray, "n length"]
) -> Float[np.ndarray, "n d"]:
    """What the head makes of each prefix.

    Args:
      module, params: a network with the head.
      prefixes: tokens, padded with 0 behind; may be empty.
    """
    lengths = (prefixes != 0).sum(axis=1)
    inputs = np.concatenate([np.zeros((len(prefixes), 1), np.int32), prefixes], axis=1)[:, : int(lengths.max()) + 1]

    @jax.jit
    def read(params: Any, tokens: Any) -> Any:
        # Whatever the query: its own part of the features is cut off.
        features: Any = module.apply({"params": params}, np.ones((len(tokens), 1), np.int32), tokens, method="features")
        return features[..., module.feature_dim :]

    found = []
    for start in range(0, len(inputs), _AT_ONCE):
        some = inputs[start : start + _AT_ONCE]
        padded = np.pad(some, ((0, min(_AT_ONCE, len(inputs)) - len(some)), (0, 0)))
        states = np.asarray(read(params, padded), np.float32)[: len(some)]
        found.append(states[np.arange(len(some)), lengths[start : start + _AT_ONCE]])
    return np.concatenate(found)


def nearest_kernel(
    states: Float[np.ndarray, "inner d"],
    parent: Int[np.ndarray, " nodes"],
    token: Int[np.ndarray, " nodes"],
    missing: Float[np.ndarray, "nodes f"],
    vocab_size: int,
    *,
    ridge: float = 1e-6,
) -> Float[np.ndarray, "vocab f d"]:
    """The kernel with which `kernel[token] · states[parent]` is nearest to `missing`, over all nodes; zero for tokens
    of no node, and of one, for which the row can be what it should.

    Args:
      states: of prefixes, see `prefix_states`.
      parent, token: of nodes, see `docids.children`.
      missing: what the output table's row lacks under this prefix.
      vocab_size: rows of the table.
      ridge: penalty on the kernel, as a share of the mean squared length of the states.
    """
    kernel = np.zeros((vocab_size, missing.shape[1], states.shape[1]), np.float32)
    states = states.astype(np.float64)
    penalty = ridge * float(np.mean(np.sum(states**2, axis=1)))
    order = np.argsort(token, kind="stable")
    tokens, starts = np.unique(token[order], return_index=True)
    for one, rows in zip(tokens.tolist(), np.split(order, starts[1:]), strict=True):
        if len(rows) == 1:
            continue
        known, wanted = states[parent[rows]], missing[rows].astype(np.float64)
        if len(rows) < states.shape[1]:
            weights = np.linalg.solve(known @ known.T + penalty * np.eye(len(rows)), wanted)  # [nodes, f]
            kernel[one] = weights.T @ known
        else:
            gram = known.T @ known + penalty * np.eye(states.shape[1])
            kernel[one] = np.linalg.solve(gram, known.T @ wanted).T
    return kernel
