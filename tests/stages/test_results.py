"""The last stage: measures are ir_measures' of the runs that lie beside them; where beams die."""

import dataclasses
import json
import re

import ir_measures
import numpy as np
import pytest

from gr_jax import corpus, evaluation, retrievers, storage, systems
from gr_jax.corpus import Corpus, Dataset, Document, Qrels, Queries
from gr_jax.docids import Docids
from gr_jax.stages import results
from tests.small_dsi import COUNT, network, quiet


def test_metrics_are_those_of_the_runs(memorised):
    folder = memorised.model_dir / "results"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert list(metrics) == ["test"] and set(metrics["test"]) == {"BM25", "DSI", "BM25 + DSI"}
    qrels = list(ir_measures.read_trec_qrels(str(_as_trec(memorised.corpus / "qrels" / "test.tsv", folder))))
    measures = [ir_measures.parse_measure(name) for name in results.MEASURES]
    for system, values in metrics["test"].items():
        run = list(ir_measures.read_trec_run(str(folder / "runs" / f"{'_'.join(system.split())}.test.trec")))
        expected = ir_measures.calc_aggregate(measures, qrels, run)
        assert values == pytest.approx({str(measure): value for measure, value in expected.items()}, abs=1e-9)
        by_query: dict[str, list[float]] = {}
        for line in run:
            by_query.setdefault(line.query_id, []).append(line.score)
        assert all((np.diff(scores) < 0).all() for scores in by_query.values()) and len(by_query) == 32


def _as_trec(tsv, folder):
    lines = [line.split("\t") for line in tsv.read_text().splitlines()[1:]]
    file = folder.parent.parent / "qrels.txt"
    file.write_text("".join(f"{query} 0 {document} {grade}\n" for query, document, grade in lines))
    return file


def test_the_report_says_what_its_numbers_rest_on(memorised):
    text = (memorised.model_dir / "results" / "report.md").read_text()
    dataset = corpus.read_beir(memorised.corpus)
    for wanted in (dataset.corpus.fingerprint, "test", "BM25", "trie", "level", "who saw a"):
        assert wanted in text


@pytest.mark.parametrize(
    ("splits", "judged"),
    [
        (["train", "dev", "test", "test_unseen"], ["test", "test_unseen"]),
        (["train", "dev"], ["dev"]),
        (["train"], []),
        ([], []),
    ],
)
def test_what_was_trained_on_or_chosen_by_is_not_reported_beside_what_was_not(splits, judged):
    dataset = Dataset(
        Corpus.from_documents([Document("d", "t", "x")]),
        Queries(("q",), ("x",)),
        {**{split: Qrels({"q": {"d": 1}}) for split in splits}, "empty": Qrels({})},
    )
    assert results.judged_splits(dataset) == judged


class Beams:
    """Keeps for each query the prefixes of the docids that it is told."""

    def __init__(self, docids: Docids, left: dict[str, list[list[int]]]):
        self.docids, self.left = docids, left

    def kept_prefixes(self, queries):
        depths = range(1, self.docids.tokens.shape[1] + 1)
        return [[{tuple(tokens[:depth]) for tokens in self.left[query]} for depth in depths] for query in queries]


def test_where_beams_die():
    # Document 0 has two docids, 1 a short one; 2 and 3 part at the last token.
    docids = Docids.build(
        [[2, 5, 8], [4, 6, 9], [3, 5], [2, 6, 8], [2, 6, 9]], vocab_size=10, documents=[0, 0, 1, 2, 3], num_documents=4
    )
    left = {
        "right": [[2, 6, 8], [3, 5]],  # 2: alive at 1, 2, 3
        "at the last": [[2, 6, 9]],  # 2: alive at 1, 2
        "at the second": [[2, 6, 9], [3, 5]],  # 0, by its docid 2-5-8: alive at 1
        "by its other docid": [[3, 5], [4, 6, 9]],  # 0: alive at 1, 2, 3
        "at once": [[2, 6, 8], [2, 5, 8]],  # 1
        "short": [[3, 5], [2, 5, 8], [4, 6, 9]],  # 1: alive throughout, for it ends at 2
        "nobody's": [[3, 5]],  # has no right document: left out
        "either": [[2, 5, 8], [4, 6, 9], [2, 6, 8]],  # 1 or 3: alive at 1, 2 by 2-6
    }
    gold = {
        "right": [2], "at the last": [2], "at the second": [0], "by its other docid": [0], "at once": [1], "short": [1],
        "nobody's": [], "either": [1, 3],
    }  # fmt: skip
    queries = list(left)
    alive = results.beam_survival(Beams(docids, left), queries, [gold[q] for q in queries], docids)
    np.testing.assert_allclose(alive, [6 / 7, 5 / 7, 3 / 7])
    assert results.beam_survival(Beams(docids, left), ["nobody's"], [[]], docids).tolist() == [0, 0, 0]


def test_beams_of_the_memorised_are_alive_on_what_it_knows(memorised):
    dataset, retriever = corpus.read_beir(memorised.corpus), memorised.searcher.retriever
    queries = dataset.split_queries("train")
    gold = [[dataset.corpus.index_of(d) for d in dataset.split("train")[q]] for q in queries.ids]
    alive = results.beam_survival(retriever, queries.texts, gold, retriever.docids)
    assert alive.tolist() == [1.0] * retriever.docids.tokens.shape[1]


def test_examples_are_hits_and_misses_with_their_ranks():
    """Against a search through the whole run; two thirds of the queries have an answer among the first ten."""
    qrels = {f"q{n}": {f"d{n}": 1, "d99": 0} for n in range(30)} | {"no answer": {"d1": 0}, "not asked": {"d1": 1}}
    run = {f"q{n}": [(f"d{(n - n % 15 + i) % 30}", -float(i)) for i in range(20)] for n in range(29)}
    drawn = results.draw_examples(run, qrels, [*qrels][:-1])
    assert drawn == results.draw_examples(run, qrels, [*qrels][:-1]) != sorted(drawn) and len({*drawn}) == 6
    for place, query in enumerate(drawn):
        found = [doc_id for doc_id, _ in run.get(query, [])]
        (right,) = [doc_id for doc_id, grade in qrels[query].items() if grade]
        rank = results.rank_of_answer(run.get(query, []), [right])
        assert rank == (found.index(right) + 1 if right in found else None)
        assert (right in found[:10]) == (place < 3)
    assert results.draw_examples({}, {}, []) == []


def test_the_report_shows_examples_with_bm25_beside_them_and_what_the_run_took(memorised):
    folder = memorised.model_dir / "results"
    text = (folder / "report.md").read_text()
    runs = {name: corpus.Run.load(results.run_file(folder, name, "test")) for name in ("BM25", "DSI")}
    dataset = corpus.read_beir(memorised.corpus)
    asked = dataset.split_queries("test")
    examples = text.partition("## Example searches")[2].partition("## What these")[0].split("\n\n**")[1:]
    assert 3 <= len(examples) <= 6
    for example in examples:
        query = asked.ids[asked.texts.index(example.partition("**")[0])]
        (right,) = dataset.split("test")[query]
        for name, run in runs.items():
            rank = [doc_id for doc_id, _ in run[query]].index(right) + 1
            assert re.search(rf"its rank: .*{name} {rank}\b", example)
    rest = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", text.partition("## What these")[2], re.MULTILINE))
    manifest = storage.read_folder(memorised.model_dir / "index")
    assert f"{sum(entry['bytes'] for entry in manifest.files.values()):,} bytes" in rest["index"]
    model = storage.read_folder(memorised.model_dir / "model").meta["seconds"] / 60
    assert f"model {model:.1f}" in rest["minutes"] and "config.gin" in rest["settings"]
    assert "random, from scratch (encoder of model)" in rest["weights"] and "none: LSA" in rest["weights"]
    assert re.fullmatch(
        r"BM25 \S+ ms \(median of 20\); DSI \S+ ms \(median of \d+\)", rest["latency, one query at a time"]
    )


def test_documents_that_are_judged_not_relevant_are_not_right(memorised):
    """A grade of 0 is a judgement, not an answer."""
    dataset = corpus.read_beir(memorised.corpus)
    query = next(iter(dataset.qrels["train"]))
    (right,) = dataset.qrels["train"][query]
    judged = {doc_id: int(doc_id == right) for doc_id in dataset.corpus.doc_ids}
    about = dataclasses.replace(dataset, qrels={"judged": Qrels({query: judged}), "none": Qrels({query: {right: 0}})})
    rest = {
        "corpus": "mine",
        "duplicate_rule": "",
        "pseudo_queries": 0,
        "constraint": "",
        "normalizer": "",
        "seeds": [],
    }
    for split, shown, alive in (("judged", [right], 1.0), ("none", [], 0.0)):
        report = evaluation.Report("judged", evaluation.Provenance(split=split, **rest))
        retriever = memorised.searcher.retriever
        run = retrievers.retrieve_run(retriever, about.split_queries(split), about.corpus, k=10)
        report.add("DSI", split, {"RR@10": 1.0}, run=run)
        results.add_examples(report, "DSI", about, split, memorised.searcher)
        results._look_inside(report, "DSI", about, split, retriever, retriever.docids)
        found = [[hit.doc_id for hit in example.hits if hit.relevant] for example in report.examples]
        assert found == [shown] * bool(shown) and all(len(example.hits) == 5 for example in report.examples)
        assert (report.survival[f"DSI, {split}"] == alive).all()


@pytest.mark.slow
def test_the_bm25_beside_dsi_is_the_one_beside_gdr(beir, tmp_path):
    told = {
        "encoders": systems.Encoders(encoder="t5", vocabulary="byte", width=16, heads=2, mlp_width=16, layers=1),
        "encoder_training": None,
        "clusters": systems.Clusters(budget=COUNT),
        "network": network(query_residual=True),
        "training": None,
    }
    other = systems.Lexical(analyzer="character_bigrams", k1=0.1)
    systems.GDR(**told, lexical=other).run(beir, tmp_path / "gdr", say=quiet)
    for name, lexical in (("dsi", other), ("plain", systems.Lexical())):
        systems.DSIClusters(**told, lexical=lexical).run(beir, tmp_path / name, say=quiet)
    gdr, dsi, plain = (
        (tmp_path / name / "results" / "runs" / "BM25.test.trec").read_text() for name in ("gdr", "dsi", "plain")
    )
    assert dsi == gdr != plain
    meta = storage.read_folder(tmp_path / "plain" / "results", "generative_results").meta
    assert set(meta["inputs"]) == {"corpus", "bm25", "docids", "model", "index", "hybrid", "vectors"}
