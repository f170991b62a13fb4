"""Operations that a T5's update needs: its matrix products forward, and twice as many backward."""

from __future__ import annotations

import dataclasses

from gr_jax.models.t5 import T5Config


@dataclasses.dataclass(frozen=True)
class Lengths:
    """What one update reads: rows, and tokens of each."""

    rows: int
    inputs: int
    targets: int

    @property
    def tokens(self) -> int:
        """Read and written."""
        return self.rows * (self.inputs + self.targets)


def of_update(config: T5Config, lengths: Lengths) -> float:
    """Operations (a multiplication and an addition are two) of one update, without dropout or anything recomputed.

    Each parameter that multiplies costs six a token: two forward, four backward. So do tokens under attention, with
    each of those that they are compared with; the masked half of a decoder's own is counted, as is usual. Embedding
    tables that are only looked up, norms, biases and the optimiser are not counted.
    """
    width, heads = config.emb_dim, config.num_heads * config.head_dim
    square = width * heads
    feed_forward = (len(config.mlp_activations) + 1) * width * config.mlp_dim
    rows, inputs, targets = lengths.rows, lengths.inputs, lengths.targets
    encoder, decoder = config.num_encoder_layers, config.num_decoder_layers
    read = rows * inputs * (encoder * (4 * square + feed_forward) + decoder * 2 * square)  # keys and values: decoder's
    written = rows * targets * (decoder * (6 * square + feed_forward) + width * config.vocab_size)
    pairs = encoder * inputs**2 + decoder * (targets**2 + targets * inputs)
    attention = rows * pairs * 2 * heads  # compared, and mixed
    return 6.0 * (read + written + attention)
