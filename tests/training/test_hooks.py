"""Hooks: what they make takes effect at its step exactly, survives interruptions, is refused where it does not fit."""

import json
import shutil
import threading

import numpy as np
import pytest

from gr_jax import storage
from gr_jax.errors import InputError, InputWarning
from gr_jax.training import checkpoints
from gr_jax.training.hooks import Hook, HookError
from gr_jax.training.optimizers import adamw
from gr_jax.training.train_state import flatten, unflatten
from tests.training import hooked
from tests.training.hooked import FIRST, FROZEN, STEPS, batches_of, hooks_of, mix, relabel, train_with
from tests.training.toy import ToyModel, learn


def same(one, other):
    pairs = ((on_host(r.params), r.history, r.step, r.tables.get("relabel", {}).get("targets")) for r in (one, other))
    (params, *rest), (other_params, *other_rest) = pairs
    np.testing.assert_equal(rest, other_rest)
    np.testing.assert_equal(params, other_params)
    return True


def on_host(params):
    return {path: np.array(value, copy=True) for path, value in flatten(params).items()}


class Watched:
    """Parameters before every step, and the batches that were trained on."""

    def __init__(self):
        self.params, self.batches = {}, {}

    def __call__(self, params, step):
        self.params[step] = on_host(params)
        return {"dev/x": float(np.abs(self.params[step]["wi"]).sum())}


@pytest.mark.parametrize(
    ("every", "lag", "other"),
    [
        (4, 2, (3, 0)),
        (1, 0, (2, 5)),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in ((4, 0, (3, 1)), (1, 0, (1, 1)), (1, 1, (2, 5)), (5, 5, (4, 9)))
        ),
    ],
)
def test_what_is_made_takes_effect_at_its_step(every, lag, other):
    """Against a plain reading of the rule, step by step; batches are made four ahead of training."""
    seen = Watched()
    hooks = hooks_of(every=every, lag=lag, other=other)
    dataset = batches_of(hooks[0])
    train_with(hooks, batches=Recording(dataset, seen.batches), evaluate=seen, eval_every=1, evaluate_first=True)

    tables, frozen = dict(FIRST), {path: seen.params[0][path] for path in FROZEN}
    plain = [Hook("relabel", relabel, 1000, tables=FIRST)]  # batches of other tables, written down
    for step in range(STEPS):
        for path in FROZEN:  # an evaluation sees what the update before it was made with
            np.testing.assert_array_equal(seen.params[step][path], frozen[path], err_msg=f"{path} {step}")
        if (source := step - lag) > 0 and source % every == 0:
            made = relabel(unflatten(seen.params[source]), source)
            tables, frozen = {"targets": made["targets"]}, {**frozen, "input_embedding": made["input_embedding"]}
        if (source := step - other[1]) > 0 and source % other[0] == 0:
            frozen |= mix(unflatten(seen.params[source]), source)
        plain[0].tables = tables
        iterator = iter(batches_of(plain[0]))
        iterator.set_state(seen.batches[step][0])
        expected = next(iterator)
        for name, array in seen.batches[step][1].items():
            np.testing.assert_array_equal(array, expected[name], err_msg=f"{name} {step}")


class Recording:
    """Batches that note from which state which batch was made."""

    def __init__(self, batches, noted):
        self.settings, self.input_shapes = batches.settings, batches.input_shapes
        self._batches, self._noted = batches, noted

    def __iter__(self):
        iterator, noted = iter(self._batches), self._noted

        class Iterator:
            def __next__(self):
                state = iterator.get_state()
                batch = next(iterator)
                noted[state["step"]] = state, batch
                return batch

            get_state, set_state = iterator.get_state, iterator.set_state

        return Iterator()


class Dies(Exception):
    pass


def dies_at(steps, evaluate=None):
    """An evaluation during which the process dies, once for each of these steps."""
    left = list(steps)

    def look(params, step):
        if left and step >= left[0]:
            left.pop(0)
            raise Dies
        return evaluate(params, step)

    return look


def judge(params, step):
    """Best somewhere in the middle."""
    return {"dev/x": -abs(step - 11) + 1e-6 * float(np.abs(params["wi"]).sum())}


ARGUMENTS = dict(eval_every=1, keep_best="dev/x", checkpoint_every=3)


@pytest.fixture(scope="module")
def whole():
    return train_with(hooks_of(), evaluate=judge, **ARGUMENTS)


@pytest.fixture(scope="module")
def plain():
    """Without an evaluation."""
    return train_with(hooks_of())


@pytest.fixture(scope="module")
def watched():
    """Parameters before every step, and the result."""
    seen = Watched()
    return seen, train_with(hooks_of(), evaluate=seen, eval_every=1)


@pytest.fixture(scope="module")
def late():
    """What is made is used eight steps later."""
    return train_with(hooks_of(every=4, lag=8), evaluate=judge, eval_every=1)


DEATHS = ([4, 5], [6, 8], [9, 10, 16], [11, 12, 14, 20], [3, 4, 7], list(range(1, 21)))


@pytest.mark.parametrize("deaths", [[5, 10], *(pytest.param(deaths, marks=pytest.mark.slow) for deaths in DEATHS)])
def test_dying_anywhere_does_not_change_the_result(tmp_path, whole, deaths):
    look = dies_at(deaths, judge)
    for _ in deaths:
        with pytest.raises(Dies):
            train_with(hooks_of(), tmp_path, evaluate=look, **ARGUMENTS)
    assert same(train_with(hooks_of(), tmp_path, evaluate=look, **ARGUMENTS), whole)
    assert whole.step == 11 and whole.tables["relabel"]["targets"].shape == FIRST["targets"].shape


def test_the_tables_of_the_best_step_are_returned(whole, watched):
    """Step 11's last update was made with what ran at 8; the last one's with what ran at 16."""
    seen, last = watched
    for result, source in ((whole, 8), (last, 16)):
        expected = relabel(unflatten(seen.params[source]), source)
        np.testing.assert_array_equal(result.tables["relabel"]["targets"], expected["targets"])
        np.testing.assert_array_equal(flatten(result.params)["input_embedding"], expected["input_embedding"])


@pytest.mark.parametrize("stop", [5, *(pytest.param(step, marks=pytest.mark.slow) for step in (4, 6, 8, 19))])
def test_a_finished_run_can_go_on(tmp_path, plain, stop):
    """Also where it ended between the parameters of a run and the use of what it would have made."""
    train_with(hooks_of(), tmp_path, steps=stop)
    assert same(train_with(hooks_of(), tmp_path), plain)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "metrics.jsonl"]  # nothing beside them
    assert all(path.name.startswith("step_") for path in (tmp_path / "checkpoints").iterdir())


class Held:
    """A hook that is let go on by somebody else."""

    def __init__(self):
        self.ran, self.go_on = [], threading.Event()

    def __call__(self, params, step):
        self.ran.append(step)
        assert self.go_on.wait(60)
        return relabel(params, step)


def test_a_checkpoint_does_not_wait_for_a_hook_that_runs(tmp_path, late):
    """It keeps the parameters that the hook runs on, and whoever goes on runs it again."""
    held, hook = Held(), {"every": 4, "lag": 8}
    # Killed at step 9, when checkpoints 5 to 8 were written while what began at 4 and 8 had not ended.
    arguments = {"checkpoint_every": 1, "eval_every": 1, "keep_checkpoints": 20}
    with pytest.raises(Dies):
        train_with(hooks_of(**hook, run=held), tmp_path, evaluate=dies_at([9], judge), **arguments)
    held.go_on.set()
    assert held.ran == [4]  # one after the other
    folder = tmp_path / "checkpoints"
    for step in (5, 8):
        state, arrays = checkpoints.load_hooks(checkpoints.path_of(folder, step))
        assert state["relabel"]["made"] == [] and list(state["relabel"]["given"]) == ["4"]
        params = checkpoints.load_params(checkpoints.path_of(folder, 4))
        for path, value in flatten(params).items():
            if path == "target_embedding" and step == 8 or path not in FROZEN:  # another hook swapped it since
                np.testing.assert_array_equal(arrays[f"relabel/given/4/{path}"], value)
            else:  # what no update changes stands in the checkpoint once
                assert f"relabel/given/4/{path}" not in arrays
    again = Held()
    again.go_on.set()
    found = train_with(hooks_of(**hook, run=again), tmp_path, evaluate=judge, **arguments)
    assert again.ran == [4, 8]  # 12's would be used from 20 on, which is the end
    assert same(found, late)


def test_what_was_made_and_is_not_due_is_not_made_again(tmp_path, late):
    ran = []

    def noting(params, step):
        ran.append(step)
        return relabel(params, step)

    hook = {"every": 4, "lag": 8, "run": noting}
    with pytest.raises(Dies):  # by then what ran at 4 was waited for, at 12
        train_with(hooks_of(**hook), tmp_path, evaluate=dies_at([15], judge), eval_every=1, checkpoint_every=14)
    assert ran in ([4, 8], [4])
    before = len(ran)
    found = train_with(hooks_of(**hook), tmp_path, evaluate=judge, eval_every=1, checkpoint_every=14)
    assert 4 not in ran[before:]
    assert same(found, late)


def test_the_parameters_it_is_given_stay_as_they_are():
    """Whatever the updates overwrite while it runs."""
    held, seen, given = Held(), Watched(), {}

    def keep(params, step):
        given[step] = params
        return held(params, step)

    def look(params, step):
        if step == 11:
            held.go_on.set()
        return seen(params, step)

    train_with(hooks_of(every=4, lag=8, run=keep), evaluate=look, eval_every=1)
    assert list(given) == [4, 8]
    for step, params in given.items():
        np.testing.assert_equal({path: value for path, value in flatten(params).items()}, seen.params[step])


def test_hooks_run_whether_anything_is_evaluated_or_not(plain, watched):
    for path, value in flatten(plain.params).items():
        np.testing.assert_array_equal(value, watched[0].params[STEPS][path])


def failing(error):
    def run(params, step):
        if step == 8:
            raise error
        return relabel(params, step)

    return run


@pytest.mark.parametrize("lag", [6, pytest.param(0, marks=pytest.mark.slow)])
def test_a_hook_that_fails_ends_training(tmp_path, lag):
    hooks = hooks_of(lag=lag, run=failing(OSError("the disk is on fire")))
    with pytest.raises(HookError, match="'relabel', run at step 8, failed: OSError: the disk is on fire") as caught:
        train_with(hooks, tmp_path, checkpoint_every=1)
    assert isinstance(caught.value.__cause__, OSError)
    last = checkpoints.steps(tmp_path / "checkpoints")[-1]
    assert 7 <= last <= 14
    found = train_with(hooks_of(lag=lag), tmp_path, checkpoint_every=1)  # mended, it goes on
    assert same(found, train_with(hooks_of(lag=lag)))


def test_a_hook_that_finds_fault_with_what_was_given():
    hooks = hooks_of(run=failing(InputError("no such file", "Name another.", file="tables.npy")))
    with pytest.raises(InputError, match="tables.npy: the hook 'relabel', run at step 8: no such file. Name another"):
        train_with(hooks)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": FIRST["targets"][:3]}, r"returned 'targets' as int32\(3, 2\), where int32\(40, 2\) is"),
        pytest.param(
            {"targets": FIRST["targets"].astype(np.int64)},
            r"returned 'targets' as int64\(40, 2\)",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"input_embedding": np.zeros((64, 8), np.float32)},
            r"returned 'input_embedding' as float32\(64, 8\)",
            marks=pytest.mark.slow,
        ),
        ({"more": np.zeros(3)}, r"must return \['input_embedding', 'targets'\] \(got \['input_embedding', 'more'"),
    ],
)
def test_what_has_another_shape_is_refused(change, message):
    hooks = hooks_of(run=lambda params, step: relabel(params, step) | change)
    with pytest.raises(InputError, match=f"'relabel', run at step 4, {message}") as caught:
        train_with(hooks)
    assert "a round: train in another stage" in str(caught.value)


def test_a_label_without_tokens_is_refused():
    nothing = np.full_like(FIRST["targets"], -1)
    with pytest.raises(InputError, match="'targets' of the hook 'relabel' has no tokens in row"):
        train_with(hooks_of(run=lambda params, step: relabel(params, step) | {"targets": nothing}))


def test_what_makes_no_sense_is_refused_before_anything_runs():
    def hook(**changes):
        return Hook(**{"name": "one", "run": mix, "every": 2, "tables": FIRST} | changes)

    for changes, message in (
        ({"every": 0}, "every ≥ 1"),
        ({"lag": -1}, "lag ≥ 0"),
        ({"name": "a/b"}, "not a name"),
        ({"tables": {"a/b": np.zeros(2)}}, "not names of tables"),
        ({"tables": {}}, "makes nothing"),
        ({"parameters": ["targets"]}, "one thing twice"),
    ):
        with pytest.raises(InputError, match=message):
            hook(**changes)
    for hooks, message in (
        ([hook(), hook()], "two hooks have one name"),
        ([hook(parameters=["wi"])], "a parameter that learns"),
        ([hook(parameters=["wii"])], "none of the model's"),
        (
            [hook(parameters=list(FROZEN)), hook(name="two", parameters=list(FROZEN))],
            "'one' and 'two' swap one parameter",
        ),
    ):
        with pytest.raises(InputError, match=message):
            train_with(hooks)
    with pytest.raises(InputError, match="keep_best"):
        learn(ToyModel(), [], steps=1, optimizer=adamw(1e-3), keep_best="dev/x")


def test_a_run_does_not_go_on_with_another_hook(tmp_path):
    train_with(hooks_of(), tmp_path, steps=3)
    others = [
        hooks_of(every=5),
        hooks_of(lag=3),
        hooks_of()[:1],
        [*hooks_of(), Hook("three", mix, 2, tables={"x": np.zeros(2)})],
        [Hook("relabel", relabel, 4, 2, FIRST, ["input_embedding"], settings={"k": 2}), hooks_of()[1]],
        [Hook("relabel", relabel, 4, 2, {"targets": FIRST["targets"] + 1}, ["input_embedding"]), hooks_of()[1]],
    ]
    for hooks in others:
        with pytest.raises(InputError, match=r"other settings: hooks\."):
            train_with(hooks, tmp_path)


def altered(folder, step, change):
    """A manifest that says something else of hooks, and is otherwise whole."""
    path = checkpoints.path_of(folder / "checkpoints", step)
    meta = storage.read_folder(path).meta
    change(meta["hooks"]["relabel"])
    files = {file.relative_to(path): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with storage.write_folder(path, checkpoints.KIND, meta=meta) as new:
        for name, content in files.items():
            if name.name != "manifest.json":
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                (new / name).write_bytes(content)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The folder of a run that ended at step 7."""
    folder = tmp_path_factory.mktemp("ended")
    train_with(hooks_of(lag=0), folder, steps=7)
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("made"), "state of hooks makes no sense"),
        (lambda state: state["made"].append(8), "state of hooks makes no sense"),
        (lambda state: state.update(made=[], given={}), "state of hooks makes no sense"),
        (lambda state: state.update(made=[], given={"4": []}), "relabel/given/4/"),
        (lambda state: state.update(made=[], given={"4": ["nothing"]}), "state of hooks makes no sense"),
    ],
)
def test_a_damaged_state_is_refused(ended, tmp_path, change, message):
    shutil.copytree(ended, tmp_path, dirs_exist_ok=True)
    altered(tmp_path, 7, change)
    with pytest.raises(InputError, match=message) as caught:
        train_with(hooks_of(lag=0), tmp_path)
    assert "step_00000007" in str(caught.value) and "checkpoint" in str(caught.value)


def test_damaged_arrays_are_not_gone_on_from(tmp_path, plain):
    train_with(hooks_of(), tmp_path, steps=7)
    state = tmp_path / "checkpoints" / "step_00000007"
    file = max(state.rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.warns(InputWarning, match="damaged or foreign checkpoint: altered.*Training begins anew"):
        found = train_with(hooks_of(), tmp_path)
    assert same(found, plain)


def test_settings_of_hooks_are_json():
    described = {hook.name: hook.describe() for hook in hooks_of()}
    assert json.loads(json.dumps(described)) == described
    assert hooked.hooks_of()[0].used(STEPS) == len([s for s in range(4, STEPS, 4) if s + 2 < STEPS])
