"""An encoder-decoder that can copy from what it reads: queries from documents, or n-grams of documents from queries.

docT5query and SEAL fine-tune a pretrained seq2seq. Where the decoder is new, a few thousand pairs do not teach it the
words of a language; so each next token is either one of a few thousand words of its own, or copied from a place in the
source, under one softmax over both (CopyNet, Gu et al. 2016, arXiv 1603.06393, section 3.2).
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from gr_jax.models import layers, t5
from gr_jax.models import text_encoder as encoders
from gr_jax.models.attention import MASKED, causal_mask
from gr_jax.models.bert import BertConfig


@struct.dataclass
class CopyCache:
    """All that decoding a batch of sources needs besides parameters.

    Attributes:
      self_attention, cross_attention: of the decoder's layers; see `models.DecoderCache`.
      keys: what copying looks for at each place of the source, `[batch, source, d]`.
      source: the tokens that are read, `[batch, source]`; 0 is padding.
    """

    self_attention: tuple
    cross_attention: tuple
    keys: Float[Array, "batch source d"]
    source: Int[Array, "batch source"]


class CopyFeatures(NamedTuple):
    """What next-token scores are made of.

    Attributes:
      own: the decoder's features, for words of its own.
      copy: logits of copying from each place of the source.
      source: its tokens.
    """

    own: Float[Array, "batch beam d"]
    copy: Float[Array, "batch beam source"]
    source: Int[Array, "batch source"]


class CopyNetwork(nn.Module):
    """The network. Parameters: `token_embedder`, `encoder`, `decoder` as of an `EncoderDecoder`; `input_dense` from
    the encoder's token table to the decoder; `copy_query`, `copy_key`; `words`, the output table of its own words; with
    `counted` also `copy_bias`, `copy_next` and `word_bias`.

    Attributes:
      encoder_config: a `T5Config` or a `BertConfig`.
      decoder_config: sizes of the decoder; its vocabulary is the encoder's.
      num_words: tokens that can be written without being copied.
      counted: whether logits have parts that can be counted on training pairs instead of learned: one for each token
        of the source, one for the place behind the token written last, and one for each word of its own.
    """

    encoder_config: encoders.EncoderConfig
    decoder_config: t5.T5Config
    num_words: int
    counted: bool = False

    def setup(self):
        width = self.decoder_config.emb_dim
        self.token_embedder = encoders.make_embedder(self.encoder_config)
        self.encoder = encoders.make_encoder(self.encoder_config)
        self.input_dense = layers.Dense((width,), ("embed", "joined_kv"))
        self.decoder = t5.T5Decoder(dataclasses.replace(self.decoder_config, logits_via_embedding=True))
        self.copy_query = layers.Dense((width,), ("embed", "joined_kv"))
        self.copy_key = layers.Dense((width,), ("embed", "joined_kv"))
        self.words = layers.OutputKernel(width, self.num_words)
        if self.counted:
            zeros = nn.initializers.zeros
            vocabulary = self.encoder_config.vocab_size
            self.copy_bias = self.param("copy_bias", zeros, (vocabulary,))
            self.copy_next = self.param("copy_next", zeros, ())
            self.word_bias = self.param("word_bias", zeros, (self.num_words,))

    def encode(self, tokens: Int[Array, "B S"], *, deterministic: bool = True) -> Float[Array, "B S e"]:
        """States of sources."""
        return encoders.encode(self.token_embedder, self.encoder, tokens, None, None, deterministic)

    def __call__(
        self,
        encoder_input_tokens: Int[Array, "B S"],
        decoder_input_tokens: Int[Array, "B T"],
        decoder_segment_ids: Int[Array, "B T"] | None = None,
        encoded: Float[Array, "B S e"] | None = None,
        decoder_mask: Bool[Array, "B T T"] | None = None,
        decoder_positions: Int[Array, "B T"] | None = None,
        *,
        deterministic: bool = True,
    ) -> tuple[Float[Array, "B T d"], Float[Array, "B T S"]]:
        """Teacher-forced features and copy logits. Several targets of one source may share a row, by segments; and even
        what they begin with, by a mask and positions.

        Args:
          encoded: what `encode` gives, of an encoder that is not trained; None computes it.
          decoder_mask: which tokens of a row each sees, in the place of those before it in its segment.
          decoder_positions: of tokens, in the place of their places.
          deterministic: False drops out, in the encoder too where it is computed.
        """
        if encoded is None:
            encoded = self.encode(encoder_input_tokens, deterministic=deterministic)
        if self.is_initializing():
            self.words()  # read by `word_logits` alone
        mask = encoder_input_tokens != 0
        features = self.decoder(
            self._embed(decoder_input_tokens),
            encoded,
            causal_mask(decoder_input_tokens.shape[1], decoder_segment_ids) if decoder_mask is None else decoder_mask,
            mask[:, None, :],
            decoder_positions,
            deterministic=deterministic,
        )
        keys = self._keys(encoded, encoder_input_tokens)
        return features, self._copy_logits(features, keys, mask, decoder_input_tokens, encoder_input_tokens)

    def word_logits(self, features: Float[Array, "... d"]) -> Float[Array, "... words"]:
        """Logits of its own words."""
        logits = features.astype(jnp.float32) @ self.words()
        return logits + self.word_bias if self.counted else logits

    def init_cache(
        self, encoded: Float[Array, "B S e"], tokens: Int[Array, "B S"], beams: int, max_len: int
    ) -> CopyCache:
        """A cache for `max_len` steps of `beams` hypotheses of each source."""
        return CopyCache(
            self_attention=t5.zero_cache(self.decoder_config, encoded.shape[0], max_len, beams),
            cross_attention=self.decoder.cross_cache(encoded),
            keys=self._keys(encoded, tokens),
            source=tokens,
        )

    def step(
        self, tokens: Int[Array, "B K"], step, ancestors: Int[Array, "B K L"], cache: CopyCache
    ) -> tuple[CopyFeatures, CopyCache]:
        """One more token of each hypothesis; see `EncoderDecoder.step`."""
        mask = cache.source != 0
        own, written = self.decoder.step(
            self._embed(tokens), step, ancestors, cache.self_attention, cache.cross_attention, mask
        )
        copy = self._copy_logits(own, cache.keys, mask, tokens, cache.source)
        features = CopyFeatures(own, copy, cache.source)
        return features, dataclasses.replace(cache, self_attention=written)

    def _embed(self, tokens):
        return self.input_dense(self._embedded(tokens))

    def _embedded(self, tokens):
        """Rows of the token table, about as long as the decoder's states: the root of their width."""
        rows = self.token_embedder(tokens)
        # T5's are that long; BERT's are about as long as 1.
        return rows * self.encoder_config.emb_dim**0.5 if isinstance(self.encoder_config, BertConfig) else rows

    def _keys(self, encoded, tokens):
        """Of the state at a place, its token, and the token before it: by that a copied phrase goes on."""
        embedded = self._embedded(tokens)
        before = jnp.pad(embedded[:, :-1], ((0, 0), (1, 0), (0, 0)))
        return self.copy_key(jnp.concatenate([encoded, embedded, before], axis=-1))

    def _copy_logits(
        self, features, keys, mask: Bool[Array, "B S"], last: Int[Array, "B T"], source: Int[Array, "B S"]
    ):
        logits = jnp.einsum("btd,bsd->bts", self.copy_query(features), keys, preferred_element_type=jnp.float32)
        logits *= keys.shape[-1] ** -0.5
        if self.counted:
            before = jnp.pad(source[:, :-1], ((0, 0), (1, 0)))
            goes_on = (last[:, :, None] == before[:, None, :]) & (before != 0)[:, None, :]
            logits += self.copy_bias[source][:, None, :] + self.copy_next * goes_on
        return jnp.where(mask[:, None, :], logits, MASKED)
