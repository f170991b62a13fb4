"""GDR (Yuan et al. 2024, arXiv 2401.10487): the decoder writes clusters, the query's vector matches inside them."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from gr_jax import docids as docids_lib
from gr_jax import models, storage, text
from gr_jax.constraints import Trie
from gr_jax.dense import ClusteredSearch
from gr_jax.dense.base import check_positions, check_vectors
from gr_jax.dense.clustered import backend_at_hand
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from gr_jax.models import network_folder
from gr_jax.retrievers.base import Evidence, Ranking, check_question, checked_allowed
from gr_jax.retrievers.dense_encoder import DenseEncoder
from gr_jax.retrievers.passages import Found, best_of_documents, first_depth, passage_name, passages_of
from gr_jax.retrievers.query_reader import QueryReader
from gr_jax.systems.gdr import decoding as gdr_decoding
from gr_jax.systems.gdr.decoding import Decoded
from gr_jax.systems.gdr.model import DOCUMENT
from gr_jax.systems.gdr.parts import check_parts, check_settings

if TYPE_CHECKING:
    from gr_jax.corpus import Corpus

KIND = "gdr"
Answer = tuple[Decoded, Found]  # with vectors and scores, [batch, k]
_SETTINGS = (
    "most_sentences",
    "pieces",
    "transform",
    "beams",
    "chosen",
    "beta",
    "similarity",
    "pooling",
    "normalize",
    "length_penalty",
    "max_query_length",
)


class GDRRetriever:
    """An encoder-decoder that writes cluster identifiers, and a search inside the clusters it wrote.

    score(q, d) = similarity(q·d) + beta · softmax over the beam of the score of d's cluster. A document of several
    chosen clusters, or of several vectors, gets the best of its scores.

    Args:
      module, params: the network. What `GDRModel` learns of documents, `document/…`, is left out of the parameters.
      vocabulary: of the queries.
      cids: the clusters' identifiers; row i is the name of cluster i. Which documents are in it the searcher knows.
      searcher: over the documents' vectors, in these clusters.
      owner: the document of every vector, ascending, the document's own before those of its sentences; None where every
        document has one.
      most_sentences: of a document that have vectors of their own (`corpus.sentence_passages`), in the clusters that it
        is in; 0 where it has one. Documents that are added are cut so.
      pieces: vectors are of documents' pieces instead (`corpus.text_pieces`), and documents that are added are cut so.
      document_encoder: what the documents' vectors were made with; needed to add documents. Its side of queries is not
        kept.
      transform: name of the text transform that the network was trained with.
      beams: hypotheses kept. At least the widest level of the identifiers makes the choice of clusters exhaustive.
      chosen: how many of the clusters in the beam are looked into, the best first; None: all.
      beta: weight of the clusters' scores.
      similarity: "tanh" of the inner product, "dot", or "cosine", for which documents' vectors have unit length.
      pooling: "mean" or "cls": how the encoder's states become the query's vector.
      normalize: clusters' scores are log-probabilities over the "vocabulary", the "level" or the "constraint".
      length_penalty: of the beam search, see `decoding.beam_search`.
      max_query_length: tokens read of a query; the rest is cut.
      batch_size: queries decoded at a time.
      fused: encode, decode and search in one compiled program; False leaves the search to the host and the searcher's
        backend. None: where JAX runs on an accelerator.

    Raises:
      InputError: parts that do not fit together, or settings that are unknown.
    """

    def __init__(
        self,
        module: models.EncoderDecoder,
        params: Any,
        vocabulary: text.Vocabulary,
        cids: Docids,
        searcher: ClusteredSearch,
        owner: Int[np.ndarray, " vectors"] | None = None,
        *,
        most_sentences: int = 0,
        pieces: bool = False,
        document_encoder: DenseEncoder | None = None,
        transform: str = "none",
        beams: int = 100,
        chosen: int | None = None,
        beta: float = 1.0,
        similarity: str = "tanh",
        pooling: str = "mean",
        normalize: str = "vocabulary",
        length_penalty: float = 0.0,
        max_query_length: int = 64,
        batch_size: int = 32,
        fused: bool | None = None,
    ):
        check_settings(beams, chosen, beta, similarity, pooling)
        check_parts(module, vocabulary, cids, searcher, document_encoder, similarity, normalize)
        self.module, self.vocabulary, self.searcher = module, vocabulary, searcher
        if (owner is None) == bool(most_sentences or pieces) or (
            owner is not None and len(owner) != searcher.num_documents
        ):
            given = "none" if owner is None else f"those of {len(owner)}"
            raise InputError(
                f"{searcher.num_documents} vectors, and of the documents that they are for {given}",
                "Give the owner of every vector with most_sentences ≥ 1 or with pieces, and None without.",
                value=most_sentences,
            )
        if owner is not None and len(owner) and (owner[0] < 0 or np.any(owner[1:] < owner[:-1])):
            raise InputError("the documents of the vectors do not ascend", "Give the vectors in the corpus' order.")
        owner = None if owner is None else np.asarray(owner, np.int32)
        self._owner, self.most_sentences, self.pieces = owner, most_sentences, pieces
        self.document_encoder = None if document_encoder is None else document_encoder.documents_alone()
        self.cids = docids_lib.names_of_clusters(cids)
        self.transform, self.beams, self.chosen, self.beta = transform, beams, chosen, beta
        self.similarity, self.pooling, self.normalize = similarity, pooling, normalize
        self.length_penalty, self.max_query_length = length_penalty, max_query_length
        self.fused = jax.default_backend() != "cpu" if fused is None else fused
        self._reader = QueryReader(vocabulary, transform, max_query_length, batch_size)
        self._set(jax.tree.map(jnp.asarray, params))
        self._holding: np.ndarray | None = None
        self._look_at_clusters()

    def _set(self, params: Any) -> None:
        self.params = {name: part for name, part in params.items() if name != DOCUMENT}
        self._decoder = models.GenerativeDecoder(self.module, self.params, self.cids.levels, self.cids.eos_id)

    def _look_at_clusters(self) -> None:
        """The trie of the clusters that have documents: others would take places in the beam."""
        self._sizes = self.searcher.sizes()
        holding = self._sizes > 0
        if self._holding is not None and (holding == self._holding).all():
            return
        self._holding = holding
        self._trie = Trie.from_docids(docids_lib.names_of_clusters(self.cids, holding)) if holding.any() else None

    def docids(self) -> Docids:
        """The identifiers of the clusters that hold documents, with the documents that are in them now."""
        clusters, vectors = self.searcher.members()
        documents = vectors if self._owner is None else self._owner[vectors]
        pairs = np.unique(np.stack([clusters, documents]), axis=1)
        rows, counts = np.unique(pairs[0], return_counts=True)
        return dataclasses.replace(
            docids_lib.names_of_clusters(self.cids, np.isin(np.arange(len(self.cids)), rows)),
            offsets=np.concatenate([[0], np.cumsum(counts)]),
            documents=pairs[1].astype(np.int32),
            num_documents=self.num_documents,
        )

    def with_parameters(self, params: Any) -> GDRRetriever:
        """The same retriever around other parameters, as evaluation during training needs it; nothing is rebuilt."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._set(params)
        return copy

    def with_searcher(self, searcher: ClusteredSearch) -> GDRRetriever:
        """The same retriever over other vectors of the same documents, or of some of them, in the same clusters. It
        writes the clusters that it wrote, and shares are of the clusters' documents as they were."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy.searcher = searcher
        return copy

    def query_vectors(self, queries: Sequence[str]) -> Float[np.ndarray, "batch d"]:
        """The vectors that documents are compared with.

        Raises:
          InputError: one of the queries is empty.
        """
        tokens, lengths = self._reader.read(queries)
        vectors = np.zeros((len(queries), self.searcher.width), np.float32)
        for rows in self._reader.batches(lengths):
            padded = self._reader.padded(tokens[rows], int(lengths[rows].max()))
            found = gdr_decoding.query_vectors(self._decoder, padded, self._settings)
            vectors[rows] = np.asarray(found)[: len(rows)]
        return vectors

    @property
    def num_documents(self) -> int:
        """Documents of the corpus that it answers from, removed ones included."""
        return self.searcher.num_documents if self._owner is None else int(self._owner[-1]) + 1

    def retrieve(
        self,
        queries: Sequence[str],
        k: int,
        *,
        allowed: Bool[np.ndarray, " documents"] | Bool[np.ndarray, "batch documents"] | None = None,
        explain: bool = False,
    ) -> Ranking:
        """See `Retriever.retrieve`. With `allowed` only clusters that hold allowed documents are written; scores do not
        depend on it. Evidence is the cluster that the document was found in, and the similarity; they sum to the score.

        Raises:
          InputError: an empty query, or `k` is not positive.
        """
        depth = check_question(queries, k, self.num_documents)
        mask = self._of_vectors(checked_allowed(allowed, len(queries), self.num_documents))
        doc_index = np.full((len(queries), k), -1, np.int32)
        score = np.full((len(queries), k), -np.inf, np.float32)
        evidence: list[tuple[tuple[Evidence, ...], ...]] = [()] * len(queries)
        found: dict[int, tuple[Decoded, int, Int[np.ndarray, " k"]]] = {}
        tokens, lengths = self._reader.read(queries)
        for rows in self._reader.batches(lengths) if self._trie is not None else ():
            its = None if mask is None else mask[rows]
            find = self._decode_and_search if self.fused else self._decode_then_search
            decoded, (vectors, score[rows, :depth]) = find(tokens[rows], int(lengths[rows].max()), its, depth)
            doc_index[rows, :depth] = self._documents(vectors)
            for at, row in enumerate(rows.tolist()):
                found[row] = decoded, at, vectors[at]
                if explain:
                    evidence[row] = self._evidence(decoded, at, vectors[at], score[row])

        def docid_of(query: int, rank: int) -> str:
            decoded, at, its = found[query]
            ((cid, _),) = self._evidence(decoded, at, its[rank : rank + 1], score[query, rank : rank + 1])
            return cid.text

        return Ranking(doc_index, score, tuple(evidence) if explain else None, docid_of)

    def decode(self, queries: Sequence[str]) -> Decoded:
        """Vectors and clusters of queries, on the host; what `search` takes.

        Raises:
          InputError: no query, or an empty one; all documents were removed.
        """
        if not queries:
            raise InputError("there are no queries", "Ask something.")
        if self._trie is None:
            raise InputError("there are no documents left to find", "Add some.")
        tokens, lengths = self._reader.read(queries)
        parts = [
            (rows, self._decode(tokens[rows], int(lengths[rows].max()), None)) for rows in self._reader.batches(lengths)
        ]
        places = np.argsort(np.concatenate([rows for rows, _ in parts]))
        return jax.tree.map(lambda *arrays: np.concatenate(arrays)[places], *(part for _, part in parts))

    def search(
        self,
        decoded: Decoded,
        k: int,
        *,
        allowed: Bool[np.ndarray, "batch documents"] | None = None,
        chosen: int | None = None,
        beta: float | None = None,
    ) -> tuple[Int[np.ndarray, "batch k"], Float[np.ndarray, "batch k"]]:
        """The k best documents inside the chosen clusters, and their scores, on the host.

        Args:
          decoded: what `decode` gave.
          k: how many.
          allowed: which documents may be found.
          chosen, beta: other settings than the retriever's own.
        """
        mask = checked_allowed(allowed, len(decoded.clusters), self.num_documents)
        vectors, scores = self._search(decoded, k, self._of_vectors(mask), chosen=chosen, beta=beta)
        return self._documents(vectors), scores

    def _search(
        self,
        decoded: Decoded,
        k: int,
        mask: Bool[np.ndarray, "batch vectors"] | None = None,
        *,
        chosen: int | None = None,
        beta: float | None = None,
        found: Found | None = None,
    ) -> Found:
        """The best vectors of the k best documents; `found` is what a first search gave."""
        chosen = self.chosen if chosen is None else chosen
        beta = self.beta if beta is None else beta
        queries, clusters = np.asarray(decoded.vectors), np.asarray(decoded.clusters[:, :chosen])
        bonus = beta * np.asarray(decoded.weights[:, :chosen])

        def search(depth: int) -> Found:
            return self.searcher.search_clusters(
                queries, clusters, depth, cluster_scores=bonus, similarity=self._of_products, allowed=mask
            )

        if self._owner is not None:
            return best_of_documents(search, self._owner, k, found)
        return search(k) if found is None else found

    def _documents(self, vectors: Int[np.ndarray, "batch k"]) -> Int[np.ndarray, "batch k"]:
        return vectors if self._owner is None else np.where(vectors >= 0, self._owner[vectors], -1)

    def _of_vectors(self, allowed: Bool[np.ndarray, "batch documents"] | None) -> np.ndarray | None:
        return allowed if allowed is None or self._owner is None else allowed[:, self._owner]

    def looks_into(
        self, decoded: Decoded, row: int, documents: Int[np.ndarray, " n"], chosen: int | None = None
    ) -> Bool[np.ndarray, " n"]:
        """Which of these documents are in the clusters chosen for a query.

        Args:
          decoded: what `decode` gave.
          row: of the query.
          documents: positions.
          chosen: another number of clusters than the retriever's own.
        """
        clusters = np.asarray(decoded.clusters[row, : self.chosen if chosen is None else chosen])
        first = documents if self._owner is None else np.searchsorted(self._owner, documents)
        return np.any(self.searcher.contains(first, clusters), axis=0)

    def share_scored(self, decoded: Decoded, chosen: int | None = None) -> Float[np.ndarray, " batch"]:
        """For each query the share of the documents' vectors that are looked at; one that is in several of the chosen
        clusters counts each time.

        Args:
          decoded: what `decode` gave.
          chosen: another number of clusters than the retriever's own.
        """
        clusters = np.asarray(decoded.clusters[:, : self.chosen if chosen is None else chosen])
        scored = np.where(clusters >= 0, self._sizes[clusters], 0).sum(axis=1)
        return scored / max(self.searcher.num_live, 1)

    def update(self, add: Corpus | None = None, remove: Sequence[int] = ()) -> GDRRetriever:
        """Adds and removes documents without training: an added one is encoded, and put into the cluster whose mean has
        the largest inner product with its vector. Where sentences have vectors, too, clusters' means are over all of
        them, and a document and its sentences are put where the document's own vector belongs.

        Args:
          add: documents; they get the next positions, in their order.
          remove: positions of documents that are no longer found. The other positions stay as they are.

        Returns:
          This retriever, changed.

        Raises:
          InputError: a position that no document has, or nothing to encode documents with; nothing is changed then.
        """
        gone = check_positions(remove, self.num_documents)
        if self._owner is not None:
            gone = np.flatnonzero(np.isin(self._owner, gone))
        added = None
        if add is not None:
            if self.document_encoder is None:
                raise InputError("there is nothing to encode documents with", "Give the retriever a document_encoder.")
            texts, owner = passages_of(add, self.document_encoder, self.most_sentences, self.pieces)
            added = check_vectors(self.document_encoder.encode(texts, "document"), self.searcher.width)
        self.searcher.remove(gone)
        if added is not None and self._owner is None:
            self.searcher.add(added)
        elif added is not None:
            whole = np.unique(owner, return_index=True)[1]  # a document's own vector decides
            clusters = np.maximum(self.searcher.choose_clusters(added[whole], 1), 0)
            documents = self.num_documents
            self.searcher.add(added, clusters[owner])
            self._owner = np.concatenate([self._owner, (owner + documents).astype(np.int32)])
        self._look_at_clusters()
        return self

    def save(
        self, folder: str | os.PathLike, *, corpus: str, meta: dict[str, Any] | None = None, gin: str = ""
    ) -> None:
        """Writes everything that answering needs as an artefact of kind "gdr"."""
        settings = {name: getattr(self, name) for name in _SETTINGS}
        settings |= {"document_encoder": self.document_encoder is not None, "backend": self.searcher.asked}
        with storage.write_folder(folder, KIND, corpus=corpus, meta={**(meta or {}), **settings}, gin=gin) as new:
            network_folder.save_network(new, self.module, self.params)
            self.cids.save(new / "cids")
            self.vocabulary.save(new / "vocabulary")
            self.searcher.save(new / "searcher")
            if self._owner is not None:
                np.save(new / "owner.npy", self._owner)
            if self.document_encoder is not None:
                self.document_encoder.save(new / "document_encoder")

    @classmethod
    def load(cls, folder: str | os.PathLike, *, verify: bool = True, backend: str | None = None) -> GDRRetriever:
        """Reads what `save` wrote; vectors are memory-mapped.

        Args:
          folder: the artefact.
          verify: check the checksums.
          backend: of the search inside clusters, see `ClusteredSearch`; None takes the one that was saved, or where its
            package is not installed, "auto", with a warning.

        Raises:
          InputError: it is not such a folder, or was truncated or altered.
        """
        folder = pathlib.Path(folder)
        meta = storage.read_folder(folder, KIND, verify=verify).meta
        storage.check_counts(folder, meta, "beams", "chosen", "max_query_length", "most_sentences")
        module, params = network_folder.load_network(folder)
        meta = {"pieces": False, **meta}
        encoder = DenseEncoder.load(folder / "document_encoder", verify=False) if meta["document_encoder"] else None
        backend = backend or backend_at_hand(meta["backend"])
        return cls(
            module,
            params,
            text.load_vocabulary(folder / "vocabulary"),
            Docids.load(folder / "cids"),
            ClusteredSearch.load(folder / "searcher", verify=False, backend=backend),
            (
                storage.load_array(folder / "owner.npy", dtype=np.int32, ndim=1)
                if meta["most_sentences"] or meta["pieces"]
                else None
            ),
            document_encoder=encoder,
            **{name: meta[name] for name in _SETTINGS},
        )

    @property
    def _of_products(self) -> str:
        """What the search makes of inner products."""
        return "tanh" if self.similarity == "tanh" else "dot"

    def _arguments(
        self, tokens: Int[np.ndarray, "rows length"], longest: int, mask: np.ndarray | None
    ) -> tuple[Any, ...]:
        """What both programs are called with: decoder, trie, padded tokens, the clusters that the filter leaves."""
        padded, holding = self._reader.padded(tokens, longest), None
        if mask is not None:
            holding = np.ones((len(padded), len(self.cids)), bool)
            holding[: len(tokens)] = self.searcher.holding(mask)
        return self._decoder, self._trie, padded, holding

    @property
    def _settings(self) -> gdr_decoding.Settings:
        return gdr_decoding.Settings(
            min(self.beams, len(self.cids)),
            self.cids.max_steps,
            self.normalize,
            self.length_penalty,
            self.pooling,
            self.similarity == "cosine",
        )

    def _decode(self, tokens: Int[np.ndarray, "rows length"], longest: int, mask: np.ndarray | None) -> Decoded:
        found = gdr_decoding.decode(*self._arguments(tokens, longest, mask), self._settings)
        return jax.tree.map(lambda leaf: leaf[: len(tokens)], jax.device_get(found))

    def _decode_then_search(self, tokens: np.ndarray, longest: int, mask: np.ndarray | None, k: int) -> Answer:
        decoded = self._decode(tokens, longest, mask)
        return decoded, self._search(decoded, k, mask)

    def _decode_and_search(self, tokens: np.ndarray, longest: int, mask: np.ndarray | None, k: int) -> Answer:
        arguments, settings, rows = self._arguments(tokens, longest, mask), self._settings, len(tokens)
        chosen = min(settings.beams, self.chosen or settings.beams)
        padded, depth = len(arguments[2]), k if self._owner is None else first_depth(self._owner, k)
        found = gdr_decoding.decode_and_search(
            *arguments,
            self.searcher.fused(padded, chosen, depth),
            None if mask is None else np.pad(mask, ((0, padded - rows), (0, 0))),
            self.beta,
            chosen=chosen,
            tanh=self.similarity == "tanh",
            settings=settings,
        )
        decoded, candidates = jax.tree.map(lambda leaf: leaf[:rows], jax.device_get(found))
        clusters, bonus = decoded.clusters[:, :chosen], self.beta * decoded.weights[:, :chosen]
        first = self.searcher.finish(candidates, decoded.vectors, clusters, bonus, depth, similarity=self._of_products)
        return decoded, self._search(decoded, k, mask, found=first)

    def _evidence(
        self, decoded: Decoded, at: int, vectors: Int[np.ndarray, " k"], scores: Float[np.ndarray, " k"]
    ) -> tuple[tuple[Evidence, ...], ...]:
        """Of every document the best cluster that it was found in, and what is left of its score."""
        vectors, clusters = vectors[vectors >= 0], np.asarray(decoded.clusters[at, : self.chosen])
        first = self.searcher.contains(vectors, clusters).argmax(axis=0)  # clusters stand best first
        reasons = []
        for vector, score, place in zip(vectors.tolist(), scores.tolist(), first.tolist(), strict=False):
            row, share = int(clusters[place]), self.beta * float(decoded.weights[at, place])
            cid = Evidence("docid", self.cids.name(row), share, tuple(self.cids.sequence(row)))
            reasons.append((cid, Evidence("similarity", passage_name(self._owner, vector, self.pieces), score - share)))
        return tuple(reasons)
