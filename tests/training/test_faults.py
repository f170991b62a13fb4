"""Losses that are not finite, or jump: training stops, leaves the update out, or goes back and leaves out the data."""

import signal
import subprocess
import sys

import numpy as np
import pytest

from gr_jax import processes
from gr_jax.errors import InputError, InputWarning
from gr_jax.training import checkpoints
from gr_jax.training.faults import Faults, GoBack, Watch
from gr_jax.training.metric_writers import read_metrics
from gr_jax.training.train_state import flatten
from tests.training.test_loop import Dying, Killed, batches_of, run, same


class Broken:
    """Batches of which some have weights that make the loss huge or not finite."""

    def __init__(self, at, *, weight=np.nan, without=()):
        made = batches_of()
        self.settings, self.input_shapes = made.settings, made.input_shapes
        self._batches, self._at, self._weight, self._without = made, at, weight, without

    def __iter__(self):
        iterator, outer = iter(self._batches), self

        class Iterator:
            def __next__(self):
                while iterator.get_state()["step"] in outer._without:
                    next(iterator)
                number = iterator.get_state()["step"]
                batch = next(iterator)
                if number in outer._at:
                    weights = batch["decoder_loss_weights"].copy()
                    weights[0, 0] = outer._weight
                    batch = {**batch, "decoder_loss_weights": weights}
                return batch

            get_state, set_state = iterator.get_state, iterator.set_state

        return Iterator()


def test_what_is_not_finite_stops_training(tmp_path):
    with pytest.raises(FloatingPointError, match="step 5: loss nan.*Lower the learning rate"):
        run(tmp_path, batches=Broken({4}))
    assert checkpoints.steps(tmp_path / "checkpoints") == [3]


def test_an_update_is_left_out(tmp_path):
    with pytest.warns(InputWarning, match="step 5: loss nan, gradient norm nan. This update is left out"):
        found = run(tmp_path, batches=Broken({4}), faults=Faults("skip"))
    assert all(np.isfinite(value).all() for value in found.params.values())
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["train/updates_left_out"] for line in lines] == [0.0] * 4 + [1.0] + [0.0] * 7
    before = run(steps=4, batches=Broken({4}), faults=Faults("skip"))
    assert same(run(steps=5, batches=Broken({4}), faults=Faults("skip")), before)


@pytest.fixture(scope="module")
def whole():
    return run()


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """A training whose data never had three of its batches."""
    return run(tmp_path_factory.mktemp("whole"), batches=Broken(set(), without={3, 4, 5}))


def test_skipping_changes_nothing_where_all_is_well(whole):
    """But for rounding: it is another program that is compiled."""
    found = run(faults=Faults("skip", spike="skip", factor=100.0))
    left, right = flatten(found.params), flatten(whole.params)
    for path, value in left.items():
        np.testing.assert_allclose(value, right[path], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("after", [2, *(pytest.param(after, marks=pytest.mark.slow) for after in (None, 7))])
def test_training_goes_back_and_leaves_out_the_data(tmp_path, without, after):
    """As a training whose data never had the three batches since the checkpoint; killed or not."""
    if after is not None:
        with pytest.raises(Killed):
            run(tmp_path / "back", batches=Dying(Broken({5}), 6 + after), faults=Faults("back"))
    with pytest.warns(InputWarning, match="goes on from step 3, without the 3 batches after it"):
        found = run(tmp_path / "back", batches=Broken({5}), faults=Faults("back"))
    assert same(found, without)
    steps = [line["step"] for line in read_metrics(tmp_path / "back" / "metrics.jsonl")]
    assert steps == list(range(1, 13))


def test_faults_in_a_row_end_training(tmp_path):
    with pytest.raises(FloatingPointError, match="fault 3 in a row"), pytest.warns(InputWarning):
        run(tmp_path, batches=Broken(set(range(5, 100))), faults=Faults("back", most=2))
    with pytest.raises(FloatingPointError, match="fault 3 in a row"), pytest.warns(InputWarning):
        run(batches=Broken(set(range(5, 100))), faults=Faults("skip", most=2))


def test_a_spike_is_judged_by_losses_that_everybody_has_by_then():
    watch = Watch(Faults(spike="back", factor=2.0, window=5))
    for step in range(1, 7):
        watch.judge(step, 1.0, 1.0)
    assert watch.limit(7) == 2.0
    watch.judge(7, 1.9, 1.0)
    kept = watch.progress()["faults"]
    with pytest.raises(GoBack, match="step 8: loss 2.1, gradient norm 1.0, limit 2"):
        watch.judge(8, 2.1, 1.0)
    again = Watch(Faults(spike="back", factor=2.0, window=5))
    again.restore(kept)
    assert again.limit(8) == 2.0 and again.limit(9) == pytest.approx(2 * 5.9 / 5)


def test_settings_that_are_none(tmp_path):
    for wrong in ({"not_finite": "ignore"}, {"spike": "no"}, {"factor": 1.0}, {"window": 2}, {"most": 0}):
        with pytest.raises(InputError):
            Faults(**wrong)
    with pytest.raises(InputError, match="goes back to a checkpoint only"):
        run(faults=Faults("back"))


def test_a_second_sigterm_ends_a_process_at_once():
    program = """if True:
        import signal, time
        from gr_jax import processes
        signal.signal(signal.SIGTERM, processes.ask_to_stop)
        print("ready", flush=True)
        for _ in range(600):
            time.sleep(0.1)
            if processes.stop_here():
                print("asked", flush=True)
    """
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.stdout.readline() == "asked\n"  # it goes on
    process.terminate()
    assert process.wait(60) == -signal.SIGTERM


def test_a_training_that_is_asked_to_end_goes_on_later(tmp_path, whole):
    def ask(params, step):
        if step == 6:
            processes.ask_to_stop()
        return {"dev/x": 0.0}

    try:
        with pytest.raises(processes.Stopped, match="after step 7 of 12.*goes on from there") as stopped:
            run(tmp_path, evaluate=ask, eval_every=6, checkpoint_every=0)
    finally:
        processes._asked.clear()
    assert stopped.value.code == 143 and checkpoints.steps(tmp_path / "checkpoints") == [7]
    assert same(run(tmp_path, checkpoint_every=0), whole)


def test_a_training_that_goes_back_is_the_same_where_it_was_asked_to_end(tmp_path, without):
    """A checkpoint of the step where it ended would be another one to go back to."""

    def ask(params, step):
        if step == 4:
            processes.ask_to_stop()
        return {"dev/x": 0.0}

    settings = dict(batches=Broken({5}), faults=Faults("back"), eval_every=4)
    try:
        with pytest.raises(processes.Stopped, match="after step 5 of 12, with a checkpoint of step 3"):
            run(tmp_path / "back", evaluate=ask, **settings)
    finally:
        processes._asked.clear()
    assert checkpoints.steps(tmp_path / "back" / "checkpoints") == [0, 3]
    with pytest.warns(InputWarning, match="goes on from step 3, without the 3 batches after it"):
        assert same(run(tmp_path / "back", **settings), without)
