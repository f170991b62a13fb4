"""What a recipe can be told, one dataclass per part, each a gin configurable.

Every field changes the result, so every field is part of the content key of the stages that read it.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import gin

from gr_jax import storage
from gr_jax.errors import InputError
from gr_jax.training.features import SOURCES

# Docid schemes, and the fields of `Identifiers` that each reads.
SCHEMES = {
    "hierarchical_kmeans": ("branching", "leaf_capacity", "tokens", "seed"),
    "residual_quantization": ("codebooks", "bits", "duplicates", "seed"),
    "titles": ("duplicates", "title_tokens"),
    "atomic": (),
    "naive_numeric": (),
}


class Settings:
    """Base of the dataclasses below: settings as JSON values, for keys and manifests."""

    def as_config(self) -> dict[str, Any]:
        return dataclasses.asdict(self)  # type: ignore[call-overload]


def one_of(name: str, value: str, *choices: str) -> None:
    if value not in choices:
        raise InputError(f"{name} is not a known choice", f"Choose one of: {', '.join(choices)}.", value=value)


def at_least(lowest: int, **values: int) -> None:
    """Whole numbers; what cannot work is said before the minutes that the stages before it take."""
    for name, value in values.items():
        if not isinstance(value, numbers.Integral):
            raise InputError(f"{name} is no whole number", f"Set it to {lowest} or more.", value=value)
        if value < lowest:
            raise InputError(f"{name} is too small", f"Set it to {lowest} or more.", value=value)


def check_heads(settings: str, width: int, heads: int) -> None:
    """Each head gets an equal part of the width."""
    if width % heads:
        raise InputError(
            f"{settings}.width is not a multiple of {settings}.heads",
            f"With {heads} heads, {width // heads * heads + heads} is one.",
            value=width,
        )


@gin.configurable(module="gr_jax.recipes")
@dataclasses.dataclass(frozen=True)
class Vectors(Settings):
    """The document vectors that the identifiers are made from.

    Attributes:
      encoder: "minilm" (the packaged all-MiniLM-L6-v2), "lsa" (no pretrained weights needed), "auto" (minilm where it
        is installed, else lsa), or a Hugging Face folder of a BERT sentence encoder.
      max_length: tokens read of each document.
      passages: "document": one vector, and so one docid, for each document. "sentences": one more for each of its
        first sentences; a document is found by the best of its docids.
      most_sentences: of a document that get a docid.
    """

    encoder: str = "auto"
    max_length: int = 128
    passages: str = "document"
    most_sentences: int = 12

    def __post_init__(self):
        one_of("Vectors.passages", self.passages, "document", "sentences")


@gin.configurable(module="gr_jax.recipes")
@dataclasses.dataclass(frozen=True)
class Identifiers(Settings):
    """The docid scheme. What another scheme reads changes nothing.

    Attributes:
      scheme: "hierarchical_kmeans", "residual_quantization", "titles", "atomic" or "naive_numeric".
      branching: children of a node of the tree; or a list, of the nodes of each level.
      leaf_capacity: a node splits while it holds more documents than this.
      tokens: "position" (a token per level and child number, shared by all nodes of a level) or "node" (each node of
        the tree has a token of its own).
      seed: of the clustering, or of the codebooks.
      codebooks, bits: of residual quantisation: so many tokens, each one of 2^bits codes.
      duplicates: of documents with the same codes or the same title: "number" tells them apart, "share" gives them one
        docid.
      title_tokens: tokens kept of a title; they are of the vocabulary that the network reads.
    """

    scheme: str = "hierarchical_kmeans"
    branching: int | Sequence[int] = 64
    leaf_capacity: int = 1000
    tokens: str = "node"
    seed: int = 0
    codebooks: int = 3
    bits: int = 8
    duplicates: str = "number"
    title_tokens: int = 24

    def __post_init__(self):
        one_of("Identifiers.scheme", self.scheme, *SCHEMES)
        one_of("Identifiers.tokens", self.tokens, "position", "node")
        one_of("Identifiers.duplicates", self.duplicates, "number", "share")
        at_least(1, codebooks=self.codebooks, bits=self.bits, title_tokens=self.title_tokens)

    def of_scheme(self) -> dict[str, Any]:
        """What the chosen scheme reads, as JSON values."""
        return {"scheme": self.scheme} | {name: getattr(self, name) for name in SCHEMES[self.scheme]}

    @property
    def reads_vectors(self) -> bool:
        """Whether docids are made from the documents' vectors."""
        return self.scheme in ("hierarchical_kmeans", "residual_quantization")

    @property
    def has_levels(self) -> bool:
        """Whether every position of a docid has a block of tokens of its own."""
        return self.scheme not in ("naive_numeric", "titles")


@gin.configurable(module="gr_jax.recipes")
@dataclasses.dataclass(frozen=True)
class PseudoQueries(Settings):
    """Queries made from the documents themselves.

    Attributes:
      kinds: how many of each kind ("span", "sentence", "title", "cloze", "generated") a document gets.
      seed: of the choice.
      generated: folder of the table that queries of the kind "generated" are taken from: `generated/pseudo_queries` in
        the MODEL_DIR of `bm25_doct5query`.
    """

    kinds: Mapping[str, int] = dataclasses.field(
        default_factory=lambda: {"title": 1, "sentence": 6, "span": 6, "cloze": 12}
    )
    seed: int = 0
    generated: str = ""

    def as_config(self) -> dict[str, Any]:
        """With what the table holds instead of where it lies; without one, what the settings were before there were
        tables."""
        config = dataclasses.asdict(self)
        table = config.pop("generated")
        if table:
            files = storage.read_folder(table, "pseudo_queries").files
            config["generated"] = {name: entry["sha256"][:16] for name, entry in sorted(files.items())}
        return config

    def summary(self) -> str:
        """How many of which kind, for reports."""
        return ", ".join(f"{count} {kind}" for kind, count in self.kinds.items()) or "none"


@gin.configurable(module="gr_jax.recipes")
@dataclasses.dataclass(frozen=True)
class Network(Settings):
    """The encoder-decoder.

    Attributes:
      encoder: "minilm" (pretrained), "t5" (from scratch, of the sizes below), or a Hugging Face folder of T5 or BERT.
      vocabulary: "pretrained" (the encoder's own), "sentencepiece" (trained on the corpus) or "byte".
      vocabulary_size: of a trained vocabulary.
      width: of the decoder, and of a T5 encoder from scratch. A pretrained encoder sets its own.
      encoder_layers, decoder_layers, heads, mlp_width: sizes; `encoder_layers` counts only for "t5".
      dropout: rate.
      query_residual: add the pooled encoding of the query to every decoder feature.
      outputs: docid embeddings and outputs start "random", or from the "centroid" of the documents under each token.
      temperature: of the initialised outputs: logit = cosine / temperature.
      cluster_temperature: the same for tokens that end no docid; higher, so that clusters steer and documents decide.
        Codes of residual quantisation all start with `temperature`: a document is the sum of its codes.
      pawa_layers: of the transformer by which NCI's head changes the output table for every prefix; 0 has no such head.
    """

    encoder: str = "minilm"
    vocabulary: str = "pretrained"
    vocabulary_size: int = 8000
    width: int = 384
    encoder_layers: int = 2
    decoder_layers: int = 2
    heads: int = 6
    mlp_width: int = 1024
    dropout: float = 0.1
    query_residual: bool = True
    outputs: str = "centroid"
    temperature: float = 0.05
    cluster_temperature: float = 1.0
    pawa_layers: int = 0

    def as_config(self) -> dict[str, Any]:
        """Without the head that there is not, as before there were any."""
        config = dataclasses.asdict(self)
        if not self.pawa_layers:
            del config["pawa_layers"]
        return config

    def __post_init__(self):
        one_of("Network.vocabulary", self.vocabulary, "pretrained", "sentencepiece", "byte")
        one_of("Network.outputs", self.outputs, "random", "centroid")
        at_least(1, width=self.width, heads=self.heads, decoder_layers=self.decoder_layers, mlp_width=self.mlp_width)
        at_least(0, pawa_layers=self.pawa_layers)
        check_heads("Network", self.width, self.heads)


@gin.configurable(module="gr_jax.recipes")
@dataclasses.dataclass(frozen=True)
class Training(Settings):
    """How the network is trained.

    Attributes:
      steps: updates; 0 leaves the network as it was initialised.
      batch_size: rows of packed examples an update; a row holds several short examples.
      row_length, row_targets: tokens of a row that are read and written.
      max_input_length: tokens of a query, document or pseudo-query; at most `row_length`.
      document_words: words of a document that an indexing example reads.
      rates: share of each kind of example: "query", "document", "pseudo".
      optimizer: "adamw" or "adafactor".
      learning_rate, warmup_steps, schedule, weight_decay, clip: of the optimiser.
      multipliers: regular expression on a parameter's path → factor on the learning rate; 0 freezes. None: what is
        pretrained moves a little and its lower half not at all, a random output table moves a lot.
      normalize: the softmax of the loss: over the whole "vocabulary" or the "level" of the docid.
      label_smoothing: share of the target given to the other tokens.
      rdrop: weight of the symmetric KL between two passes with dropout (NCI's, .15 there); 0 makes one pass.
      microbatches: parts that a batch is computed in, one after the other.
      evaluate_every: steps between retrievals on dev; 0 only at the end.
      dev_queries: how many of the dev queries they use.
      keep_best: the measure that chooses the parameters to keep; "" keeps the last.
      patience: evaluations without improvement after which training stops; 0 never stops.
      checkpoint_every: steps between checkpoints.
      mesh: (data, model) devices; (0, 1) puts every device on data.
      seed: of initialisation, shuffling and dropout.
    """

    steps: int = 1000
    batch_size: int = 16
    row_length: int = 64
    row_targets: int = 32
    max_input_length: int = 48
    document_words: int = 64
    rates: Mapping[str, float] = dataclasses.field(
        default_factory=lambda: {"query": 0.6, "document": 0.03, "pseudo": 0.37}
    )
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    warmup_steps: int = 30
    schedule: str = "linear"
    weight_decay: float = 0.0
    clip: float = 1.0
    multipliers: Mapping[str, float] | None = None
    normalize: str = "level"
    label_smoothing: float = 0.0
    rdrop: float = 0.0
    microbatches: int = 1
    evaluate_every: int = 100
    dev_queries: int = 400
    keep_best: str = "dev/RR@10"
    patience: int = 0
    checkpoint_every: int = 200
    mesh: tuple[int, int] = (0, 1)
    seed: int = 0

    def as_config(self) -> dict[str, Any]:
        """Without what is switched off, as before there was any."""
        config = dataclasses.asdict(self)
        if not self.rdrop:
            del config["rdrop"]
        return config

    def __post_init__(self):
        one_of("Training.optimizer", self.optimizer, "adamw", "adafactor")
        one_of("Training.normalize", self.normalize, "vocabulary", "level")
        one_of("Training.schedule", self.schedule, "constant", "linear", "rsqrt")
        if not set(self.rates) <= set(SOURCES) or not any(self.rates.values()) or min(self.rates.values()) < 0:
            raise InputError(
                "Training.rates are not shares of kinds of examples",
                f"Give numbers of 0 or more for {', '.join(SOURCES)}, not all 0.",
                value=dict(self.rates),
            )
        at_least(0, steps=self.steps, warmup_steps=self.warmup_steps)
        at_least(1, batch_size=self.batch_size, microbatches=self.microbatches)
        if self.schedule == "linear" and 0 < self.steps <= self.warmup_steps:
            raise InputError(
                f"Training.warmup_steps leaves none of the {self.steps} steps",
                "Set Training.warmup_steps below Training.steps.",
                value=self.warmup_steps,
            )


@gin.configurable(module="gr_jax.recipes")
@dataclasses.dataclass(frozen=True)
class Decoding(Settings):
    """How the index answers.

    Attributes:
      beams: hypotheses kept; at least the widest level of the docids makes the search exhaustive.
      normalize: scores are log-probabilities over the "vocabulary", the "level" or the "constraint" (the tokens that
        may follow).
      max_query_length: tokens read of a query.
    """

    beams: int = 100
    normalize: str = "level"
    max_query_length: int = 64

    def __post_init__(self):
        one_of("Decoding.normalize", self.normalize, "vocabulary", "level", "constraint")
        at_least(1, beams=self.beams)
