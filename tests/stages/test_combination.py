"""What a report says where dev prefers BM25 or the combination to the system."""

import re
import shutil

import numpy as np
import pytest

import gr_jax
from gr_jax import storage
from gr_jax.corpus import Corpus, Document, Queries, read_beir
from gr_jax.retrievers.base import Ranking
from gr_jax.retrievers.hybrid import HybridRetriever, WeightChoice, choose_weight
from gr_jax.retrievers.lexical import BM25
from gr_jax.stages import hybrid, results
from gr_jax.stages.graph import Place
from launch import show

CORPUS = Corpus.from_documents(Document(f"d{n}", "", f"text {n}") for n in range(4))
QRELS = {"q0": {"d0": 1}, "q1": {"d1": 1}}


def ranking(*rows: list[int]) -> Ranking:
    """Documents best first, with scores that fall by one."""
    return Ranking(np.array(rows, np.int32), np.tile(np.arange(4, 0, -1, np.float32), (len(rows), 1)))


def said(folder, bm25: Ranking, own: Ranking) -> str:
    choice = choose_weight(bm25, own, ["q0", "q1"], CORPUS, QRELS)
    storage.write_json(folder / "weights.json", choice.as_json())
    return hybrid.what_dev_prefers(folder, "GDR")


RIGHT, WRONG = ranking([0, 1, 2, 3], [1, 0, 2, 3]), ranking([3, 2, 1, 0], [3, 2, 0, 1])
# Each of two puts another wrong document first, and the right one second; together it is first.
TOGETHER = ranking([2, 0, 3, 1], [2, 1, 3, 0]), ranking([3, 0, 2, 1], [3, 1, 2, 0])


def test_the_system_alone_is_best(tmp_path):
    assert said(tmp_path, WRONG, RIGHT) == said(tmp_path, RIGHT, RIGHT) == ""


def test_bm25_alone_is_best(tmp_path):
    # RR@10 of the wrong ranking: a quarter for both.
    words = said(tmp_path, RIGHT, WRONG)
    assert words.startswith(
        "On dev BM25 alone reaches RR@10 1.000, GDR RR@10 .250, and both together no more than BM25"
    )


def test_the_combination_is_best(tmp_path):
    words = said(tmp_path, *TOGETHER)
    assert words.startswith("On dev BM25 + GDR reaches RR@10 1.000, BM25 alone RR@10 .500 and GDR alone RR@10 .500")
    assert f"`gr-jax search --index={tmp_path}/index " in words


def test_nothing_is_said_without_dev(tmp_path):
    storage.write_json(tmp_path / "weights.json", WeightChoice((0.5, 0.5), "min-max", ()).as_json())
    assert hybrid.what_dev_prefers(tmp_path, "GDR") == ""


def test_the_report_says_it_with_a_command_that_works(memorised, tmp_path):
    folder = shutil.copytree(memorised.model_dir / "hybrid", tmp_path / "hybrid")
    words = said(folder, *TOGETHER)
    report = results.judged_report(
        Place(tmp_path, tmp_path, {}),
        read_beir(memorised.corpus),
        "GDR",
        {"GDR": memorised.searcher.retriever},
        folder,
        {"pseudo_queries": "none", "seeds": []},
    ).markdown()
    assert words and words in report and hybrid.how_combined(folder) in report
    searcher = gr_jax.load(re.search(r"--index=(\S+)", words).group(1))
    assert list(searcher.retriever.parts) == ["BM25", "DSI"] and searcher.search("where is the red cat", 3)


def test_the_commands_of_a_finished_run_name_the_index_that_dev_prefers(tmp_path, capsys):
    def named(*rankings: Ranking, combines: str = "key") -> str:
        notes = {"config": {"name": "DSI"}, "inputs": {"index": combines}}
        with storage.write_folder(tmp_path / "hybrid", "hybrid", meta=notes) as new:
            said(new, *rankings)
        show.show_next(None, tmp_path)
        printed = capsys.readouterr().out
        (index,) = {*re.findall(rf"{tmp_path}/(\S*index)\b", printed)}
        assert ("# On dev BM25 + DSI reaches RR@10 1.000, BM25 alone" in printed) == (index == "hybrid/index")
        return index

    with storage.write_folder(tmp_path / "index", "index", made_from="key"):
        pass
    assert named(WRONG, RIGHT) == "index" and named(*TOGETHER) == "hybrid/index"
    assert named(*TOGETHER, combines="another system's") == "index"


class Counting:
    """BM25 that counts the questions that it is asked, and may not say that it is nested."""

    def __init__(self, bm25: BM25, nested: bool):
        self.bm25, self.nested, self.num_documents, self.asked = bm25, nested, bm25.num_documents, 0

    def retrieve(self, queries, k, **settings):
        self.asked += len(queries)
        return self.bm25.retrieve(queries, k, **settings)


@pytest.mark.parametrize("nested", [True, False])
def test_a_combination_asks_nobody_again_who_has_said_it_all(nested):
    """300 documents of a few words: answers are longer than what is reported of them."""
    rng = np.random.default_rng(0)
    words = np.array("red green blue tall small wide".split())
    documents = (Document(f"d{n}", "", " ".join(rng.choice(words, 5))) for n in range(300))
    everything = Corpus.from_documents(documents)
    queries = Queries(("q0", "q1"), ("red small", "blue wide tall"))
    first, second = (Counting(BM25(everything, k1=k1), nested) for k1 in (0.9, 3.0))
    both = HybridRetriever({"BM25": first, "GDR": second}, (0.4, 0.6))
    expected = both.retrieve(queries.texts, results.DEPTH)
    alone = first.retrieve(queries.texts, results.DEPTH)
    first.asked = second.asked = 0
    found = dict(results._answers({"BM25": first, "GDR": second, "BM25 + GDR": both}, queries))
    assert (first.asked, second.asked) == ((2, 2) if nested else (4, 4))
    for own, wanted in ((found["BM25 + GDR"], expected), (found["BM25"], alone)):
        np.testing.assert_array_equal(own.doc_index, wanted.doc_index)
        np.testing.assert_array_equal(own.score, wanted.score)
    # A combination whose part is called otherwise asks for itself.
    dict(results._answers({"BM25": first, "other": second, "BM25 + GDR": both}, queries))
    assert first.asked == (6 if nested else 8)


def test_the_report_of_a_run_says_how_it_is_combined(memorised):
    folder, report = memorised.model_dir / "hybrid", memorised.model_dir / "results" / "report.md"
    for words in (hybrid.how_combined(folder), hybrid.what_dev_prefers(folder, "DSI")):
        assert words in report.read_text()
