"""The stages that train GDR: against document vectors that stay as they are, then with the document encoder too."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from gr_jax import corpus as corpus_lib
from gr_jax import docids, models
from gr_jax.dense import ClusteredSearch
from gr_jax.errors import InputError
from gr_jax.models import network_folder
from gr_jax.retrievers.dense_encoder import DenseEncoder
from gr_jax.stages import contrastive, networks
from gr_jax.stages import negatives as mined
from gr_jax.stages.clusters import load_clusters
from gr_jax.stages.contrastive import ContrastiveTraining
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, stage
from gr_jax.stages.negatives import Mining
from gr_jax.stages.networks import Network
from gr_jax.stages.pairs import load_asked, load_pairs
from gr_jax.stages.training import Retrainable, fit, keep_curves
from gr_jax.stages.vectors import load_vectors
from gr_jax.stages.vocabulary import load_vocabulary
from gr_jax.systems.gdr.batches import GDRBatches
from gr_jax.systems.gdr.model import DOCUMENT, GDRModel
from gr_jax.systems.gdr.retriever import GDRRetriever
from gr_jax.systems.gdr.settings import Look, Matching
from gr_jax.systems.gdr.vectors_alone import VectorsAlone
from gr_jax.training import negatives as tables
from gr_jax.training.contrastive_batches import ContrastiveBatches, NegativeSource
from gr_jax.training.refreshed_negatives import RefreshedNegatives
from gr_jax.training.shared_answers import share_answers
from gr_jax.training.task import Task

# Documents move as a pretrained encoder does, where nobody says otherwise.
DOCUMENT_MULTIPLIERS = {f"{DOCUMENT}/token_embedder": 0.0, DOCUMENT: 0.05}

# Tokens of a question by which dev is looked at and negatives are mined again. What the index reads of a query is no
# setting of training.
LOOK_QUERY_LENGTH = 64


@stage(trains=True)
def model(
    place: Place,
    corpus: pathlib.Path,
    query_vocabulary: pathlib.Path,
    encoder: pathlib.Path,
    vectors: pathlib.Path,
    clusters: pathlib.Path,
    pseudo_queries: pathlib.Path,
    pairs: pathlib.Path,
    negatives: pathlib.Path,
    *,
    network: Network,
    pooling: str,
    matching: Matching,
    mining: Mining,
    training: ContrastiveTraining,
    query_length: int,
    document_length: int,
    look: Look,
) -> None:
    """Trains the network against document vectors that stay as they are. Interrupted, it goes on from its latest
    checkpoint with the same result.

    Args:
      encoder, vectors: of documents.
      network, pooling, matching, mining, training: settings.
      query_length, document_length: tokens read of each.
      look: the search by which dev is looked at.
    """
    parts = _Parts(corpus, query_vocabulary, encoder, vectors, clusters)
    module, params, multipliers = first_network(parts, network, pooling, matching, training.seed)
    task = _Learning(parts, corpus, pseudo_queries, pairs, negatives, matching, mining, training, query_length,
                     document_length, pooling, look)  # fmt: skip
    retriever = make_retriever(module, params, parts, None, pooling, matching.similarity, look, LOOK_QUERY_LENGTH)
    found = task.against_vectors(place, module, params, multipliers, retriever)
    network_folder.save_network(place.folder, module, found)


@stage(trains=True)
def joint_model(
    place: Place,
    corpus: pathlib.Path,
    query_vocabulary: pathlib.Path,
    encoder: pathlib.Path,
    vectors: pathlib.Path,
    clusters: pathlib.Path,
    pairs: pathlib.Path,
    negatives: pathlib.Path,
    model: pathlib.Path,
    *,
    network: Network,
    pooling: str,
    matching: Matching,
    mining: Mining,
    training: ContrastiveTraining,
    query_length: int,
    document_length: int,
    look: Look,
) -> None:
    """Goes on with the network and the document encoder together; that is saved beside the network.

    Args:
      model: the stage that the network is of; see `model` for the others.
    """
    parts = _Parts(corpus, query_vocabulary, encoder, vectors, clusters)
    module, params = network_folder.load_network(model)
    scratch = network.encoder == "t5" and matching.start == "pretrained"
    multipliers = networks.learning_rate_multipliers(module, network, None if scratch else params)
    task = _Learning(parts, corpus, None, pairs, negatives, matching, mining, training, query_length,
                     document_length, pooling, look)  # fmt: skip
    retriever = make_retriever(module, params, parts, None, pooling, matching.similarity, look, LOOK_QUERY_LENGTH)
    params, encoder_then = task.jointly(place, module, params, multipliers, retriever)
    network_folder.save_network(place.folder, module, params)
    encoder_then.save(place.folder / "encoder")


@stage()
def untrained(
    place: Place,
    corpus: pathlib.Path,
    query_vocabulary: pathlib.Path,
    encoder: pathlib.Path,
    vectors: pathlib.Path,
    clusters: pathlib.Path,
    *,
    network: Network,
    pooling: str,
    matching: Matching,
    seed: int,
) -> None:
    """The network as it is before any training."""
    parts = _Parts(corpus, query_vocabulary, encoder, vectors, clusters)
    module, params, _ = first_network(parts, network, pooling, matching, seed)
    network_folder.save_network(place.folder, module, params)
    keep_curves(place)


class _Parts:
    """What finished stages hold that the network is put together from."""

    def __init__(
        self,
        corpus: pathlib.Path,
        query_vocabulary: pathlib.Path,
        encoder: pathlib.Path,
        vectors: pathlib.Path,
        clusters: pathlib.Path,
    ):
        self.dataset = load_dataset(corpus)
        self.words = load_vocabulary(query_vocabulary)
        self.encoder = mined.load_encoder(encoder)
        self.vectors = load_vectors(vectors)
        self.cids = load_clusters(clusters)


def first_network(
    parts: _Parts, network: Network, pooling: str, matching: Matching, seed: int
) -> tuple[models.EncoderDecoder, dict, dict[str, float]]:
    """The network, its first parameters, and the factors on their learning rates.

    Raises:
      InputError: queries and documents would have vectors of different widths.
    """
    start = networks.query_tower(parts.encoder, network.dropout) if matching.start == "document_encoder" else None
    module, pretrained = networks.make_network(network, parts.words.size, parts.cids, start, query_pooling=pooling)
    if module.encoder_config.emb_dim != parts.vectors.shape[1]:
        raise InputError(
            f"the network reads queries into {module.encoder_config.emb_dim} dimensions, and documents have "
            f"vectors of {parts.vectors.shape[1]}",
            "Choose Network.encoder and Encoders.encoder of one width.",
            value=network.encoder,
        )
    params = networks.initial_parameters(
        module, network, pretrained, parts.cids, np.asarray(parts.vectors), seed, unit=True
    )
    return module, params, networks.learning_rate_multipliers(module, network, pretrained)


def make_retriever(
    module: models.EncoderDecoder,
    params: Any,
    parts: Any,
    owner: np.ndarray | None,
    pooling: str,
    similarity: str,
    look: Look,
    max_query_length: int,
    *,
    most_sentences: int = 0,
    pieces: bool = False,
) -> GDRRetriever:
    """A retriever that looks into as many clusters as `look.most_share` of them are.

    Args:
      module, params: the network.
      parts: has the vocabulary of queries `words`, the clusters `cids`, the `vectors` of documents or passages, their
        `encoder`, and the `dataset`.
      owner: the document of each passage, None for vectors of documents.
      pooling, similarity: of queries' vectors, and with documents'.
      look: how clusters are written and searched.
      max_query_length: tokens read of a query.
      most_sentences: of a document that have vectors.
      pieces: vectors are of documents' pieces.
    """
    members = docids.memberships(parts.cids)
    searcher = ClusteredSearch(
        np.asarray(parts.vectors),
        members if owner is None else members[owner],
        num_clusters=len(parts.cids),
        codes=look.codes,
        backend=look.backend,
    )
    return GDRRetriever(
        module,
        params,
        parts.words,
        parts.cids,
        searcher,
        owner,
        most_sentences=most_sentences,
        pieces=pieces,
        document_encoder=parts.encoder,
        transform=parts.dataset.transform,
        beams=look.beams,
        beta=look.beta,
        chosen=max(1, int(look.most_share * len(parts.cids))),
        similarity=similarity,
        pooling=pooling,
        normalize=look.normalize,
        length_penalty=look.length_penalty,
        max_query_length=max_query_length,
    )


class _Learning:
    """What both stages of training share."""

    def __init__(
        self,
        parts: _Parts,
        corpus: pathlib.Path,
        pseudo_queries: pathlib.Path | None,
        pairs: pathlib.Path,
        negatives: pathlib.Path,
        matching: Matching,
        mining: Mining,
        training: ContrastiveTraining,
        query_length: int,
        document_length: int,
        pooling: str,
        look: Look,
    ):
        self.parts, self.corpus, self.pseudo_queries, self.pairs = parts, corpus, pseudo_queries, pairs
        self.matching, self.mining, self.training = matching, mining, training
        self.query_length, self.document_length, self.pooling, self.look = query_length, document_length, pooling, look
        queries, self.texts = load_pairs(pairs)
        self.queries = share_answers(queries)
        self.known = mined.load_negatives(negatives, mining)
        self.first = mined.first_table(self.known, mining, self.queries, len(self.texts))

    def against_vectors(
        self,
        place: Place,
        module: models.EncoderDecoder,
        params: Any,
        multipliers: Mapping[str, float],
        retriever: GDRRetriever,
    ) -> Any:
        """Against the vectors that there are."""
        refresher = None
        if self.mining.refresh_every:
            mine = self._miner(retriever, self._batches(None, tokens=False))
            refresher = RefreshedNegatives(self.first, mine, every=self.mining.refresh_every)
        batches = GDRBatches(self._batches(refresher, tokens=False), self.parts.cids, self.parts.vectors)
        return self._fit(place, self._model(module), params, batches, multipliers, retriever, refresher)

    def jointly(
        self,
        place: Place,
        module: models.EncoderDecoder,
        params: Any,
        multipliers: Mapping[str, float],
        retriever: GDRRetriever,
    ) -> tuple[Any, DenseEncoder]:
        """With the document encoder; the documents are encoded anew for every look at dev."""
        encoder, dataset = self.parts.encoder, self.parts.dataset
        config = encoder.config
        document = {DOCUMENT: encoder.params[config.scope("document")]}
        batches = GDRBatches(self._batches(None, tokens=True), self.parts.cids)
        network = self._model(module, config.tower("document"))
        judged = contrastive.judged_queries(self.pairs, dataset, self.training)
        corpus = contrastive.searched(dataset, judged, self.training)
        there = [dataset.corpus.index_of(doc_id) for doc_id in corpus.doc_ids]
        shorter = encoder.reading(document_length=self.document_length)
        looked_at = _Reencoded(retriever, shorter, corpus, docids.memberships(self.parts.cids)[there], self.look)
        factors = DOCUMENT_MULTIPLIERS | dict(multipliers)
        params = self._fit(place, network, {**params, **document}, batches, factors, looked_at, corpus=corpus)
        return network.network_params(params), _with_document(encoder, params[DOCUMENT])

    def _model(self, module: models.EncoderDecoder, document: Any = None) -> GDRModel:
        return GDRModel(
            module=module,
            normalize=self.look.normalize,
            levels=self.parts.cids.levels,
            eos_id=self.parts.cids.eos_id,
            rdrop=self.matching.rdrop or 0.0,
            alpha=self.matching.alpha,
            intra_weight=self.matching.intra_weight,
            temperature=self.matching.temperature,
            similarity=self.matching.similarity,
            pooling=self.pooling,
            document=document,
            chunks=self.training.chunks,
        )

    def _batches(self, refresher: RefreshedNegatives | None, *, tokens: bool) -> ContrastiveBatches:
        source: NegativeSource = self.first if refresher is None else refresher
        return contrastive.make_batches(
            self.queries,
            self.texts,
            source,
            self.training,
            self.query_length,
            self.document_length,
            document_tokens=tokens,
            document_positions=True,
        )

    def _fit(
        self,
        place: Place,
        model: GDRModel,
        params: Any,
        batches: GDRBatches,
        multipliers: Mapping[str, float],
        retriever: Retrainable,
        refresher: RefreshedNegatives | None = None,
        corpus: corpus_lib.Corpus | None = None,
    ) -> Any:
        dataset = self.parts.dataset
        judged = contrastive.judged_queries(self.pairs, dataset, self.training)
        task = Task(
            model=model,
            batches=batches,
            initial_params=params,
            multipliers=multipliers,
            evaluate=contrastive.evaluation(retriever, dataset, judged, self.training, corpus),
            hooks=[] if refresher is None else [refresher.hook],
        )
        return fit(place, task, self.training).params

    def _miner(self, retriever: GDRRetriever, planned: ContrastiveBatches):
        """Mines with the queries' vectors of the moment, of the questions that are drawn until the next table; the
        documents' are what they were."""

        def mine(params: Mapping[str, Any], due: int) -> tables.Negatives:
            assert self.pseudo_queries is not None and self.mining.refresh_every is not None
            _, asked = load_asked(self.corpus, self.pseudo_queries, self.training.kept_back)
            current = VectorsAlone(retriever.with_parameters(params))
            rows = planned.rows_of(due, due + self.mining.refresh_every)
            mining = self.mining
            found = mined.mine(
                current, asked.texts, self.queries.targets, mining.kept, mining.skip, "the model's", rows
            )
            table = mined.mixed({"ance": found, **self.known}, mining)
            assert table is not None
            return table

        return mine


class _Reencoded:
    """GDR with any parameters of both networks: documents, which may be some of all, are encoded anew. Clusters are
    written as if all documents were there."""

    def __init__(
        self,
        retriever: GDRRetriever,
        encoder: DenseEncoder,
        corpus: corpus_lib.Corpus,
        members: Int[np.ndarray, "documents most"],
        look: Look,
    ):
        self._retriever, self._encoder, self._corpus, self._members = retriever, encoder, corpus, members
        self._look = look

    def with_parameters(self, params: Any) -> GDRRetriever:
        """A retriever around these parameters."""
        vectors = _with_document(self._encoder, params[DOCUMENT]).encode_documents(self._corpus.contents)
        searcher = ClusteredSearch(
            vectors,
            self._members,
            num_clusters=self._retriever.searcher.num_clusters,
            codes=self._look.codes,
            backend=self._look.backend,
        )
        return self._retriever.with_parameters(params).with_searcher(searcher)


def _with_document(encoder: DenseEncoder, document: Any) -> DenseEncoder:
    """The encoder with other parameters of its side of documents. Where one tower reads both sides, queries change too:
    GDR's are read by its own network."""
    scope = encoder.config.scope("document")
    params = {**encoder.params, scope: jax.tree.map(np.asarray, dict(document))}
    return encoder.with_parameters(params)
