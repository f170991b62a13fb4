"""The stages of the documents' token vectors and of the index around them."""

from __future__ import annotations

import pathlib

from gr_jax.dense.token_vectors import TokenVectors
from gr_jax.retrievers import index as indexes
from gr_jax.stages.bm25 import load_bm25
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, stage
from gr_jax.stages.training import folder_bytes
from gr_jax.stages.vectors import how_much_is_read, room_of, token_counts
from gr_jax.systems.colbert.retriever import LateInteractionRetriever
from gr_jax.systems.colbert.token_encoder import TokenEncoder


@stage(together=True)
def token_vectors(place: Place, corpus: pathlib.Path, model: pathlib.Path, *, precision: str) -> None:
    """The token vectors of every document, memory-mapped; interrupted, it goes on behind the last finished shard.

    Args:
      precision: see `Interaction`.
    """
    dataset = load_dataset(corpus)
    encoder = TokenEncoder.load(model / "encoder")
    counts = token_counts(encoder.vocabulary, dataset.document_texts())
    length = encoder.lengths["document"]
    read = how_much_is_read(counts, length, room_of(encoder.vocabulary, length))
    folder = place.folder / "vectors"
    if not encoder.write_vectors(
        dataset.corpus.contents,
        folder,
        precision=precision,
        corpus=dataset.corpus.fingerprint,
        work=place.common,
        progress=True,
    ):
        return  # process 0 has them
    vectors = TokenVectors.load(folder, verify=False)
    place.notes.update({"documents": vectors.num_documents, "vectors": vectors.num_vectors, "read": read})


@stage()
def index(
    place: Place,
    corpus: pathlib.Path,
    model: pathlib.Path,
    token_vectors: pathlib.Path,
    first: pathlib.Path | None,
    *,
    depth: int,
) -> None:
    """All that answering needs, in one folder.

    Args:
      first: a stage of BM25, whose best documents are ranked; None ranks all.
      depth: how many it finds.
    """
    dataset = load_dataset(corpus)
    retriever = LateInteractionRetriever(
        TokenEncoder.load(model / "encoder"),
        TokenVectors.load(token_vectors / "vectors"),
        first=None if first is None else load_bm25(first, dataset),
        depth=depth,
    )
    indexes.fill(place.folder, retriever, dataset.corpus)
    place.notes.update({"documents": len(dataset.corpus), "bytes": folder_bytes(place.folder)})
