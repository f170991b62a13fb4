"""Systems that were trained on some documents and answer from more of them: nothing is trained again.

Documents stand in one order, those of each part before those that the next one adds, so that every part is a beginning
of it. What a trained system has of its own documents is taken as it is. The others are read once, by the network that
read those before training, and every part takes the first of them. A trained projection makes vectors of what was read,
and trained codebooks make codes. Titles need none of it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

import gr_jax
from benchmarks import derived_data
from benchmarks.recipe_runs import RecipeRun
from gr_jax import clustering, dense, models
from gr_jax.corpus import Corpus, Dataset, lines, read_beir
from gr_jax.dense.token_vectors import TokenRows, TokenVectors
from gr_jax.docids import codes_of, docids_of_codes
from gr_jax.errors import InputError
from gr_jax.models import corpus_encoding, network_folder
from gr_jax.models.sentence_encoder import SentenceEncoder
from gr_jax.retrievers.base import Retriever
from gr_jax.retrievers.dense import DenseRetriever
from gr_jax.retrievers.generative import GenerativeRetriever
from gr_jax.stages import frozen_documents, pretrained
from gr_jax.stages.docids import load_codebooks, load_docids
from gr_jax.stages.negatives import load_encoder
from gr_jax.stages.vectors import load_vectors
from gr_jax.stages.vocabulary import load_vocabulary
from gr_jax.systems.colbert import frozen_documents as frozen_tokens
from gr_jax.systems.colbert.retriever import LateInteractionRetriever
from gr_jax.systems.colbert.token_encoder import TokenEncoder

WHOLE = ""  # all documents, as `RecipeRun.subset` has it
_DIGITS = 12  # of 16, so that a hash is a number that a row can have


@dataclasses.dataclass(frozen=True)
class Answering:
    """A system over a part of the documents.

    Attributes:
      retriever: it.
      fixed: all that was trained or learnt: parameters, and codebooks.
    """

    retriever: Retriever
    fixed: Any

    @property
    def fingerprint(self) -> float:
        """A hash of what is fixed, as a number."""
        digest = hashlib.sha256()
        for path, leaf in sorted(jax.tree_util.tree_leaves_with_path(self.fixed), key=lambda one: str(one[0])):
            array = np.ascontiguousarray(leaf)
            digest.update(f"{jax.tree_util.keystr(path)} {array.shape} {array.dtype}".encode())
            digest.update(array.tobytes())
        return float(int(digest.hexdigest()[:_DIGITS], 16))


@dataclasses.dataclass(frozen=True)
class Growing:
    """The documents of several parts, in one order.

    Attributes:
      run: a system that was trained on the first part; its data are those of all.
      parts: names of parts, each in the next; `WHOLE` is all documents.
    """

    run: RecipeRun
    parts: tuple[str, ...]

    @functools.cached_property
    def sizes(self) -> dict[str, int]:
        """Part → documents."""
        return {part: len(ids) for part, ids in self._ids.items()}

    @functools.cached_property
    def corpus(self) -> Corpus:
        """The documents of the last part.

        Raises:
          InputError: a part lacks documents of the one before.
        """
        order: list[str] = []
        for part, ids in self._ids.items():
            there = set(order)
            if not there <= set(ids):
                raise InputError("a part lacks documents of the one before it", "Name parts that grow.", value=part)
            order += [one for one in ids if one not in there]
        every = self.dataset.corpus
        return every.subset([every.index_of(one) for one in order])

    @property
    def dataset(self) -> Dataset:
        """The documents of the last part as they stand in the data, with the questions; read once in a process."""
        return _read(self.run.source, self.parts[-1])

    @property
    def added(self) -> Corpus:
        """Documents of the last part that are not in the first."""
        return self.corpus.subset(range(self.sizes[self.parts[0]], len(self.corpus)))

    @functools.cached_property
    def _ids(self) -> dict[str, Sequence[str]]:
        every = self.dataset.corpus.doc_ids
        found: dict[str, Sequence[str]] = {}
        for part in self.parts[:-1]:
            file = derived_data.subset(self.run.source, part)
            named = {line.strip() for _, line in lines.read_lines(file)}
            found[part] = [one for one in every if one in named]
            if len(found[part]) < len(named):
                raise InputError("a later part lacks documents of it", "Name parts that grow.", file=file, value=part)
        return {**found, self.parts[-1]: every}

    def folder(self, name: str, key: str) -> pathlib.Path:
        """Where something of all documents is kept, for all systems; with another key it is another folder."""
        made = hashlib.sha256(f"{key} {self.corpus.fingerprint}".encode()).hexdigest()[:16]
        return self.run.folder.parent / "grown" / f"{name}-{made}"

    def first(self, count: int) -> Corpus:
        """The first documents."""
        return self.corpus.subset(range(count))


def bi_encoder(growing: Growing, count: int) -> Answering:
    """A bi-encoder over the first documents."""
    run = growing.run
    retriever: Any = gr_jax.load(run.folder / "index").retriever
    assert isinstance(retriever, DenseRetriever)
    encoder = retriever.encoder
    own = np.asarray(load_vectors(run.input_folder("index", "embeddings")))
    reader = load_encoder(run.folder / "frozen_encoder")
    network = SentenceEncoder(
        models.TextEncoder(reader.config.encoder), reader.params["query"], reader.vocabulary, reader.config.pooling,
        prompt=reader.prefixes["document"],
    )  # fmt: skip
    added = frozen_documents.project(
        encoder.config, encoder.params, _pooled(growing, network, encoder.lengths["document"])
    )
    vectors = np.concatenate([own, added])[:count]
    return Answering(DenseRetriever(encoder, dense.make_searcher("exact", vectors)), encoder.params)


def late_interaction(growing: Growing, count: int) -> Answering:
    """Late interaction over the first documents. States of tokens are read once for all trainings, and projected."""
    run = growing.run
    encoder = TokenEncoder.load(run.folder / "model" / "encoder")
    own = TokenRows.read(run.folder / "token_vectors" / "vectors")
    parts = [own.first(min(count, own.num_documents))]
    if count > own.num_documents:
        states = _states(growing, TokenEncoder.load(run.folder / "frozen_encoder" / "encoder"))
        parts.append(frozen_tokens.project(encoder, states.first(count - own.num_documents), str(own.vectors.dtype)))
    return Answering(LateInteractionRetriever(encoder, TokenVectors(TokenRows.joined(parts))), encoder.params)


def codes(growing: Growing, count: int) -> Answering:
    """A writer of codes over the first documents: those of the others are made by its codebooks, and where they are
    those of documents before them, they get the next of the reserved numbers."""
    from gr_jax.interop import huggingface

    run = growing.run
    folder = run.input_folder("model", "docids")
    docids, books = load_docids(folder), load_codebooks(folder)
    if docids.meta["collisions"] != "reserved":
        raise InputError(
            "documents that join would change the tokens of those before them",
            'Set Identifiers.duplicates = "reserved".',
            value=docids.meta["collisions"],
        )
    system: Any = run.resolved()
    network = huggingface.load_sentence_encoder(pretrained.pretrained_folder(system.vectors.encoder))
    meta = docids.meta
    pooled = _pooled(growing, network, system.vectors.max_length)
    vectors = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    added, _ = clustering.quantize(vectors, books, beams=meta["beams"])
    grown = docids_of_codes(
        np.concatenate([codes_of(docids), added])[:count],
        bits=meta["bits"], collisions="reserved", reserved=meta["reserved"], first_token=meta["first_token"],
        meta={name: meta[name] for name in ("beams", "seed", "metric", "iterations", "reconstruction_error")},
    )  # fmt: skip
    kept = min(count, docids.num_documents)
    for document in range(kept):
        if grown.sequence(*grown.rows_of(document)) != docids.sequence(*docids.rows_of(document)):
            raise InputError("a document has another docid than it was trained with", "Report this.", value=document)
    module, params = network_folder.load_network(run.folder / "model")
    words, decoding = load_vocabulary(run.input_folder("model", "vocabulary")), system.decoding
    retriever: Any = GenerativeRetriever.over_docids(
        module, params, words, grown,
        beams=decoding.beams, normalize=decoding.normalize, max_query_length=decoding.max_query_length,
    )  # fmt: skip
    return Answering(retriever, {"parameters": retriever.model.params, "codebooks": books})


def titles(growing: Growing, count: int) -> Answering:
    """A writer of titles over the first documents. A token that stood in no title gets a vector from the network as it
    is; what is fixed are the rows of those that did."""
    retriever: Any = gr_jax.load(growing.run.folder / "index").retriever
    before = jax.tree.map(np.shape, retriever.model.params)
    start = retriever.num_documents
    if count > start:
        retriever.update(add=growing.corpus.subset(range(start, count)))
    fixed = jax.tree.map(
        lambda array, shape: np.asarray(array)[tuple(map(slice, shape))],
        retriever.model.params,
        before,
    )
    return Answering(retriever, fixed)


@functools.cache
def _read(source: pathlib.Path, part: str) -> Dataset:
    return read_beir(source, subset=derived_data.subset(source, part) if part else None)


Systems = Mapping[str, Callable[[Growing, int], Answering]]
SYSTEMS: Systems = {"DR": bi_encoder, "MVDR": late_interaction, "GR-codebook": codes, "GR-text": titles}


def _states(growing: Growing, reader: TokenEncoder) -> TokenRows:
    """The states of tokens of the documents that join, mapped from the disk.

    Args:
      growing: the documents.
      reader: reads them, without a projection.
    """
    place = growing.folder("states", reader.fingerprint)
    if not (place / "manifest.json").exists():
        reader.encode_documents(growing.added.contents, place, precision=frozen_tokens.PRECISION, progress=True)
    return TokenRows.read(place)


def _pooled(growing: Growing, network: SentenceEncoder, length: int) -> np.ndarray:
    """What a network pools of the documents that join, before it makes vectors of unit length of that. Systems that
    start from one network read them once; an interruption goes on where it was.

    Args:
      growing: the documents.
      network: reads them.
      length: tokens of each.
    """
    plain = SentenceEncoder(
        network.module, network.params, network.vocabulary, network.pooling, normalize=False, prompt=network.prompt
    )
    place = growing.folder("pooled", f"{plain.fingerprint} {length}")
    if not (place / "manifest.json").exists():
        corpus_encoding.encode_corpus(
            plain, growing.added.contents, place, max_length=length, process=(0, 1), progress=True
        )
    return np.load(place / corpus_encoding.FILE, mmap_mode="r")
