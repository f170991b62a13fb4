"""An encoder-decoder that can copy from what it reads: queries from documents, or n-grams of documents from queries.

docT5query and SEAL fine-tune a pretrained seq2seq. Where the decoder is new, a few thousand pairs do not teach it the
words of a language; so each next token is either one of a few thousand words of its own, or copied from a place in the
source, under one softmax over both (CopyNet, Gu et al. 2016, arXiv 1603.06393, section 3.2).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Int32

from gr_jax.constraints.base import Scores
from gr_jax.constraints.top_k import top_k
from gr_jax.errors import InputError
from gr_jax.models import layers, network_folder, t5
from gr_jax.models import text_encoder as encoders
from gr_jax.models.attention import MASKED, causal_mask
from gr_jax.models.bert import BertConfig

KIND = "copying"


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
        *,
        deterministic: bool = True,
    ) -> tuple[Float[Array, "B T d"], Float[Array, "B T S"]]:
        """Teacher-forced features and copy logits; several targets of one source may share a row, by segments.

        Args:
          encoded: what `encode` gives, of an encoder that is not trained; None computes it.
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
            causal_mask(decoder_input_tokens.shape[1], decoder_segment_ids),
            mask[:, None, :],
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


class CopyScores:
    """Next-token scores over a vocabulary of which every source can reach a few thousand tokens: those words that
    are the network's own and those that it can copy. Scores are computed of these alone; as wide as the vocabulary is
    one table of numbers for each source, which says where the score of a token is.

    Args:
      logits: of its own words, [batch, beam, words].
      features: see `CopyFeatures`.
      words: the token that each of them is.
      word_of: the word that each token of the vocabulary is; −1 where it is none.
      normalize: "vocabulary" or "constraint".
    """

    def __init__(
        self,
        logits: Float[Array, "batch beam words"],
        features: CopyFeatures,
        words: Int[Array, " words"],
        word_of: Int[Array, " vocab"],
        normalize: str,
    ):
        if normalize == "level":
            raise InputError("what is copied has no levels of tokens", 'Use normalize="vocabulary".', value=normalize)
        self.normalize, self.vocab_size = normalize, word_of.shape[0]
        batch, num_words = logits.shape[0], words.shape[0]
        source, copy = features.source, features.copy
        first = jnp.argmax(source[:, :, None] == source[:, None, :], axis=-1)  # place where a token stands first
        own = word_of[source]
        slots = jnp.where(own >= 0, own, num_words + first)  # --> [batch, source]
        rows = jnp.arange(batch)[:, None]
        # What each slot stands for, and the slot of each token; places that repeat a token or copy a word stay empty.
        self._tokens = jnp.concatenate([jnp.broadcast_to(words, (batch, num_words)), source], axis=1)
        table = jnp.broadcast_to(word_of, (batch, self.vocab_size)).at[rows, source].set(slots)
        self._slots = jnp.where(jnp.arange(self.vocab_size) == 0, -1, table)  # padding is never written
        self._total = jnp.logaddexp(jax.nn.logsumexp(logits, axis=-1), jax.nn.logsumexp(copy, axis=-1))
        at = rows[:, None], jnp.arange(copy.shape[1])[:, None], slots[:, None]
        self._values = _add_logs(logits, copy, at)  # --> [batch, beam, words + source]
        if normalize == "vocabulary":
            self._values -= self._total[..., None]

    def at(self, tokens: Int[Array, "batch beam width"]) -> Float[Array, "batch beam width"]:
        rows = jnp.arange(tokens.shape[0])[:, None, None]
        slots = self._slots[rows, tokens]
        return jnp.where(slots >= 0, jnp.take_along_axis(self._values, jnp.maximum(slots, 0), axis=-1), -jnp.inf)

    def at_parents(self, parent: Int[Array, "batch n"], tokens: Int[Array, "batch n"]) -> Float[Array, "batch n"]:
        rows = jnp.arange(tokens.shape[0])[:, None]
        slots = self._slots[rows, tokens]
        return jnp.where(slots >= 0, self._values[rows, parent, jnp.maximum(slots, 0)], -jnp.inf)

    def top(self, n: int, below: int | None = None) -> tuple[Int[Array, "batch beam n"], Float[Array, "batch beam n"]]:
        values = self._values
        if below is not None:
            values = jnp.where((self._tokens < below)[:, None, :], values, -jnp.inf)
        scores, slots = top_k(values, min(n, values.shape[-1]))
        tokens = self._tokens[jnp.arange(len(slots))[:, None, None], slots]
        short = ((0, 0), (0, 0), (0, n - tokens.shape[-1]))  # more may be asked for than a source can reach
        return jnp.pad(tokens, short), jnp.pad(scores, short, constant_values=-jnp.inf)

    def log_normalizer(self) -> Float[Array, "batch beam"]:
        return self._total


def _add_logs(
    logits: Float[Array, "batch beam words"], copy: Float[Array, "batch beam source"], at: tuple[Array, ...]
) -> Float[Array, "batch beam slots"]:
    """Of every slot the logarithm of the sum of what is in it: a word's logit, and of each place that is put there the
    logit of copying it. −inf where there is nothing, or only masked places.

    Each slot is measured by the largest in it: by the largest of all, unlikely tokens would be 0, and then impossible.
    """
    nothing = jnp.full_like(copy, -jnp.inf)
    largest = jnp.concatenate([logits, nothing], axis=-1).at[at].max(copy)
    mass = jnp.concatenate([jnp.exp(logits - largest[..., : logits.shape[-1]]), jnp.zeros_like(copy)], axis=-1)
    mass = mass.at[at].add(jnp.exp(copy - largest[at]))
    return jnp.where(largest > MASKED / 2, jnp.log(mass) + largest, -jnp.inf)


@jax.tree_util.register_pytree_node_class
class CopyDecoder:
    """A `CopyNetwork` with its parameters as a `GenerativeModel`, and as the `Decoder` that sampling and beam search
    ask for. A pytree.

    Args:
      module, params: the network.
      words: the token that each of its own words is.
      eos_id: ends what is written, where something does.
    """

    start_token = 0  # as its training shifts targets
    levels: tuple[tuple[int, int], ...] | None = None

    def __init__(
        self,
        module: CopyNetwork,
        params: Any,
        words: Int32[np.ndarray, " words"] | Int[Array, " words"],
        eos_id: int | None = None,
    ):
        self.module, self.params, self.words, self.eos_id = module, params, jnp.asarray(words), eos_id

    @property
    def input_vocab_size(self) -> int:
        """Of the tokens that it reads."""
        return self.module.encoder_config.vocab_size

    @property
    def output_vocab_size(self) -> int:
        """Of the tokens that it writes: the same."""
        return self.input_vocab_size

    def with_parameters(self, params: Any) -> CopyDecoder:
        """The same network with other parameters."""
        return CopyDecoder(self.module, params, self.words, self.eos_id)

    def decoder(self) -> CopyDecoder:
        """Itself."""
        return self

    def start(
        self,
        tokens: Int[Array, "batch source"],
        lengths: Int[Array, " batch"] | None = None,
        *,
        beams: int,
        max_len: int,
        encoded: Array | None = None,
    ) -> CopyCache:
        """Encodes sources and makes the cache to write with. Padding is token 0; lengths are not needed."""
        del lengths
        encoded = self._apply(tokens, method="encode") if encoded is None else encoded
        return self._apply(encoded, tokens, beams, max_len, method="init_cache")

    def step(self, tokens, step, ancestors, cache) -> tuple[CopyFeatures, CopyCache]:
        """See `CopyNetwork.step`."""
        return self._apply(tokens, step, ancestors, cache, method="step")

    def scores(self, features: CopyFeatures, level: int | Array, normalize: str) -> Scores:
        """Scores of the next token; they do not depend on `level`."""
        logits = self._apply(features.own, method="word_logits")
        return CopyScores(logits, features, self.words, word_numbers(self.words, self.output_vocab_size), normalize)

    def save(self, folder: str | os.PathLike) -> None:
        """Writes it as the network kind "copying"; see `network_folder`."""
        config = {
            "kind": KIND,
            **network_folder.identifiers_to_json(None, self.eos_id),
            "encoder": network_folder.encoder_to_json(self.module.encoder_config),
            "decoder": network_folder.encoder_to_json(self.module.decoder_config),
            "words": np.asarray(self.words).tolist(),
            "counted": self.module.counted,
        }
        network_folder.write(folder, config, self.params)

    @classmethod
    def load(cls, folder: str | os.PathLike) -> CopyDecoder:
        """Reads what `save` wrote.

        Raises:
          InputError: a file is missing or is not what it should be, or the network is of another kind.
        """
        words: list[int] = []

        def make(config: Mapping[str, Any]) -> CopyNetwork:
            network_folder.check_kind(config, KIND)
            words.extend(int(word) for word in config["words"])
            encoder, decoder = (network_folder.encoder_from_json(config[name]) for name in ("encoder", "decoder"))
            return CopyNetwork(encoder, decoder, len(words), bool(config["counted"]))

        module, params = network_folder.read(folder, make)
        eos_id = network_folder.load_identifiers(folder)["eos_id"]
        return cls(module, jax.tree.map(jnp.asarray, params), np.asarray(words, np.int32), eos_id)

    def _apply(self, *args, method: str):
        result: Any = self.module.apply({"params": self.params}, *args, method=method)
        return result

    def tree_flatten(self):
        return (self.params, self.words), (self.module, self.eos_id)

    @classmethod
    def tree_unflatten(cls, static, leaves):
        made = object.__new__(cls)
        (made.params, made.words), (made.module, made.eos_id) = leaves, static
        return made


@dataclasses.dataclass(frozen=True)
class CopyNetworkModel:
    """A `CopyNetwork` with those of T5X's model methods that training needs, `get_initial_variables` and `loss_fn`;
    it is trained on rows of one source and several of its targets, and writes by `decoder`.

    Attributes:
      module: the network.
      words: the token that each of its own words is.
    """

    module: CopyNetwork
    words: Sequence[int]

    def get_initial_variables(
        self, rng: Array, input_shapes: Mapping[str, Sequence[int]], input_types: Mapping[str, Any] | None = None
    ) -> Any:
        """Variables for batches of these shapes; see `EncoderDecoderModel.get_initial_variables`."""
        del input_types
        names = ("encoder_input_tokens", "decoder_input_tokens")
        return self.module.init(rng, *(jnp.ones(tuple(input_shapes[name]), jnp.int32) for name in names))

    def loss_fn(
        self, params: Any, batch: Mapping[str, Array], dropout_rng: Array | None = None
    ) -> tuple[Float[Array, ""], dict[str, Any]]:
        """The sum of −log p over target tokens, and metrics as pairs (sum, weight).

        The probability of a token is that of writing it as a word of its own and of copying it from any of its places.
        Tokens that can be neither count nothing.

        Args:
          params: of the network.
          batch: encoder_input_tokens [B, S], decoder_input_tokens, decoder_target_tokens, decoder_loss_weights,
            decoder_segment_ids [B, T]; optionally `encoded` [B, S, e], what the frozen encoder gives.
          dropout_rng: None switches dropout off.
        """
        log_prob, possible, copied = self.token_log_probs(params, batch, dropout_rng)
        weights = batch["decoder_loss_weights"] * possible
        loss, weight = -jnp.sum(jnp.where(weights > 0, log_prob, 0.0) * weights), jnp.sum(weights)
        return loss, {"loss": (loss, weight), "copied": (jnp.sum(copied * weights), weight), "weight_sum": weight}

    def token_log_probs(
        self, params: Any, batch: Mapping[str, Array], dropout_rng: Array | None = None
    ) -> tuple[Float[Array, "B T"], Bool[Array, "B T"], Bool[Array, "B T"]]:
        """log p of each target token, whether it can be written at all, and whether it can be copied.

        Args:
          params, batch, dropout_rng: as of `loss_fn`; loss weights are not read.
        """
        encoded = batch.get("encoded")
        result: Any = self.module.apply(
            {"params": params},
            batch["encoder_input_tokens"],
            batch["decoder_input_tokens"],
            batch.get("decoder_segment_ids"),
            None if encoded is None else encoded.astype(jnp.float32),
            deterministic=dropout_rng is None,
            rngs=None if dropout_rng is None else {"dropout": dropout_rng},
        )
        features, copy = result
        logits: Any = self.module.apply({"params": params}, features, method="word_logits")  # [B, T, words]
        target, source = batch["decoder_target_tokens"], batch["encoder_input_tokens"]
        word = word_numbers(np.asarray(self.words), self.module.encoder_config.vocab_size)[target]
        of_word = jnp.take_along_axis(logits, jnp.maximum(word, 0)[..., None], axis=-1)[..., 0]
        same = (target[:, :, None] == source[:, None, :]) & (target != 0)[:, :, None]  # [B, T, S]
        copied = jnp.any(same, axis=-1)
        log_prob = jnp.logaddexp(
            jnp.where(word >= 0, of_word, MASKED), jax.nn.logsumexp(jnp.where(same, copy, MASKED), axis=-1)
        ) - jnp.logaddexp(jax.nn.logsumexp(logits, axis=-1), jax.nn.logsumexp(copy, axis=-1))
        return log_prob, (word >= 0) | copied, copied

    @staticmethod
    def summarize(metrics: Mapping[str, Any]) -> dict[str, float]:
        """Means of the pairs that `loss_fn` gives."""
        pairs = {name: pair for name, pair in metrics.items() if isinstance(pair, tuple)}
        return {name: float(total) / max(float(weight), 1.0) for name, (total, weight) in pairs.items()}

    def decoder(self, params: Any) -> CopyDecoder:
        """The network as sampling takes it."""
        return CopyDecoder(self.module, params, np.asarray(self.words, np.int32))


def word_numbers(words: Array | np.ndarray, vocab_size: int) -> Int[Array, " vocab"]:
    """The number of the word that each token is; −1 where it is none."""
    return jnp.full(vocab_size, -1, jnp.int32).at[words].set(jnp.arange(len(words), dtype=jnp.int32))
