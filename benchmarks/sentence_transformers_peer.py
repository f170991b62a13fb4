"""sentence-transformers trains and embeds in an interpreter of its own; `benchmarks.dense_peers` talks to it by pipes.

Requests and answers are lines of JSON; a request says what to "do":

* "load": `folder` of the model, `threads`. Answers its version.
* "train": its Trainer with MultipleNegativesRankingLoss over `triples` (lines of JSON with anchor, positive, negative),
  in their order. With `turn` it stops after every so many steps, answers the seconds that they took and goes on at the
  next line; in the end it answers the seconds of all steps, and those of all cores together.
* "encode": `texts` (a file of JSON) at most `max_length` tokens long, into `answer` (.npy) where one is named. Answers
  the seconds.

Only sentence-transformers and what it brings are imported here.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "true"
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import sentence_transformers
import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch.utils.data import SequentialSampler
from transformers import TrainerCallback


class Turns(TrainerCallback):
    """Stops after every `turn` steps until it is told to go on, and keeps the time of the steps alone.

    Args:
      turn: steps; 0 never stops.
      rest: answers what a turn took, returns when the next may begin.
    """

    def __init__(self, turn: int, rest: Callable[[dict[str, float]], None]):
        self._turn, self._rest = turn, rest
        self.spent = {"seconds": 0.0, "core_seconds": 0.0}

    def on_train_begin(self, args, state, control, **_):
        self._started = now()

    def on_step_end(self, args, state, control, **_):
        if state.global_step == state.max_steps or (self._turn and state.global_step % self._turn == 0):
            spent = {name: value - self._started[name] for name, value in now().items()}
            self.spent = {name: value + spent[name] for name, value in self.spent.items()}
            if state.global_step < state.max_steps:
                self._rest(spent)
            self._started = now()


def now() -> dict[str, float]:
    """The clock, and what all cores together have spent on this process."""
    return {"seconds": time.perf_counter(), "core_seconds": time.process_time()}


def freeze(model: SentenceTransformer, layers: int) -> None:
    """Keeps the embeddings and the first layers as they are; 0 keeps nothing."""
    for name, parameter in model.named_parameters():
        layer = re.search(r"encoder\.layer\.(\d+)\.", name)
        if layers and ((layer and int(layer[1]) < layers) or ".embeddings." in name):
            parameter.requires_grad_(False)


def train(
    model: SentenceTransformer, request: dict[str, Any], rest: Callable[[dict[str, float]], None]
) -> dict[str, float]:
    """Trains the model; returns what the steps took."""
    with open(request["triples"], encoding="utf-8") as file:
        examples = Dataset.from_list([json.loads(line) for line in file])
    freeze(model, request["frozen_layers"])
    model.max_seq_length = request["max_length"]
    turns = Turns(request["turn"], rest)
    with tempfile.TemporaryDirectory() as folder:
        SentenceTransformerTrainer(
            model=model,
            args=SentenceTransformerTrainingArguments(
                output_dir=folder,
                max_steps=request["steps"],
                per_device_train_batch_size=request["batch_size"],
                learning_rate=request["learning_rate"],
                lr_scheduler_type="linear",
                warmup_steps=request["warmup_steps"],
                weight_decay=request["weight_decay"],
                max_grad_norm=request["clip"],
                seed=request["seed"],
                batch_sampler=lambda dataset, **settings: DefaultBatchSampler(SequentialSampler(dataset), **settings),
                use_cpu=True,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=examples,
            loss=MultipleNegativesRankingLoss(model, scale=request["scale"]),
            callbacks=[turns],
        ).train()
    return turns.spent


def encode(model: SentenceTransformer, request: dict[str, Any]) -> dict[str, float]:
    """Embeds; returns the seconds that it took."""
    with open(request["texts"], encoding="utf-8") as file:
        texts = json.load(file)
    model.max_seq_length = request["max_length"]
    start = time.perf_counter()
    vectors = model.encode(texts, batch_size=32, show_progress_bar=False)
    seconds = time.perf_counter() - start
    if request.get("answer"):
        np.save(request["answer"], np.asarray(vectors, np.float32))
    return {"seconds": seconds}


def main() -> None:
    """Answers requests until its input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    model: SentenceTransformer | None = None

    def rest(spent: dict[str, float]) -> None:
        print(json.dumps(spent), file=answers, flush=True)
        if not sys.stdin.readline():
            sys.exit("nobody asks any more")

    while line := sys.stdin.readline():  # not `for line in`, which reads ahead
        request = json.loads(line)
        if request["do"] == "load":
            torch.set_num_threads(request["threads"])
            model = SentenceTransformer(request["folder"], device="cpu")
            answer: dict[str, Any] = {"version": sentence_transformers.__version__}
        else:
            assert model is not None, "load a model first"
            answer = train(model, request, rest) if request["do"] == "train" else encode(model, request)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
