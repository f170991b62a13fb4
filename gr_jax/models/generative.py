"""What is done with an encoder-decoder: trained on batches, scored, and decoded under a constraint."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gr_jax.errors import InputError
from gr_jax.losses import TokenLosses, cross_entropy, level_losses, level_mask, symmetric_kl
from gr_jax.models import network_folder
from gr_jax.models.encoder_decoder import DecoderCache, EncoderDecoder
from gr_jax.models.pawa import AdaptiveTable, Table, logits_of

if TYPE_CHECKING:
    from gr_jax.constraints.base import Constraint, Scores

Batch = Mapping[str, Array]
NORMALIZERS = ("vocabulary", "level")
Levels = Sequence[tuple[int, int]]


@jax.tree_util.register_pytree_node_class
class GenerativeDecoder:
    """An `EncoderDecoder` with its parameters as a `GenerativeModel`, and as the `Decoder` that beam search asks for. A
    pytree: pass it to jitted functions as it is.

    Args:
      module, params: the network.
      levels: (start, size) of each position's block of tokens; needed to normalise by "level".
      eos_id: the token that ends docids, None where none does.
      table: the output table; by default made from the parameters. Make it once, outside of `jit`.
    """

    def __init__(
        self,
        module: EncoderDecoder,
        params: Any,
        levels: Levels | None = None,
        eos_id: int | None = None,
        table: Table | None = None,
    ):
        self.module, self.params, self.eos_id = module, params, eos_id
        self.levels = None if levels is None else tuple((int(start), int(size)) for start, size in levels)
        self.table = self._apply(method="output_table") if table is None else table

    @property
    def start_token(self) -> int:
        """What the decoder reads before the first token."""
        return self.module.start_token

    @property
    def input_vocab_size(self) -> int:
        """Of the queries' tokens."""
        return self.module.input_vocab_size

    @property
    def output_vocab_size(self) -> int:
        """Of the tokens that it writes."""
        return self.module.output_vocab_size

    def with_parameters(self, params: Any) -> GenerativeDecoder:
        """The same network with other parameters."""
        return GenerativeDecoder(self.module, params, self.levels, self.eos_id)

    def decoder(self) -> GenerativeDecoder:
        """Itself."""
        return self

    def save(self, folder: str | os.PathLike) -> None:
        """Writes it as the network kind "encoder_decoder"; see `network_folder`."""
        network_folder.save_network(folder, self.module, self.params, levels=self.levels, eos_id=self.eos_id)

    @classmethod
    def load(cls, folder: str | os.PathLike) -> GenerativeDecoder:
        """Reads what `save` wrote.

        Raises:
          InputError: a file is missing or is not what it should be.
        """
        module, params = network_folder.load_network(folder)
        return cls(module, jax.tree.map(jnp.asarray, params), **network_folder.load_identifiers(folder))

    def start(
        self,
        encoder_tokens: Int[Array, "batch source"],
        lengths: Int[Array, " batch"] | None = None,
        *,
        beams: int,
        max_len: int,
    ) -> DecoderCache:
        """Encodes queries and makes the cache to decode them with. Padding is token 0, as all encoders here have it;
        lengths are not needed."""
        del lengths
        encoded = self._apply(encoder_tokens, method="encode")
        return self._apply(encoded, encoder_tokens, beams, max_len, method="init_cache")

    def step(
        self,
        tokens: Int[Array, "batch beam"],
        step: int | Int[Array, ""],
        ancestors: Int[Array, "batch beam max_len"],
        cache: DecoderCache,
    ) -> tuple[Float[Array, "batch beam d"], DecoderCache]:
        """See `EncoderDecoder.step`."""
        return self._apply(tokens, step, ancestors, cache, method="step")

    def scores(self, features: Float[Array, "... d"], level: int | Array, normalize: str) -> Scores:
        """Next-token scores, of which only what is asked for is computed."""
        from gr_jax.decoding import LogitScores, TableScores

        settings: dict[str, Any] = {"levels": self.levels, "level": level, "eos_id": self.eos_id}
        if isinstance(self.table, AdaptiveTable):
            return LogitScores(self._adapted(features, level, normalize), normalize, **settings)
        return TableScores(features, self.table.astype(features.dtype), normalize, **settings)  # summed in float32

    def _adapted(self, features: Array, level: int | Array, normalize: str) -> Float[Array, "... vocab"]:
        """Logits under PAWA; where only a level's block matters the others are not computed, but −inf."""
        if normalize == "vocabulary" or self.levels is None or not isinstance(level, int):
            return logits_of(features, self.table)
        start, size = self.levels[level] if level < len(self.levels) else (0, 0)
        logits = jnp.full((*features.shape[:-1], self.table.shape[0]), -jnp.inf)
        for first, count in ((start, size), *([] if self.eos_id is None else [(self.eos_id, 1)])):
            if count:
                block = logits_of(features, self.table[first : first + count])
                logits = logits.at[..., first : first + count].set(block)
        return logits

    def _apply(self, *args, method: str):
        result: Any = self.module.apply({"params": self.params}, *args, method=method)
        return result

    def tree_flatten(self):
        return (self.params, self.table), (self.module, self.levels, self.eos_id)

    @classmethod
    def tree_unflatten(cls, static, leaves):
        made = object.__new__(cls)
        (made.params, made.table), (made.module, made.levels, made.eos_id) = leaves, static
        return made


@dataclasses.dataclass(frozen=True)
class EncoderDecoderModel:
    """An `EncoderDecoder` with T5X's model methods.

    Attributes:
      module: the network.
      label_smoothing, z_loss: see `losses.cross_entropy`.
      rdrop: weight of the symmetric KL between two dropout passes over each batch; 0 makes one pass.
      normalize: "vocabulary": softmax over all tokens. "level": over the block of the target's position. Decode with
        the same one.
      levels: (start, size) of each position's block of tokens; needed for "level", and gives accuracies by level.
      eos_id: the token that ends docids, None where none does.
      loss_normalizing_factor: divides the loss that `loss_fn` returns; None returns the sum over tokens.
      constraint: what `predict_batch_with_aux` may write.
      max_decode_length: steps of `predict_batch_with_aux`; None takes the length of the batch's targets.
    """

    module: EncoderDecoder
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    rdrop: float = 0.0
    normalize: str = "vocabulary"
    levels: Levels | None = None
    eos_id: int | None = None
    loss_normalizing_factor: float | None = None
    constraint: Constraint | None = None
    max_decode_length: int | None = None

    def __post_init__(self):
        if self.normalize not in NORMALIZERS:
            raise InputError(
                "unknown normaliser of a loss", f"Choose one of {', '.join(NORMALIZERS)}.", value=self.normalize
            )
        if self.normalize == "level" and not self.levels:
            raise InputError('normalize="level" needs docids with levels', "Give docids with position-aware tokens.")

    def get_initial_variables(
        self,
        rng: Array,
        input_shapes: Mapping[str, Sequence[int]],
        input_types: Mapping[str, Any] | None = None,
    ) -> Any:
        """Variables `{"params": …, "params_axes": …}` for batches of these shapes; run it under `jit` or `eval_shape`.

        Args:
          rng: a key.
          input_shapes: feature name → shape; the encoder's and decoder's input tokens are needed.
          input_types: unused (tokens are int32); T5X gives it.
        """
        del input_types
        inputs = {name: jnp.ones(tuple(shape), jnp.int32) for name, shape in input_shapes.items()}
        arguments: dict[str, Any] = _network_inputs(inputs)
        return self.module.init(rng, **arguments)

    def loss_fn(
        self, params: Any, batch: Batch, dropout_rng: Array | None = None
    ) -> tuple[Float[Array, ""], dict[str, Any]]:
        """The loss to differentiate, and metrics as pairs (sum, weight).

        All are sums over target tokens by weight, not means: they add up over microbatches and devices, after which
        gradients are divided by the total `weight_sum`.

        Args:
          params: of the network.
          batch: T5X's features; packed where it has encoder_segment_ids.
          dropout_rng: None switches dropout off (and R-Drop with it).
        """
        rngs = self._pass_rngs(dropout_rng)
        metrics = self._metrics(params, [self._features(params, batch, rng) for rng in rngs], batch)
        loss = metrics["loss"][0]
        return loss if self.loss_normalizing_factor is None else loss / self.loss_normalizing_factor, metrics

    @staticmethod
    def summarize(metrics: Mapping[str, Any]) -> dict[str, float]:
        """Means, from the pairs that `loss_fn` gives or from their sums over any number of batches."""
        pairs = {name: pair for name, pair in metrics.items() if isinstance(pair, tuple)}
        return {name: float(total) / max(float(weight), 1.0) for name, (total, weight) in pairs.items()}

    def eval_fn(self, params: Any, batch: Batch) -> tuple[Float[Array, ""], dict[str, Any]]:
        """`loss_fn` without dropout."""
        return self.loss_fn(params, batch, None)

    def score_batch(self, params: Any, batch: Batch) -> Float[Array, " batch"]:
        """Log-probability of each row's targets, under the normaliser of the loss."""
        (losses,), _ = self._token_losses(params, [self._features(params, batch, None)], batch)
        return jnp.sum(losses.log_prob * batch["decoder_loss_weights"], axis=-1)

    def sequence_log_probs(
        self,
        params: Any,
        encoder_tokens: Int[Array, "batch source"],
        sequences: Int[Array, "batch n length"],
        dropout_rng: Array | None = None,
    ) -> Float[Array, "batch n"]:
        """Log-probabilities of several sequences of each row, under the normaliser of the loss: each row is read once,
        and its sequences are segments of one row that is written.

        Args:
          params: of the network.
          encoder_tokens: what is read; 0 is padding.
          sequences: targets, the token that ends them included; 0 is padding, behind them.
          dropout_rng: None switches dropout off.

        Returns:
          0 of a sequence without tokens.
        """
        batch, n, length = sequences.shape
        first = jnp.zeros_like(sequences[..., :1])
        segments = jnp.where(sequences != 0, jnp.arange(1, n + 1)[:, None], 0)
        rows = {
            "encoder_input_tokens": encoder_tokens,
            "decoder_input_tokens": jnp.concatenate([first, sequences[..., :-1]], axis=-1).reshape(batch, n * length),
            "decoder_segment_ids": segments.reshape(batch, n * length),
        }
        features = self._features(params, rows, dropout_rng)  # --> [batch, n · length, d]
        apart = features.reshape(batch * n, length, -1)  # so that place t is level t
        targets = sequences.reshape(batch * n, length)
        each = {
            "encoder_input_tokens": jnp.repeat(encoder_tokens, n, axis=0),
            "decoder_input_tokens": rows["decoder_input_tokens"].reshape(batch * n, length),
            "decoder_target_tokens": targets,
        }
        (losses,), _ = self._token_losses(params, [apart], each)
        written = jnp.where(targets != 0, losses.log_prob, 0.0)
        return jnp.sum(written, axis=-1).reshape(batch, n)

    def decoder(self, params: Any) -> GenerativeDecoder:
        """The network as beam search takes it."""
        return GenerativeDecoder(self.module, params, self.levels, self.eos_id)

    def predict_batch_with_aux(
        self,
        params: Any,
        batch: Batch,
        rng: Array | None = None,
        decoder_params: Mapping[str, Any] | None = None,
        return_all_decodes: bool = False,
        num_decodes: int = 1,
        prompt_with_targets: bool = False,
    ) -> tuple[Int[Array, "batch ..."], dict[str, Array]]:
        """Beam search under `constraint`, or over free text without one (one beam is then greedy search).

        Args:
          params, batch: the network's, and encoder_input_tokens.
          rng: unused; T5X gives it.
          decoder_params: further arguments of `decoding.beam_search`, e.g. `{"length_penalty": 0.6}`.
          return_all_decodes: all beams, **best last** (T5X's order), instead of the best one.
          num_decodes: beams.
          prompt_with_targets: not supported.

        Returns:
          Tokens `[batch, (beam,) length]` and `{"scores": [batch, (beam)]}`.
        """
        from gr_jax.constraints import Everything
        from gr_jax.decoding import beam_search

        del rng
        if prompt_with_targets:
            raise InputError("targets cannot be a prompt of constrained decoding", "Set prompt_with_targets=False.")
        tokens = batch["encoder_input_tokens"]
        max_len = self.max_decode_length or batch["decoder_input_tokens"].shape[1]
        decoder = self.decoder(params)
        constraint = Everything(self.module.vocab_size, self.eos_id) if self.constraint is None else self.constraint
        free = {"end_within_beams": True} if self.constraint is None else {}
        arguments = {"normalize": self.normalize, **free, **(decoder_params or {})}
        cache = decoder.start(tokens, beams=num_decodes, max_len=max_len)
        found = beam_search(decoder, cache, constraint, beams=num_decodes, max_len=max_len, **arguments)
        if return_all_decodes:
            return found.sequences[:, ::-1], {"scores": found.scores[:, ::-1]}
        return found.sequences[:, 0], {"scores": found.scores[:, 0]}

    def _pass_rngs(self, dropout_rng: Array | None) -> Sequence[Array | None]:
        """One key for each pass over a batch: two for R-Drop."""
        if dropout_rng is None or self.rdrop == 0.0:
            return (dropout_rng,)
        return tuple(jax.random.split(dropout_rng))

    def _metrics(self, params: Any, passes: Sequence[Float[Array, "batch length d"]], batch: Batch) -> dict[str, Any]:
        """Metrics of a batch, of which "loss" is the loss, from its features: those of one pass or of two."""
        targets = batch["decoder_target_tokens"]
        weights = batch.get("decoder_loss_weights")
        weights = (targets != 0 if weights is None else weights).astype(jnp.float32)  # [batch, length]
        of_passes, apart = self._token_losses(params, passes, batch)
        losses = of_passes[0]
        token_loss = sum(one.loss for one in of_passes) / len(passes) + self.rdrop * apart
        loss, weight = jnp.sum(token_loss * weights), jnp.sum(weights)
        correct = losses.correct * weights
        metrics: dict[str, Any] = {
            "loss": (loss, weight),
            "nll": (-jnp.sum(losses.log_prob * weights), weight),
            "z_loss": (jnp.sum(losses.z_loss * weights), weight),
            "accuracy": (jnp.sum(correct), weight),
            "weight_sum": weight,
        }
        positions = _positions(batch)
        for level in range(len(self.levels or ())):
            here = positions == level
            metrics[f"accuracy/level_{level}"] = (jnp.sum(correct * here), jnp.sum(weights * here))
        return metrics

    def _features(self, params: Any, batch: Batch, dropout_rng: Array | None) -> Float[Array, "batch length d"]:
        inputs: dict[str, Any] = _network_inputs(batch)
        result: Any = self.module.apply(
            {"params": params},
            **inputs,
            deterministic=dropout_rng is None,
            rngs=None if dropout_rng is None else {"dropout": dropout_rng},
            method="features",
        )
        return result

    def _table(self, params: Any) -> Table:
        result: Any = self.module.apply({"params": params}, method="output_table")
        return result

    def _logits(self, params: Any, features: Array, batch: Batch) -> Float[Array, "batch length vocab"]:
        """Of one pass. A subclass may add to them from the batch."""
        del batch
        return logits_of(features, self._table(params))

    def _token_losses(
        self, params: Any, passes: Sequence[Float[Array, "batch length d"]], batch: Batch
    ) -> tuple[list[TokenLosses], Float[Array, "batch length"]]:
        """Of each pass; and R-Drop's divergence of two, 0 of one."""
        targets, table = batch["decoder_target_tokens"], self._table(params)
        smoothing = {"label_smoothing": self.label_smoothing, "z_loss": self.z_loss}
        if self.normalize == "level" and self.eos_id is None:
            positions = _positions(batch) if "decoder_segment_ids" in batch else None
            return level_losses(
                passes, table, targets, self.levels or (), positions=positions, logits_of=logits_of, **smoothing
            )
        allowed = None
        if self.normalize == "level":
            allowed = level_mask(self.levels or (), _positions(batch), self.module.vocab_size, self.eos_id)
        logits = [self._logits(params, features, batch) for features in passes]
        losses = [cross_entropy(one, targets, allowed=allowed, **smoothing) for one in logits]
        apart = symmetric_kl(*logits, allowed=allowed) if len(logits) == 2 else jnp.zeros(targets.shape, jnp.float32)
        return losses, apart


def _network_inputs(batch: Batch) -> dict[str, Array]:
    names = (
        "encoder_input_tokens",
        "decoder_input_tokens",
        "encoder_segment_ids",
        "encoder_positions",
        "decoder_segment_ids",
    )
    return {name: batch[name] for name in names if name in batch}


def _positions(batch: Batch) -> Int[Array, "#batch length"]:
    """Position of each target in its own docid."""
    if "decoder_positions" in batch:
        return batch["decoder_positions"]
    return jnp.arange(batch["decoder_target_tokens"].shape[1])[None]
