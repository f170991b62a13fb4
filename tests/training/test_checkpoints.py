import json
import pathlib
import resource
import shutil
import types
import zlib

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gr_jax import storage
from gr_jax.errors import InputError, InputWarning
from gr_jax.training import checkpoint_arrays, checkpoints
from gr_jax.training.checkpoints import Checkpoints, Snapshot, load_params
from gr_jax.training.optimizers import adamw
from gr_jax.training.partitioning import make_mesh
from gr_jax.training.train_state import flatten, unflatten
from tests.training.test_loop import run
from tests.training.toy import ToyModel

SETTINGS = {"optimizer": {"kind": "adamw", "schedule": {"learning_rate": 0.1}}, "seed": 0}


def arrays(seed=0, size=5):
    random = np.random.default_rng(seed)
    return {
        "params": {"a/b/kernel": random.normal(size=(3, size)).astype(np.float32), "a/scale": np.ones(2, np.float32)},
        "opt_state": {"step": np.int32(seed), "0/mu/a/b/kernel": random.normal(size=(3, size)).astype(np.float32)},
    }


def write(folder, *, steps=(5,), settings=SETTINGS, keep=10, size=5, best=None):
    store = Checkpoints(folder, settings, keep=keep)
    for step in steps:
        store.save(Snapshot(step, {"position": step, "held": [1]}, {"best_step": best}), arrays(step, size), best=best)
    store.close()
    return store


def test_everything_comes_back(tmp_path):
    store = write(tmp_path, steps=(5, 10))
    snapshot, found = store.read(store.latest(), arrays())
    assert snapshot == Snapshot(10, {"position": 10, "held": [1]}, {"best_step": None})
    for group, flat in arrays(10).items():
        for path, value in flat.items():
            np.testing.assert_array_equal(found[group][path], value)
            assert found[group][path].dtype == value.dtype
    params = load_params(checkpoints.path_of(tmp_path, 5))
    np.testing.assert_array_equal(params["a"]["b"]["kernel"], arrays(5)["params"]["a/b/kernel"])


def write_as_before(folder):
    """As versions wrote it that left the arrays to Orbax."""
    import orbax.checkpoint as ocp

    meta = {"step": 5, "data": {"position": 5}, "progress": {}, "hooks": {}, "settings": SETTINGS}
    meta["arrays"] = checkpoints._describe(arrays(5))
    with storage.write_folder(checkpoints.path_of(folder, 5), checkpoints.KIND, meta=meta) as new:
        state = {group: unflatten(flat) for group, flat in arrays(5).items()}
        ocp.PyTreeCheckpointer(use_compression=False).save(new.absolute() / "state", state)


def test_checkpoints_of_earlier_versions_are_read(tmp_path):
    write_as_before(tmp_path)
    snapshot, found = Checkpoints(tmp_path, SETTINGS).read(5, arrays())
    assert snapshot.data == {"position": 5}
    for group, flat in arrays(5).items():
        for path, value in flat.items():
            np.testing.assert_array_equal(found[group][path], value)
    np.testing.assert_array_equal(load_params(tmp_path / "step_00000005")["a"]["scale"], np.ones(2))


def test_a_checkpoint_of_another_version_is_refused_by_its_name(tmp_path):
    write(tmp_path)
    folder = checkpoints.path_of(tmp_path, 5)
    meta = {**storage.read_folder(folder).meta, "format": 7}
    with storage.write_folder(folder, checkpoints.KIND, meta=meta):
        pass
    with pytest.raises(InputError, match=r"step_00000005: .*in format 7; this one reads formats 1 and 2.*the version"):
        Checkpoints(tmp_path, SETTINGS).newest(arrays())


def test_the_bytes_can_be_read_by_anything(tmp_path):
    """The layout, without the module that wrote it."""
    write(tmp_path)
    folder = checkpoints.path_of(tmp_path, 5)
    listing = json.loads((folder / "process_00000.json").read_text())
    group, path, bounds, offset, size, checksum = listing["pieces"][0]
    assert (group, path, bounds) == ("params", "a/b/kernel", [[0, 3], [0, 5]])
    data = (folder / "process_00000.arrays").read_bytes()[offset : offset + size]
    np.testing.assert_array_equal(np.frombuffer(data, "<f4").reshape(3, 5), arrays(5)["params"]["a/b/kernel"])
    assert listing["checksum"] != "crc32" or checksum == zlib.crc32(data)


@pytest.mark.parametrize(("kind", "expected"), [("crc32c", 0xE3069283), ("crc32", 0xCBF43926)])
def test_checksums_have_the_values_of_their_catalogue(kind, expected):
    """The check value of each is that of the digits 1 to 9."""
    make = checkpoint_arrays.CHECKSUMS[kind]
    assert make is not None, "google-crc32c is among what setup.py requires"
    assert make(b"123456789") == expected and make(b"") == 0
    changing = np.frombuffer(b"0" * 3_000_000, np.uint8).copy()
    before = make(changing.data)
    changing[2_500_000] ^= 1
    assert make(changing.data) != before


DAMAGES = [
    (name, damage)
    for name in ("process_00000.arrays", "process_00000.json", "manifest.json")
    for damage in ("flipped", "truncated", "gone")
]


@pytest.mark.parametrize(
    ("name", "damage"), [pytest.param(*one, marks=pytest.mark.slow if n % 4 else ()) for n, one in enumerate(DAMAGES)]
)
def test_the_newest_that_is_whole_is_taken(good, tmp_path, name, damage):
    shutil.copytree(good, tmp_path / "c")
    file = tmp_path / "c" / "step_00000010" / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content if damage == "flipped" else content[:-3])
    if damage == "gone":
        file.unlink()
    store = Checkpoints(tmp_path / "c", SETTINGS)
    with pytest.warns(InputWarning, match=r"of step 10 is passed over: .*step_00000010.*An older one, of step 5, is"):
        snapshot, found = store.newest(arrays())
    assert snapshot.step == 5
    np.testing.assert_array_equal(found["params"]["a/b/kernel"], arrays(5)["params"]["a/b/kernel"])
    assert sorted(entry.name for entry in (tmp_path / "c").iterdir()) == ["step_00000005", "step_00000010.damaged"]
    (tmp_path / "c" / "step_00000005" / name).unlink()
    with pytest.warns(InputWarning, match="Training begins anew"):
        assert store.newest(arrays()) is None


def test_one_whose_best_is_damaged_is_passed_over(tmp_path):
    write(tmp_path, steps=(3,), best=3)
    write(tmp_path, steps=(5, 10), best=5)
    (tmp_path / "step_00000005" / "process_00000.arrays").write_bytes(b"")
    with pytest.warns(InputWarning) as said:
        snapshot, _ = Checkpoints(tmp_path, SETTINGS).newest(arrays())
    assert snapshot.step == 3 and len(said) == 2
    assert "it needs the best one before it, of step 5" in str(said[0].message)


def test_pieces_are_put_together_for_other_devices(tmp_path):
    """Written from eight devices, read on four that are split otherwise, and whole."""
    values = np.arange(8 * 12, dtype=np.float32).reshape(8, 12)
    before = jax.NamedSharding(make_mesh(4, 2), jax.P("data", "model"))
    after = jax.NamedSharding(make_mesh(1, 4), jax.P(None, "model"))
    store = Checkpoints(tmp_path, {})
    store.save(Snapshot(1, {}, {}), {"params": {"a": jax.device_put(values, before)}})
    store.wait()
    like = {"params": {"a": values}}
    _, found = store.read(1, like, shardings={"params": {"a": after}})
    assert found["params"]["a"].sharding == after
    np.testing.assert_array_equal(found["params"]["a"], values)
    np.testing.assert_array_equal(store.read(1, like)[1]["params"]["a"], values)
    assert (tmp_path / "step_00000001" / "process_00000.arrays").stat().st_size == values.nbytes


def test_the_latest_and_the_best_are_kept(tmp_path):
    write(tmp_path, steps=range(1, 8), keep=2, best=3)
    assert checkpoints.steps(tmp_path) == [3, 6, 7]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step_00000003", "step_00000006", "step_00000007"]


def test_what_a_kept_one_names_best_is_kept(tmp_path):
    """Dev's best has moved, and the newest is damaged: the one before it still has its own best."""
    for step, best in ((2, 2), (3, 2), (4, 4)):
        write(tmp_path, steps=(step,), keep=2, best=best)
    assert checkpoints.steps(tmp_path) == [2, 3, 4]
    (tmp_path / "step_00000004" / "process_00000.arrays").write_bytes(b"")
    with pytest.warns(InputWarning, match="An older one, of step 3, is tried"):
        snapshot, _ = Checkpoints(tmp_path, SETTINGS).newest(arrays())
    assert snapshot.step == 3
    write(tmp_path, steps=(5, 6), keep=2, best=5)
    assert checkpoints.steps(tmp_path) == [5, 6]  # nobody names the others any more


def test_no_folder_has_no_checkpoints(tmp_path):
    assert Checkpoints(tmp_path / "none", {}).latest() is None
    with pytest.raises(InputError, match="no such artefact"):
        load_params(tmp_path / "none" / "step_00000001")


def test_a_saved_array_may_be_overwritten_at_once(tmp_path):
    store, values = Checkpoints(tmp_path, SETTINGS), arrays(1, size=100_000)
    expected = values["params"]["a/b/kernel"].copy()
    store.save(Snapshot(1, {}, {}), values)
    values["params"]["a/b/kernel"][:] = 0
    store.close()
    np.testing.assert_array_equal(load_params(tmp_path / "step_00000001")["a"]["b"]["kernel"], expected)


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    write(folder, steps=(5, 10))
    return folder


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_is_noticed(good, tmp_path_factory, data):
    """One altered bit, or any truncation, of any file."""
    folder = tmp_path_factory.mktemp("damaged") / "checkpoints"
    shutil.copytree(good, folder)
    file = data.draw(st.sampled_from(files_of(folder / "step_00000010")))
    content = bytearray(file.read_bytes())
    if data.draw(st.booleans()):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    file.write_bytes(content)
    with pytest.raises(InputError) as caught:
        Checkpoints(folder, SETTINGS).read(10, arrays())
    assert str(folder / "step_00000010") in str(caught.value)
    assert "go on from step 5" in caught.value.remedy
    shutil.rmtree(folder.parent)


@pytest.mark.parametrize("name", ["process_00000.arrays", "process_00000.json"])
def test_missing_files_are_noticed(good, tmp_path, name):
    shutil.copytree(good, tmp_path / "c")
    (tmp_path / "c" / "step_00000010" / name).unlink()
    with pytest.raises(InputError, match=name):
        Checkpoints(tmp_path / "c", SETTINGS).read(10, arrays())


def test_other_settings_are_named(good):
    other = {"optimizer": {"kind": "adamw", "schedule": {"learning_rate": 0.2}}, "seed": 0, "config": "big"}
    with pytest.raises(InputError) as caught:
        Checkpoints(good, other).read(10, arrays())
    assert "optimizer.schedule.learning_rate was 0.1 and is 0.2" in caught.value.problem
    assert "config was None and is 'big'" in caught.value.problem
    assert "step_00000010" in str(caught.value) and "another folder" in caught.value.remedy


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"a/b/kernel": np.zeros((3, 6), np.float32)}, r"a/b/kernel in params is float32\(3, 5\).*float32\(3, 6\)"),
        ({"a/b/kernel": np.zeros((3, 5), np.float16)}, r"a/b/kernel in params is float32\(3, 5\).*float16\(3, 5\)"),
        ({"new": np.zeros(1, np.float32)}, "the model has a parameter new"),
    ],
)
def test_a_foreign_model_is_named_by_parameter(good, change, problem):
    like = arrays()
    like["params"] |= change
    with pytest.raises(InputError, match=problem):
        Checkpoints(good, SETTINGS).read(10, like)


def test_a_parameter_the_model_has_not_is_named(good):
    like = arrays()
    del like["params"]["a/scale"]
    with pytest.raises(InputError, match="the checkpoint has a parameter a/scale"):
        Checkpoints(good, SETTINGS).read(10, like)


def test_another_kind_of_folder_is_refused(tmp_path):
    with storage.write_folder(tmp_path / "step_00000001", "docids"):
        pass
    with pytest.raises(InputError, match="holds 'docids', not 'checkpoint'"):
        Checkpoints(tmp_path, SETTINGS).read(1, arrays())


def full_disk(free):
    """As a file system that takes `free` more bytes of a file, whoever writes it."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free, hard))


@pytest.fixture
def disk():
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield full_disk
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("free", [0, 300, 50_000])
def test_a_full_disk_is_an_error_and_costs_nothing_written_before(tmp_path, disk, free):
    write(tmp_path, steps=(5,), size=50_000)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    store = Checkpoints(tmp_path, SETTINGS)
    disk(free)
    store.save(Snapshot(10, {}, {}), arrays(10, 50_000))
    try:
        with pytest.raises(InputError) as caught:
            store.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    store.close()
    assert "step_00000010" in str(caught.value) and "disk" in caught.value.remedy
    assert checkpoints.steps(tmp_path) == [5]
    _, found = store.read(5, arrays(5, 50_000))
    np.testing.assert_array_equal(found["params"]["a/b/kernel"], arrays(5, 50_000)["params"]["a/b/kernel"])
    write(tmp_path, steps=(10,), size=50_000)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step_00000005", "step_00000010"]


def test_training_on_a_full_disk_ends_with_the_error_and_goes_on_later(tmp_path, disk):
    model = ToyModel(inputs=2000)
    run(tmp_path, steps=3, model=model)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    disk(60_000)
    try:
        with pytest.raises(InputError, match="checkpoint could not be written|disk|larger than the file system"):
            run(tmp_path, steps=12, model=model)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert checkpoints.steps(tmp_path / "checkpoints") == [3]
    resumed, whole = run(tmp_path, steps=12, model=model), run(steps=12, model=model)
    for path, value in flatten(whole.params).items():
        np.testing.assert_array_equal(flatten(resumed.params)[path], value)


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"optimizer": adamw(1e-2)}, r"optimizer\.schedule\.warmup_steps was 4 and is 0"),
        ({"seed": 7}, "seed was 0 and is 7"),
        ({"microbatches": 2}, "microbatches was 1 and is 2"),
        ({"initial_params": {"wi": np.zeros((16, 32), np.float32)}}, "initial_params was None"),
        ({"config": {"layers": 2}}, "config was None"),
        ({"model": ToyModel(width=32)}, r"model\.width was 16 and is 32"),
    ],
)
def test_training_refuses_a_folder_of_another_run(tmp_path_factory, change, problem, made={}):  # noqa: B006
    if not made:
        made["folder"] = tmp_path_factory.mktemp("run")
        run(made["folder"], steps=3)
    with pytest.raises(InputError, match=problem) as caught:
        run(made["folder"], steps=6, **change)
    assert str(made["folder"]) in str(caught.value)


def test_a_kill_while_removing_old_ones_leaves_no_half_checkpoint(tmp_path, monkeypatch):
    def dies(folder, **_):
        next(path for path in pathlib.Path(folder).rglob("*") if path.is_file()).unlink()
        raise OSError("killed")

    monkeypatch.setattr(checkpoints, "shutil", types.SimpleNamespace(rmtree=dies))
    with pytest.raises(OSError, match="killed"):
        write(tmp_path, steps=(1, 2, 3), keep=2)
    monkeypatch.undo()
    assert checkpoints.steps(tmp_path) == [2, 3]
    for step in (2, 3):
        load_params(checkpoints.path_of(tmp_path, step))
    write(tmp_path, steps=(4,), keep=2)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step_00000003", "step_00000004"]
