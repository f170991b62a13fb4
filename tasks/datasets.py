"""The Tasks of a data set, named as T5X users expect: `NAME_indexing`, `NAME_retrieval` and so on, and a Mixture.

| Task | reads | writes |
|---|---|---|
| `NAME_indexing` | a document | its docid |
| `NAME_retrieval` | a question | the docid of a document that answers it |
| `NAME_pseudo_query` | a question that was made from a document | the document's docid |
| `NAME` | all of these, in the order of a system's own token store | |
| `NAME_mixture` | a Mixture of the three, at rates | |
| `NAME_title` | a question | the title of a document that answers it |
| `NAME_pair` | a question | the text of a document that answers it |
| `NAME_triple` | a question | such a text, and in "negatives" the text of another document |

Their tokens are those of the systems: both call `gr_jax.training.features`. `NAME_retrieval` has the other splits of
the data set too, each question once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import gin
import numpy as np
import seqio
import tensorflow as tf

from gr_jax.corpus import Corpus, Dataset
from gr_jax.errors import InputError
from gr_jax.stages.examples import Examples
from gr_jax.text import Vocabulary
from gr_jax.training.features import Pair, PairFeatures

# Task → the kind of example that it has; a new kind is registered and added here.
SOURCE_OF: dict[str, str] = {"retrieval": "query", "indexing": "document", "pseudo_query": "pseudo"}
RATES: Mapping[str, float] = {"retrieval": 0.6, "indexing": 0.03, "pseudo_query": 0.37}  # of DSI here
TEXT_TASKS = ("title", "pair", "triple")
TRAIN = "train"
_CHUNK = 1024  # pairs that are tokenised at once
Rows = Callable[[], Iterator[Mapping[str, np.ndarray]]]


@gin.configurable(module="tasks")
def add_docid_tasks(
    name: str,
    examples: Examples,
    *,
    rates: Mapping[str, float] = RATES,
    metric_fns: Sequence[Callable[..., Any]] = (),
) -> seqio.Mixture:
    """Registers the Tasks whose targets are docids, and their Mixture.

    Args:
      name: of the data set.
      examples: of a system: `gr_jax.stages.examples.finished_examples`.
      rates: Task → its rate in the Mixture; those without a rate are in no Mixture.
      metric_fns: seqio's, of `NAME_retrieval`.

    Raises:
      InputError: a rate of a Task that does not exist.
    """
    unknown = set(rates) - set(SOURCE_OF)
    if unknown:
        raise InputError("a rate of no such Task", f"Use {', '.join(SOURCE_OF)}.", value=sorted(unknown))
    features = _output_features(examples.features, examples.target_size)

    def rows(source: str | None) -> Iterator[Mapping[str, np.ndarray]]:
        pairs = (pair for pair in examples.pairs() if source is None or pair.source == source)
        yield from _tokenised(pairs, examples.features)

    def asked(split: str) -> Iterator[Mapping[str, np.ndarray]]:
        yield from _tokenised(examples.asked(split), examples.features)

    others = {split: functools.partial(asked, split) for split in examples.splits if split != TRAIN}
    for task, source in ({"": None} | SOURCE_OF).items():
        splits = {TRAIN: functools.partial(rows, source), **(others if task == "retrieval" else {})}
        _add(f"{name}_{task}" if task else name, splits, features, metric_fns if task == "retrieval" else ())
    return seqio.MixtureRegistry.add(f"{name}_mixture", [(f"{name}_{task}", rate) for task, rate in rates.items()])


@gin.configurable(module="tasks")
def add_text_tasks(
    name: str,
    dataset: Dataset,
    vocabulary: Vocabulary,
    *,
    split: str = "train",
    query_length: int = 64,
    document_length: int = 256,
    seed: int = 0,
    metric_fns: Sequence[Callable[..., Any]] = (),
) -> list[seqio.Task]:
    """Registers the Tasks whose targets are texts: `NAME_title`, `NAME_pair` and `NAME_triple`.

    Args:
      name: of the data set.
      dataset: documents, questions and judgements.
      vocabulary: of questions, titles and texts.
      split: whose questions are asked.
      query_length, document_length: tokens read of each.
      seed: of the negatives, which are drawn from all documents that do not answer.
      metric_fns: seqio's.

    Raises:
      InputError: there is no such split, or no title where titles are to be written.
    """
    qrels, corpus = dataset.split(split), dataset.corpus
    asked = PairFeatures(vocabulary, query_length, target_vocabulary=vocabulary, max_target_length=document_length)
    read = PairFeatures(vocabulary, document_length)

    for grades in qrels.values():
        untitled = next((page for page, grade in grades.items() if grade > 0 and not _title(corpus, page)), None)
        if untitled is not None:
            raise InputError(
                "a document without a title, which a Task is to write", "Give it one: BeirPassages.title_words.",
                value=untitled,
            )  # fmt: skip

    def judged() -> Iterator[tuple[str, int, set[int]]]:
        for query, grades in qrels.items():
            answers = {corpus.index_of(page) for page, grade in grades.items() if grade > 0}
            text = dataset.query_texts([query])[0]
            for page in sorted(answers):
                yield text, page, answers

    def titles() -> Iterator[Mapping[str, np.ndarray]]:
        for text, page, _ in judged():
            yield asked.row(Pair(text, corpus[page].title))

    def contents(page: int) -> np.ndarray:
        return read.row(Pair(dataset.document_texts()[page], [0], "document"))["inputs"]

    def pairs() -> Iterator[Mapping[str, np.ndarray]]:
        for text, page, _ in judged():
            row = asked.row(Pair(text, [page]))
            yield {**row, "targets": contents(page)}

    def triples() -> Iterator[Mapping[str, np.ndarray]]:
        rng = np.random.default_rng(seed)
        for text, page, answers in judged():
            if len(answers) == len(corpus):
                raise InputError("every document answers, and none is left as a negative", "Add others.", value=text)
            negative = next(one for one in iter(lambda: int(rng.integers(len(corpus))), None) if one not in answers)
            row = asked.row(Pair(text, [page]))
            yield {**row, "targets": contents(page), "negatives": contents(negative)}

    features = _output_features(asked, vocabulary.size)
    negatives = {**features, "negatives": features["targets"]}
    made = {"title": (titles, features), "pair": (pairs, features), "triple": (triples, negatives)}
    return [_add(f"{name}_{task}", {split: rows}, its, metric_fns) for task, (rows, its) in made.items()]


def _title(corpus: Corpus, doc_id: str) -> str:
    return corpus.titles[corpus.index_of(doc_id)]


def _tokenised(pairs: Iterable[Pair], features: PairFeatures) -> Iterator[Mapping[str, np.ndarray]]:
    chunk: list[Pair] = []
    for pair in pairs:
        chunk.append(pair)
        if len(chunk) == _CHUNK:
            yield from features.rows(chunk)
            chunk = []
    yield from features.rows(chunk) if chunk else ()


def _output_features(features: PairFeatures, target_size: int) -> dict[str, seqio.Feature]:
    """Of ids that are final: EOS, where there is one, is a token of the target already."""
    sizes = {"inputs": (features.vocabulary.size, None), "targets": (target_size, features.eos_id)}
    return {
        name: seqio.Feature(seqio.PassThroughVocabulary(size, eos), add_eos=False, dtype=tf.int32)
        for name, (size, eos) in sizes.items()
    }


def _add(
    name: str,
    splits: Mapping[str, Rows],
    features: Mapping[str, seqio.Feature],
    metric_fns: Sequence[Callable[..., Any]],
) -> seqio.Task:
    signature: dict[str, tf.TensorSpec] = {one: tf.TensorSpec([None], tf.int32) for one in features}
    signature["source"] = tf.TensorSpec([], tf.int8)

    def dataset(split: str, shuffle_files: bool = False, seed: int | None = None) -> tf.data.Dataset:
        del shuffle_files, seed  # one file, so to say; seqio shuffles examples itself
        return tf.data.Dataset.from_generator(splits[split], output_signature=signature)

    return seqio.TaskRegistry.add(
        name,
        source=seqio.FunctionDataSource(dataset, splits=list(splits)),
        preprocessors=[],
        output_features=dict(features),
        metric_fns=list(metric_fns),
    )
