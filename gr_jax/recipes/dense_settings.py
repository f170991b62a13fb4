"""What recipes of dense retrieval can be told beside `settings`; every field is part of the stages' keys."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import gin

from gr_jax.errors import InputError
from gr_jax.recipes.settings import Settings, at_least, check_heads, one_of

# Where negatives come from, the hardest first: what one cannot give, those after it give. "model" is the encoder as
# training finds it, "ance" the one that is being trained, "file" is the user's own.
NEGATIVES = ("file", "ance", "model", "bm25", "cluster", "random")


# What training measures on dev: splits and measures.
DEV_SPLITS = ("dev", "dev_unseen", "dev_mean")
DEV_MEASURES = ("Success@1", "Success@10", "RR@10")


def file_digest(file: str) -> str:
    """16 hex digits of a file's bytes; InputError where it cannot be read."""
    try:
        with open(file, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()[:16]
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", "Name a file that can be read.", file=file) from error


@gin.configurable(module="gr_jax.recipes")
@dataclasses.dataclass(frozen=True)
class Encoders(Settings):
    """The encoders of queries and documents.

    Attributes:
      encoder: "minilm" (pretrained), "t5" (from scratch, of the sizes below), or a Hugging Face folder of T5 or BERT.
      vocabulary: "pretrained" (the encoder's own), "sentencepiece" (trained on the corpus) or "byte".
      vocabulary_size: of a trained vocabulary.
      shared: one tower reads queries and documents; else two that start from the same parameters.
      pooling: of token states: "mean", "cls" or "pooler".
      projection: width that vectors are projected to by two layers; 0 leaves them as they are pooled.
      similarity: "cosine", "dot" or "tanh".
      temperature: similarities are divided by it in the loss.
      query_length, document_length: tokens read of each.
      query_prefix, document_prefix: words put before each.
      dropout: rate.
      width, layers, heads, mlp_width: sizes of an encoder from scratch.
      pretrained_layers: of a pretrained BERT only so many are used, the first ones; 0 leaves its input embeddings.
        None: all.
    """

    encoder: str = "minilm"
    vocabulary: str = "pretrained"
    vocabulary_size: int = 8000
    shared: bool = True
    pooling: str = "mean"
    projection: int = 0
    similarity: str = "cosine"
    temperature: float = 0.05
    query_length: int = 48
    document_length: int = 128
    query_prefix: str = ""
    document_prefix: str = ""
    dropout: float = 0.1
    width: int = 384
    layers: int = 2
    heads: int = 6
    mlp_width: int = 1024
    pretrained_layers: int | None = None

    def as_config(self) -> dict[str, Any]:
        """Without the choice of layers where all are read, as before there was one."""
        config = dataclasses.asdict(self)
        if self.pretrained_layers is None:
            del config["pretrained_layers"]
        return config

    def __post_init__(self):
        one_of("Encoders.vocabulary", self.vocabulary, "pretrained", "sentencepiece", "byte")
        one_of("Encoders.pooling", self.pooling, "mean", "cls", "pooler")
        one_of("Encoders.similarity", self.similarity, "cosine", "dot", "tanh")
        at_least(0, projection=self.projection)
        at_least(1, width=self.width, heads=self.heads, layers=self.layers, mlp_width=self.mlp_width)
        at_least(0, pretrained_layers=self.pretrained_layers or 0)
        check_heads("Encoders", self.width, self.heads)
        if not self.temperature > 0:
            raise InputError("Encoders.temperature is not positive", "Set it to 0.05.", value=self.temperature)


@gin.configurable(module="gr_jax.recipes")
@dataclasses.dataclass(frozen=True)
class Mining(Settings):
    """Hard negatives: which documents a query is shown as wrong ones, beside its batch's.

    Attributes:
      shares: kind → share of a query's negatives. "bm25": found by BM25; "model": found by the encoder before it is
        trained; "ance": found by the encoder that is being trained; "cluster": of the answer's own cluster of vectors;
        "random"; "file": named by `file`. Where one has too few for a query, those after it in this order give more:
        file, ance, model, bm25, cluster, random.
      kept: negatives kept of each kind for a query, of which training draws some.
      skip: first ranks that bm25, model and ance pass over: near the top unjudged documents may well be answers.
      clusters: of documents, for the kind "cluster"; 0 makes one of 20 documents on average. GDR has its own.
      refresh_every: steps after which "ance" negatives are mined again, while training goes on.
      seed: of the choice and the clusters.
      file: of negatives of the train split's queries, see `training.negative_files`; what it holds is in the key. A
        teacher's scores in it, of the answer too, are used where it is the only kind: `ContrastiveTraining.margin_mse`.
    """

    shares: Mapping[str, float] = dataclasses.field(default_factory=lambda: {"bm25": 0.5, "model": 0.5})
    kept: int = 16
    skip: int = 0
    clusters: int = 0
    refresh_every: int = 0
    seed: int = 0
    file: str = ""

    def __post_init__(self):
        unknown = sorted(set(self.shares) - set(NEGATIVES))
        if unknown or min(self.shares.values(), default=0) < 0:
            raise InputError(
                "Mining.shares are not shares of kinds of negatives",
                f"Give numbers of 0 or more for {', '.join(NEGATIVES)}.",
                value=dict(self.shares),
            )
        at_least(0, skip=self.skip, clusters=self.clusters, refresh_every=self.refresh_every)
        at_least(1, kept=self.kept)
        if bool(self.shares.get("ance")) != bool(self.refresh_every):
            raise InputError(
                'negatives of the kind "ance" are mined every so many steps, and no others are',
                'Set both Mining.shares["ance"] and Mining.refresh_every, or neither.',
                value=self.refresh_every,
            )

        if ("file" in self.shares) != bool(self.file):
            raise InputError(
                'negatives of the kind "file" are read from a file, and no others are',
                'Set both Mining.shares["file"] and Mining.file, or neither.',
                value=self.file,
            )

    def as_config(self) -> dict[str, Any]:
        """With the digest of the file instead of its name; without one, what the settings were before there were files.

        Raises:
          InputError: it cannot be read.
        """
        config = dataclasses.asdict(self)
        if config.pop("file"):
            config["file"] = file_digest(self.file)
        return config

    @property
    def mined_before(self) -> tuple[str, ...]:
        """The kinds that are known before training."""
        return tuple(kind for kind in NEGATIVES if kind in self.shares and kind != "ance")


@gin.configurable(module="gr_jax.recipes")
@dataclasses.dataclass(frozen=True)
class ContrastiveTraining(Settings):
    """How encoders are trained.

    Attributes:
      steps: updates; 0 leaves the encoders as they were.
      batch_size: queries an update; the other queries' documents are negatives too.
      negatives: hard negatives of each query in a batch.
      document_length: tokens read of a document in training and on dev; 0 as many as the index reads. Time grows with
        it, and most of what a shorter one teaches holds for longer texts too.
      rates: share of each kind of query: "query" (of the train split), "pseudo".
      margin_mse, teacher_kl: weights of the losses of these names, beside the contrastive one: what a teacher gave each
        query's documents, in `Mining.file` as the only kind of negatives, is learnt too.
      chunks: parts that a batch is computed in by gradient caching, with the same gradients; saves memory.
      held_out: share of the documents with training questions whose questions are kept back: retrieval of these is
        measured as dev_unseen, for a dev split may ask for documents alone that training asked for too. Without a dev
        split they stand for it.
      optimizer, learning_rate, warmup_steps, schedule, weight_decay, clip: of the optimiser.
      multipliers: regular expression on a parameter's path → factor on the learning rate; 0 freezes. None: of a
        pretrained encoder, word embeddings and the lower half are frozen.
      evaluate_every: steps between retrievals on dev; 0 only at the end.
      dev_queries: how many queries they use, of dev and of what is held out.
      dev_documents: documents they search where these are encoded anew each time: the queries' answers and others
        chosen at random; 0 all.
      keep_best: the measure that chooses the parameters to keep, of "dev/…", "dev_unseen/…" or their mean "dev_mean/…";
        "" keeps the last.
      patience: evaluations without improvement after which training stops; 0 never stops.
      checkpoint_every: steps between checkpoints.
      mesh: (data, model) devices; (0, 1) puts every device on data.
      seed: of initialisation, shuffling and dropout.
    """

    steps: int = 1000
    batch_size: int = 32
    negatives: int = 1
    document_length: int = 0
    rates: Mapping[str, float] = dataclasses.field(default_factory=lambda: {"query": 0.5, "pseudo": 0.5})
    margin_mse: float = 0.0
    teacher_kl: float = 0.0
    chunks: int = 1
    held_out: float = 0.0
    optimizer: str = "adamw"
    learning_rate: float = 5e-5
    warmup_steps: int = 50
    schedule: str = "linear"
    weight_decay: float = 0.01
    clip: float = 1.0
    multipliers: Mapping[str, float] | None = None
    evaluate_every: int = 250
    dev_queries: int = 400
    dev_documents: int = 0
    keep_best: str = "dev/RR@10"
    patience: int = 0
    checkpoint_every: int = 250
    mesh: tuple[int, int] = (0, 1)
    seed: int = 0

    def as_config(self) -> dict[str, Any]:
        """Without the losses that do not count, as before there were any."""
        config = dataclasses.asdict(self)
        for name in ("margin_mse", "teacher_kl"):
            if not config[name]:
                del config[name]
        return config

    def __post_init__(self):
        for name in ("margin_mse", "teacher_kl"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"ContrastiveTraining.{name} is below 0", "Set it to 0.", value=getattr(self, name))
        one_of("ContrastiveTraining.optimizer", self.optimizer, "adamw", "adafactor")
        one_of("ContrastiveTraining.schedule", self.schedule, "constant", "linear", "rsqrt")
        if not set(self.rates) <= {"query", "pseudo"} or not any(self.rates.values()) or min(self.rates.values()) < 0:
            raise InputError(
                "ContrastiveTraining.rates are not shares of kinds of queries",
                "Give numbers of 0 or more for query, pseudo, not all 0.",
                value=dict(self.rates),
            )
        known = [f"{split}/{measure}" for split in DEV_SPLITS for measure in DEV_MEASURES]
        one_of("ContrastiveTraining.keep_best", self.keep_best, "", *known)
        if self.keep_best.startswith("dev_unseen") and not self.held_out:
            raise InputError(
                "ContrastiveTraining.keep_best is of queries that are held out, and none are",
                'Set ContrastiveTraining.held_out = 0.05, or keep_best = "dev/RR@10".',
                value=self.keep_best,
            )
        if not 0 <= self.held_out < 1:
            raise InputError("ContrastiveTraining.held_out is no share", "Set it to 0.1.", value=self.held_out)
        at_least(0, steps=self.steps, warmup_steps=self.warmup_steps, negatives=self.negatives)
        at_least(0, document_length=self.document_length, dev_queries=self.dev_queries, patience=self.patience)
        at_least(0, evaluate_every=self.evaluate_every, checkpoint_every=self.checkpoint_every)
        at_least(0, dev_documents=self.dev_documents)
        at_least(1, batch_size=self.batch_size, chunks=self.chunks)

    def taught(self, encoders: Encoders) -> Encoders:
        """The encoders' settings while they are trained."""
        return dataclasses.replace(encoders, document_length=self.document_length or encoders.document_length)


@gin.configurable(module="gr_jax.recipes")
@dataclasses.dataclass(frozen=True)
class Search(Settings):
    """How the index searches its vectors.

    Attributes:
      searcher: "exact", "scann", "clustered", or "auto": by what is installed and how many documents there are.
      settings: of the searcher.
      most_sentences: of a document that get a vector of their own beside the document's; it is found by the best of
        them. 0: one vector a document.
      hybrid: put a combination with BM25, weighted on dev, into the results, and save it as `hybrid/index`.
    """

    searcher: str = "exact"
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    most_sentences: int = 0
    hybrid: bool = True

    def __post_init__(self):
        one_of("Search.searcher", self.searcher, "auto", "exact", "scann", "clustered")
        at_least(0, most_sentences=self.most_sentences)


@gin.configurable(module="gr_jax.recipes")
@dataclasses.dataclass(frozen=True)
class Lexical(Settings):
    """BM25, which stands beside every system.

    Attributes:
      k1, b: of BM25.
      analyzer: "english", or "character_bigrams" for languages written without spaces.
    """

    k1: float = 0.9
    b: float = 0.4
    analyzer: str = "english"

    @property
    def as_by_default(self) -> bool:
        """Whether this is BM25 as it is where nobody, nor gin, says otherwise."""
        return all(getattr(self, field.name) == field.default for field in dataclasses.fields(self))
