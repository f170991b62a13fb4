"""The entry points: their help and their list, that one by one they give what all at once gives, and that a run that is
killed ends as one that never was."""

import ast
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import gr_jax
from gr_jax import systems
from gr_jax.corpus import Run, read_beir
from gr_jax.evaluation import evaluate
from gr_jax.models import network_folder
from gr_jax.systems import SYSTEMS
from gr_jax.training import checkpoints
from launch import listing, main
from tests import small_data
from tests.bad_input.conftest import launch as forked
from tests.bad_input.conftest import refused

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 40
FLAGS = (
    "--gin_file=gin_configs/systems/dsi.gin",
    "--gin_file=gin_configs/models/tiny.gin",
    '--gin.Vectors.encoder="lsa"',
    '--gin.Network.vocabulary="byte"',
    "--gin.Network.width=16",
    "--gin.Network.heads=2",
    "--gin.Network.mlp_width=16",
    "--gin.Network.encoder_layers=1",
    "--gin.Network.decoder_layers=1",
    "--gin.Network.dropout=0.2",
    f"--gin.Training.steps={STEPS}",
    "--gin.Training.warmup_steps=5",
    "--gin.Training.batch_size=8",
    "--gin.Training.checkpoint_every=4",
    "--gin.Training.evaluate_every=10",
    "--gin.Training.dev_queries=4",
)


def flags(beir: pathlib.Path, model_dir: pathlib.Path) -> tuple[str, ...]:
    return (*FLAGS, f'--gin.CORPUS="{beir}"', f'--gin.MODEL_DIR="{model_dir}"')


def start(program: str, *arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-m", f"launch.{program}", *arguments]
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.Popen(
        command, cwd=CHECKOUT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def launch(program: str, *arguments: str) -> str:
    process = start(program, *arguments)
    said, _ = process.communicate()
    assert process.returncode == 0, said
    return said


PROGRAMS = sorted({*main.PROGRAMS} - {"cluster"})  # which is a package, see test_hosts.py
WITH_GIN = {"recipe", "train", "index"}


@pytest.mark.parametrize(
    ("program", "flag"), [*((program, "--help") for program in PROGRAMS), ("search", "-h"), ("search", "--helpshort")]
)
def test_help_says_how_and_is_no_failure(program, flag):
    done = forked(program, flag)
    assert done.returncode == 0 and not done.stderr
    doc = ast.get_docstring(ast.parse((CHECKOUT / "launch" / f"{program}.py").read_text()))
    said = done.stdout
    assert " ".join(said.split()).startswith(" ".join(doc.split()))  # what it does, and an example, come first
    assert f"gr-jax {program} " in said.split("flags:")[0]
    assert ("--gin_file" in said) == (program in WITH_GIN)
    assert any(f"--{flag}: " in said for flag in ("index", "run", "raw", "watch")) or program in WITH_GIN
    assert "--alsologtostderr" not in said  # absl's own are for --helpfull


def test_programs_that_read_no_configuration_take_none():
    refused(forked("evaluate", "--run=x", "--qrels=y", "--gin.Training.steps=3"), "gin_bindings")


def test_how_sure_a_run_is_of_its_first_documents(tmp_path):
    """Answers are right as often as a softmax at the temperature 0.5 says: half of those that are said to be sure at 1
    are not."""
    for name, seed in (("dev", 0), ("test", 1)):
        rng, lines, judged = np.random.default_rng(seed), [], []
        for query in range(300):
            scores = np.sort(rng.normal(size=4))[::-1]
            lines += [f"q{query} Q0 d{d} {d + 1} {score} x\n" for d, score in enumerate(scores)]
            chosen = rng.choice(4, p=np.exp(scores / 0.5) / np.exp(scores / 0.5).sum())
            judged.append(f"q{query}\td{chosen}\t1\n")
        (tmp_path / f"{name}.trec").write_text("".join(lines))
        (tmp_path / f"{name}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(judged))
    test = (f"--run={tmp_path / 'test.trec'}", f"--qrels={tmp_path / 'test.tsv'}")
    output = tmp_path / "metrics.json"
    done = forked(
        "evaluate", *test, f"--dev_run={tmp_path / 'dev.trec'}", f"--dev_qrels={tmp_path / 'dev.tsv'}",
        f"--output={output}",
    )  # fmt: skip
    assert done.returncode == 0 and "ECE, calibrated  " in done.stdout
    values = json.loads(output.read_text())
    assert values["temperature"] == pytest.approx(0.5, rel=0.3)
    assert values["ECE, calibrated"] < values["ECE"] and values["Brier, calibrated"] < values["Brier"]
    refused(forked("evaluate", *test, f"--dev_run={tmp_path / 'dev.trec'}"), "--dev_qrels", "neither")
    for measures in ("Success@1, AP(rel=2, judged_only=True)", "Success@1 AP(rel=2,judged_only=True)"):
        said = forked("evaluate", *test, f"--metrics={measures}").stdout
        assert "Success@1 " in said and "AP(rel=2,judged_only=True) " in said


def test_a_kilt_task_is_answered_and_judged(tmp_path):
    """By KILT's measures: of the questions of dev, whose evidence is the document that answers them.

    Their ids hold white space, as AIDA's do; in TREC runs their keys stand instead.
    """
    beir = small_data.write_beir(tmp_path / "mine", count=24)
    systems.BM25().run(beir, tmp_path / "bm25", say=lambda _: None)
    dataset = read_beir(beir)
    task, file = tmp_path / "dev-kilt.jsonl", tmp_path / "predictions.jsonl"
    records = []
    for one, grades in dataset.split("dev").items():
        evidence = [{"wikipedia_id": page, "title": page} for page in grades]
        (text,) = dataset.query_texts([one])
        records.append({"id": f"{one} CRICKET:0", "input": text, "output": [{"provenance": evidence}]})
    task.write_text("".join(json.dumps(record) + "\n" for record in records))
    index = f"--index={tmp_path / 'bm25' / 'index'}"
    assert forked("retrieve", index, f"--kilt={task}", f"--output={file}", "--k=20").returncode == 0
    predictions = [json.loads(line) for line in file.read_text().splitlines()]
    assert [one["id"] for one in predictions] == [one["id"] for one in records]
    found = {}
    for run in (file, tmp_path / "run.trec"):
        if run.suffix == ".trec":
            asked = (f"--queries={beir / 'queries.jsonl'}", f"--qrels={beir / 'qrels' / 'dev.tsv'}", "--k=20")
            assert forked("retrieve", index, *asked, f"--output={run}").returncode == 0
            refused(forked("evaluate", f"--run={run}", f"--kilt={task}"), "no question of the run is in the task")
            keyed = Run({f"{one}_CRICKET:0": hits for one, hits in Run.load(run).items()})
            same = evaluate(Run.load(run), dataset.split("dev"), ["Rprec", "R@5"])
            keyed.save(run)
        done = forked("evaluate", f"--run={run}", f"--kilt={task}", f"--output={tmp_path / 'found.json'}")
        assert done.returncode == 0 and "success_rate@5" in done.stdout
        found[run.suffix] = json.loads((tmp_path / "found.json").read_text())
    assert found[".jsonl"] == found[".trec"]
    assert found[".jsonl"]["Rprec"] == pytest.approx(same["Rprec"])
    assert found[".jsonl"]["recall@5"] == pytest.approx(same["R@5"])  # one document is all the evidence
    refused(forked("evaluate", f"--run={file}"), "--kilt")
    for flag in ("--metrics=AP", f"--dev_run={run}", f"--dev_qrels={run}"):
        refused(forked("evaluate", f"--run={run}", f"--kilt={task}", flag), "is not used with --kilt")
    refused(forked("retrieve", index, f"--output={file}"), "--kilt")
    # TriviaQA's: their questions come from elsewhere.
    asked = [{"QuestionId": one["id"], "Question": one.pop("input")} for one in records[1:]]
    task.write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "own.json").write_text(json.dumps({"Data": asked}))
    (tmp_path / "more.json").write_text(json.dumps({"Data": []}))
    own = f"--kilt_questions={tmp_path / 'more.json'},{tmp_path / 'own.json'}"
    refused(forked("retrieve", "--index=none", f"--kilt={task}", f"--output={file}"), f"{task}:2", "--kilt_questions")
    assert forked("retrieve", index, f"--kilt={task}", f"--output={file}", "--k=20", own).returncode == 0
    assert list(map(json.loads, file.read_text().splitlines())) == predictions


def test_what_cannot_be_written_is_said_before_anything_is_read(tmp_path):
    asked = ("retrieve", "--index=none", "--queries=none")
    refused(forked(*asked, f"--output={tmp_path / 'run'}", "--tag=my system"), "one word")
    refused(forked(*asked, f"--output={tmp_path}"), "a folder stands")
    refused(forked(*asked, f"--output={tmp_path / 'run'}", "--kilt_questions=x"), "not used without --kilt")
    told = ("retrieve", "--index=none", "--kilt=none", f"--output={tmp_path / 'run'}", "--tag=mine")
    refused(forked(*told), "--tag is not used with --kilt")


def test_an_index_is_calibrated_and_says_how_sure_it_is(tmp_path):
    beir = small_data.write_beir(tmp_path / "mine", count=24)
    systems.BM25().run(beir, tmp_path / "bm25", say=lambda _: None)
    index = f"--index={tmp_path / 'bm25' / 'index'}"
    refused(forked("search", index, "--probability", "a red dog"), "gr-jax calibrate")
    asked = (f"--queries={beir / 'queries.jsonl'}", f"--qrels={beir / 'qrels' / 'dev.tsv'}")
    done = forked("calibrate", index, *asked, "--depth=5")
    assert done.returncode == 0 and "12 questions" in done.stdout and "search --index=" in done.stdout
    assert json.loads((tmp_path / "bm25" / "index" / "calibration.json").read_text())["depth"] == 5
    (hit, *_) = gr_jax.load(tmp_path / "bm25" / "index").search("a red dog", probability=True)
    said = forked("search", index, "--probability", "a red dog").stdout
    assert f"{hit.probability:.1%}" in said and "%" not in forked("search", index, "a red dog").stdout


def test_the_list_names_every_system_its_paper_its_files_and_a_command():
    done = forked("recipe", "--list")
    assert done.returncode == 0 and not done.stderr
    parts = done.stdout.split("\n\n")
    files = {file: listing.system_of(file) for file in (CHECKOUT / "gin_configs" / "systems").glob("*.gin")}
    assert set(files.values()) == {cls.__name__ for cls in SYSTEMS}
    for cls, part in zip(SYSTEMS, parts, strict=False):
        lines = part.splitlines()
        assert lines[0].endswith(f"({cls.paper})") and " ".join(cls.__doc__.split())[:20] in lines[0]
        own = {file for file, name in files.items() if name == cls.__name__}
        assert {line.split()[0] for line in lines if line.startswith("  gin_configs/")} == {
            str(file.relative_to(CHECKOUT)) for file in own
        }
        assert any(
            re.match(r"  (gr-jax |python -m launch\.)recipe --gin_file=gin_configs/systems/", line) for line in lines
        )
    every = {str(file.relative_to(CHECKOUT)) for file in (CHECKOUT / "gin_configs").rglob("*.gin")}
    assert every == {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  gin_configs/")}
    assert "al.\n" not in done.stdout  # a summary does not end within "et al."


def test_without_a_configuration_it_says_where_they_are():
    refused(forked("recipe"), "no configuration is named", "--list")
    refused(forked("train", "--gin.Training.steps=3"), "run.system", "--gin_file")


def test_retrieve_evaluate_and_search_give_what_was_measured(memorised, tmp_path):
    index, results = memorised.model_dir / "index", memorised.model_dir / "results"
    qrels = f"--qrels={results / 'qrels' / 'test.tsv'}"
    output = tmp_path / "run.trec"
    told = (f"--index={index}", f"--queries={results / 'queries.jsonl'}", qrels, f"--output={output}")
    assert forked("retrieve", *told).returncode == 0
    found, expected = Run.load(output), Run.load(results / "runs" / "DSI.test.trec")
    assert list(found) == list(expected)
    for query, hits in expected.items():
        assert [doc for doc, _ in found[query]] == [doc for doc, _ in hits]
        np.testing.assert_allclose([s for _, s in found[query]], [s for _, s in hits], atol=1e-4)
    launch("evaluate", f"--run={output}", qrels, f"--output={tmp_path / 'metrics.json'}")
    metrics = json.loads((results / "metrics.json").read_text())["test"]["DSI"]
    assert json.loads((tmp_path / "metrics.json").read_text()) == pytest.approx(metrics)
    said = forked("search", f"--index={index}", "--k=2", "where is the red cat").stdout
    best, second = memorised.searcher.search("where is the red cat", 2)
    assert best.title == "red cat" and f"1. {best}" in said and f"2. {second}" in said


def kill_after(process: subprocess.Popen, folder: pathlib.Path, step: int, delay: float) -> bool:
    """Kills the process `delay` seconds after the checkpoint of `step` or a later one is whole; False if it ended."""
    deadline = time.monotonic() + 600
    while process.poll() is None and time.monotonic() < deadline:
        found = [s for work in folder.glob("work/model-*/checkpoints") for s in checkpoints.steps(work)]
        if max(found, default=-1) >= step:
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.02)
    process.communicate()
    return process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bits_stage_by_stage_or_at_once(beir, tmp_path):
    """One MODEL_DIR in one go; the other killed before the first checkpoint, after one and after a later one, and then
    finished by `gr-jax train` and `gr-jax index`."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    launch("recipe", *flags(beir, whole))
    chosen = random.Random(os.urandom(4))
    killed = 0
    for step in (0, 4, STEPS // 2):
        killed += kill_after(start("recipe", *flags(beir, cut)), cut, step, chosen.uniform(0, 0.3))
        assert not (cut / "index").exists()
    assert killed
    said = launch("train", *flags(beir, cut))
    assert "✓ corpus: already made" in said and not (cut / "index").exists()
    said = launch("index", *flags(beir, cut))
    assert "✓ model: already made" in said and not (cut / "results").exists()
    parameters = network_folder.PARAMETERS_FILE
    for name in (f"model/{parameters}", f"index/retriever/{parameters}"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()
    for file in sorted((whole / "index").rglob("*")):
        if file.is_file() and file.name != "manifest.json":
            assert (cut / file.relative_to(whole)).read_bytes() == file.read_bytes(), file
    said = launch("recipe", *flags(beir, cut))
    assert "✓ index: already made" in said
    metrics = [json.loads((root / "results" / "metrics.json").read_text()) for root in (whole, cut)]
    assert metrics[0] == metrics[1]


def test_long_documents_are_searched_in_passages(tmp_path):
    folder = small_data.write_beir(tmp_path / "mine", count=24)
    files = ["--gin_file=gin_configs/systems/bm25.gin", "--gin_file=gin_configs/data/passages.gin"]
    bindings = [f'--gin.CORPUS="{folder}"', f'--gin.MODEL_DIR="{tmp_path / "run"}"', "--gin.BeirPassages.words=6",
                '--gin.BeirPassages.rule="sentences"']  # fmt: skip
    assert forked("index", *files, *bindings).returncode == 0
    run = tmp_path / "run.trec"
    texts = folder / "queries.jsonl"
    index = f"--index={tmp_path / 'run' / 'index'}"
    assert forked("retrieve", index, f"--queries={texts}", f"--output={run}").returncode == 0
    assert "#" in run.read_text()
    found = tmp_path / "found.json"
    told = ("evaluate", f"--run={run}", f"--qrels={folder / 'qrels' / 'test.tsv'}", f"--output={found}")
    assert forked(*told).returncode == 0 and json.loads(found.read_text())["Success@10"] == 0
    assert forked(*told, "--passages").returncode == 0 and json.loads(found.read_text())["Success@10"] > 0.9
