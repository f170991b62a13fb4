"""From settings to a network that copies, with its first parameters; and the states of sources that never change."""

from __future__ import annotations

import collections
import dataclasses
import functools
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Int, Int32

from gr_jax import models, storage
from gr_jax import progress as progress_lib
from gr_jax.errors import InputError
from gr_jax.models.copy_network import CopyNetwork
from gr_jax.stages import pretrained as pretrained_lib
from gr_jax.stages import vocabulary as vocabularies
from gr_jax.stages.networks import check_decoder, check_widths, make_decoder
from gr_jax.stages.settings import check_heads, setting
from gr_jax.stages.training import Optimization

_STATES = "document_states"
# Sources are padded to multiples of this; each length is compiled once.
_LENGTH_STEP = 32


@dataclasses.dataclass(frozen=True)
class CopyTraining(Optimization):
    """A network that copies and its training; and all that `Optimization` has.

    Attributes:
      encoder: "minilm" (pretrained), "t5" (from scratch, of the sizes below), or a Hugging Face folder of T5 or BERT.
      vocabulary, vocabulary_size: see `Network`.
      decoder, width, encoder_layers, decoder_layers, heads, mlp_width, dropout: see `Network`. A pretrained decoder
        reads the rows of its encoder's token table at first.
      frozen: a pretrained encoder stays as it is, so that what it reads is computed once. False trains it, too.
      words: tokens that can be written without being copied: those that are written most often.
      query_tokens: of a query.
      row_targets: tokens of what is written to one source in an update.
    """

    encoder: str = setting("minilm", identity=pretrained_lib.identity)
    vocabulary: str = setting("pretrained", choices=vocabularies.KINDS)
    vocabulary_size: int = setting(8000, at_least=1)
    decoder: str | None = setting(None, neutral=None, identity=pretrained_lib.identity)
    frozen: bool = setting(True, neutral=True)
    width: int = setting(384, at_least=1)
    encoder_layers: int = setting(2, at_least=1)
    decoder_layers: int = setting(2, at_least=1)
    heads: int = setting(6, at_least=1)
    mlp_width: int = setting(1024, at_least=1)
    dropout: float = setting(0.1, at_least=0, below=1)
    words: int = setting(2048, at_least=2)
    query_tokens: int = setting(24, at_least=2)
    row_targets: int = 96

    def check(self) -> None:
        super().check()
        check_heads(type(self).__name__, self.width, self.heads)
        check_decoder(type(self).__name__, self.encoder, self.decoder)
        if self.multipliers is not None and self.keeps_encoder:
            raise InputError(
                "a pretrained encoder stays as it is here, which is all that multipliers say",
                f"Leave {type(self).__name__}.multipliers out, or set {type(self).__name__}.frozen to False.",
                value=dict(self.multipliers),
            )
        vocabularies.check_vocabulary(type(self).__name__, self)

    @property
    def keeps_encoder(self) -> bool:
        """Whether the encoder stays as it is."""
        return self.frozen and self.encoder != "t5"


def frequent_words(targets: Iterable[Sequence[int]], most: int, eos_id: int | None = None) -> list[int]:
    """The tokens that targets are most often made of, the end first where there is one."""
    counts = collections.Counter(token for target in targets for token in target)
    if eos_id is not None:
        counts.pop(eos_id, None)
    ordered = sorted(counts, key=lambda token: (-counts[token], token))
    return ordered[:most] if eos_id is None else [eos_id, *ordered[: most - 1]]


def make_network(
    settings: CopyTraining, vocabulary_size: int, words: Sequence[int], *, counted: bool = False
) -> tuple[CopyNetwork, dict, bool]:
    """The network, its first parameters, and whether its encoder stays as it is."""
    encoder, pretrained, decoder, written = stacks(settings, vocabulary_size)
    made = initial(encoder, pretrained, words, decoder, settings.seed, counted=counted, written=written)
    return *made, settings.keeps_encoder


def stacks(settings: CopyTraining, vocabulary_size: int) -> tuple[Any, Any, models.T5Config, dict[str, Any]]:
    """The configuration of the encoder and its pretrained parameters, None where it starts from scratch; and those of
    the decoder, see `networks.make_decoder`."""
    decoder, written = make_decoder(settings, vocabulary_size)
    if settings.encoder == "t5":
        return decoder, None, decoder, written
    encoder, pretrained = pretrained_lib.load_stack(settings.encoder, settings.dropout)
    check_widths(encoder, decoder, settings.decoder)
    return encoder, pretrained, decoder, written


def initial(
    encoder: Any,
    pretrained: Mapping[str, Any] | None,
    words: Sequence[int],
    decoder: models.T5Config,
    seed: int,
    *,
    counted: bool = False,
    written: Mapping[str, Any] | None = None,
) -> tuple[CopyNetwork, dict]:
    """The network with its first parameters: random ones, or a pretrained encoder, of whose token table the output
    table starts.

    Args:
      written: what a pretrained decoder starts from, see `networks.make_decoder`. It then reads the encoder's token
        table as it is, and writes its own, at the scale of T5's tied logits.
    """
    module = CopyNetwork(encoder, decoder, len(words), counted)
    tokens = np.ones((1, 8), np.int32)
    params = jax.tree.map(np.asarray, dict(jax.jit(module.init)(jax.random.key(seed), tokens, tokens)["params"]))
    if pretrained is not None:
        for name in ("token_embedder", "encoder"):
            params[name] = jax.tree.map(np.asarray, pretrained[name])
        if encoder.emb_dim == decoder.emb_dim:
            table = np.asarray(pretrained["token_embedder"]["embedding"])
            params["words"] = {"kernel": np.ascontiguousarray(table[np.asarray(words)].T)}
    if written:
        width = decoder.emb_dim
        params["decoder"] = jax.tree.map(np.asarray, dict(written["decoder"]))
        params["input_dense"] = {"kernel": np.eye(width, dtype=np.float32)}
        rows = np.asarray(written["token_embedder"]["embedding"])[np.asarray(words)]
        params["words"] = {"kernel": np.ascontiguousarray(rows.T) * np.float32(width**-0.5)}
    return module, params


def encode_sources(
    module: CopyNetwork,
    params: Any,
    tokens: Int32[np.ndarray, "n source"],
    folder: pathlib.Path,
    *,
    batch_size: int = 32,
    rows: Int[np.ndarray, " m"] | None = None,
    what: str = "documents",
    progress: bool = False,
) -> np.ndarray:
    """float16 [n, source, e], memory-mapped: states of a frozen encoder, computed once instead of at every step.

    Args:
      rows: the sources that are needed; all others stay 0. None: all.
      what: the bar calls the sources so.
    """
    if not storage.is_complete(folder, _STATES, ""):
        encode = jax.jit(functools.partial(module.apply, method="encode"))
        shape = (*tokens.shape, module.encoder_config.emb_dim)
        needed = np.arange(len(tokens)) if rows is None else rows
        order = needed[np.argsort((tokens[needed] != 0).sum(axis=1), kind="stable")]
        with (
            storage.write_folder(folder, _STATES) as new,
            progress_lib.bar(f"Encoding {what}", len(order), enabled=progress) as bar,
        ):
            states = storage.new_array(new / "states.npy", np.float16, shape)
            for start in range(0, len(order), batch_size):
                chosen = order[start : start + batch_size]
                batch = np.zeros((batch_size, padded_length(tokens[chosen])), np.int32)
                batch[: len(chosen)] = tokens[chosen, : batch.shape[1]]
                states[chosen, : batch.shape[1]] = np.asarray(encode({"params": params}, batch))[: len(chosen)]
                bar.advance(len(chosen))
            states.flush()
    return storage.load_array(folder / "states.npy", mmap=True)


def padded_length(tokens: np.ndarray) -> int:
    """The length that a batch of sources is cut to."""
    longest = int((tokens != 0).sum(axis=1).max(initial=1))
    return min(-(-longest // _LENGTH_STEP) * _LENGTH_STEP, tokens.shape[1])
