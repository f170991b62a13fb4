"""docT5query's parts: what the generator learns from, its training, its queries, and which of them are kept."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from gr_jax import processes, storage
from gr_jax import progress as progress_lib
from gr_jax.constraints import Everything
from gr_jax.corpus import Dataset
from gr_jax.decoding import processors, sampling
from gr_jax.docids import pseudo_queries as pseudo_queries_lib
from gr_jax.docids.pseudo_queries import PseudoQueries
from gr_jax.errors import InputError
from gr_jax.models.copy_network import CopyNetwork
from gr_jax.models.copying import CopyDecoder, CopyNetworkModel
from gr_jax.retrievers import BM25
from gr_jax.stages.blocks import Advance, in_blocks
from gr_jax.stages.copy_networks import padded_length
from gr_jax.text import Vocabulary, encode_texts, get_transform
from gr_jax.training.source_batches import SourceTargets

# The first token that the decoder reads: which kind of query it is to write. Sampling starts from 0.
ASKED, MADE = 0, 1

# Documents whose queries are written to disk at once.
_CHUNK = 512


def document_queries(
    dataset: Dataset,
    vocabulary: Vocabulary,
    *,
    split: str,
    made: Mapping[str, int],
    document_tokens: int,
    query_tokens: int,
    seed: int,
    others: float = 0.0,
) -> SourceTargets:
    """The documents that the queries of one split lead to, with them and with queries that rules make.

    Args:
      split: whose judged pairs are learnt from.
      made: kinds of pseudo-queries and how many of each.
      document_tokens, query_tokens: kept of each; a query's end counts.
      seed: of the rules, and of the choice of others.
      others: so many documents that nobody asked for, for each that somebody did; they come with the rules' queries.

    Raises:
      InputError: there is no such split, or it leads to no document.
    """
    corpus, rewrite = dataset.corpus, get_transform(dataset.transform)
    asked: list[list[list[int]]] = [[] for _ in range(len(corpus))]
    pairs = [
        (query_id, corpus.index_of(doc_id))
        for query_id, grades in dataset.split(split).items()
        for doc_id, grade in grades.items()
        if grade > 0
    ]
    query_ids = list(dict.fromkeys(query_id for query_id, _ in pairs))  # one may lead to several documents
    texts = dict(zip(query_ids, vocabulary.encode_batch(dataset.query_texts(query_ids)), strict=True))
    for query_id, document in pairs:
        asked[document].append(texts[query_id][: query_tokens - 1])
    chosen = np.flatnonzero([len(queries) > 0 for queries in asked])
    if not len(chosen):
        raise InputError(f"no query of the split {split!r} leads to a document", "Give queries and qrels.")
    rest = np.random.default_rng(seed).permutation(np.setdiff1d(np.arange(len(corpus)), chosen))
    chosen = np.sort(np.concatenate([chosen, rest[: int(others * len(chosen))]]))
    rules = pseudo_queries_lib.pseudo_queries(corpus.subset(chosen), kinds=dict(made), seed=seed)
    by_rule: list[list[list[int]]] = [[] for _ in chosen]
    for place, ids in zip(rules.documents, vocabulary.encode_batch(list(map(rewrite, rules.texts))), strict=True):
        by_rule[int(place)].append(ids[: query_tokens - 1])
    contents = dataset.document_texts()
    tokens, _ = encode_texts(vocabulary, [contents[int(document)] for document in chosen], document_tokens)
    kinds = {ASKED: [asked[document] for document in chosen], MADE: by_rule}
    return SourceTargets(tokens, [kinds[kind] for kind in sorted(kinds)])


def generate(
    decoder: CopyDecoder,
    vocabulary: Vocabulary,
    documents: Int32[np.ndarray, "n source"],
    *,
    samples: int,
    top_k: int,
    temperature: float,
    query_tokens: int,
    batch_size: int,
    seed: int,
    work: pathlib.Path,
    progress: bool = False,
) -> list[list[str]]:
    """Samples queries of every document; killed, the same call goes on behind the last chunk that was written.

    Args:
      decoder: of the trained network.
      documents: their tokens.
      samples: drawn for each document.
      top_k: each token is drawn among so many best.
      temperature: below 1 the best are drawn more often.
      work: where finished chunks are kept; processes share them out.

    Returns:
      The queries of each document, in the order of drawing; some may be equal or empty. None in processes other than
      the first of those that share.
    """

    def draw(chunk: range, advance: Advance) -> np.ndarray:
        rows = documents[chunk.start : chunk.stop]
        found = np.zeros((len(rows), samples, query_tokens), np.int32)
        order = np.argsort((rows != 0).sum(axis=1), kind="stable")
        for first in range(0, len(rows), batch_size):
            chosen = order[first : first + batch_size]
            batch = np.zeros((batch_size, padded_length(rows[chosen])), np.int32)
            batch[: len(chosen)] = rows[chosen, : batch.shape[1]]
            key = jax.random.fold_in(jax.random.key(seed), chunk.start + first)
            drawn = _draw(decoder, batch, key, temperature, samples, query_tokens, top_k, vocabulary.eos_id)
            found[chosen] = np.asarray(drawn)[: len(chosen)]
            advance(len(chosen))
        return found

    files = in_blocks(
        work, "queries", len(documents), _CHUNK, draw,
        title="Generating queries", where="while generating queries", progress=progress,
    )  # fmt: skip
    if processes.share()[0]:
        return []  # one decodes
    return [
        [vocabulary.decode(sequence) for sequence in _ended(sequences, vocabulary)]
        for file in files
        for sequences in storage.load_array(file, dtype=np.int32, ndim=3)
    ]


@functools.partial(jax.jit, static_argnums=(4, 5, 6, 7))
def _draw(
    decoder: CopyDecoder,
    tokens: Int32[Array, "batch source"],
    key: Array,
    temperature: float,
    samples: int,
    max_len: int,
    top_k: int,
    eos_id: int,
) -> Int32[Array, "batch samples max_len"]:
    constraint = Everything(decoder.module.encoder_config.vocab_size, eos_id)
    cache = decoder.start(tokens, beams=samples, max_len=max_len)
    drawn = sampling.sample(
        decoder, cache, constraint, samples=samples, max_len=max_len, key=key, batch=len(tokens), top_k=top_k,
        processors=(processors.Temperature(jnp.asarray(temperature)),),
    )  # fmt: skip
    return drawn.sequences


def _ended(sequences: np.ndarray, vocabulary: Vocabulary) -> list[list[int]]:
    """Sequences up to their end; one that was cut before it ended is empty, for it is no whole query."""
    rows = sequences.tolist()
    return [row[: row.index(vocabulary.eos_id)] if vocabulary.eos_id in row else [] for row in rows]


def filtered(
    queries: Sequence[Sequence[str]], bm25: BM25, *, within: int, most: int, corpus: str, progress: bool = False
) -> PseudoQueries:
    """Keeps of each document's queries those that BM25 answers with it.

    What leads elsewhere is about something that the document does not say (Gospodinov et al. 2023, arXiv 2301.03266).

    Args:
      queries: of each document.
      bm25: of the documents alone.
      within: ranks among which the document must be; 0 keeps all that are neither empty nor there already.
      most: queries kept of a document, the first ones.
      corpus: its fingerprint.

    Raises:
      InputError: nothing is left.
    """
    kept: list[str] = []
    owners: list[int] = []
    with progress_lib.bar("Asking generated queries", len(queries), enabled=progress) as bar:
        for document, texts in enumerate(queries):
            different = [text for text in dict.fromkeys(" ".join(text.split()) for text in texts) if text]
            if within and different:
                found = bm25.retrieve(different, within).doc_index
                different = [text for text, row in zip(different, found, strict=True) if document in row]
            kept += different[:most]
            owners += [document] * len(different[:most])
            bar.advance()
    if not kept:
        raise InputError("no generated query leads to its document", "Train the generator for more steps.")
    return PseudoQueries(
        kept, np.array(owners, np.int32), np.zeros(len(kept), np.int8), (pseudo_queries_lib.GENERATED,), corpus
    )


def mean_loss(model: CopyNetworkModel, params: Any, batches: Any) -> float:
    """−log p of a token of held-out queries."""
    total = weight = 0.0
    for batch in batches:
        _, metrics = _evaluate(model.module, tuple(model.words), params, batch)
        total, weight = total + float(metrics["loss"][0]), weight + float(metrics["loss"][1])
    return total / max(weight, 1.0)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _evaluate(module: CopyNetwork, words: tuple[int, ...], params: Any, batch: Mapping[str, Array]) -> Any:
    return CopyNetworkModel(module, words).loss_fn(params, batch, None)
