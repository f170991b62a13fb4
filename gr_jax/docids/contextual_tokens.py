"""A decoder's vocabulary in which a token has an id for each sense that it has in the corpus (CGR, Lee et al. 2022,
arXiv 2210.02068, section 3.1: contextualized token embeddings)."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from gr_jax.clustering import kmeans_of_groups
from gr_jax.docids.docids import Docids
from gr_jax.errors import InputError

UNUSED = -1


@dataclasses.dataclass(frozen=True)
class ContextualTokens:
    """Decoder ids for the tokens of docids: 0 pads and is what decoding starts from, as in T5; from 1 on they are
    numbered in the order of the tokens that they write; EOS is the last, where the docids end in it.

    Attributes:
      text_of: int32[vocab]; the docid token that each id writes, −1 for id 0 (see `TokenTextTrie`).
      table: float32[vocab, d]; the vector of each id: a cluster's centroid. Zero for EOS and id 0.
      targets: int32[entries, max_len]; for every entry of `Docids.documents` the ids of its own docid, each that of the
        cluster which its state fell into; EOS last, where there is one, and 0 behind it.
      inertia: sum of squared distances from the states to the vectors of their ids.
    """

    text_of: Int[np.ndarray, " vocab"]
    table: Float[np.ndarray, "vocab d"]
    targets: Int[np.ndarray, "entries max_len"]
    inertia: float

    @property
    def vocab_size(self) -> int:
        """Ids, 0 included."""
        return len(self.text_of)


def contextual_tokens(
    docids: Docids,
    states: Float[np.ndarray, "tokens d"],
    *,
    clusters: int | None = 5,
    seed: int = 0,
    progress: bool = False,
) -> ContextualTokens:
    """Groups the states of docids' tokens by token, and clusters each group.

    Args:
      docids: of text tokens, such as titles.
      states: what an encoder made of each token where it stands in its document: those of the tokens of the docid of
        `docids.documents[0]`, then of the next one, and so on.
      clusters: ids of a token at most (the paper's k = 5). A token with fewer states has one for each, as they are.
        None gives every state one.
      seed: of the clustering.
      progress: show a bar.

    Raises:
      InputError: more or fewer states than tokens; fewer than one cluster.
    """
    row = np.repeat(np.arange(len(docids)), np.diff(docids.offsets))
    inside = np.arange(docids.tokens.shape[1]) < docids.lengths[row][:, None]  # --> [entries, max_len]
    tokens = docids.tokens[row][inside]
    if states.ndim != 2 or len(states) != len(tokens):
        raise InputError(
            f"states of shape {states.shape} for {len(row)} docids of {len(tokens)} tokens",
            "Give a vector for each token of each document's docid.",
        )
    if clusters is not None and clusters < 1:
        raise InputError("a token needs at least one id", "Give clusters ≥ 1, or None.", value=clusters)
    found = kmeans_of_groups(states, tokens, clusters, seed=seed, progress=progress)
    ends = [] if docids.eos_id is None else [docids.eos_id]
    text_of = np.asarray([UNUSED, *found.groups.tolist(), *ends], np.int32)
    targets = np.zeros((len(row), docids.max_steps), np.int32)
    targets[:, : inside.shape[1]][inside] = 1 + found.assignments
    if ends:
        targets[np.arange(len(row)), docids.lengths[row]] = len(text_of) - 1
    table = np.pad(found.centroids, ((1, len(ends)), (0, 0)))
    return ContextualTokens(text_of, table, targets, found.inertia)
