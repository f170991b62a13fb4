"""Shards, restarts, processes and devices: always the vectors that one call of the encoder gives."""

import pathlib
import random
import signal
import time

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from gr_jax import processes as run_processes
from gr_jax import storage
from gr_jax.errors import InputError
from gr_jax.models import encode_corpus, load_embeddings, shards
from gr_jax.models.sentence_encoder import plan_batches
from tests import forking
from tests.models import encoding_run

TEXTS = encoding_run.texts()
SETTINGS = {"shard_size": encoding_run.SHARD, "batch_size": 2, "max_length": 32}
NUM_SHARDS = -(-len(TEXTS) // encoding_run.SHARD)


@pytest.fixture(scope="module")
def encoder():
    return encoding_run.encoder()


@pytest.fixture(scope="module")
def expected(encoder):
    return encoder.encode(TEXTS, batch_size=3, max_length=32)


class Counting:
    """Notes the texts that it is asked for."""

    def __init__(self, encoder):
        self._encoder, self.seen = encoder, []
        self.dimension, self.fingerprint = encoder.dimension, encoder.fingerprint

    def encode(self, texts, **settings):
        self.seen += texts
        return self._encoder.encode(texts, **settings)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float16", 1e-3)])
def test_shards_give_what_one_call_gives(tmp_path, encoder, expected, dtype, tolerance):
    found = encode_corpus(encoder, TEXTS, tmp_path / "embeddings", dtype=dtype, **SETTINGS)
    assert isinstance(found, np.memmap) and found.dtype == dtype and found.shape == (len(TEXTS), 8)
    np.testing.assert_allclose(found, expected, atol=tolerance)
    np.testing.assert_array_equal(load_embeddings(tmp_path / "embeddings", verify=True), found)
    assert [path.name for path in tmp_path.iterdir()] == ["embeddings"]  # the shards are gone
    meta = storage.read_folder(tmp_path / "embeddings", "embeddings").meta
    assert (meta["vectors"], meta["dimension"], meta["dtype"]) == (len(TEXTS), 8, dtype)


def test_what_is_there_is_not_encoded_again(tmp_path, encoder):
    counting = Counting(encoder)
    for _ in range(2):
        encode_corpus(counting, TEXTS, tmp_path / "embeddings", **SETTINGS)
    assert counting.seen == TEXTS
    encode_corpus(counting, TEXTS, tmp_path / "embeddings", **{**SETTINGS, "max_length": 31})
    assert counting.seen == 2 * TEXTS


def test_who_is_asked_to_stop_ends_behind_a_shard_and_goes_on_from_there(tmp_path, encoder, expected):
    class Asked(Counting):
        def encode(self, texts, **settings):
            run_processes.ask_to_stop()
            return super().encode(texts, **settings)

    asked, counting = Asked(encoder), Counting(encoder)
    try:
        with pytest.raises(run_processes.Stopped, match="while encoding"):
            encode_corpus(asked, TEXTS, tmp_path / "embeddings", **SETTINGS)
    finally:
        run_processes._asked.clear()
    assert asked.seen == TEXTS[: encoding_run.SHARD]
    found = encode_corpus(counting, TEXTS, tmp_path / "embeddings", **SETTINGS)
    assert counting.seen == TEXTS[encoding_run.SHARD :]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_of_a_changed_corpus_only_the_changed_shards_are_encoded(tmp_path, encoder):
    encode_corpus(encoder, TEXTS, tmp_path / "a", work=tmp_path / "work", **SETTINGS)
    changed = [*TEXTS, "one more"]
    changed[10] = "another text"
    counting = Counting(encoder)
    found = encode_corpus(counting, changed, tmp_path / "b", work=tmp_path / "work", **SETTINGS)
    size = encoding_run.SHARD
    assert counting.seen == [*changed[size : 2 * size], *changed[(NUM_SHARDS - 1) * size :]]
    np.testing.assert_allclose(found, encoder.encode(changed, max_length=32), atol=1e-5)


def test_a_damaged_shard_is_encoded_again(tmp_path, encoder, expected):
    encode_corpus(encoder, TEXTS, tmp_path / "a", work=tmp_path / "work", **SETTINGS)
    file = tmp_path / "work" / "00002" / "vectors.npy"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    counting = Counting(encoder)
    found = encode_corpus(counting, TEXTS, tmp_path / "b", work=tmp_path / "work", **SETTINGS)
    assert counting.seen == TEXTS[14:21]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_processes_share_the_shards_and_the_last_one_joins(tmp_path, encoder):
    whole = encode_corpus(encoder, TEXTS, tmp_path / "whole", **SETTINGS)
    seen = []
    for index in (2, 0, 1):
        counting = Counting(encoder)
        found = encode_corpus(counting, TEXTS, tmp_path / "parts", process=(index, 3), **SETTINGS)
        seen += counting.seen
        assert (found is None) == (index != 1)
        assert all(TEXTS.index(text) // encoding_run.SHARD % 3 == index for text in counting.seen)
    assert sorted(seen) == sorted(TEXTS)
    np.testing.assert_array_equal(found, whole)


def test_batches_split_over_devices(tmp_path, expected):
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    found = encode_corpus(encoding_run.encoder(mesh=mesh), TEXTS, tmp_path / "embeddings", **SETTINGS)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_every_batch_can_be_split_over_devices():
    lengths = np.random.default_rng(0).integers(1, 65, 333).tolist()
    batches = plan_batches(lengths, 5, 64, devices=3)
    assert sorted(i for chosen, _, _ in batches for i in chosen) == list(range(333))
    for chosen, length, height in batches:
        assert height % 3 == 0 and 0 < len(chosen) <= height and max(lengths[i] for i in chosen) <= length


def test_what_cannot_be_done_is_said(tmp_path, encoder):
    for texts, changes, says in (
        ([], {}, "nothing to encode"),
        (TEXTS, {"shard_size": 0}, "at least one text"),
        (TEXTS, {"dtype": "int8"}, "float32, float16"),
        (TEXTS, {"process": (3, 3)}, "no process"),
    ):
        with pytest.raises(InputError, match=says):
            encode_corpus(encoder, texts, tmp_path / "embeddings", **{**SETTINGS, **changes})
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "years.txt").write_text("of work")
    with pytest.raises(InputError, match="did not write"):
        encode_corpus(encoder, TEXTS, tmp_path / "thesis", **SETTINGS)


@pytest.mark.parametrize("given", [lambda v: v[:-1], lambda v: v[:1], lambda v: v[:, :4], lambda v: v[0]])
def test_vectors_of_another_shape_are_refused(tmp_path, encoder, given):
    """One row would be copied to every text, and too few would leave zeros at the end."""

    class Wrong(Counting):
        def encode(self, texts, **settings):
            return given(super().encode(texts, **settings))

    with pytest.raises(InputError, match="8 numbers for each text"):
        encode_corpus(Wrong(encoder), TEXTS, tmp_path / "embeddings", **SETTINGS)
    assert not (tmp_path / "embeddings").exists()


@pytest.mark.parametrize("foreign", ["notes.txt", "00000/notes.txt", "00000/manifest.json"])
def test_the_folder_of_the_shards_is_nobody_elses(tmp_path, encoder, foreign):
    """At the end it is removed, so what somebody keeps under its name must be seen at the beginning."""
    file = tmp_path / "embeddings.shards" / foreign
    file.parent.mkdir(parents=True)
    file.write_text('{"kind": "index", "files": {}, "made_from": "", "schema": 1}')
    counting = Counting(encoder)
    with pytest.raises(InputError, match=r"embeddings\.shards"):
        encode_corpus(counting, TEXTS, tmp_path / "embeddings", **SETTINGS)
    assert file.exists() and not counting.seen
    encode_corpus(encoder, TEXTS, tmp_path / "embeddings", work=tmp_path / "work", **SETTINGS)
    encode_corpus(encoder, TEXTS, tmp_path / "embeddings", **SETTINGS)  # nothing is to be done, nothing is removed
    assert file.exists()


def test_a_file_where_the_shards_are_to_go(tmp_path, encoder):
    (tmp_path / "embeddings.shards").write_text("mine")
    with pytest.raises(InputError, match=r"embeddings\.shards"):
        encode_corpus(encoder, TEXTS, tmp_path / "embeddings", **SETTINGS)


def test_what_comes_into_the_folder_of_the_shards_meanwhile_stays(tmp_path, encoder):
    class Busy(Counting):
        def encode(self, texts, **settings):
            (tmp_path / "embeddings.shards").mkdir(exist_ok=True)
            (tmp_path / "embeddings.shards" / "notes.txt").write_text("mine")
            return super().encode(texts, **settings)

    encode_corpus(Busy(encoder), TEXTS, tmp_path / "embeddings", **SETTINGS)
    assert [path.name for path in (tmp_path / "embeddings.shards").iterdir()] == ["notes.txt"]


def test_shards_that_a_killed_run_left_are_removed_by_the_next(tmp_path, encoder, monkeypatch):
    with monkeypatch.context() as patch:  # killed behind the writing, in the midst of the removal
        patch.setattr(shards, "_remove_shard", lambda path: (path / "vectors.npy").unlink())
        patch.setattr(pathlib.Path, "rmdir", lambda path: None)
        encode_corpus(encoder, TEXTS, tmp_path / "embeddings", **SETTINGS)
    left = tmp_path / "embeddings.shards"
    (left / ".00001.0123abcd.partial").mkdir()
    assert len(list(left.iterdir())) == NUM_SHARDS + 1
    counting = Counting(encoder)
    encode_corpus(counting, TEXTS, tmp_path / "embeddings", **SETTINGS)
    assert not counting.seen and not left.exists()


def test_half_removed_shards_and_those_of_other_settings_are_no_obstacle(tmp_path, encoder):
    for changes in ({"max_length": 31}, {"shard_size": 5}):
        encode_corpus(encoder, TEXTS, tmp_path / "a", work=tmp_path / "embeddings.shards", **{**SETTINGS, **changes})
    manifest = tmp_path / "embeddings.shards" / "00000" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-20])
    (tmp_path / "embeddings.shards" / "00001" / "vectors.npy").unlink()
    encode_corpus(encoder, TEXTS, tmp_path / "embeddings", **SETTINGS)
    assert not (tmp_path / "embeddings.shards").exists()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_killed_at_random_moments(tmp_path, seed):
    chosen, killed = random.Random(seed), 0
    whole, folder, output = (tmp_path / name for name in ("whole", "killed", "output"))
    for made in (whole, folder):
        made.mkdir()
    encoding_run.run(whole, 0)
    for _ in range(3 if seed else 2):
        output.write_text("")
        process, batches = forking.start(encoding_run.run, folder, 0.05, output=output), chosen.randint(1, 12)
        while process.is_alive() and output.read_text().count("batch") < batches:
            time.sleep(0.005)
        time.sleep(chosen.uniform(0, 0.1))
        process.kill()
        process.join()
        killed += process.exitcode == -signal.SIGKILL
    assert killed
    encoding_run.run(folder, 0)

    files = [made / "embeddings" / "vectors.npy" for made in (whole, folder)]
    assert files[0].read_bytes() == files[1].read_bytes()
    starts = (folder / "log").read_text().split("start\n")[1:]
    begun = [list(map(int, lines.split())) for lines in starts]
    assert {number for numbers in begun for number in numbers} == set(range(len(TEXTS)))
    for earlier, numbers in enumerate(begun):
        finished = set(numbers[: -encoding_run.SHARD])  # all but the shard that was begun last
        assert not finished & {number for later in begun[earlier + 1 :] for number in later}
