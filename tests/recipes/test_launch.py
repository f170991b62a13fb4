"""The entry points one by one give what the recipe gives, and a recipe that is killed ends as one that never was."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from gr_jax.corpus import Run
from gr_jax.models import network_folder
from gr_jax.training import checkpoints

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 40
FLAGS = (
    "--gin_file=gin_configs/recipes/dsi.gin",
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


def test_retrieve_evaluate_and_search_give_what_the_recipe_measured(memorised, tmp_path):
    index, results = memorised.model_dir / "index", memorised.model_dir / "results"
    qrels = f"--qrels={results / 'qrels' / 'test.tsv'}"
    output = tmp_path / "run.trec"
    launch("retrieve", f"--index={index}", f"--queries={results / 'queries.jsonl'}", qrels, f"--output={output}")
    found, expected = Run.load(output), Run.load(results / "runs" / "DSI.test.trec")
    assert list(found) == list(expected)
    for query, hits in expected.items():
        assert [doc for doc, _ in found[query]] == [doc for doc, _ in hits]
        np.testing.assert_allclose([s for _, s in found[query]], [s for _, s in hits], atol=1e-4)
    launch("evaluate", f"--run={output}", qrels, f"--output={tmp_path / 'metrics.json'}")
    metrics = json.loads((results / "metrics.json").read_text())["test"]["DSI"]
    assert json.loads((tmp_path / "metrics.json").read_text()) == pytest.approx(metrics)
    said = launch("search", f"--index={index}", "--k=2", "where is the red cat")
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
def test_a_killed_recipe_ends_with_the_same_bits_stage_by_stage_or_at_once(beir, tmp_path):
    """One MODEL_DIR in one go; the other killed before the first checkpoint, after one and after a later one, and then
    finished by `launch.train` and `launch.index`."""
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
