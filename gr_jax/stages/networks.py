"""From settings to a network with its first parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import gin
import jax
import numpy as np

from gr_jax import docids as docids_lib
from gr_jax import models
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from gr_jax.models import pawa_start
from gr_jax.models.docid_tables import initialise_docid_tables
from gr_jax.retrievers.dense_encoder import DenseEncoder
from gr_jax.stages import pretrained as pretrained_lib
from gr_jax.stages import vocabulary as vocabularies
from gr_jax.stages.settings import Settings, check_heads, setting

# Docid vocabularies are padded to this, so that output tables split evenly over the devices of a mesh.
VOCABULARY_MULTIPLE = 8


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class Network(Settings):
    """The encoder-decoder.

    Attributes:
      encoder: "minilm" (pretrained), "t5" (from scratch, of the sizes below), or a Hugging Face folder of T5 or BERT.
      vocabulary: "pretrained" (the encoder's own), "sentencepiece" (trained on the corpus) or "byte".
      vocabulary_size: of a trained vocabulary.
      decoder: None is a new decoder, of the sizes below. Or a Hugging Face folder of T5, whose decoder's layers it
        starts from, and whose sizes it has; those below then say nothing. What it reads and writes are docid tokens all
        the same, which have tables of their own.
      width: of the decoder, and of a T5 encoder from scratch. A pretrained encoder sets its own.
      encoder_layers, decoder_layers, heads, mlp_width: sizes; `encoder_layers` counts only for "t5".
      dropout: rate.
      query_residual: add the pooled encoding of the query to every decoder feature.
      outputs: docid embeddings and outputs start "random", or from the "centroid" of the documents under each token;
        codes whose codebooks were fitted together (`Identifiers.refits`) from their codewords.
      temperature: of the initialised outputs: logit = cosine / temperature.
      cluster_temperature: the same for tokens that end no docid; higher, so that clusters steer and documents decide.
        Codes of residual quantisation all start with `temperature`: a document is the sum of its codes.
      pawa_layers: of the transformer by which NCI's head changes the output table for every prefix; None has no such
        head.
      pawa_width: numbers that this head makes of a prefix; None makes as many as the decoder is wide, without the layer
        that widens them, as the authors do. With more than there are prefixes, each can have a table of its own.
    """

    encoder: str = setting("minilm", identity=pretrained_lib.identity)
    vocabulary: str = setting("pretrained", choices=vocabularies.KINDS)
    vocabulary_size: int = setting(8000, at_least=1)
    decoder: str | None = setting(None, neutral=None, identity=pretrained_lib.identity)
    width: int = setting(384, at_least=1)
    encoder_layers: int = setting(2, at_least=1)
    decoder_layers: int = setting(2, at_least=1)
    heads: int = setting(6, at_least=1)
    mlp_width: int = setting(1024, at_least=1)
    dropout: float = setting(0.1, at_least=0, below=1)
    query_residual: bool = True
    outputs: str = setting("centroid", choices=("random", "centroid"))
    temperature: float = setting(0.05, above=0)
    cluster_temperature: float = setting(1.0, above=0)
    pawa_layers: int | None = setting(None, at_least=1, neutral=None)
    pawa_width: int | None = setting(None, at_least=1, neutral=None)

    def check(self) -> None:
        check_heads("Network", self.width, self.heads)
        check_decoder("Network", self.encoder, self.decoder)
        vocabularies.check_vocabulary("Network", self)


def check_decoder(settings: str, encoder: str, decoder: str | None) -> None:
    """Raises InputError for a pretrained decoder over an encoder from scratch."""
    if decoder is not None and encoder == "t5":
        raise InputError(
            "a pretrained decoder reads states that an encoder from scratch does not give",
            f"Set {settings}.encoder to a pretrained encoder, or {settings}.decoder to None.",
            value=decoder,
        )


# A stack that reads text, and its parameters.
Pretrained = tuple[models.BertConfig | models.T5Config, Mapping[str, Any]]


def decoder_config(sizes: Any, vocabulary_size: int) -> models.T5Config:
    """A decoder, or an encoder where none is pretrained, of settings that have the fields of `Network` for sizes."""
    return models.T5Config(
        vocab_size=vocabulary_size,
        emb_dim=sizes.width,
        num_heads=sizes.heads,
        head_dim=sizes.width // sizes.heads,
        num_encoder_layers=sizes.encoder_layers,
        num_decoder_layers=sizes.decoder_layers,
        mlp_dim=sizes.mlp_width,
        mlp_activations=("gelu", "linear"),
        dropout_rate=sizes.dropout,
    )


def make_decoder(sizes: Any, vocabulary_size: int) -> tuple[models.T5Config, dict[str, Any]]:
    """The configuration of a decoder, and what it starts from: nothing, or what `pretrained.load_decoder` gives.

    Args:
      sizes: settings that have the fields of `Network` for `decoder` and for sizes.
      vocabulary_size: of what it writes.
    """
    if sizes.decoder is None:
        return decoder_config(sizes, vocabulary_size), {}
    config, params = pretrained_lib.load_decoder(sizes.decoder, sizes.dropout)
    return dataclasses.replace(config, vocab_size=vocabulary_size, logits_via_embedding=False), params


def check_widths(encoder: Any, decoder: models.T5Config, name: str | None) -> None:
    """Raises InputError where a pretrained decoder reads states of another width than its encoder's."""
    if name is not None and encoder.emb_dim != decoder.emb_dim:
        raise InputError(
            f"a pretrained decoder reads states of width {decoder.emb_dim}, the encoder's are {encoder.emb_dim} wide",
            "Name an encoder and a decoder of one width.",
            value=name,
        )


def make_network(
    network: Network,
    vocabulary_size: int,
    docids: Docids,
    start: Pretrained | None = None,
    *,
    query_pooling: str = "mean",
) -> tuple[models.EncoderDecoder, Mapping[str, Any] | None]:
    """The network, and the pretrained parameters of its encoder (None where it starts from scratch). Where its decoder
    is pretrained, these are with them: `decoder`, and `read`, the table of tokens that it was trained to read.

    Args:
      network: settings.
      vocabulary_size: of what is read.
      docids: what is written.
      start: the encoder, where it is not the one that the settings name.
      query_pooling: "mean" or "cls": of the query's vector that decoder features get, as documents' vectors are pooled.
    """
    padded = -(-docids.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    decoder, written = make_decoder(network, padded)
    pretrained: Mapping[str, Any] | None = None
    if start is not None:
        encoder: Any = start[0]
        pretrained = start[1]
    elif network.encoder == "t5":
        encoder = dataclasses.replace(decoder, vocab_size=vocabulary_size)
    else:
        encoder, pretrained = pretrained_lib.load_stack(network.encoder, network.dropout)
    check_widths(encoder, decoder, network.decoder)
    if pretrained is not None:
        pretrained = {name: pretrained[name] for name in ("token_embedder", "encoder")}
        if written:
            pretrained |= {"decoder": written["decoder"], "read": written["token_embedder"]["embedding"]}
    module = models.EncoderDecoder(
        encoder_config=encoder,
        decoder_config=decoder,
        share_embeddings=False,
        query_residual=network.query_residual,
        pawa_layers=network.pawa_layers or 0,
        pawa_width=network.pawa_width or 0,
        query_pooling=query_pooling,
    )
    return module, pretrained


def query_tower(encoder: DenseEncoder, dropout: float) -> Pretrained:
    """Configuration and parameters of a stack that reads queries as this encoder does, as a pretrained one is given.

    Raises:
      InputError: its vectors are more than pooled states.
    """
    config = encoder.config
    if config.projection is not None or config.pooling == "pooler":
        raise InputError(
            "queries' vectors are pooled states here, and this document encoder makes more of them",
            'Set Encoders.projection = None and Encoders.pooling = "mean" or "cls".',
            value=config.projection or config.pooling,
        )
    params = jax.tree.map(np.asarray, dict(encoder.params[config.scope("query")]))
    stack = dataclasses.replace(config.tower("query").config, dropout_rate=dropout)
    return stack, {name: params[name] for name in ("token_embedder", "encoder")}


def initial_parameters(
    module: models.EncoderDecoder,
    network: Network,
    pretrained: Mapping[str, Any] | None,
    docids: Docids,
    vectors: np.ndarray | None,
    seed: int,
    *,
    codebooks: np.ndarray | None = None,
    unit: bool = False,
) -> dict:
    """Random parameters from `seed`, with the pretrained encoder's and the docids' own put in.

    Args:
      module, network, pretrained: of `make_network`.
      docids, vectors: what outputs start from, where they do.
      seed: of the rest.
      codebooks: whose codewords the tokens start from, of docids that are codes; see `stages.docids.load_codewords`.
      unit: scale centroids to length 1: what is written first then is the nearest by angle, however wide a cluster is.

    Raises:
      InputError: the outputs are to start from vectors that are not as wide as the decoder's features.
    """
    tokens = np.ones((1, 8), np.int32)
    params = jax.jit(module.init)(jax.random.key(seed), tokens, tokens)["params"]
    params = jax.tree.map(np.asarray, dict(params))
    for name in ("token_embedder", "encoder"):
        if pretrained is not None:
            params[name] = jax.tree.map(np.asarray, pretrained[name])
    if pretrained is not None and "decoder" in pretrained:
        params = _with_decoder(params, pretrained)
    if network.outputs == "random":
        return params
    assert vectors is not None
    if vectors.shape[1] != module.feature_dim:
        raise InputError(
            f"the document vectors are {vectors.shape[1]} wide, the decoder's features {module.feature_dim}",
            "Set Network.outputs = 'random', or choose an encoder that is as wide as the vectors.",
        )
    additive = docids.scheme == "residual_quantization"
    if codebooks is None:
        table = docids_lib.token_vectors(docids, vectors, additive=additive)
    else:
        table = docids_lib.codeword_vectors(docids, vectors, codebooks)
    if unit:
        table = _unit_rows(table)
    if not additive:  # tokens that never end a docid stand for clusters
        cluster = np.ones(len(table), bool)
        cluster[docids.tokens[np.arange(len(docids)), docids.lengths - 1]] = False
        table[cluster] *= network.temperature / network.cluster_temperature
    table = np.pad(table, ((0, module.vocab_size - len(table)), (0, 0)))
    params = initialise_docid_tables(params, table, network.temperature)
    return params if additive or not module.pawa_layers else _with_head(params, module, network, docids, vectors, unit)


def _with_decoder(params: dict, pretrained: Mapping[str, Any]) -> dict:
    """A pretrained decoder's layers are put in. What they read first is as long as what they were trained to read."""
    rows = params["decoder_token_embedder"]["embedding"]
    return {
        **params,
        "decoder": {**params["decoder"], **jax.tree.map(np.asarray, pretrained["decoder"])},
        "decoder_token_embedder": {"embedding": rows * np.float32(_length(pretrained["read"]) / _length(rows))},
    }


def _length(rows: np.ndarray) -> float:
    """The root of the mean square of rows' lengths."""
    return float(np.sqrt(np.mean(np.sum(np.square(rows, dtype=np.float64), axis=1))))


def _unit_rows(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9)


def _with_head(
    params: dict, module: models.EncoderDecoder, network: Network, docids: Docids, vectors: np.ndarray, unit: bool
) -> dict:
    """NCI's head, too, starts from the centroids: those of the documents under each prefix."""
    nodes = docids_lib.children(docids, vectors)
    scale = np.where(nodes.ends, network.temperature, network.cluster_temperature)[:, None]
    centroids = _unit_rows(nodes.vectors) if unit else nodes.vectors
    missing = centroids / scale - params["decoder"]["logits_dense"]["kernel"].T[nodes.token]
    states = pawa_start.prefix_states(module, params, nodes.prefixes)
    kernel = pawa_start.nearest_kernel(states, nodes.parent, nodes.token, missing, module.vocab_size)
    return {**params, "pawa": {**params["pawa"], "kernel": kernel}}


# Factors on the learning rate where nobody says otherwise, by what a part starts from; see below.
DEFAULT_MULTIPLIERS = {
    "pretrained encoder": {"encoder": 0.05},
    "outputs from centroids": {"decoder/logits_dense": 0.1, "decoder_token_embedder": 0.01, "decoder": 0.01},
    "outputs from codewords": {"decoder/logits_dense": 0.0, "decoder_token_embedder": 0.0, "decoder": 0.0},
    "random outputs": {"decoder/logits_dense": 50.0},
    # A row is shared by all clusters that have its token: what moves it for one moves it for the others.
    "decoder head": {"decoder/logits_dense": 0.01, "decoder_token_embedder": 1e-3, "decoder": 1e-3, "pawa": 1e-4},
}


def learning_rate_multipliers(
    module: models.EncoderDecoder,
    network: Network,
    pretrained: Mapping[str, Any] | None,
    *,
    codewords: bool = False,
) -> dict[str, float]:
    """Which parameters move how much, where nobody says otherwise.

    A pretrained encoder is fine-tuned at a twentieth of the learning rate, its word embeddings and lower half not at
    all. Where docid tokens start from centroids the network retrieves before it is trained, and a decoder that learns
    quickly unlearns that: it and the tokens move slowly. Where they start from `codewords`, whose sums stand for
    documents, they do not move at all, and the question's encoder learns alone. A random output table moves fast, for
    each of its rows gets few examples. (Chosen on a dev split.)
    """
    factors: dict[str, float] = {}
    if pretrained is not None:
        layers = module.encoder_config.num_encoder_layers
        factors["token_embedder"] = 0.0
        factors |= {f"encoder/{name}": 0.0 for name in pretrained["encoder"] if "embed" in name}
        factors |= {f"encoder/layers_{layer}": 0.0 for layer in range(layers // 2)}
        factors |= DEFAULT_MULTIPLIERS["pretrained encoder"]
    if network.outputs == "centroid":
        factors |= DEFAULT_MULTIPLIERS["outputs from codewords" if codewords else "outputs from centroids"]
        if network.pawa_layers:
            factors |= DEFAULT_MULTIPLIERS["decoder head"]
    elif pretrained is not None:
        factors |= DEFAULT_MULTIPLIERS["random outputs"]
    return factors
