"""From settings to a late-interaction network with its first parameters."""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Mapping, Sequence
from typing import Any

import gin
import jax
import numpy as np

from gr_jax import models
from gr_jax.corpus import Dataset
from gr_jax.errors import InputError
from gr_jax.stages import contrastive, encoders
from gr_jax.stages.encoders import Encoders
from gr_jax.stages.settings import Settings, fields_of, setting
from gr_jax.systems.colbert.network import (
    TOKEN_WEIGHTS,
    LateInteraction,
    LateInteractionConfig,
    principal_projection,
)
from gr_jax.systems.colbert.token_encoder import TokenEncoder
from gr_jax.text import Vocabulary

# [MASK] and two tokens that no text has, in BERT's uncased vocabulary.
_BERT_UNCASED, _BERT_TOKENS = 30522, (103, 1, 2)
# Documents whose states decide the principal axes, and how many are read at a time.
_SAMPLED, _AT_ONCE = 256, 16
# Ways to start what takes states to vectors, and how many layers each has.
PROJECTIONS = {"random": 1, "principal": 1, "layers": 2, "none": 0}


@dataclasses.dataclass(frozen=True)
class TokenNetwork(Settings):
    """What the network reads of `Interaction`."""

    dimension: int = setting(128, at_least=1)
    projection: str = setting("principal", choices=tuple(PROJECTIONS))
    augmentation: int | None = setting(None, at_least=1)
    markers: bool = False
    skip_punctuation: bool = True
    whole_text: bool = False
    whole_text_weight: float = 1.0
    token_weights: str = setting("uniform", choices=TOKEN_WEIGHTS)
    temperature: float = setting(1.0, above=0)


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class Interaction(TokenNetwork):
    """A late-interaction network around the encoder that `Encoders` names (whose pooling, projection and similarity do
    not count here), and its index.

    Its projection starts as the principal axes of the states, and the paper's markers and [MASK]s, which MiniLM does
    not know, are left out: so it ranks better than MiniLM's one vector a text before any training. For BERT as it was
    pretrained, and days of training, the paper's: `markers = True`, `augmentation = 32`.

    Attributes:
      dimension: of a token's vector.
      projection: what takes states to it starts "random", or as the "principal" axes of the documents' states, with
        which a pretrained encoder keeps what it knows. "layers" are two, with a ReLU between, and start at random.
        "none" leaves states as they are, of the encoder's width, whatever `dimension` says, and of any length.
      augmentation: tokens that queries are filled up to with [MASK], 32 in the paper; None fills nothing. What [MASK]
        is good for takes long training to learn: untrained it does harm.
      markers: put a token before queries and another before documents, as the paper; what a sentence encoder finds
        gets worse by them at first.
      skip_punctuation: no vectors for a document's punctuation.
      whole_text: a vector of the whole text beside those of the tokens.
      whole_text_weight: what it counts at first, where a token counts 1.
      token_weights: "uniform", or "learned" for queries.
      temperature: scores are divided by it in the loss.
      precision: of the index: "float32", "float16" or "int8". In float16 it takes 256 bytes a token of 128 numbers, in
        int8 132.
      first: None ranks all documents, "bm25" those that BM25 finds.
      depth: how many it finds.
    """

    precision: str = setting("float16", choices=("float32", "float16", "int8"))
    first: str | None = setting(None, choices=(None, "bm25"))
    depth: int = setting(100, at_least=1)

    @property
    def network(self) -> TokenNetwork:
        """What training reads; the rest is of the index."""
        return TokenNetwork(**{field.name: getattr(self, field.name) for field in fields_of(TokenNetwork)})


def make_network(
    settings: Encoders, network: TokenNetwork, vocabulary: Vocabulary
) -> tuple[LateInteraction, dict | None]:
    """The network, and the encoder's pretrained parameters (None where it starts from scratch)."""
    config, pretrained = encoders.make_encoders(settings, vocabulary.size + len(_BERT_TOKENS))
    stack = config.encoder
    mask, query_marker, document_marker = _special_tokens(vocabulary, stack.vocab_size, network)
    skipped = set()
    if network.skip_punctuation:
        ids = [vocabulary.encode(symbol) for symbol in string.punctuation]
        skipped = {found[-1] for found in ids if found and found[-1] != vocabulary.unk_id}
    return LateInteraction(
        LateInteractionConfig(
            stack,
            dimension=network.dimension if PROJECTIONS[network.projection] else stack.emb_dim,
            query_length=network.augmentation or 0,
            mask_token=mask,
            query_marker=query_marker if network.markers else None,
            document_marker=document_marker if network.markers else None,
            prefix_length=len(vocabulary.prefix),
            skipped_tokens=tuple(sorted(skipped)),
            whole_text=network.whole_text,
            whole_text_weight=network.whole_text_weight,
            token_weights=network.token_weights,
            temperature=network.temperature,
            projection_layers=PROJECTIONS[network.projection],
        )
    ), pretrained


def _special_tokens(vocabulary: Vocabulary, rows: int, network: TokenNetwork) -> tuple[int, ...]:
    """[MASK], and the markers of queries and documents."""
    if vocabulary.size == _BERT_UNCASED:
        return _BERT_TOKENS
    if rows >= vocabulary.size + len(_BERT_TOKENS):  # rows of the token table that no text uses; T5 has 28
        return tuple(range(vocabulary.size, vocabulary.size + len(_BERT_TOKENS)))
    if network.markers or network.augmentation:
        raise InputError(
            "this encoder's vocabulary has no tokens to spare for markers and [MASK]",
            "Set Interaction.markers = False and Interaction.augmentation = None.",
        )
    return 0, 0, 0


def initial_encoder(
    settings: Encoders, network: TokenNetwork, dataset: Dataset, vocabulary: Vocabulary, seed: int
) -> tuple[TokenEncoder, Mapping[str, Any] | None]:
    """The encoder of texts around a network with its first parameters, and the pretrained ones (None where it starts
    from scratch).

    Args:
      settings, network: what it is.
      dataset: of whose documents the principal axes are.
      seed: of random parameters, and of the documents that are sampled.
    """
    module, pretrained = make_network(settings, network, vocabulary)
    tokens = np.ones((1, 8), np.int32)
    params = jax.jit(module.init)(jax.random.key(seed), tokens, tokens)["params"]
    encoder = TokenEncoder(
        module,
        contrastive.with_pretrained(params, pretrained),
        vocabulary,
        query_length=settings.query_length,
        document_length=settings.document_length,
        transform=dataset.transform,
    )
    if network.projection == "principal":
        sampled = np.random.default_rng(seed).permutation(len(dataset.corpus))[:_SAMPLED]
        texts = [dataset.corpus.contents[number] for number in np.sort(sampled).tolist()]
        encoder = encoder.with_parameters(with_principal_axes(encoder, texts))
    return encoder, pretrained


def with_principal_axes(encoder: TokenEncoder, texts: Sequence[str]) -> dict[str, Any]:
    """The encoder's parameters, its projection turned to the principal axes of the states of these documents' tokens.

    Raises:
      InputError: there are not so many axes.
    """
    config, params = encoder.module.config, dict(encoder.params)
    if config.dimension > config.encoder.emb_dim:
        raise InputError(
            f"an encoder of {config.encoder.emb_dim} numbers has not so many principal axes",
            'Lower Interaction.dimension, or set Interaction.projection = "random".',
            value=config.dimension,
        )
    read = {name: params[name] for name in ("token_embedder", "encoder")}
    apply = jax.jit(models.TextEncoder(config.encoder).apply)
    rows, states = encoder.tokenize(texts, "document"), []
    for start in range(0, len(rows), _AT_ONCE):
        batch = np.zeros((_AT_ONCE, max(map(len, rows))), np.int32)
        for place, row in enumerate(rows[start : start + _AT_ONCE]):
            batch[place, : len(row)] = row
        found: Any = apply({"params": read}, batch)
        states.append(np.asarray(found, np.float32)[batch != 0])
    return params | {"projection": {"kernel": principal_projection(np.concatenate(states), config.dimension)}}
