"""64 documents, their queries, docids, examples and a small network: all that training needs, in a second."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np

from gr_jax import corpus, docids, models, text, training
from gr_jax.retrievers.generative import GenerativeRetriever
from tests import small_data


@dataclasses.dataclass(frozen=True)
class SmallSystem:
    """The parts, before training."""

    dataset: corpus.Dataset
    ids: docids.Docids
    vocabulary: text.Vocabulary
    store: training.TokenStore
    module: models.EncoderDecoder
    model: models.EncoderDecoderModel

    def batches(self, batch_size: int, seed: int = 0):
        return training.make_batches(
            self.store, batch_size=batch_size, lengths={"inputs": 32, "targets": self.ids.max_steps}, seed=seed
        )

    def retriever(self, params, **options) -> GenerativeRetriever:
        return GenerativeRetriever.over_docids(
            self.module, params, self.vocabulary, self.ids, max_query_length=32, **options
        )


def build(folder: pathlib.Path, *, layers: int = 1) -> SmallSystem:
    """Reads the small data, clusters random vectors, and writes the training queries as a token store."""
    dataset = corpus.read_beir(small_data.write_beir(folder / "mine", count=64))
    vectors = np.random.default_rng(0).normal(size=(len(dataset.corpus), 8)).astype(np.float32)
    ids = docids.hierarchical_kmeans(vectors, branching=8, leaf_capacity=8, tokens="position")
    vocabulary = text.ByteVocabulary()
    name_of: dict[int, list[int]] = {}
    for row in range(len(ids)):
        for document in ids.documents[ids.offsets[row] : ids.offsets[row + 1]]:
            name_of[int(document)] = ids.tokens[row, : ids.lengths[row]].tolist()
    pairs = [
        training.Pair(dataset.queries.text(query_id), name_of[dataset.corpus.index_of(doc_id)], "query")
        for query_id, grades in dataset.qrels["train"].items()
        for doc_id in grades
    ]
    features = training.PairFeatures(vocabulary, max_input_length=32, eos_id=ids.eos_id)
    store = training.write_token_store(folder / "tokens", pairs, features)
    size = models.T5Config(
        vocab_size=-(-max(vocabulary.size, ids.vocab_size) // 8) * 8,
        emb_dim=48, num_heads=4, head_dim=12, num_encoder_layers=layers, num_decoder_layers=layers, mlp_dim=96,
        mlp_activations=("gelu", "linear"), dropout_rate=0.0,
    )  # fmt: skip
    module = models.EncoderDecoder(encoder_config=size, decoder_config=size, share_embeddings=False)
    model = models.EncoderDecoderModel(module=module, levels=ids.levels, eos_id=ids.eos_id)
    return SmallSystem(dataset, ids, vocabulary, store, module, model)
