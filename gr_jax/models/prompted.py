"""What is done with a decoder-only network: trained on rows of one sequence, and decoded behind a shared prompt."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gr_jax.errors import InputError
from gr_jax.losses import cross_entropy
from gr_jax.models import network_folder
from gr_jax.models.decoder_only import DecoderOnly, DecoderOnlyConfig, PromptedCache
from gr_jax.models.generative import Batch, EncoderDecoderModel, Levels

if TYPE_CHECKING:
    from gr_jax.constraints.base import Scores

KIND = "decoder_only"


@jax.tree_util.register_pytree_node_class
class PromptedDecoder:
    """A `DecoderOnly` with its parameters and a prompt as a `GenerativeModel`, and as the `Decoder` that beam search
    asks for. The prompt is read when it is made, and never again for any query. A pytree.

    Args:
      module, params: the network.
      prompt: tokens that stand before every query.
      levels: (start, size) of each position's block of tokens; needed to normalise by "level".
      eos_id: the token that ends identifiers, None where none does.

    Raises:
      InputError: a token of the prompt that the network does not read.
    """

    def __init__(
        self,
        module: DecoderOnly,
        params: Any,
        prompt: Sequence[int] = (),
        levels: Levels | None = None,
        eos_id: int | None = None,
    ):
        self.module, self.params, self.eos_id = module, params, eos_id
        self.levels = None if levels is None else tuple((int(start), int(size)) for start, size in levels)
        self.prompt = tuple(int(token) for token in prompt)
        if self.prompt and not 0 <= min(self.prompt) <= max(self.prompt) < module.config.vocab_size:
            raise InputError(
                "a prompt with a token that the network does not read",
                f"Give tokens below {module.config.vocab_size}.",
                value=self.prompt,
            )
        self._read = _read_prompt(module, params, np.asarray([self.prompt], np.int32)) if self.prompt else None
        self._table = self._apply(method="output_table")

    @property
    def start_token(self) -> int:
        """What stands between a query and its identifier."""
        return self.module.config.start_token

    @property
    def input_vocab_size(self) -> int:
        """Of all tokens."""
        return self.module.config.vocab_size

    @property
    def output_vocab_size(self) -> int:
        """Of all tokens."""
        return self.module.config.vocab_size

    def with_parameters(self, params: Any) -> PromptedDecoder:
        """The same network with other parameters, which read the prompt anew: once."""
        return PromptedDecoder(self.module, params, self.prompt, self.levels, self.eos_id)

    def decoder(self) -> PromptedDecoder:
        """Itself."""
        return self

    def start(
        self,
        tokens: Int[Array, "batch source"],
        lengths: Int[Array, " batch"] | None = None,
        *,
        beams: int,
        max_len: int,
    ) -> PromptedCache:
        """Reads queries behind the prompt; see `GenerativeModel.start`."""
        if lengths is None:
            lengths = jnp.full(tokens.shape[0], tokens.shape[1], jnp.int32)
        return self._apply(tokens, lengths, self._read, beams, max_len, method="start")

    def step(
        self,
        tokens: Int[Array, "batch beam"],
        step: int | Int[Array, ""],
        ancestors: Int[Array, "batch beam max_len"],
        cache: PromptedCache,
    ) -> tuple[Float[Array, "batch beam d"], PromptedCache]:
        """See `DecoderOnly.step`."""
        return self._apply(tokens, step, ancestors, cache, method="step")

    def scores(self, features: Float[Array, "... d"], level: int | Array, normalize: str) -> Scores:
        """Next-token scores, of which only what is asked for is computed."""
        from gr_jax.decoding import TableScores

        return TableScores(
            features.astype(jnp.float32), self._table, normalize, levels=self.levels, level=level, eos_id=self.eos_id
        )

    def save(self, folder: str | os.PathLike) -> None:
        """Writes it as the network kind "decoder_only"; see `network_folder`."""
        config = {
            "kind": KIND,
            **network_folder.identifiers_to_json(self.levels, self.eos_id),
            "prompt": list(self.prompt),
            "decoder": dataclasses.asdict(self.module.config),
        }
        network_folder.write(folder, config, self.params)

    @classmethod
    def load(cls, folder: str | os.PathLike) -> PromptedDecoder:
        """Reads what `save` wrote.

        Raises:
          InputError: a file is missing or is not what it should be, or the network is of another kind.
        """
        prompt: list[int] = []

        def make(config: Mapping[str, Any]) -> DecoderOnly:
            network_folder.check_kind(config, KIND)
            prompt.extend(int(token) for token in config["prompt"])
            return DecoderOnly(DecoderOnlyConfig(**config["decoder"]))

        module, params = network_folder.read(folder, make)
        identifiers = network_folder.load_identifiers(folder)
        return cls(module, jax.tree.map(jnp.asarray, params), prompt, **identifiers)

    def _apply(self, *args, method: str):
        result: Any = self.module.apply({"params": self.params}, *args, method=method)
        return result

    def tree_flatten(self):
        return (self.params, self._read, self._table), (self.module, self.prompt, self.levels, self.eos_id)

    @classmethod
    def tree_unflatten(cls, static, leaves):
        made = object.__new__(cls)
        (made.params, made._read, made._table), (made.module, made.prompt, made.levels, made.eos_id) = leaves, static
        return made


@functools.partial(jax.jit, static_argnums=0)
def _read_prompt(module: DecoderOnly, params: Any, tokens: Int[Array, "1 P"]) -> Any:
    return module.apply({"params": params}, tokens, method="read_prompt")


@dataclasses.dataclass(frozen=True)
class DecoderOnlyModel:
    """A `DecoderOnly` with T5X's model methods, over rows of one sequence.

    A batch has `tokens` int32[batch, length] and `loss_weights` float32[batch, length]: a token with weight 1 is one
    that the network shall write (an identifier's), with 0 one that it only reads (prompt, query, start token, padding).
    Packed rows have `segment_ids` and `positions` too. Position i learns to expect token i + 1 of its own segment.

    Attributes:
      module: the network.
      label_smoothing, z_loss: see `losses.cross_entropy`.
      loss_normalizing_factor: divides the loss that `loss_fn` returns; None returns the sum over tokens.
    """

    module: DecoderOnly
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    loss_normalizing_factor: float | None = None

    def get_initial_variables(
        self,
        rng: Array,
        input_shapes: Mapping[str, Sequence[int]],
        input_types: Mapping[str, Any] | None = None,
    ) -> Any:
        """`{"params": …, "params_axes": …}` for batches of these shapes; see `EncoderDecoderModel`."""
        del input_types
        return self.module.init(rng, jnp.ones(tuple(input_shapes["tokens"]), jnp.int32))

    def loss_fn(
        self, params: Any, batch: Batch, dropout_rng: Array | None = None
    ) -> tuple[Float[Array, ""], dict[str, Any]]:
        """The loss to differentiate, and metrics as pairs (sum, weight): sums over the tokens by weight.

        Args:
          params: of the network.
          batch: see the class.
          dropout_rng: None switches dropout off.
        """
        losses, weights = self._token_losses(params, batch, dropout_rng)
        loss, weight = jnp.sum(losses.loss * weights), jnp.sum(weights)
        metrics: dict[str, Any] = {
            "loss": (loss, weight),
            "nll": (-jnp.sum(losses.log_prob * weights), weight),
            "z_loss": (jnp.sum(losses.z_loss * weights), weight),
            "accuracy": (jnp.sum(losses.correct * weights), weight),
            "weight_sum": weight,
        }
        return loss if self.loss_normalizing_factor is None else loss / self.loss_normalizing_factor, metrics

    summarize = staticmethod(EncoderDecoderModel.summarize)

    def eval_fn(self, params: Any, batch: Batch) -> tuple[Float[Array, ""], dict[str, Any]]:
        """`loss_fn` without dropout."""
        return self.loss_fn(params, batch, None)

    def score_batch(self, params: Any, batch: Batch) -> Float[Array, " batch"]:
        """Log-probability of the weighted tokens of each row: of an identifier, given its query."""
        losses, weights = self._token_losses(params, batch, None)
        return jnp.sum(losses.log_prob * weights, axis=-1)

    def decoder(
        self, params: Any, prompt: Sequence[int] = (), levels: Levels | None = None, eos_id: int | None = None
    ) -> PromptedDecoder:
        """The network as beam search takes it."""
        return PromptedDecoder(self.module, params, prompt, levels, eos_id)

    def _token_losses(self, params: Any, batch: Batch, dropout_rng: Array | None) -> tuple[Any, Array]:
        """Of the tokens from the second on, and their weights, 0 where a token begins its segment."""
        tokens, segments = batch["tokens"], batch.get("segment_ids")
        logits: Any = self.module.apply(
            {"params": params},
            tokens,
            segments,
            batch.get("positions"),
            deterministic=dropout_rng is None,
            rngs=None if dropout_rng is None else {"dropout": dropout_rng},
        )
        weights = batch["loss_weights"][:, 1:].astype(jnp.float32)
        if segments is not None:
            weights = weights * (segments[:, 1:] == segments[:, :-1])
        losses = cross_entropy(logits[:, :-1], tokens[:, 1:], label_smoothing=self.label_smoothing, z_loss=self.z_loss)
        return losses, weights
