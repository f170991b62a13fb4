"""What settings of GDR contradict one another, said before anything is made."""

from __future__ import annotations

from gr_jax import evaluation
from gr_jax.errors import InputError
from gr_jax.recipes import mining
from gr_jax.recipes.dense_settings import ContrastiveTraining, Encoders, Mining
from gr_jax.recipes.gdr_settings import ClusterSearch, Matching
from gr_jax.recipes.settings import Network


def check(
    encoders: Encoders,
    encoder_training: ContrastiveTraining | None,
    network: Network,
    matching: Matching,
    mined: Mining,
    training: ContrastiveTraining,
    joint: ContrastiveTraining,
    search: ClusterSearch,
) -> None:
    """Raises InputError with what would be right. `encoder_training` is None where an encoder is taken from a run."""
    mining.check_refreshing(mined, training)
    if len(evaluation.parse_measures(search.measure)) != 1:
        raise InputError("several measures to choose by", 'Set ClusterSearch.measure = "RR@10".', value=search.measure)
    check_query_encoder(encoders, matching.start)
    if encoder_training is not None:
        check_held_out(encoder_training, training if training.steps else joint)
    if network.encoder == "t5" and matching.start == "pretrained" and not training.steps + joint.steps:
        raise InputError(
            "an encoder from scratch that is not trained gives no vectors that mean anything",
            'Set Matching.start = "document_encoder", or ContrastiveTraining.steps.',
        )
    if matching.similarity == "cosine" != encoders.similarity:
        raise InputError(
            "cosines are wanted, and documents get vectors of any length",
            'Set Encoders.similarity = "cosine", or Matching.similarity = "dot" or "tanh".',
            value=encoders.similarity,
        )
    for stage in (training, joint):
        if stage.margin_mse or stage.teacher_kl:
            raise InputError(
                "GDR learns nothing from a teacher's scores",
                "Set margin_mse and teacher_kl of ContrastiveTraining to 0.",
                value=(stage.margin_mse, stage.teacher_kl),
            )
    if not joint.steps:
        return
    if mined.refresh_every:
        raise InputError(
            "negatives are mined again while documents' vectors stay as they are, not in the joint training",
            "Set joint/ContrastiveTraining.steps = 0, or Mining.refresh_every = 0 and other Mining.shares.",
            value=mined.refresh_every,
        )
    for name in ("document_length", "held_out", "seed"):  # of the examples, which both read
        if training.steps and getattr(joint, name) != getattr(training, name):
            raise InputError(
                f"joint/ContrastiveTraining.{name} differs from the first stage's, whose examples it reads",
                f"Set both to {getattr(training, name)}.",
                value=getattr(joint, name),
            )


def check_held_out(encoder_training: ContrastiveTraining, training: ContrastiveTraining) -> None:
    """Raises InputError where questions that the network holds out are those that its document encoder learns from:
    which they are follows from their share and the seed."""
    if not (encoder_training.steps and training.steps and training.held_out):
        return
    for name in ("held_out", "seed"):
        own, its = getattr(training, name), getattr(encoder_training, name)
        if own != its:
            raise InputError(
                f"the document encoder's training holds out other questions: its {name} is {its}",
                f"Set document_encoder/ContrastiveTraining.{name} = {own}, or ContrastiveTraining.held_out = 0.",
                value=own,
            )


def check_query_encoder(encoders: Encoders, start: str) -> None:
    """Raises InputError for encoders whose queries another network cannot read."""
    if encoders.query_prefix:
        raise InputError(
            "queries are read without a prefix", 'Set Encoders.query_prefix = "".', value=encoders.query_prefix
        )
    if start == "document_encoder" and (encoders.projection or encoders.pooling == "pooler"):
        raise InputError(
            "queries' vectors are pooled states here, and this document encoder makes more of them",
            'Set Encoders.projection = 0 and Encoders.pooling = "mean" or "cls".',
            value=encoders.projection or encoders.pooling,
        )
    if encoders.pooling == "pooler":
        raise InputError("queries have no pooler", 'Set Encoders.pooling = "mean" or "cls".', value=encoders.pooling)
