"""The stages after GDR's training: what is chosen on dev, the index, the results."""

from __future__ import annotations

import json
import pathlib
import types
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from gr_jax import evaluation, processes, storage
from gr_jax.corpus import Dataset
from gr_jax.models import network_folder
from gr_jax.retrievers import index as indexes
from gr_jax.retrievers.base import Ranking, Retriever, ranking_to_run
from gr_jax.stages import results
from gr_jax.stages.bm25 import load_bm25
from gr_jax.stages.clusters import load_clusters
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, stage
from gr_jax.stages.negatives import load_encoder, what_mining_took
from gr_jax.stages.training import folder_bytes
from gr_jax.stages.vectors import searched, what_is_read
from gr_jax.stages.vocabulary import load_vocabulary
from gr_jax.systems.gdr import choice as gdr_choice
from gr_jax.systems.gdr.learning import make_retriever
from gr_jax.systems.gdr.retriever import GDRRetriever
from gr_jax.systems.gdr.settings import ClusterSearch
from gr_jax.systems.gdr.vectors_alone import VectorsAlone

# Of the ranking of all documents by the query's vector, in tables.
VECTORS_ALONE = "{}, vectors alone"


@stage()
def index(
    place: Place,
    corpus: pathlib.Path,
    query_vocabulary: pathlib.Path,
    clusters: pathlib.Path,
    model: pathlib.Path,
    encoder: pathlib.Path,
    vectors: pathlib.Path,
    in_pieces: pathlib.Path | None,
    *,
    similarity: str,
    pooling: str,
    search: ClusterSearch,
    most_sentences: int,
) -> None:
    """All that answering needs, in one folder. Weight and number of clusters are the best on dev, and stand with all
    that were measured in `choice.json`; without a dev split they are those by which training looks at dev.

    Args:
      model: has the network.
      encoder: of documents.
      vectors: of documents, or of the passages that are searched.
      in_pieces: of the documents' pieces, which are searched instead where the stage made some.
      similarity, pooling: of queries' vectors with documents', and of queries' states.
      search: settings.
      most_sentences: of a document that have vectors.
    """
    dataset = load_dataset(corpus)
    module, params = network_folder.load_network(model)
    array, owner, pieces = searched(vectors, in_pieces, most_sentences)
    parts = types.SimpleNamespace(
        dataset=dataset,
        words=load_vocabulary(query_vocabulary),
        cids=load_clusters(clusters),
        vectors=array,
        encoder=load_encoder(encoder),
    )
    retriever = make_retriever(
        module, params, parts, owner, pooling, similarity, search.look, search.max_query_length,
        most_sentences=most_sentences, pieces=pieces,
    )  # fmt: skip
    choice = choose_on_dev(retriever, dataset, search)
    storage.write_json(place.folder / "choice.json", choice.as_json())
    indexes.fill(place.folder, choice.retriever(retriever), dataset.corpus)
    place.notes.update(
        {
            "documents": len(dataset.corpus),
            "bytes": folder_bytes(place.folder),
            "beta": choice.beta,
            "chosen": choice.chosen,
        }
    )


def choose_on_dev(retriever: GDRRetriever, dataset: Dataset, search: ClusterSearch) -> gdr_choice.Choice:
    """The best weight and number of clusters on dev; without a dev split the retriever's own."""
    if not len(dataset.qrels.get("dev", ())):
        return gdr_choice.Choice(retriever.beta, retriever.chosen or retriever.beams, search.measure, ())
    (measure,) = evaluation.parse_measures(search.measure).values()
    depth = measure.params.get("cutoff", 0)
    return gdr_choice.choose(
        retriever,
        dataset.split_queries("dev"),
        dataset.split("dev"),
        dataset.corpus,
        betas=search.betas,
        chosen=search.chosen,
        measure=search.measure,
        most_share=search.most_share,
        progress=True,
        **({"k": depth} if depth > results.DEPTH else {}),
    )


@stage(together=True)
def gdr_results(
    place: Place,
    corpus: pathlib.Path,
    bm25: pathlib.Path,
    clusters: pathlib.Path,
    model: pathlib.Path,
    index: pathlib.Path,
    hybrid: pathlib.Path,
    mined: Sequence[pathlib.Path],
    reader: pathlib.Path,
    in_pieces: pathlib.Path | None,
    *,
    name: str,
    provenance: Mapping[str, Any],
) -> None:
    """Runs, measures and the report, with BM25, the ranking of all documents by the query's vector and the combination
    with BM25 beside it.

    Args:
      model: the stage that trained last.
      hybrid: the stage of the combination.
      mined: stages of negatives.
      reader: the stage that read the documents, which says how much of them.
      in_pieces: of the documents' pieces, if there is one.
      name: of the system, in tables.
      provenance: settings that reports must say: "pseudo_queries", "seeds".
    """
    dataset = load_dataset(corpus)
    searcher = indexes.load(index)
    retriever = cast(GDRRetriever, searcher.retriever)
    systems: dict[str, Retriever] = {
        results.BM25: load_bm25(bm25, dataset),
        VECTORS_ALONE.format(name): VectorsAlone(retriever),
        name: retriever,
    }
    splits = results.judged_splits(dataset)
    about = {**provenance, **_about(index, clusters, retriever)}
    report = results.judged_report(place, dataset, name, systems, hybrid, about)
    if not processes.first():
        return  # one report is enough
    report.add_fact("documents read", what_is_read(reader, in_pieces))
    report.add_fact("mining", what_mining_took(mined))
    results.add_training(report, name, model)
    if splits:
        storage.write_json(place.folder / "clusters.json", _scored(retriever, dataset, splits))
    results.finish(place, report, dataset, systems, name, index, [corpus, bm25, model, hybrid])


def _about(index: pathlib.Path, clusters: pathlib.Path, retriever: GDRRetriever) -> dict[str, Any]:
    """What a report says of clusters and of what was chosen."""
    choice = json.loads((index / "choice.json").read_text(encoding="utf-8"))
    meta = storage.read_folder(clusters, "clusters", verify=False).meta
    sizes = meta["sizes"]
    chosen = "chosen on dev" if choice["table"] else "for there is no dev split to choose on"
    return {
        "constraint": f"trie over {meta['clusters']} clusters of {sizes['0']:.0f} to {sizes['1']:.0f} documents, "
        f"half of them at most {sizes['0.5']:.0f}",
        "normalizer": f"{retriever.normalize}, then softmax over the {retriever.beams} hypotheses of the beam; "
        f"weight {choice['beta']:g} and {choice['chosen']} clusters, {chosen}",
    }


def _scored(retriever: GDRRetriever, dataset: Dataset, splits: Sequence[str]) -> dict[str, Any]:
    """split → which share of the documents' vectors was scored, how often an answer's cluster was looked into, and
    R@100 so and with all documents scored."""
    found = {}
    for split in splits:
        queries, qrels = dataset.split_queries(split), dataset.split(split)
        decoded = retriever.decode(queries.texts)
        inside = []
        for row, query_id in enumerate(queries.ids):
            relevant = [dataset.corpus.index_of(doc_id) for doc_id, grade in qrels[query_id].items() if grade > 0]
            inside.append(bool(relevant) and bool(retriever.looks_into(decoded, row, np.array(relevant)).any()))
        everywhere = decoded.with_all_clusters(retriever.searcher.num_clusters)
        depth = min(results.DEPTH, len(dataset.corpus))
        recalls = []
        for one, chosen in ((decoded, retriever.chosen), (everywhere, everywhere.clusters.shape[1])):
            ranking = Ranking(*retriever.search(one, depth, chosen=chosen))
            run = ranking_to_run(ranking, queries.ids, dataset.corpus)
            recalls.append(evaluation.evaluate(run, qrels, ("R@100",))["R@100"])
        found[split] = {
            "share_scored": float(np.mean(retriever.share_scored(decoded))),
            "answer_in_chosen": float(np.mean(inside)),
            "R@100": recalls[0],
            "R@100, all scored": recalls[1],
        }
    return found
