"""An encoder-decoder of any encoder (T5, BERT) and a T5 decoder, with a step-by-step mode for beam search."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from flax.linen import partitioning
from jaxtyping import Array, Bool, Float, Int

from gr_jax.errors import InputError
from gr_jax.models import pawa, t5
from gr_jax.models import text_encoder as encoders
from gr_jax.models.attention import causal_mask, segment_mask


@struct.dataclass
class DecoderCache:
    """All that decoding a batch of queries needs besides parameters.

    Attributes:
      self_attention: per layer keys and values `[batch, max_len, beam, heads, head_dim]`; step t writes `[:, t]`.
      cross_attention: per layer keys and values `[batch, source, heads, head_dim]`, shared by the beams.
      source_mask: which source positions are not padding, `[batch, source]`.
      query: the query vector that is added to every feature, `[batch, d]`; None without `query_residual`.
      prefix: caches of the reader of prefixes; None without PAWA.
    """

    self_attention: tuple
    cross_attention: tuple
    source_mask: Bool[Array, "batch source"]
    query: Float[Array, "batch d"] | None
    prefix: tuple | None = None


class EncoderDecoder(nn.Module):
    """A transformer that reads text and writes docids (or text).

    Parameters carry T5X's names: `token_embedder` (the encoder's vocabulary, and the decoder's where it is shared),
    `encoder`, `decoder`, and `decoder_token_embedder` where the decoder has a vocabulary of its own.

    Attributes:
      encoder_config: a `T5Config` or a `BertConfig`.
      decoder_config: a `T5Config`; None takes the encoder's.
      share_embeddings: one token table for both. None shares it where `decoder_config` is None.
      query_residual: add the query's vector (the encoder's pooled states, unit length, times a learned scale that
        starts at 1) to every decoder feature. The decoder's own part goes through a projection that starts at zero,
        so that an untrained model whose output rows are document vectors ranks as the encoder alone would. Features
        then are as wide as the encoder.
      query_pooling: how the states become that vector: "mean" over the tokens, or "cls", the first one. As the vectors
        are pooled that output rows start from.
      pawa_layers: of the transformer by which NCI's head changes the output table for every prefix (see `models.pawa`,
        parameters `pawa/…`); 0 has no such head. With it, features are followed by what was made of the prefix, and
        logits are `pawa.logits_of` features and `output_table`.
      pawa_width: numbers that are made of a prefix, by a layer that widens what the transformer gives; 0 has no such
        layer.
      start_token: what the decoder reads before the first token that it writes: 0 as in T5, where that is no token of
        the vocabulary that is written, or any other token that stands in no sequence.

    Encoder and decoder may differ in width: keys and values of cross-attention project from the one to the other.
    """

    encoder_config: encoders.EncoderConfig
    decoder_config: t5.T5Config | None = None
    share_embeddings: bool | None = None
    query_residual: bool = False
    pawa_layers: int = 0
    pawa_width: int = 0
    query_pooling: str = "mean"
    start_token: int = 0

    @property
    def decoder_sizes(self) -> t5.T5Config:
        """The decoder's configuration."""
        config = self.encoder_config if self.decoder_config is None else self.decoder_config
        if not isinstance(config, t5.T5Config):
            raise InputError(
                "a BERT encoder needs a decoder of another kind",
                "Give EncoderDecoder a decoder_config, a T5Config.",
                value=config,
            )
        return config

    @property
    def shares_embeddings(self) -> bool:
        """Whether one token table serves both sides."""
        return self.decoder_config is None if self.share_embeddings is None else self.share_embeddings

    @property
    def written_vocab(self) -> str:
        """The logical name of the axis of what is written: one of its own where its tables are the decoder's own, for
        the two vocabularies need not divide by the same number of devices."""
        return "vocab" if self.shares_embeddings else "written_vocab"

    @property
    def feature_dim(self) -> int:
        """Width of the output table's rows, and of decoder features without what PAWA puts behind them."""
        return self.encoder_config.emb_dim if self.query_residual else self.decoder_sizes.emb_dim

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary that is written."""
        return self.decoder_sizes.vocab_size

    @property
    def input_vocab_size(self) -> int:
        """Size of the vocabulary that queries are read in."""
        return self.encoder_config.vocab_size

    @property
    def output_vocab_size(self) -> int:
        """`vocab_size`, under the name that it has for any network that writes (see `models.GenerativeModel`)."""
        return self.vocab_size

    def setup(self):
        self._check()
        config = self.decoder_sizes
        self.token_embedder = encoders.make_embedder(self.encoder_config)
        self.encoder = encoders.make_encoder(self.encoder_config)
        if not self.shares_embeddings:
            self.decoder_token_embedder = t5.embedding_table(config, self.written_vocab)
        self.decoder = t5.T5Decoder(config, self.feature_dim if self.query_residual else None, self.written_vocab)
        if self.pawa_layers:
            self.pawa = pawa.PrefixEncoder(config, self.pawa_layers, self.feature_dim, self.pawa_width)
        if self.query_residual:
            self.query_scale = partitioning.param_with_axes(
                "query_scale", nn.initializers.ones, (), jnp.float32, axes=()
            )

    def encode(
        self,
        tokens: Int[Array, "B S"],
        segment_ids: Int[Array, "B S"] | None = None,
        positions: Int[Array, "B S"] | None = None,
        *,
        deterministic: bool = True,
    ) -> Float[Array, "B S e"]:
        """Encoder states. Padding is token 0; packed rows give each token's segment (0 = padding) and position."""
        return encoders.encode(self.token_embedder, self.encoder, tokens, segment_ids, positions, deterministic)

    def decode_features(
        self,
        encoded: Float[Array, "B S e"],
        encoder_tokens: Int[Array, "B S"],
        decoder_input_tokens: Int[Array, "B T"],
        encoder_segment_ids: Int[Array, "B S"] | None = None,
        decoder_segment_ids: Int[Array, "B T"] | None = None,
        *,
        deterministic: bool = True,
    ) -> Float[Array, "B T f"]:
        """Teacher-forced features, one per decoder input token; see `pawa.logits_of` for the logits.

        The first decoder input token (of each segment) is 0, for which the network reads its start token.
        """
        decoder_input_tokens = self._with_start_token(decoder_input_tokens, decoder_segment_ids)
        cross_mask = (encoder_tokens != 0)[:, None, :]  # [B, 1, S]
        if encoder_segment_ids is not None and decoder_segment_ids is not None:
            cross_mask = cross_mask & segment_mask(decoder_segment_ids, encoder_segment_ids)
        embedded = self._embed_decoder(decoder_input_tokens)
        self_mask = causal_mask(decoder_input_tokens.shape[1], decoder_segment_ids)
        features = self.decoder(embedded, encoded, self_mask, cross_mask, deterministic=deterministic)
        query = None
        if self.query_residual:
            if encoder_segment_ids is None or decoder_segment_ids is None:
                query = encoders.pool(encoded, encoder_tokens, self.query_pooling)[:, None]  # [B, 1, e]
            else:
                query = encoders.pool_segments(
                    encoded, encoder_tokens, encoder_segment_ids, decoder_segment_ids, self.query_pooling
                )  # [B, T, e]
            query = self._residual(query)
        prefix = self.pawa(embedded, self_mask, deterministic=deterministic) if self.pawa_layers else None
        return self._combine(features, query, prefix)

    def features(
        self,
        encoder_input_tokens: Int[Array, "B S"],
        decoder_input_tokens: Int[Array, "B T"],
        *,
        encoder_segment_ids: Int[Array, "B S"] | None = None,
        encoder_positions: Int[Array, "B S"] | None = None,
        decoder_segment_ids: Int[Array, "B T"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "B T f"]:
        """Teacher-forced features of a batch. The first decoder input token (of each segment) is 0."""
        encoded = self.encode(encoder_input_tokens, encoder_segment_ids, encoder_positions, deterministic=deterministic)
        return self.decode_features(
            encoded,
            encoder_input_tokens,
            decoder_input_tokens,
            encoder_segment_ids,
            decoder_segment_ids,
            deterministic=deterministic,
        )

    def features_and_query(
        self,
        encoder_input_tokens: Int[Array, "B S"],
        decoder_input_tokens: Int[Array, "B T"],
        *,
        pooling: str = "mean",
        deterministic: bool = True,
    ) -> tuple[Float[Array, "B T f"], Float[Array, "B e"]]:
        """`features`, and `query_vector` of the same encoder states: one pass through the encoder for both (GDR)."""
        encoded = self.encode(encoder_input_tokens, deterministic=deterministic)
        features = self.decode_features(
            encoded, encoder_input_tokens, decoder_input_tokens, deterministic=deterministic
        )
        return features, self.query_vector(encoded, encoder_input_tokens, pooling)

    def query_vector(
        self, encoded: Float[Array, "B S e"], encoder_tokens: Int[Array, "B S"], pooling: str = "mean"
    ) -> Float[Array, "B e"]:
        """One vector per query, float32, of any length. Pooling: "mean" over the tokens, or "cls", the first state."""
        return encoders.pool(encoded, encoder_tokens, pooling)

    def __call__(self, *args, **kwargs) -> Float[Array, "B T vocab"]:
        """Logits, float32; takes what `features` takes."""
        return pawa.logits_of(self.features(*args, **kwargs), self.output_table())

    def output_table(self) -> pawa.Table:
        """One row per token of the decoder's vocabulary; the scale of tied logits is in the features."""
        tied = self.decoder_sizes.logits_via_embedding
        table = self._decoder_embedder.embedding if tied else self.decoder.output_kernel().T
        return pawa.AdaptiveTable(table, self.pawa.kernel) if self.pawa_layers else table

    def init_cache(
        self, encoded: Float[Array, "B S e"], encoder_tokens: Int[Array, "B S"], beams: int, max_len: int
    ) -> DecoderCache:
        """A cache for `max_len` steps of `beams` hypotheses per query; cross-attention is computed here, once."""
        query = None
        if self.query_residual:
            query = self._residual(encoders.pool(encoded, encoder_tokens, self.query_pooling))
        return DecoderCache(
            self_attention=t5.zero_cache(self.decoder_sizes, encoded.shape[0], max_len, beams),
            cross_attention=self.decoder.cross_cache(encoded),
            source_mask=encoder_tokens != 0,
            query=query,
            prefix=self.pawa.init_cache(encoded.shape[0], max_len, beams) if self.pawa_layers else None,
        )

    def step(
        self,
        tokens: Int[Array, "B K"],
        step: int | Int[Array, ""],
        ancestors: Int[Array, "B K L"],
        cache: DecoderCache,
    ) -> tuple[Float[Array, "B K f"], DecoderCache]:
        """Features after one more token of each live hypothesis, equal to `decode_features` of its path.

        Args:
          tokens: the last token of each hypothesis, `start_token` at step 0; K may be less than the cache's beams.
          step: which step; a Python int attends only to what is written, a traced one to all slots, masked.
          ancestors: the slot that wrote step j of the path of hypothesis k; entries from `step` on are ignored.
        """
        embedded = self._embed_decoder(tokens)
        features, written = self.decoder.step(
            embedded, step, ancestors, cache.self_attention, cache.cross_attention, cache.source_mask
        )
        prefix = cached = None
        if cache.prefix is not None:
            prefix, cached = self.pawa.step(embedded, step, ancestors, cache.prefix)
        query = None if cache.query is None else cache.query[:, None]  # [B, 1, f]
        cache = dataclasses.replace(cache, self_attention=written, prefix=cached)
        return self._combine(features, query, prefix), cache

    @property
    def _decoder_embedder(self):
        return self.token_embedder if self.shares_embeddings else self.decoder_token_embedder

    def _with_start_token(self, tokens, segment_ids):
        """Decoder inputs whose first token, of the row or of each segment, is the start token. Batches have 0 there."""
        if not self.start_token:
            return tokens
        if segment_ids is None:
            return jnp.asarray(tokens).at[:, 0].set(self.start_token)
        return jnp.where(encoders.positions_in_segments(segment_ids) == 0, self.start_token, tokens)

    def _embed_decoder(self, tokens):
        return self._decoder_embedder(tokens)

    def _residual(self, pooled):
        return encoders.unit(pooled) * self.query_scale

    def _combine(self, features, query, prefix):
        if self.decoder_sizes.logits_via_embedding:
            features = features * self.decoder_sizes.emb_dim**-0.5
        if query is not None:
            features = features + query.astype(features.dtype)
        return features if prefix is None else jnp.concatenate([features, prefix.astype(features.dtype)], axis=-1)

    def _check(self):
        """Refuses combinations that do not fit, before anything is computed."""
        encoder, decoder = self.encoder_config, self.decoder_sizes
        if not 0 <= self.start_token < decoder.vocab_size:
            raise InputError(
                "the start token is outside of the decoder's vocabulary",
                f"Give one below {decoder.vocab_size}.",
                value=self.start_token,
            )
        if self.query_pooling not in encoders.POOLINGS:
            raise InputError(
                "unknown query_pooling", f"Choose one of {', '.join(encoders.POOLINGS)}.", value=self.query_pooling
            )
        if self.shares_embeddings and (encoder.vocab_size, encoder.emb_dim) != (decoder.vocab_size, decoder.emb_dim):
            raise InputError(
                "encoder and decoder cannot share a token table of different shapes",
                "Set share_embeddings=False, or give both the same vocab_size and emb_dim.",
                value=((encoder.vocab_size, encoder.emb_dim), (decoder.vocab_size, decoder.emb_dim)),
            )
        if decoder.logits_via_embedding and decoder.emb_dim != self.feature_dim:
            raise InputError(
                "with query_residual features are as wide as the encoder, and so cannot meet a tied output table of "
                "another width",
                "Set logits_via_embedding=False, or give encoder and decoder the same emb_dim.",
                value=(encoder.emb_dim, decoder.emb_dim),
            )
