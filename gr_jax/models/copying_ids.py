"""An encoder-decoder whose ids write tokens of text, and which copies: ids of the query's tokens are likelier.

A decoder that starts from nothing does not learn in a few thousand steps that a name in a question is often the title
of its answer; and what it has not seen in training it would never write. Here two parts are added to the logit of an
id: one of its own, and how much likelier its token is where it stands in the query, more so where the token
written last stands before it there. They are added, and not mixed as in CopyNet (Gu et al. 2016, arXiv 1603.06393,
section 3.2): all ids of a copied token become likelier alike, and the network says which of them is meant.

Where nobody normalises over the vocabulary, ids are scored that somebody asks for: under a trie, a few thousand at a
step. Else logits of the whole vocabulary are held at every step, three times over, for each hypothesis: 80,000 ids, 32
questions and 20 hypotheses take a fifth of a gigabyte each time.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import struct
from flax.linen import partitioning
from jaxtyping import Array, Bool, Float, Int

from gr_jax.constraints.base import Scores
from gr_jax.errors import InputError
from gr_jax.models import network_folder
from gr_jax.models.attention import segment_mask
from gr_jax.models.copying_id_scores import CopyingIdScores
from gr_jax.models.encoder_decoder import DecoderCache, EncoderDecoder
from gr_jax.models.generative import Batch, EncoderDecoderModel, GenerativeDecoder
from gr_jax.models.pawa import AdaptiveTable, logits_of

KIND = "copying_ids"
UNCOPIED = -1  # of ids whose token is never copied, such as the one that ends what is written


class CopyingEncoderDecoder(EncoderDecoder):
    """The network. Its further parameters: `id_bias` [vocabulary], `copy_token` [input vocabulary], `copy_next` []; all
    start at zero.

    Attributes:
      text_of: for each id that is written, the token of queries that it writes; −1 where that is not copied.
    """

    text_of: tuple[int, ...] = ()

    def setup(self):
        super().setup()
        zeros, add = nn.initializers.zeros, partitioning.param_with_axes
        self.id_bias = add("id_bias", zeros, (self.vocab_size,), jnp.float32, axes=(self.written_vocab,))
        self.copy_token = add("copy_token", zeros, (self.input_vocab_size,), jnp.float32, axes=("vocab",))
        self.copy_next = add("copy_next", zeros, (), jnp.float32, axes=())

    def copied(
        self,
        source: Int[Array, "B S"],
        last: Int[Array, "B T"],
        seen: Bool[Array, "B_or_1 T_or_1 S_or_1"],
        segments: Int[Array, "B S"] | None = None,
    ) -> Float[Array, "B T vocab"]:
        """What is added to logits.

        Args:
          source: the query's tokens; 0 is padding.
          last: the id that was written last; 0 or the start token at the start.
          seen: which place of the source each place of the target copies from.
          segments: of the source, where several queries share a row: no token stands before the first of its own.
        """
        texts, row_of_id, row_of_token = _rows(self.text_of, self.input_vocab_size)
        weights = self.copy_weights(source, last, segments)
        rows = row_of_token[source]
        real = seen & (source != 0)[:, None, :] & (rows >= 0)[:, None, :]
        at = jnp.arange(len(source))[:, None, None], jnp.arange(last.shape[1])[:, None], rows[:, None, :]
        # One row more, of all that is not copied; a token that stands in several places counts as its likeliest.
        table = jnp.full((*last.shape, texts + 1), -jnp.inf).at[at].max(jnp.where(real, weights, -jnp.inf))
        table = jnp.where(jnp.isfinite(table), table, 0.0).at[..., -1].set(0.0)
        return table[..., row_of_id] + self.id_bias

    def copy_weights(
        self, source: Int[Array, "B S"], last: Int[Array, "B T"], segments: Int[Array, "B S"] | None = None
    ) -> Float[Array, "B T S"]:
        """How much likelier each place of the source makes its token; see `copied`."""
        before = jnp.pad(source[:, :-1], ((0, 0), (1, 0)))
        if segments is not None:
            before = jnp.where(segments == jnp.pad(segments[:, :-1], ((0, 0), (1, 0))), before, 0)
        wrote = jnp.asarray(self.text_of, jnp.int32)[last]
        written = (last != 0) & (last != self.start_token)
        goes_on = (wrote[:, :, None] == before[:, None, :]) & (before != 0)[:, None, :] & written[:, :, None]
        return self.copy_token[source][:, None, :] + self.copy_next * goes_on


@functools.lru_cache(maxsize=8)
def _numbered(text_of: tuple[int, ...], vocabulary: int) -> tuple[int, np.ndarray, np.ndarray]:
    ids = np.asarray(text_of, np.int32)
    texts = np.unique(ids[ids != UNCOPIED])
    row_of_token = np.full(vocabulary, -1, np.int32)
    row_of_token[texts] = np.arange(len(texts))
    return len(texts), np.where(ids == UNCOPIED, len(texts), row_of_token[ids]), row_of_token


def _rows(text_of: tuple[int, ...], vocabulary: int) -> tuple[int, Array, Array]:
    """Tokens that can be copied are numbered: their number, that of each id (of none the one behind the last), and that
    of each token of queries (of none −1)."""
    texts, row_of_id, row_of_token = _numbered(text_of, vocabulary)
    return texts, jnp.asarray(row_of_id), jnp.asarray(row_of_token)


@struct.dataclass
class CopyingCache:
    """All that decoding needs besides parameters: that of the network, and the queries' tokens."""

    network: DecoderCache
    source: Int[Array, "batch source"]


class CopyingFeatures(NamedTuple):
    """What next-token scores are made of.

    Attributes:
      own: the network's features.
      weights: how much likelier each place of the source makes its token.
      last: the id that was written last.
      source: the query's tokens, the same of all hypotheses; 0 is padding.
    """

    own: Float[Array, "batch beam d"]
    weights: Float[Array, "batch beam source"]
    last: Int[Array, "batch beam"]
    source: Int[Array, "batch beam source"]


@jax.tree_util.register_pytree_node_class
class CopyingDecoder(GenerativeDecoder):
    """A `CopyingEncoderDecoder` with its parameters, as `GenerativeDecoder` is an `EncoderDecoder` with its own."""

    def with_parameters(self, params: Any) -> CopyingDecoder:
        return CopyingDecoder(self.module, params, self.levels, self.eos_id)

    def decoder(self) -> CopyingDecoder:
        return self

    def save(self, folder: str | os.PathLike) -> None:
        """Writes it as the network kind "copying_ids"; see `network_folder`."""
        config = network_folder.encoder_decoder_to_json(self.module, levels=self.levels, eos_id=self.eos_id)
        network_folder.write(folder, {**config, "kind": KIND, "text_of": self.module.text_of}, self.params)

    @classmethod
    def load(cls, folder: str | os.PathLike) -> CopyingDecoder:
        module, params = network_folder.read(folder, _of_json)
        return cls(module, jax.tree.map(jnp.asarray, params), **network_folder.load_identifiers(folder))

    def start(self, encoder_tokens, lengths=None, *, beams: int, max_len: int):
        return CopyingCache(super().start(encoder_tokens, lengths, beams=beams, max_len=max_len), encoder_tokens)

    def step(self, tokens, step, ancestors, cache):
        features, network = super().step(tokens, step, ancestors, cache.network)
        weights: Any = self._apply(cache.source, tokens, method="copy_weights")
        source = jnp.broadcast_to(cache.source[:, None], weights.shape)
        return CopyingFeatures(features, weights, tokens, source), CopyingCache(network, cache.source)

    def scores(self, features, level: int | Array, normalize: str) -> Scores:
        from gr_jax.decoding import LogitScores, TableScores
        from gr_jax.decoding.decoder import LOGITS

        source, own = features.source[:, 0], features.own.astype(jnp.float32)

        def copied() -> Any:
            return self._apply(source, features.last, jnp.ones((1, 1, 1), bool), method="copied")

        if normalize in LOGITS and not isinstance(self.table, AdaptiveTable):
            of_network = TableScores(own, self.table.astype(jnp.float32), normalize)
            bias = self.params["id_bias"]
            return CopyingIdScores(of_network, features.weights, source, self.module.text_of, bias, copied)
        logits = logits_of(own, self.table) + copied()
        return LogitScores(logits, normalize, levels=self.levels, level=level, eos_id=self.eos_id)


class CopyingModel(EncoderDecoderModel):
    """A `CopyingEncoderDecoder` with T5X's model methods. Its ids have no levels to normalise over."""

    def __post_init__(self):
        super().__post_init__()
        if self.normalize != "vocabulary":
            raise InputError(
                "what is copied has no levels of tokens", 'Use normalize="vocabulary".', value=self.normalize
            )

    def decoder(self, params: Any) -> CopyingDecoder:
        return CopyingDecoder(self.module, params, self.levels, self.eos_id)

    def _logits(self, params: Any, features: Array, batch: Batch) -> Float[Array, "batch length vocab"]:
        seen, segments = jnp.ones((1, 1, 1), bool), batch.get("encoder_segment_ids")
        if segments is not None:
            seen = segment_mask(batch["decoder_segment_ids"], segments)
        own = super()._logits(params, features, batch)
        source, last = batch["encoder_input_tokens"], batch["decoder_input_tokens"]
        copied: Any = self.module.apply({"params": params}, source, last, seen, segments, method="copied")
        return own + copied


def _of_json(config: Mapping[str, Any]) -> CopyingEncoderDecoder:
    network_folder.check_kind(config, KIND)
    fields = network_folder.encoder_decoder_from_json(config)
    text_of = tuple(int(one) for one in config["text_of"])
    ids, words = fields["decoder_config"].vocab_size, fields["encoder_config"].vocab_size
    if len(text_of) != ids or not all(UNCOPIED <= one < words for one in text_of):
        raise ValueError(f"text_of must name, for each of {ids} ids, one of {words} tokens or {UNCOPIED}")
    return CopyingEncoderDecoder(**fields, text_of=text_of)
