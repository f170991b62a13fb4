"""A `CopyNetwork` that writes, and one that is trained; see `copy_network`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32

from gr_jax.constraints.base import Scores
from gr_jax.models import network_folder
from gr_jax.models.attention import MASKED
from gr_jax.models.copy_network import CopyCache, CopyFeatures, CopyNetwork
from gr_jax.models.copy_scores import CopyScores, word_numbers

KIND = "copying"


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
    ) -> tuple[Float[Array, "B U"], Bool[Array, "B U"], Bool[Array, "B U"]]:
        """log p of each target token, whether it can be written at all, and whether it can be copied.

        Args:
          params, batch, dropout_rng: as of `loss_fn`; loss weights are not read. Optionally decoder_mask [B, T, T] and
            decoder_positions [B, T] in the place of segments, and decoder_target_prefixes [B, U], the input token
            behind which each of U target tokens stands; default: a target for each input token.
        """
        encoded = batch.get("encoded")
        result: Any = self.module.apply(
            {"params": params},
            batch["encoder_input_tokens"],
            batch["decoder_input_tokens"],
            batch.get("decoder_segment_ids"),
            None if encoded is None else encoded.astype(jnp.float32),
            batch.get("decoder_mask"),
            batch.get("decoder_positions"),
            deterministic=dropout_rng is None,
            rngs=None if dropout_rng is None else {"dropout": dropout_rng},
        )
        features, copy = result
        logits: Any = self.module.apply({"params": params}, features, method="word_logits")  # [B, T, words]
        target, source = batch["decoder_target_tokens"], batch["encoder_input_tokens"]
        every = jnp.logaddexp(jax.nn.logsumexp(logits, axis=-1), jax.nn.logsumexp(copy, axis=-1))  # [B, T]
        word = word_numbers(np.asarray(self.words), self.module.encoder_config.vocab_size)[target]
        behind = batch.get("decoder_target_prefixes")
        if behind is None:
            of_word = jnp.take_along_axis(logits, jnp.maximum(word, 0)[..., None], axis=-1)[..., 0]
        else:
            rows = jnp.arange(len(behind))[:, None]
            of_word, copy, every = logits[rows, behind, jnp.maximum(word, 0)], copy[rows, behind], every[rows, behind]
        same = (target[:, :, None] == source[:, None, :]) & (target != 0)[:, :, None]  # [B, U, S]
        copied = jnp.any(same, axis=-1)
        written = jnp.logaddexp(
            jnp.where(word >= 0, of_word, MASKED), jax.nn.logsumexp(jnp.where(same, copy, MASKED), axis=-1)
        )
        log_prob = written - every
        return log_prob, (word >= 0) | copied, copied

    @staticmethod
    def summarize(metrics: Mapping[str, Any]) -> dict[str, float]:
        """Means of the pairs that `loss_fn` gives."""
        pairs = {name: pair for name, pair in metrics.items() if isinstance(pair, tuple)}
        return {name: float(total) / max(float(weight), 1.0) for name, (total, weight) in pairs.items()}

    def decoder(self, params: Any) -> CopyDecoder:
        """The network as sampling takes it."""
        return CopyDecoder(self.module, params, np.asarray(self.words, np.int32))
