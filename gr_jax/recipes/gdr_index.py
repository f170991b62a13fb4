"""The stages after GDR's training: what is chosen on dev, the index, the results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from gr_jax import evaluation, storage
from gr_jax.corpus import Dataset
from gr_jax.models import network_folder
from gr_jax.recipes import bindings, dense_index, document_encoder, documents, examples, gdr_learning, mining, results
from gr_jax.recipes import clusters as clusters_lib
from gr_jax.recipes.dense_settings import Encoders
from gr_jax.recipes.gdr_settings import ClusterSearch, Matching
from gr_jax.recipes.stages import Stage, Workplace
from gr_jax.retrievers import gdr_choice, index
from gr_jax.retrievers.base import Ranking, Retriever, ranking_to_run
from gr_jax.retrievers.gdr import GDRRetriever
from gr_jax.retrievers.vectors_alone import VectorsAlone

# Of the ranking of all documents by the query's vector, in tables.
VECTORS_ALONE = "{}, vectors alone"


def index_stage(
    corpus: Stage,
    reading: Stage,
    clusters: Stage,
    model: Stage,
    encoder: Stage,
    vectors: Stage,
    encoders: Encoders,
    matching: Matching,
    search: ClusterSearch,
    most_sentences: int,
) -> Stage:
    """All that answering needs, in one folder. Weight and number of clusters are the best on dev, and stand with all
    that were measured in `choice.json`; without a dev split they are those by which training looks at dev.

    Args:
      reading: the vocabulary of queries.
      model: has the network.
      encoder: of documents.
      vectors: of documents, or of the passages that are searched.
    """

    def make(place: Workplace) -> None:
        dataset = documents.load_dataset(place.inputs["corpus"])
        module, params = network_folder.load_network(place.inputs[model.name])
        retriever = gdr_learning.make_retriever(
            module,
            params,
            examples.load_vocabulary(place.inputs[reading.name]),
            clusters_lib.load_clusters(place.inputs["clusters"]),
            documents.load_vectors(place.inputs[vectors.name]),
            documents.load_owner(place.inputs[vectors.name]) if most_sentences else None,
            document_encoder.load_encoder(place.inputs[encoder.name]),
            dataset.transform,
            encoders,
            matching,
            search,
            most_sentences=most_sentences,
        )
        choice = choose_on_dev(retriever, dataset, search)
        storage.write_json(place.folder / "choice.json", choice.as_json())
        index.fill(place.folder, choice.retriever(retriever), dataset.corpus)
        size = sum(file.stat().st_size for file in place.folder.rglob("*") if file.is_file())
        place.meta.update(
            {"documents": len(dataset.corpus), "bytes": size, "beta": choice.beta, "chosen": choice.chosen}
        )

    config = {
        "search": bindings.of(gdr_choice.choose) | search.as_config(),
        "matching": {"similarity": matching.similarity},
        "pooling": encoders.pooling,
    }
    return Stage("index", config, (corpus, reading, clusters, model, encoder, vectors), make)


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


def results_stage(
    name: str, corpus: Stage, bm25: Stage, clusters: Stage, model: Stage, built: Stage, *, provenance: dict[str, Any]
) -> Stage:
    """Runs, measures and the report, with BM25 and the ranking of all documents by the query's vector beside it.

    Args:
      name: of the system, in tables.
      model: the stage that trained last.
      built: the index stage.
      provenance: settings that reports must say: "pseudo_queries", "seeds".
    """

    def make(place: Workplace) -> None:
        dataset = documents.load_dataset(place.inputs["corpus"])
        searcher = index.load(place.inputs["index"])
        retriever = cast(GDRRetriever, searcher.retriever)
        systems: dict[str, Retriever] = {
            "BM25": mining.load_bm25(place.inputs["bm25"], dataset),
            VECTORS_ALONE.format(name): VectorsAlone(retriever),
            name: retriever,
        }
        splits = results.judged_splits(dataset)
        report = dense_index.start_report(name, dataset, provenance | _about(place, retriever))
        results.judge(place, report, dataset, systems)
        dense_index.add_training(report, name, place.inputs[model.name])
        if splits:
            storage.write_json(place.folder / "clusters.json", _scored(retriever, dataset, splits))
            results.add_examples(report, name, dataset, splits[-1], searcher)
        results.finish(place, report, dataset)

    settings = {"name": name, "measures": list(results.MEASURES), "depth": results.DEPTH, "provenance": provenance}
    return Stage("results", settings, (corpus, bm25, clusters, model, built), make)


def _about(place: Workplace, retriever: GDRRetriever) -> dict[str, Any]:
    """What a report says of clusters and of what was chosen."""
    choice = json.loads((place.inputs["index"] / "choice.json").read_text(encoding="utf-8"))
    meta = storage.read_folder(place.inputs["clusters"], "clusters", verify=False).meta
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
