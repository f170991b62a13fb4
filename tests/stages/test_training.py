"""The stages that train: interruptions, judging on dev, time."""

import json
import os

import numpy as np
import pytest

from gr_jax import corpus, evaluation, storage
from gr_jax.models import network_folder
from gr_jax.retrievers import Ranking
from gr_jax.stages import runner
from gr_jax.stages import training as training_lib
from tests.small_dsi import dsi, quiet, training

PARAMETERS = f"model/{network_folder.PARAMETERS_FILE}"


def train(beir, model_dir, **changes) -> None:
    chosen = {"steps": 6, "checkpoint_every": 2, "evaluate_every": 2, "keep_best": "dev/RR@10", "dev_queries": 4}
    dsi(training=training(**{**chosen, **changes})).run(beir, model_dir, until="model", say=quiet)


@pytest.mark.slow
def test_an_interrupted_training_goes_on_from_its_checkpoint(beir, tmp_path, monkeypatch):
    train(beir, tmp_path / "whole")
    judged: list[int] = []
    judge = training_lib.DevEvaluation.__call__

    def interrupted(self, params, step):
        judged.append(step)
        if judged == [0, 2, 4]:
            raise KeyboardInterrupt
        return judge(self, params, step)

    monkeypatch.setattr(training_lib.DevEvaluation, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(beir, tmp_path / "cut")
    assert not (tmp_path / "cut" / "model").exists()
    train(beir, tmp_path / "cut")
    assert judged == [0, 2, 4, 4, 6]  # not from the beginning
    assert (tmp_path / "cut" / PARAMETERS).read_bytes() == (tmp_path / "whole" / PARAMETERS).read_bytes()
    cut, whole = (storage.read_folder(tmp_path / name / "model").meta for name in ("cut", "whole"))
    assert (cut["step"], cut["last_step"], cut["dev"]) == (whole["step"], 6, whole["dev"])
    lines = (tmp_path / "cut" / "model" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines if "dev/RR@10" in line]
    assert steps == sorted(set(steps)) == [0, 2, 4, 6]

    train(beir, tmp_path / "cut", learning_rate=5e-3)  # other settings begin at the beginning
    assert judged[-4:] == [0, 2, 4, 6]


def test_the_parameters_that_are_best_on_dev_are_kept(beir, tmp_path, monkeypatch):
    seen: dict[int, dict] = {}

    def judge(self, params, step):
        seen[step] = {"scale": np.array(params["query_scale"])}
        return {"dev/RR@10": {0: 0.1, 2: 0.3, 4: 0.9, 6: 0.2}[step]}

    monkeypatch.setattr(training_lib.DevEvaluation, "__call__", judge)
    train(beir, tmp_path / "run")
    meta = storage.read_folder(tmp_path / "run" / "model").meta
    assert (meta["step"], meta["last_step"]) == (4, 6) and meta["dev"] == [{"step": 4, "dev/RR@10": 0.9}]
    _, params = network_folder.load_network(tmp_path / "run" / "model")
    np.testing.assert_array_equal(params["query_scale"], seen[4]["scale"])
    assert seen[4]["scale"] != seen[6]["scale"]


class Fixed:
    """A retriever that gives every query the same documents, whatever the parameters."""

    def __init__(self, num_documents):
        self.num_documents, self.asked = num_documents, []

    def with_parameters(self, params):
        self.params = params
        return self

    def retrieve(self, queries, k, *, allowed=None, explain=False):
        self.asked += queries
        order = np.arange(self.num_documents, dtype=np.int32)[:k]
        return Ranking(np.tile(order, (len(queries), 1)), np.tile(-order.astype(np.float32), (len(queries), 1)))


@pytest.mark.parametrize("most", [5, 100])
def test_dev_is_judged_by_the_real_measures_on_a_fixed_sample(beir, most):
    dataset = corpus.read_beir(beir)
    fixed = Fixed(len(dataset.corpus))
    judge = training_lib.DevEvaluation(fixed, dataset, most)
    values = judge({"some": "parameters"}, 3)
    assert fixed.params == {"some": "parameters"}
    dev = dataset.split("dev")
    chosen = [query_id for query_id in dev if dataset.queries.text(query_id) in fixed.asked]
    assert len(chosen) == len(fixed.asked) == min(most, 12)
    run = {query_id: [(dataset.corpus[i].doc_id, -i) for i in range(10)] for query_id in chosen}
    expected = evaluation.evaluate(run, {query_id: dev[query_id] for query_id in chosen}, training_lib.DEV_MEASURES)
    assert values == {f"dev/{name}": value for name, value in expected.items()}
    fixed.asked.clear()
    training_lib.DevEvaluation(fixed, dataset, most)({}, 0)
    assert [query_id for query_id in dev if dataset.queries.text(query_id) in fixed.asked] == chosen


def test_training_time_is_that_of_all_starts(tmp_path):
    assert runner._seconds_of_earlier_starts(tmp_path / "work") == 0
    starts = json.loads((tmp_path / "work" / "starts.json").read_text())
    starts[0]["start"] -= 1000
    storage.write_json(tmp_path / "work" / "starts.json", starts)
    (tmp_path / "work" / "checkpoints").mkdir()
    for name, ago in (("step_1", 900), ("step_2", 700)):
        (tmp_path / "work" / "checkpoints" / name).touch()
        os.utime(tmp_path / "work" / "checkpoints" / name, (starts[0]["start"] + 1000 - ago,) * 2)
    os.utime(tmp_path / "work" / "checkpoints", (starts[0]["start"],) * 2)
    assert runner._seconds_of_earlier_starts(tmp_path / "work") == pytest.approx(300)
    starts = json.loads((tmp_path / "work" / "starts.json").read_text())
    assert len(starts) == 2
    # Killed before it had written anything: nothing is known of it, nothing is counted.
    assert runner._seconds_of_earlier_starts(tmp_path / "work") == pytest.approx(300, abs=1)
