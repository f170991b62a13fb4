import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.losses import ContrastiveLoss
from gr_jax.models import BiEncoder, BiEncoderConfig, BiEncoderModel
from gr_jax.training import checkpoints, loop, metric_writers
from gr_jax.training.batches import make_batches
from gr_jax.training.metric_writers import read_metrics
from gr_jax.training.optimizers import Schedule, adamw
from gr_jax.training.partitioning import make_mesh
from gr_jax.training.train_state import flatten
from tests.training.toy import ToyModel, learn, toy_store


def run(folder=None, *, steps=12, **kwargs):
    batches = kwargs.pop("batches", None) or make_batches(
        toy_store(), batch_size=8, lengths={"inputs": 32, "targets": 8}
    )
    arguments = {
        "optimizer": adamw(Schedule(1e-2, warmup_steps=4)),
        "mesh": make_mesh(1, 1),
        "checkpoint_every": 3,
        "log_every": 1,
    }
    return learn(kwargs.pop("model", ToyModel()), batches, steps=steps, model_dir=folder, **{**arguments, **kwargs})


def same(left, right):
    left, right = flatten(left.params), flatten(right.params)
    return left.keys() == right.keys() and all(np.array_equal(left[path], right[path]) for path in left)


def different(left, right):
    return not same(left, right)


class Killed(Exception):
    pass


class Dying:
    """Batches during the n-th of which the process dies."""

    def __init__(self, batches, after):
        self.settings, self.input_shapes = batches.settings, batches.input_shapes
        self._batches, self._after = batches, after

    def __iter__(self):
        iterator, after = iter(self._batches), self._after

        class Iterator:
            seen = 0

            def __next__(self):
                if self.seen == after:
                    raise Killed
                self.seen += 1
                return next(iterator)

            get_state, set_state = iterator.get_state, iterator.set_state

        return Iterator()


def batches_of():
    return make_batches(toy_store(), batch_size=8, lengths={"inputs": 32, "targets": 8})


@pytest.fixture(scope="module")
def whole():
    return run(steps=12)


def test_it_learns(tmp_path):
    result = run(tmp_path, steps=300, optimizer=adamw(3e-2), model=ToyModel(dropout=0.0), checkpoint_every=0)
    records = read_metrics(tmp_path / "metrics.jsonl")
    assert [record["step"] for record in records] == list(range(1, 301))
    assert records[-1]["train/loss"] < 0.2 * records[0]["train/loss"]
    assert records[-1]["train/accuracy"] > 0.9
    assert result.step == result.last_step == 300
    assert checkpoints.steps(tmp_path / "checkpoints") == [300]


SLOW = [pytest.param(deaths, marks=pytest.mark.slow) for deaths in ([5], [0, 1, 4], [2, 2, 2, 2], [11])]


@pytest.mark.parametrize("deaths", [[0, 5], *SLOW])
def test_dying_anywhere_does_not_change_the_result(tmp_path, whole, deaths):
    for after in deaths:
        with pytest.raises(Killed):
            run(tmp_path, batches=Dying(batches_of(), after))
    assert same(run(tmp_path), whole)
    assert [record["step"] for record in read_metrics(tmp_path / "metrics.jsonl")] == list(range(1, 13))


def test_a_finished_run_can_go_on_and_is_not_trained_again(tmp_path, whole):
    run(tmp_path, steps=6)
    assert same(run(tmp_path), whole)
    again = run(tmp_path, batches=Dying(batches_of(), 0))  # would die if it looked at a single batch
    assert same(again, whole) and again.last_step == 12


def test_checkpoints_from_before_models_were_in_them_are_read(tmp_path, monkeypatch, whole):
    with monkeypatch.context() as earlier:
        earlier.setattr(loop, "scalar_settings", lambda model: None)
        run(tmp_path, steps=6)
    assert same(run(tmp_path, steps=12), whole)


def test_scalar_settings_are_those_of_the_model_and_its_parts():
    model = BiEncoderModel(BiEncoder(BiEncoderConfig(temperature=0.3)), ContrastiveLoss(in_batch=False))
    found = loop.scalar_settings(model)
    assert json.loads(json.dumps(found)) == found
    assert (found["loss.in_batch"], found["loss.margin_mse"], found["module.config.temperature"]) == (False, 0.0, 0.3)
    assert found["module.config.encoder.dtype"] == "float32" and not any("parent" in name for name in found)
    assert loop.scalar_settings(object()) == {}


def test_training_goes_on_on_another_mesh(tmp_path, whole):
    run(tmp_path, steps=6)
    moved = run(tmp_path, steps=12, mesh=make_mesh(2, 4))
    for path, value in flatten(whole.params).items():
        np.testing.assert_allclose(flatten(moved.params)[path], value, atol=1e-3)


def scripted(values, seen=None):
    """An evaluation that returns the next of these values, whatever the parameters are."""
    by_step = dict(values)

    def evaluate(params, step):
        if seen is not None:
            seen[step] = jax.tree.map(np.array, params)
        return {"dev/hits": by_step[step]}

    return evaluate


STORY = [(2, 0.1), (4, 0.5), (6, 0.4), (8, 0.5), (10, 0.3), (12, 0.2)]


@pytest.mark.parametrize(
    "mode, best, with_folder",
    [
        ("max", 4, True),
        ("min", 2, False),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (("max", 4, False), ("min", 2, True))),
    ],
)
def test_the_best_parameters_are_kept(tmp_path, mode, best, with_folder):
    seen = {}
    result = run(
        tmp_path if with_folder else None,
        evaluate=scripted(STORY, seen),
        eval_every=2,
        keep_best="dev/hits",
        mode=mode,
        keep_checkpoints=1,
    )
    assert (result.step, result.last_step, result.stopped_early) == (best, 12, False)
    assert result.history == [{"step": step, "dev/hits": value} for step, value in STORY]
    for path, value in flatten(seen[best]).items():
        np.testing.assert_array_equal(flatten(result.params)[path], value)
    if with_folder:
        assert checkpoints.steps(tmp_path / "checkpoints") == [best, 12]


def test_it_stops_early_and_stays_stopped(tmp_path):
    arguments = dict(evaluate=scripted(STORY), eval_every=2, keep_best="dev/hits", patience=2)
    result = run(tmp_path, **arguments)
    assert (result.step, result.last_step, result.stopped_early) == (4, 8, True)
    again = run(tmp_path, batches=Dying(batches_of(), 0), **arguments)
    assert same(result, again) and again.last_step == 8


@pytest.mark.parametrize("after", [5, *(pytest.param(after, marks=pytest.mark.slow) for after in (1, 7))])
def test_dying_keeps_what_dev_said(tmp_path, after):
    arguments = dict(evaluate=scripted(STORY), eval_every=2, keep_best="dev/hits", patience=3)
    expected = run(None, **arguments)
    with pytest.raises(Killed):
        run(tmp_path, batches=Dying(batches_of(), after), **arguments)
    result = run(tmp_path, **arguments)
    assert same(result, expected) and result.history == expected.history and result.step == 4


def test_without_early_stopping_the_last_parameters_are_returned(tmp_path, whole):
    result = run(tmp_path, evaluate=scripted(STORY), eval_every=4)
    assert same(result, whole) and result.step == 12
    assert [record["step"] for record in result.history] == [4, 8, 12]
    logged = [record for record in read_metrics(tmp_path / "metrics.jsonl") if "dev/hits" in record]
    assert [record["dev/hits"] for record in logged] == [0.5, 0.5, 0.2]


@pytest.mark.parametrize(
    "with_folder, after",
    [
        (True, 5),
        (False, None),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in ((True, None), (True, 0), (False, 0), (False, 5))),
    ],
)
def test_evaluation_before_the_first_step(tmp_path, with_folder, after):
    folder = tmp_path if with_folder else None
    arguments = dict(evaluate=scripted([(0, 0.9), *STORY]), keep_best="dev/hits", evaluate_first=True)
    if after is not None:
        with pytest.raises(Killed):
            run(folder, batches=Dying(batches_of(), after), **arguments)
    result = run(folder, **arguments)
    assert result.step == 0 and result.last_step == 12 and len(result.history) == 2
    assert same(result, run(steps=0))
    if with_folder:
        logged = [record for record in read_metrics(tmp_path / "metrics.jsonl") if "dev/hits" in record]
        assert [record["step"] for record in logged] == [0, 12]


def test_a_misspelt_metric_is_refused():
    with pytest.raises(InputError, match="dev/hits"):
        run(evaluate=scripted(STORY), eval_every=2, keep_best="dev/hit")


def test_training_ends_with_the_data():
    batches = make_batches(toy_store(), batch_size=8, lengths={"inputs": 32, "targets": 8}, epochs=1)
    result = run(steps=1000, batches=batches)
    assert result.last_step == len(list(batches)) < 20


def test_initial_parameters_are_where_it_begins():
    given = {"wi": np.full((16, 32), 0.5, np.float32)}
    start = run(steps=0, initial_params=given)
    assert (flatten(start.params)["wi"] == 0.5).all()
    assert different(start, run(steps=2, initial_params=given))
    assert (given["wi"] == 0.5).all()


def test_seeds_matter(whole):
    assert same(run(), whole)
    assert different(run(seed=1), whole)


def test_what_is_not_finite_stops_training_before_it_is_saved(tmp_path):
    class Diverging(ToyModel):
        def loss_fn(self, params, batch, dropout_rng):
            loss, metrics = super().loss_fn(params, batch, dropout_rng)
            moved = jnp.abs(params["wi"]).sum()  # about 5 more every step
            return loss + jnp.where(moved > 20, jnp.nan, 0.0), metrics

    given = {"wi": np.zeros((16, 32))}
    with pytest.raises(FloatingPointError, match=r"step \d+: loss nan.*learning rate"):
        run(tmp_path, steps=500, model=Diverging(), checkpoint_every=1, optimizer=adamw(1e-2), initial_params=given)
    last = checkpoints.steps(tmp_path / "checkpoints")[-1]
    params = flatten(checkpoints.load_params(checkpoints.path_of(tmp_path / "checkpoints", last)))
    assert all(np.isfinite(value).all() for value in params.values())


@pytest.mark.parametrize("change", [{"microbatches": 3}, {"mesh": make_mesh(3, 1)}])
def test_batches_must_be_divisible(change):
    with pytest.raises(InputError, match="batch of 8 rows cannot be split"):
        run(**change)


def test_batches_must_know_their_place():
    with pytest.raises(InputError, match="make_batches"):
        run(batches=list(make_batches(toy_store(), batch_size=8, epochs=1)))


def test_a_grain_dataset_of_batches_will_do(tmp_path, whole):
    import grain

    batches = [batch for _, batch in zip(range(12), batches_of(), strict=False)]
    dataset = grain.MapDataset.source(batches).to_iter_dataset()
    with pytest.raises(Killed):
        run(tmp_path, batches=dataset, evaluate=_dies, eval_every=5)
    assert same(run(tmp_path, batches=dataset), whole)


def _dies(params, step):
    raise Killed


def test_tensorboard_files_where_they_are_wanted(tmp_path):
    pytest.importorskip("tensorflow")
    pytest.importorskip("clu")
    from tensorflow.core.util import event_pb2
    from tensorflow.python.lib.io import tf_record

    run(tmp_path, steps=3, tensorboard=True)
    (file,) = tmp_path.glob("events*")
    events = [event_pb2.Event.FromString(record) for record in tf_record.tf_record_iterator(str(file))]
    losses = {event.step for event in events for value in event.summary.value if value.tag == "train/loss"}
    assert losses == {1, 2, 3}


def test_tensorboard_without_its_packages_is_explained(tmp_path, monkeypatch):
    monkeypatch.setattr(metric_writers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="needs? the package clu"):
        run(tmp_path, steps=1, tensorboard=True)


def test_progress_is_shown(capsys):
    run(progress=True)
    assert "Training: 12/12" in (shown := capsys.readouterr().err)
    assert "loss " in shown and "examples/s" in shown


def test_metrics_are_means_by_weight(tmp_path):
    """Two steps' worth of losses, averaged by their weights and not by step."""
    run(tmp_path / "each", steps=4, log_every=1, checkpoint_every=0)
    run(tmp_path / "pairs", steps=4, log_every=4, checkpoint_every=0)
    each = read_metrics(tmp_path / "each" / "metrics.jsonl")
    (pooled,) = read_metrics(tmp_path / "pairs" / "metrics.jsonl")
    weights = [record["train/weight_sum"] for record in each]
    expected = np.average([record["train/loss"] for record in each], weights=weights)
    assert len(set(weights)) > 1
    np.testing.assert_allclose(pooled["train/loss"], expected, rtol=1e-6)


def test_a_torn_last_line_of_metrics_is_dropped(tmp_path):
    run(tmp_path, steps=3)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 4, "train/loss": 1.0})[:-3])
    run(tmp_path, steps=6)
    assert [record["step"] for record in read_metrics(tmp_path / "metrics.jsonl")] == list(range(1, 7))
