"""Opens an index of any kind that comes with this package: `gr_jax.load` is this module's.

Each kind stands here with the class that reads it. A class is imported when the first folder of its kind is read, so
that a search for words brings no networks with it.
"""

from gr_jax import registry
from gr_jax.retrievers.index import load as load

_KINDS = {
    registry.RETRIEVERS: {
        "bm25": "gr_jax.retrievers.lexical:BM25",
        "dense": "gr_jax.retrievers.dense:DenseRetriever",
        "gdr": "gr_jax.systems.gdr.retriever:GDRRetriever",
        "generative": "gr_jax.retrievers.generative:GenerativeRetriever",
        "hybrid": "gr_jax.retrievers.hybrid:HybridRetriever",
        "late_interaction": "gr_jax.systems.colbert.retriever:LateInteractionRetriever",
        "rerank": "gr_jax.retrievers.rerank:RerankRetriever",
    },
    registry.NETWORKS: {
        "copying": "gr_jax.models.copying:CopyDecoder",
        "copying_ids": "gr_jax.models.copying_ids:CopyingDecoder",
        "decoder_only": "gr_jax.models.prompted:PromptedDecoder",
        "encoder_decoder": "gr_jax.models.generative:GenerativeDecoder",
    },
    registry.DOCUMENTS_OF: {
        "best_docid": "gr_jax.retrievers.documents_of:BestDocid",
        "ngrams": "gr_jax.retrievers.ngrams:NgramAggregation",
    },
    registry.SCORERS: {"cross_encoder": "gr_jax.systems.cross_encoder.scorer:CrossEncoderScorer"},
}

for _registry, _classes in _KINDS.items():
    for _kind, _class in _classes.items():
        _registry.register(_kind, _class)
