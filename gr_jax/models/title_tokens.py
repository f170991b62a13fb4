"""An encoder-decoder that learns which tokens a query's title has, in whatever order (Contra, CGR, Lee et al. 2022,
arXiv 2210.02068, section 3.3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from gr_jax.losses.title_tokens import title_token_losses
from gr_jax.models.encoder_decoder import EncoderDecoder
from gr_jax.models.generative import Batch, EncoderDecoderModel
from gr_jax.models.pawa import logits_of


@dataclasses.dataclass(frozen=True)
class TitleTokenModel:
    """The network with T5X's model methods, for batches of one pair a row.

    Attributes:
      module: the network.
      loss: of `losses.title_tokens.TITLE_LOSSES`.
      eos_id: the id that ends titles and is no token of theirs; None where none does.
    """

    module: EncoderDecoder
    loss: str = "all_positives"
    eos_id: int | None = None

    def get_initial_variables(
        self,
        rng: Array,
        input_shapes: Mapping[str, Sequence[int]],
        input_types: Mapping[str, Any] | None = None,
    ) -> Any:
        """See `EncoderDecoderModel.get_initial_variables`."""
        return EncoderDecoderModel(self.module).get_initial_variables(rng, input_shapes, input_types)

    def loss_fn(
        self, params: Any, batch: Batch, dropout_rng: Array | None = None
    ) -> tuple[Float[Array, ""], dict[str, Any]]:
        """The sum over pairs of a query and a token of its title; what the decoder gives before it writes anything is
        scored against the whole vocabulary.

        Args:
          params: of the network.
          batch: encoder_input_tokens, and decoder_target_tokens, of which 0 is padding.
          dropout_rng: None switches dropout off.
        """
        tokens = batch["decoder_target_tokens"]
        if self.eos_id is not None:
            tokens = jnp.where(tokens == self.eos_id, 0, tokens)
        features: Any = self.module.apply(
            {"params": params},
            batch["encoder_input_tokens"],
            jnp.zeros_like(tokens[:, :1]),
            deterministic=dropout_rng is None,
            rngs=None if dropout_rng is None else {"dropout": dropout_rng},
            method="features",
        )
        table: Any = self.module.apply({"params": params}, method="output_table")
        losses, pairs = title_token_losses(logits_of(features, table)[:, 0], tokens, self.loss)
        loss, weight = jnp.sum(losses), jnp.sum(pairs)
        return loss, {"loss": (loss, weight), "weight_sum": weight}

    @staticmethod
    def summarize(metrics: Mapping[str, Any]) -> dict[str, float]:
        """See `EncoderDecoderModel.summarize`."""
        return EncoderDecoderModel.summarize(metrics)
