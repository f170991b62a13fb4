"""Tasks of (text, docid) pairs in JSON-lines files, for seqio's own pipelines and for T5X.

A line is what `gr_jax.training.features.pair_to_json` writes: {"text": …, "target": [docid tokens], "source": …}.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import gin
import seqio
import tensorflow as tf

from gr_jax.errors import InputError
from gr_jax.training.example_sources import source_names, source_number
from gr_jax.training.features import PairFeatures, pair_from_json
from gr_jax.training.token_store import TokenStore, write_rows


@gin.configurable(module="tasks")
def add_pairs_task(
    name: str,
    files: Mapping[str, str | Sequence[str]],
    features: PairFeatures,
    *,
    target_size: int,
    sources: Sequence[str] | None = None,
    metric_fns: Sequence[Callable[..., Any]] = (),
) -> seqio.Task:
    """Registers a Task over pairs files.

    Args:
      name: of the Task.
      files: split → file pattern(s). Rows come in the order of the lines if a split is one file.
      features: how pairs become tokens.
      target_size: tokens the decoder can write.
      sources: kinds of pairs it has; others are left out. None takes all.
      metric_fns: seqio's.

    Raises:
      InputError: a source that does not exist.
    """
    wanted = [source_number(source) for source in (source_names() if sources is None else sources)]
    return seqio.TaskRegistry.add(
        name,
        source=seqio.TextLineDataSource({split: _as_strings(patterns) for split, patterns in files.items()}),
        preprocessors=[
            functools.partial(tokenize, features=features),
            functools.partial(keep_sources, wanted=wanted),
        ],
        output_features={
            "inputs": seqio.Feature(
                seqio.PassThroughVocabulary(features.vocabulary.size), add_eos=False, dtype=tf.int32
            ),
            # EOS, where there is one, is a token of the target already.
            "targets": seqio.Feature(
                seqio.PassThroughVocabulary(target_size, features.eos_id), add_eos=False, dtype=tf.int32
            ),
        },
        metric_fns=list(metric_fns),
    )


@gin.configurable(module="tasks")
def add_pairs_mixture(
    name: str,
    files: Mapping[str, str | Sequence[str]],
    features: PairFeatures,
    *,
    target_size: int,
    rates: Mapping[str, float],
) -> seqio.Mixture:
    """Registers a Task per source, `NAME_query` and so on, and a Mixture of them at these rates."""
    tasks = []
    for source, rate in rates.items():
        add_pairs_task(f"{name}_{source}", files, features, target_size=target_size, sources=[source])
        tasks.append((f"{name}_{source}", float(rate)))
    return seqio.MixtureRegistry.add(name, tasks)


def tokenize(dataset: tf.data.Dataset, features: PairFeatures) -> tf.data.Dataset:
    """Lines → {"inputs", "targets", "source"}, by the functions that write token stores."""

    def row(line: bytes) -> tuple:
        made = features.row(pair_from_json(line))
        return made["inputs"], made["targets"], made["source"]

    def example(line: tf.Tensor) -> dict[str, tf.Tensor]:
        inputs, targets, source = tf.numpy_function(row, [line], [tf.int32, tf.int32, tf.int8])
        inputs.set_shape([None])
        targets.set_shape([None])
        source.set_shape([])
        return {"inputs": inputs, "targets": targets, "source": source}

    return dataset.map(example, num_parallel_calls=tf.data.AUTOTUNE)


def keep_sources(dataset: tf.data.Dataset, wanted: Sequence[int]) -> tf.data.Dataset:
    """Leaves out examples of other sources."""
    if len(wanted) == len(source_names()):
        return dataset
    return dataset.filter(lambda example: tf.reduce_any(example["source"] == tf.constant(wanted, tf.int8)))


def write_token_store_from_task(
    folder: str | os.PathLike,
    task_or_mixture: str,
    *,
    split: str = "train",
    corpus: str = "",
    made_from: str = "",
) -> TokenStore:
    """Goes through a Task once, in its order, and writes what training reads; no TensorFlow is needed from there on.

    Args:
      folder: of the token store.
      task_or_mixture: any registered Task whose features are "inputs" and "targets"; "source" is kept where it has it.
      split: which split.
      corpus, made_from: see `write_token_store`.
    """
    task = seqio.get_mixture_or_task(task_or_mixture)
    if isinstance(task, seqio.Mixture):
        raise InputError(
            "a Mixture has no end", "Write its Tasks, and mix them with make_batches(rates=…).", value=task_or_mixture
        )
    dataset = task.get_dataset(sequence_length=None, split=split, shuffle=False)

    def rows() -> Iterator[Mapping[str, Any]]:
        yield from dataset.as_numpy_iterator()

    return write_rows(
        folder, rows(), corpus=corpus, made_from=made_from, meta={"task": task_or_mixture, "split": split}
    )


def _as_strings(patterns: str | os.PathLike | Iterable[str | os.PathLike]) -> str | list[str]:
    if isinstance(patterns, (str, os.PathLike)):
        return os.fspath(patterns)
    return [os.fspath(pattern) for pattern in patterns]
