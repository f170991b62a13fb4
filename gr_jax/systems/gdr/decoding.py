"""What a batch of queries becomes on the device: vectors, and the clusters that the decoder writes for them."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from gr_jax.constraints import Trie
from gr_jax.decoding import Beams, beam_search
from gr_jax.dense.fusing import Candidates, FusedSearch
from gr_jax.models import GenerativeDecoder
from gr_jax.models import text_encoder as encoders


class Decoded(NamedTuple):
    """What was read of each query, and the clusters in its beam, best first.

    Attributes:
      vectors: float32[batch, d], of the queries.
      clusters: int32[batch, beam]; −1 where there are fewer.
      log_scores: float32[batch, beam], of the clusters' identifiers; −inf where there is none.
      weights: float32[batch, beam], their softmax over the beam; 0 where there is none.
    """

    vectors: Float[Array, "batch d"] | Float[np.ndarray, "batch d"]
    clusters: Int[Array, "batch beam"] | Int[np.ndarray, "batch beam"]
    log_scores: Float[Array, "batch beam"] | Float[np.ndarray, "batch beam"]
    weights: Float[Array, "batch beam"] | Float[np.ndarray, "batch beam"]

    def with_all_clusters(self, num_clusters: int) -> Decoded:
        """The same with every cluster: behind those of the beam the others, which weigh nothing. A search of it scores
        all documents."""
        written = np.asarray(self.clusters)
        count = len(written)
        missing = np.ones((count, num_clusters + 1), bool)
        missing[np.arange(count)[:, None], np.where(written >= 0, written, num_clusters)] = False
        missing = missing[:, :num_clusters]
        others = np.argsort(~missing, axis=1, kind="stable").astype(np.int32)  # the missing ones first
        others[np.arange(num_clusters) >= missing.sum(axis=1, keepdims=True)] = -1
        nothing = np.zeros((count, num_clusters), np.float32)
        return Decoded(
            self.vectors,
            np.concatenate([written, others], axis=1),
            np.concatenate([np.asarray(self.log_scores), nothing - np.inf], axis=1),
            np.concatenate([np.asarray(self.weights), nothing], axis=1),
        )


class Settings(NamedTuple):
    """What is compiled into the programs below.

    Attributes:
      beams, max_len, normalize, length_penalty: of the beam search.
      pooling: "mean" or "cls": how the encoder's states become the query's vector.
      unit_vectors: scale it to length 1.
    """

    beams: int
    max_len: int
    normalize: str
    length_penalty: float
    pooling: str
    unit_vectors: bool


@functools.partial(jax.jit, static_argnames=("settings",))
def decode(
    decoder: GenerativeDecoder,
    trie: Trie,
    tokens: Int[Array, "batch length"],
    holding: Bool[Array, "batch clusters"] | None,
    settings: Settings,
) -> Decoded:
    """One pass through the encoder, then a beam search over cluster identifiers.

    Args:
      decoder: the network.
      trie: of the clusters; "document" i of it is cluster i.
      tokens: of the queries.
      holding: the clusters that may be found, those with a document that is allowed; None: all. What a cluster weighs
        does not depend on it: it is measured against the beam that would be there without a filter. (But for
        normalize="constraint", where the filter is part of what scores are normalised over.)
      settings: see there.
    """
    beams, max_len, normalize, length_penalty, pooling, unit_vectors = settings
    encoded = _apply(decoder, tokens, method="encode")
    vectors = _apply(decoder, encoded, tokens, pooling, method="query_vector")
    cache = _apply(decoder, encoded, tokens, beams, max_len, method="init_cache")

    def search(constraint: Trie) -> Beams:
        return beam_search(
            decoder, cache, constraint, beams=beams, max_len=max_len, normalize=normalize, length_penalty=length_penalty
        )

    allowed = trie if holding is None else trie.restrict(holding)
    found = search(allowed)
    unfiltered = found if holding is None or normalize == "constraint" else search(trie)
    total = jax.nn.logsumexp(unfiltered.scores, axis=1, keepdims=True)  # scores are −inf where not valid
    clusters = allowed.documents(found.states, 1)[0][..., 0]  # --> [batch, beam]
    return Decoded(
        encoders.unit(vectors) if unit_vectors else vectors,
        jnp.where(found.valid, clusters, -1),
        jnp.where(found.valid, found.scores, -jnp.inf),
        jnp.where(found.valid, jnp.exp(found.scores - total), 0.0),
    )


@functools.partial(jax.jit, static_argnames=("chosen", "tanh", "settings"))
def decode_and_search(
    decoder: GenerativeDecoder,
    trie: Trie,
    tokens: Int[Array, "batch length"],
    holding: Bool[Array, "batch clusters"] | None,
    search: FusedSearch,
    allowed: Bool[Array, "batch documents"] | None,
    beta: float | Array,
    *,
    chosen: int,
    tanh: bool,
    settings: Settings,
) -> tuple[Decoded, tuple[Candidates, ...]]:
    """From tokens to candidates in one program: encode, write clusters, search inside them.

    Args:
      decoder, trie, tokens, holding, settings: as of `decode`.
      search: inside the clusters.
      allowed: which documents may be found; None: all.
      beta: weight of the clusters' scores.
      chosen: how many of the clusters in the beam are looked into.
      tanh: whether the similarity is the tanh of the inner product.
    """
    decoded = decode(decoder, trie, tokens, holding, settings)
    clusters, bonus = decoded.clusters[:, :chosen], beta * decoded.weights[:, :chosen]
    return decoded, search.search(decoded.vectors, clusters, bonus, allowed, tanh=tanh)


@functools.partial(jax.jit, static_argnames=("settings",))
def query_vectors(
    decoder: GenerativeDecoder, tokens: Int[Array, "batch length"], settings: Settings
) -> Float[Array, "batch d"]:
    """The vectors of `decode` alone."""
    encoded = _apply(decoder, tokens, method="encode")
    vectors = _apply(decoder, encoded, tokens, settings.pooling, method="query_vector")
    return encoders.unit(vectors) if settings.unit_vectors else vectors


def _apply(decoder: GenerativeDecoder, *args: Any, method: str) -> Any:
    return decoder.module.apply({"params": decoder.params}, *args, method=method)
