"""DPR beside sentence-transformers, on the same model, examples and machine: `python -m benchmarks.dense_peers`.

The peer's Trainer with MultipleNegativesRankingLoss, at our temperature, trains MiniLM on the very batches that the
system `dpr` draws with the small budget, in their order: 32 queries, each with its answer and one mined negative, the
same learning rate, warm-up, linear decay, weight decay and clipping, dropout on both sides. It needs packages that
gr_jax does not; where this Python lacks them, name one that has them:

    python -m venv st && st/bin/pip install 'sentence-transformers[train]>=6'
    export GR_JAX_SENTENCE_TRANSFORMERS_PYTHON=$PWD/st/bin/python

(on Linux from PyTorch's index of CPU builds, see requirements/peers.txt). It runs in a process of its own on 2 threads,
and the sides take turns: one computes while the other waits. "times faster" is the median of the ratios of neighbouring
turns.

* Training speed: of whole training loops, from examples to updates; ours are tokens already, the peer reads texts, as
  each does. Documents are cut to 128 tokens on both sides, and among 64 of them there is nearly always one as long;
  queries are padded to 32 or 48 tokens here, to the longest there.
* Encoding speed: texts to vectors, cut to 128 tokens; both sides sort by length.
* Quality, of one seed: full search of float32 vectors, documents of 256 tokens. Ours keeps the best of four looks
  at dev, as the system does, and they count in its core-minutes; the peer keeps its last step, as its Trainer does. In
  training it reads up to 128 tokens of a query, ours 48 (which cuts one in 46), and does not know which documents of
  other queries answer a query, too.

On 2 cores about 12 minutes for the speeds; for each seed 5 minutes of training here and 8 there, and 4 of mining and
encoding.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import dense_quality, harness, systems
from benchmarks.recipe_runs import RecipeRun, mean_over_seeds
from benchmarks.turns import speeds
from gr_jax import evaluation, storage
from gr_jax.corpus import Dataset
from gr_jax.errors import InputError

if TYPE_CHECKING:
    from gr_jax.retrievers.dense_encoder import DenseEncoder
    from gr_jax.stages.contrastive import ContrastiveTraining
    from gr_jax.training.contrastive_batches import ContrastiveBatches

PEER = "GR_JAX_SENTENCE_TRANSFORMERS_PYTHON"
DATA, SEEDS = "squad_dev", dense_quality.SEEDS[:1]
RUNS: tuple[RecipeRun, ...] = dense_quality.small(DATA, "dpr")[: len(SEEDS)]  # one for each seed
SPLITS = ("test", "test_unseen")
MEASURES = ("Success@1", "Success@10", "RR@10")
THREADS = 2
TURN, TURNS = 4, 7  # steps of a turn, and turns that count
PARAGRAPHS, PARAGRAPH_LENGTH = 2000, 128
DEPTH = 100


@dataclasses.dataclass(frozen=True)
class Prepared:
    """What training starts from, made by the system's own stages.

    Attributes:
      dataset: documents, queries, judgements.
      encoder: before training, with the lengths of training.
      index_lengths: tokens read by the index.
      training, multipliers: settings, and which parameters move.
      batches: as the system draws them.
      queries: text of every training query by its tokens.
    """

    dataset: Dataset
    encoder: DenseEncoder
    index_lengths: Mapping[str, int]
    training: ContrastiveTraining
    multipliers: Mapping[str, float]
    batches: ContrastiveBatches
    queries: Mapping[tuple[int, ...], str]


@functools.cache
def prepare(run: RecipeRun = RUNS[0]) -> Prepared:
    """Makes the stages before training, or reads them where they are made."""
    from gr_jax.stages import bi_encoder, documents, encoders, negatives, pairs, vocabulary
    from gr_jax.stages.graph import in_order
    from gr_jax.stages.runner import Runner
    from gr_jax.stages.sources import BeirFolder
    from gr_jax.systems import DPR

    system = run.resolved()
    assert isinstance(system, DPR) and system.training is not None
    settings, mining, training = system.encoders, system.mining, system.training
    corpus = documents.corpus(BeirFolder(str(harness.data_folder(run.data))))
    stages = {stage.name: stage for stage in in_order(system.stages(corpus))}
    runner = Runner(run.folder)
    runner.run(in_order(*stages["model"].upstream()))
    folders = {name: runner.folder(stage) for name, stage in stages.items()}
    words = vocabulary.load_vocabulary(folders["vocabulary"])
    dataset, asked = pairs.load_asked(folders["corpus"], folders["pseudo_queries"], training.kept_back)
    config, pretrained = encoders.make_encoders(settings, words.size)
    params = encoders.initial_parameters(config, pretrained, training.seed)
    encoder = encoders.text_encoder(training.of(settings), config, params, words, dataset.transform)
    queries, texts = pairs.load_pairs(folders["pairs"])
    table = negatives.mixed(negatives.load_negatives(folders["negatives"], mining), mining)
    assert table is not None
    return Prepared(
        dataset=dataset,
        encoder=encoder,
        index_lengths={"query": settings.query_length, "document": settings.document_length},
        training=training,
        multipliers=encoders.learning_rate_multipliers(config, pretrained),
        batches=bi_encoder.make_batches(queries, texts, table, training, encoder.lengths),
        queries={tuple(queries.inputs[row].tolist()): text for row, text in enumerate(asked.texts)},
    )


def write_triples(file: pathlib.Path, prepared: Prepared, steps: int) -> None:
    """The texts of the first batches, a line for each query."""
    contents = prepared.dataset.corpus.contents
    with open(file, "w", encoding="utf-8") as out:
        for batch in itertools.islice(prepared.batches, steps):
            found = batch["document_index"].reshape(len(batch["query_tokens"]), -1)
            for tokens, (positive, negative) in zip(batch["query_tokens"], found, strict=True):
                texts = {
                    "anchor": prepared.queries[tuple(tokens[tokens != 0].tolist())],
                    "positive": contents[int(positive)],
                    "negative": contents[int(negative)],
                }
                print(json.dumps(texts), file=out)


@contextlib.contextmanager
def _peer() -> Iterator[Callable[..., dict[str, Any]]]:
    """A function that puts a request to the peer and waits for its answer; the model is loaded."""
    from gr_jax.stages.pretrained import pretrained_folder

    here = all(map(importlib.util.find_spec, ("sentence_transformers", "accelerate", "datasets")))
    python = os.environ.get(PEER) or (sys.executable if here else "")
    if not python:
        raise InputError(
            "sentence-transformers and what its Trainer needs (accelerate, datasets) are not installed here",
            f"Install them as benchmarks/dense_peers.py says and set {PEER} to the python that has them.",
        )
    peer = subprocess.Popen(
        [python, pathlib.Path(__file__).with_name("sentence_transformers_peer.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(THREADS)},
    )
    to_peer, from_peer = peer.stdin, peer.stdout
    assert to_peer is not None and from_peer is not None

    def ask(**request: Any) -> dict[str, Any]:
        print(json.dumps(request), file=to_peer, flush=True)
        line = from_peer.readline()
        if not line:
            raise InputError("sentence-transformers ended without an answer", "See above.", value=peer.wait())
        return json.loads(line)

    try:
        ask(do="load", folder=str(pretrained_folder("minilm")), threads=THREADS)
        yield ask
    finally:
        with contextlib.suppress(BrokenPipeError):
            to_peer.close()
        peer.wait()


def _training_request(prepared: Prepared, *, frozen: bool, steps: int, turn: int) -> dict[str, Any]:
    """The system's settings in the peer's words, but for the file of triples."""
    training, config = prepared.training, prepared.encoder.config
    return {
        "do": "train",
        "frozen_layers": config.encoder.num_encoder_layers // 2 if frozen else 0,
        "max_length": prepared.encoder.lengths["document"],
        "turn": turn,
        "steps": steps,
        "batch_size": training.batch_size,
        "learning_rate": training.learning_rate,
        "warmup_steps": training.warmup_steps,
        "weight_decay": training.weight_decay,
        "clip": training.clip,
        "scale": 1 / config.temperature,
        "seed": training.seed,
    }


def training_speed(frozen: bool) -> dict[str, float]:
    """Both training loops in turns.

    Args:
      frozen: leave word embeddings and lower half as they are, as the system does; else all parameters learn.
    """
    from gr_jax import models
    from gr_jax.stages.training import make_optimizer
    from gr_jax.training.loop import train
    from gr_jax.training.task import Task, TrainSettings

    harness.two_threads("dense_peers")
    prepared = prepare()
    steps = TURN * (TURNS + 2)  # 2 to warm up: each of the lengths of queries is compiled
    turns: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as name, _peer() as ask:
        triples = pathlib.Path(name) / "triples.jsonl"
        theirs = steps + 2 * TURN  # never reached: with the last step it would answer the time of all
        write_triples(triples, prepared, theirs)
        ask(triples=str(triples), **_training_request(prepared, frozen=frozen, steps=theirs, turn=TURN))
        started = time.perf_counter()

        def look(params: Any, step: int) -> dict[str, float]:
            nonlocal started
            ours = time.perf_counter() - started
            turns.append((ours, ask(do="go on")["seconds"]))
            started = time.perf_counter()
            return {}

        task = Task(
            models.BiEncoderModel(models.BiEncoder(prepared.encoder.config)),
            prepared.batches,
            initial_params=prepared.encoder.params,
            multipliers=prepared.multipliers if frozen else {},
            evaluate=look,
        )
        settings = TrainSettings(
            steps=steps, optimizer=make_optimizer(prepared.training), seed=prepared.training.seed, eval_every=TURN
        )
        train(task, settings)
    return speeds(turns[2:], prepared.training.batch_size * TURN)


def encoding_speed() -> dict[str, float]:
    """Both encoders over the same paragraphs, in turns."""
    harness.two_threads("dense_peers")
    prepared = prepare()
    texts = list(prepared.dataset.corpus.contents[:PARAGRAPHS])
    with tempfile.TemporaryDirectory() as name, _peer() as ask:
        file, answer = pathlib.Path(name) / "texts.json", pathlib.Path(name) / "vectors.npy"
        file.write_text(json.dumps(texts[::8]), encoding="utf-8")
        request = {"do": "encode", "texts": str(file), "max_length": PARAGRAPH_LENGTH, "answer": str(answer)}
        prepared.encoder.encode(texts[::8], "document"), ask(**request)  # compiled, caches warm
        file.write_text(json.dumps(texts), encoding="utf-8")
        turns = []
        for _ in range(3):
            started = time.perf_counter()
            ours = prepared.encoder.encode(texts, "document")
            turns.append((time.perf_counter() - started, ask(**request)["seconds"]))
        difference = float(np.abs(ours - np.load(answer)).max())
    return {**speeds(turns, len(texts)), "difference": difference}


def _peers_vectors(run: RecipeRun) -> pathlib.Path:
    """A folder of the peer's vectors of documents and of each split's queries; trained once."""
    prepared = prepare(run)
    request = _training_request(prepared, frozen=True, steps=prepared.training.steps, turn=0)
    folder = run.folder.with_name(f"{run.folder.name}-sentence_transformers")
    made_from = json.dumps([request, run.configs(), run.fingerprint()], sort_keys=True)
    with contextlib.suppress(InputError):
        if storage.read_folder(folder, "peers_vectors").made_from == made_from:
            return folder
    texts = {"documents": list(prepared.dataset.corpus.contents)}
    texts |= {split: list(prepared.dataset.split_queries(split).texts) for split in SPLITS}
    meta: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory() as name,
        storage.write_folder(folder, "peers_vectors", made_from=made_from, meta=meta) as new,
        _peer() as ask,
    ):
        file = pathlib.Path(name) / "texts"
        write_triples(file, prepared, prepared.training.steps)
        meta.update(ask(triples=str(file), **request))
        for kind, some in texts.items():
            length = prepared.index_lengths["document" if kind == "documents" else "query"]
            file.write_text(json.dumps(some), encoding="utf-8")
            ask(do="encode", texts=str(file), max_length=length, answer=str(new / f"{kind}.npy"))
    return folder


def _judged(run: RecipeRun, split: str, ours: bool) -> evaluation.Evaluation:
    """One side's measures, every vector scored."""
    from gr_jax import dense, retrievers
    from gr_jax.retrievers.dense_encoder import DenseEncoder

    dataset = prepare(run).dataset
    queries = dataset.split_queries(split)
    if ours:
        run.make()
        encoder = DenseEncoder.load(run.folder / "model" / "encoder")
        vectors = {"documents": encoder.encode(dataset.corpus.contents, "document")}
        vectors[split] = encoder.encode(queries.texts, "query")
    else:
        folder = _peers_vectors(run)
        vectors = {kind: np.load(folder / f"{kind}.npy") for kind in ("documents", split)}
    found = dense.make_searcher("exact", vectors["documents"]).search(vectors[split], DEPTH)
    ranked = retrievers.ranking_to_run(retrievers.Ranking(*found), queries.ids, dataset.corpus)
    return evaluation.evaluate(ranked, dataset.split(split), MEASURES)


@functools.cache
def _over_seeds(split: str, ours: bool) -> evaluation.Evaluation:
    """Every query's mean over the seeds."""
    return mean_over_seeds([_judged(run, split, ours) for run in RUNS])


def quality(split: str, ours: bool) -> dict[str, float]:
    """What one side reaches at the small budget; ours with the p of the difference, by paired t-test over queries."""
    measured = _over_seeds(split, ours)
    values = {name: measured[name] for name in MEASURES}
    if ours:
        values["core-minutes"] = systems.System(RUNS, "DPR").core_minutes()
        values["p"] = evaluation.compare(measured, _over_seeds(split, False), "RR@10").p_t
    else:
        spent = [storage.read_folder(_peers_vectors(run), "peers_vectors").meta["core_seconds"] for run in RUNS]
        values["core-minutes"] = max(spent) / 60
    return values


def rows() -> list[harness.Row]:
    """The table."""
    corpus = RUNS[0].fingerprint
    found = [
        harness.Row(
            name=f"training, {what}",
            config={"what": "training speed", "frozen": frozen, "turns": [TURN, TURNS]},
            measure=functools.partial(training_speed, frozen),
            at_least={"times faster": 1.0},
            note="examples a second; sentence-transformers",
            speed=True,
            corpus=corpus,
            seeds=(0,),
            runs=RUNS[:1],
        )
        for what, frozen in (("upper half of MiniLM", True), ("all of MiniLM", False))
    ]
    found.append(
        harness.Row(
            name=f"encoding {PARAGRAPHS:,} paragraphs",
            config={"what": "encoding speed", "texts": PARAGRAPHS, "length": PARAGRAPH_LENGTH},
            measure=encoding_speed,
            at_least={"times faster": 1.0},
            at_most={"difference": 1e-4},
            note="paragraphs a second; sentence-transformers",
            speed=True,
            corpus=corpus,
            seeds=(0,),
            runs=RUNS[:1],
        )
    )
    for split, ours in itertools.product(SPLITS, (False, True)):
        peers = f"{split}, sentence-transformers, small budget"
        found.append(
            harness.Row(
                name=f"{split}, gr_jax, small budget" if ours else peers,
                config={"what": "quality", "split": split, "ours": ours},
                measure=functools.partial(quality, split, ours),
                at_least={"RR@10": harness.ShareOf(peers, 0.99)} if ours else {},
                corpus=corpus,
                seeds=SEEDS,
                runs=RUNS,
            )
        )
    return found


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = os.environ.get("JAX_PLATFORMS") or "cpu"  # JAX is not imported yet
    sys.exit(harness.main("dense_peers", rows()))
