"""The stages that train GDR: against document vectors that stay as they are, then with the document encoder too."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from gr_jax import corpus as corpus_lib
from gr_jax import docids, models
from gr_jax.dense import ClusteredSearch
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from gr_jax.models import network_folder
from gr_jax.models.gdr import DOCUMENT, GDRModel
from gr_jax.recipes import bindings, document_encoder, documents, examples, mining, networks, pair_training
from gr_jax.recipes import clusters as clusters_lib
from gr_jax.recipes.dense_settings import ContrastiveTraining, Encoders, Mining
from gr_jax.recipes.gdr_settings import ClusterSearch, Matching
from gr_jax.recipes.learning import Retrainable, seconds_of_earlier_starts
from gr_jax.recipes.settings import Network
from gr_jax.recipes.stages import Stage, Workplace
from gr_jax.retrievers.dense_encoder import DenseEncoder
from gr_jax.retrievers.gdr import GDRRetriever
from gr_jax.retrievers.vectors_alone import VectorsAlone
from gr_jax.training import negatives as tables
from gr_jax.training.contrastive_batches import ContrastiveBatches, NegativeSource
from gr_jax.training.gdr_batches import GDRBatches
from gr_jax.training.refreshed_negatives import RefreshedNegatives
from gr_jax.training.shared_answers import share_answers

# Settings of the search by which training looks at dev.
_LOOKED_AT_BY = ("beams", "normalize", "most_share", "length_penalty", "max_query_length", "codes")
# Documents move as a pretrained encoder does, where nobody says otherwise.
DOCUMENT_MULTIPLIERS = {f"{DOCUMENT}/token_embedder": 0.0, DOCUMENT: 0.05}


def model_stage(
    encoded: document_encoder.EncodedDocuments,
    reading: Stage,
    clusters: Stage,
    pairs: Stage,
    negatives: Stage,
    encoders: Encoders,
    network: Network,
    matching: Matching,
    mined: Mining,
    training: ContrastiveTraining,
    search: ClusterSearch,
    before: Stage | None = None,
) -> Stage:
    """Trains the network. Interrupted, it goes on from its latest checkpoint with the same result.

    Args:
      encoded: documents and their encoder.
      reading: the vocabulary of queries.
      clusters, pairs, negatives: their stages.
      encoders, network, matching, mined, training, search: settings.
      before: None: document vectors stay as they are. The stage that this gave: goes on from there, and the document
        encoder learns too; it is saved beside the network.
    """

    def make(place: Workplace) -> None:
        earlier, started = seconds_of_earlier_starts(place.work), time.monotonic()
        cids = clusters_lib.load_clusters(place.inputs["clusters"])
        words = examples.load_vocabulary(place.inputs[reading.name])
        encoder = document_encoder.load_encoder(place.inputs[document_encoder.NAME])
        vectors = documents.load_vectors(place.inputs["vectors"])
        multipliers: Mapping[str, float] = {}
        if before is not None:
            module, params = network_folder.load_network(place.inputs[before.name])
            scratch = network.encoder == "t5" and matching.start == "pretrained"
            multipliers = networks.learning_rate_multipliers(module, network, None if scratch else params)
        else:
            start = None
            if matching.start == "document_encoder":
                start = networks.query_tower(encoder, network.dropout)
            module, pretrained = networks.make_network(network, words.size, cids, start, query_pooling=encoders.pooling)
            if module.encoder_config.emb_dim != vectors.shape[1]:
                raise InputError(
                    f"the network reads queries into {module.encoder_config.emb_dim} dimensions, and documents have "
                    f"vectors of {vectors.shape[1]}",
                    "Choose Network.encoder and Encoders.encoder of one width.",
                    value=(network.encoder, encoders.encoder),
                )
            params = networks.initial_parameters(
                module, network, pretrained, cids, np.asarray(vectors), training.seed, unit=True
            )
            multipliers = networks.learning_rate_multipliers(module, network, pretrained)
        if training.steps:
            dataset = documents.load_dataset(place.inputs["corpus"])
            task = _Task(place, dataset, cids, vectors, encoder, encoders, matching, mined, training)
            retriever = make_retriever(
                module, params, words, cids, vectors, None, encoder, dataset.transform, encoders, matching, search
            )
            if before is None:
                params = task.train(module, params, multipliers, retriever, search)
            else:
                params, encoder = task.train_jointly(module, params, multipliers, retriever, search)
        network_folder.save_network(place.folder, module, params)
        if before is not None:
            encoder.save(place.folder / "encoder")
        pair_training.finish(place, earlier, started)

    inputs: Sequence[Stage] = (encoded.corpus, reading, encoded.encoder, encoded.vectors, clusters)
    config: dict[str, Any] = {
        "network": networks.network_config(network, encoders.pooling),
        "matching": matching.as_config(),
        "training": training.as_config() if training.steps else {"steps": 0, "seed": training.seed},
    }
    if training.steps:
        inputs = (*inputs, encoded.pseudo_queries, pairs, negatives)
        config |= {
            "mining": {"shares": dict(mined.shares), "refresh_every": mined.refresh_every},
            "search": {
                **{name: getattr(search, name) for name in _LOOKED_AT_BY},
                "beta": search.betas[0],
            },
        }
        if training.multipliers is None:  # another default is another training
            config["training"]["multipliers"] = networks.multipliers_config(network) | (
                {} if before is None else DOCUMENT_MULTIPLIERS
            )
    name = "model" if before is None else "joint_model"
    config |= bindings.of_training(GDRModel)
    return Stage(name, config, (*inputs, *([] if before is None else [before])), make)


def make_retriever(
    module: models.EncoderDecoder,
    params: Any,
    vocabulary: Any,
    cids: Docids,
    vectors: np.ndarray,
    owner: np.ndarray | None,
    encoder: DenseEncoder,
    transform: str,
    encoders: Encoders,
    matching: Matching,
    search: ClusterSearch,
    *,
    most_sentences: int = 0,
) -> GDRRetriever:
    """A retriever of these settings, with the first of the weights that dev chooses from, which looks into as many
    clusters as `search.most_share` of them are: as training looks at dev.

    Args:
      vectors: of documents, or of passages.
      owner: the document of each passage, None for vectors of documents.
    """
    members = docids.memberships(cids)
    searcher = ClusteredSearch(
        np.asarray(vectors),
        members if owner is None else members[owner],
        num_clusters=len(cids),
        codes=search.codes or None,
        backend=search.backend,
    )
    return GDRRetriever(
        module,
        params,
        vocabulary,
        cids,
        searcher,
        owner,
        most_sentences=most_sentences,
        document_encoder=encoder,
        transform=transform,
        beams=search.beams,
        beta=search.betas[0],
        chosen=max(1, int(search.most_share * len(cids))),
        similarity=matching.similarity,
        pooling=encoders.pooling,
        normalize=search.normalize,
        length_penalty=search.length_penalty,
        max_query_length=search.max_query_length,
    )


class _Task:
    """What both stages of training share."""

    def __init__(
        self,
        place: Workplace,
        dataset: corpus_lib.Dataset,
        cids: Docids,
        vectors: np.ndarray,
        encoder: DenseEncoder,
        encoders: Encoders,
        matching: Matching,
        mined: Mining,
        training: ContrastiveTraining,
    ):
        self.place, self.dataset, self.cids, self.vectors, self.encoder = place, dataset, cids, vectors, encoder
        self.encoders, self.matching, self.mined, self.training = encoders, matching, mined, training
        queries, self.texts = mining.load_pairs(place.inputs["pairs"])
        self.queries = share_answers(queries)
        self.known = mining.load_negatives(place.inputs["negatives"], mined)
        self.first = mining.first_table(self.known, mined, self.queries, len(self.texts))

    def train(
        self,
        module: models.EncoderDecoder,
        params: Any,
        multipliers: Mapping[str, float],
        retriever: GDRRetriever,
        search: ClusterSearch,
    ) -> Any:
        """Against the vectors that there are."""
        refresher = None
        if self.mined.refresh_every:
            mine = self._miner(retriever, self._batches(None, tokens=False))
            refresher = RefreshedNegatives(self.first, mine, every=self.mined.refresh_every)
        batches = GDRBatches(self._batches(refresher, tokens=False), self.cids, self.vectors)
        model = self._model(module, search)
        return self._fit(model, params, batches, multipliers, retriever, refresher)

    def train_jointly(
        self,
        module: models.EncoderDecoder,
        params: Any,
        multipliers: Mapping[str, float],
        retriever: GDRRetriever,
        search: ClusterSearch,
    ) -> tuple[Any, DenseEncoder]:
        """With the document encoder; the documents are encoded anew for every look at dev."""
        config = self.encoder.config
        document = {DOCUMENT: self.encoder.params[config.scope("document")]}
        batches = GDRBatches(self._batches(None, tokens=True), self.cids)
        model = self._model(module, search, config.tower("document"))
        judged, corpus = pair_training.judged_queries(self.place, self.dataset, self.training), self.dataset.corpus
        if judged is not None:
            corpus = pair_training.searched(self.dataset, judged, self.training)
        there = [self.dataset.corpus.index_of(doc_id) for doc_id in corpus.doc_ids]
        shorter = self.encoder.reading(document_length=self.training.taught(self.encoders).document_length)
        looked_at = _Reencoded(retriever, shorter, corpus, docids.memberships(self.cids)[there], search)
        factors = DOCUMENT_MULTIPLIERS | dict(multipliers)
        params = self._fit(model, {**params, **document}, batches, factors, looked_at, corpus=corpus)
        return model.network_params(params), _with_document(self.encoder, params[DOCUMENT])

    def _model(self, module: models.EncoderDecoder, search: ClusterSearch, document: Any = None) -> GDRModel:
        return GDRModel(
            module=module,
            normalize=search.normalize,
            levels=self.cids.levels,
            eos_id=self.cids.eos_id,
            rdrop=self.matching.rdrop,
            alpha=self.matching.alpha,
            intra_weight=self.matching.intra_weight,
            temperature=self.matching.temperature,
            similarity=self.matching.similarity,
            pooling=self.encoders.pooling,
            document=document,
            chunks=self.training.chunks,
        )

    def _batches(self, refresher: RefreshedNegatives | None, *, tokens: bool) -> ContrastiveBatches:
        source: NegativeSource = self.first if refresher is None else refresher
        longest = self.training.taught(self.encoders)
        return pair_training.make_batches(
            self.queries,
            self.texts,
            source,
            self.training,
            longest.query_length,
            longest.document_length,
            document_tokens=tokens,
            document_positions=True,
        )

    def _fit(
        self,
        model: GDRModel,
        params: Any,
        batches: GDRBatches,
        multipliers: Mapping[str, float],
        retriever: Retrainable,
        refresher: RefreshedNegatives | None = None,
        corpus: corpus_lib.Corpus | None = None,
    ) -> Any:
        training, evaluate = self.training, None
        judged = pair_training.judged_queries(self.place, self.dataset, training)
        if judged is not None:
            evaluate = pair_training.evaluation(retriever, self.dataset, judged, training, corpus)
        chosen = multipliers if training.multipliers is None else training.multipliers
        found = pair_training.run(self.place, model, params, batches, training, chosen, evaluate, refresher)
        return found.params

    def _miner(self, retriever: GDRRetriever, planned: ContrastiveBatches):
        """Mines with the queries' vectors of the moment, of the questions that are drawn until the next table; the
        documents' are what they were."""

        def mine(params: Mapping[str, Any], due: int) -> tables.Negatives:
            _, asked = mining.load_asked(self.place, self.training)
            current = VectorsAlone(retriever.with_parameters(params))
            rows = planned.rows_of(due, due + self.mined.refresh_every)
            found = mining.mine(current, asked.texts, self.queries.targets, self.mined, "the model's", rows)
            table = mining.mixed({"ance": found, **self.known}, self.mined)
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
        search: ClusterSearch,
    ):
        self._retriever, self._encoder, self._corpus, self._members = retriever, encoder, corpus, members
        self._search = search

    def with_parameters(self, params: Any) -> GDRRetriever:
        """A retriever around these parameters."""
        vectors = _with_document(self._encoder, params[DOCUMENT]).encode(self._corpus.contents, "document")
        searcher = ClusteredSearch(
            vectors,
            self._members,
            num_clusters=self._retriever.searcher.num_clusters,
            codes=self._search.codes or None,
            backend=self._search.backend,
        )
        return self._retriever.with_parameters(params).with_searcher(searcher)


def _with_document(encoder: DenseEncoder, document: Any) -> DenseEncoder:
    """The encoder with other parameters of its side of documents. Where one tower reads both sides, queries change too:
    GDR's are read by its own network."""
    scope = encoder.config.scope("document")
    params = {**encoder.params, scope: jax.tree.map(np.asarray, dict(document))}
    return encoder.with_parameters(params)
