"""An encoder-decoder that learns which tokens a query's title has, in whatever order (Contra, CGR, Lee et al. 2022,
arXiv 2210.02068, section 3.3)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from gr_jax.losses.title_tokens import title_token_losses
from gr_jax.models.generative import Batch, EncoderDecoderModel


@dataclasses.dataclass(frozen=True)
class TitleTokenModel(EncoderDecoderModel):
    """The network with T5X's model methods, for batches of one pair a row. Of `EncoderDecoderModel`'s settings the loss
    reads `eos_id` alone: the id that ends titles and is no token of theirs.

    Attributes:
      loss: of `losses.title_tokens.TITLE_LOSSES`.
    """

    loss: str = "all_positives"

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
        first = {
            "encoder_input_tokens": batch["encoder_input_tokens"],
            "decoder_input_tokens": jnp.zeros_like(tokens[:, :1]),
        }
        logits = self._logits(params, self._features(params, first, dropout_rng), first)[:, 0]
        losses, pairs = title_token_losses(logits, tokens, self.loss)
        loss, weight = jnp.sum(losses), jnp.sum(pairs)
        return loss, {"loss": (loss, weight), "weight_sum": weight}
