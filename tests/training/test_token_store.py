import resource
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gr_jax.errors import InputError
from gr_jax.text import ByteVocabulary
from gr_jax.training import token_store
from gr_jax.training.features import Pair, PairFeatures
from gr_jax.training.token_store import TokenStore, write_rows, write_token_store

tokens = st.lists(st.integers(0, 2**31 - 1), max_size=8)
rows = st.lists(
    st.fixed_dictionaries({"inputs": tokens, "targets": tokens, "source": st.integers(0, 2)}), min_size=1, max_size=12
)


def plain(store):
    return [
        {"inputs": row["inputs"].tolist(), "targets": row["targets"].tolist(), "source": int(row["source"])}
        for row in store
    ]


@given(rows, st.integers(1, 5))
def test_rows_come_back_from_disk_and_from_memory(tmp_path_factory, rows, chunk):
    folder = tmp_path_factory.mktemp("store") / "tokens"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_store, "_CHUNK", chunk)
        written = write_rows(folder, iter(rows))
    assert plain(written) == plain(TokenStore.load(folder)) == plain(TokenStore.from_rows(rows)) == rows
    assert sum(written.counts().values()) == len(rows)


def test_files_are_plain_arrays(tmp_path):
    write_rows(tmp_path / "s", [{"inputs": [3, 4], "targets": [5], "source": 2}, {"inputs": [6], "targets": [7, 8]}])
    assert np.load(tmp_path / "s" / "inputs.tokens.npy").tolist() == [3, 4, 6]
    assert np.load(tmp_path / "s" / "inputs.offsets.npy").tolist() == [0, 2, 3]
    assert np.load(tmp_path / "s" / "targets.offsets.npy").tolist() == [0, 1, 3]
    assert np.load(tmp_path / "s" / "source.npy").tolist() == [2, 0]


def test_pairs_are_tokenised_in_order(tmp_path):
    features = PairFeatures(ByteVocabulary(), max_input_length=16, eos_id=1)
    made = [Pair(f"text {n}", [n + 2], ("query", "document", "pseudo")[n % 3]) for n in range(10)]
    store = write_token_store(tmp_path / "s", iter(made), features, corpus="abc")
    for pair, row in zip(made, store, strict=True):
        expected = features.row(pair)
        assert all(np.array_equal(expected[name], row[name]) for name in expected)
    assert store.counts() == {"query": 4, "document": 3, "pseudo": 3}
    assert "10 pairs (4 query, 3 document, 3 pseudo)" in store.summary()
    assert store.meta["features"]["eos_id"] == 1


def test_the_fingerprint_is_of_the_content(tmp_path):
    base = [{"inputs": [3, 4], "targets": [5]}, {"inputs": [6], "targets": [7]}]
    other = [{"inputs": [3], "targets": [5]}, {"inputs": [4, 6], "targets": [7]}]  # the same tokens, cut elsewhere
    a, b, c = (write_rows(tmp_path / name, content) for name, content in zip("abc", (base, base, other), strict=True))
    assert a.fingerprint == b.fingerprint != c.fingerprint


def test_no_pairs_are_an_error_and_write_nothing(tmp_path):
    with pytest.raises(InputError, match="not a single training pair"):
        write_rows(tmp_path / "s", [])
    assert not (tmp_path / "s").exists()


def test_a_failure_in_the_middle_keeps_the_store_before(tmp_path):
    write_rows(tmp_path / "s", [{"inputs": [3], "targets": [5]}])

    def failing():
        yield Pair("fine", [3])
        yield Pair("not", [])

    with pytest.raises(InputError, match="empty target"):
        write_token_store(tmp_path / "s", failing(), PairFeatures(ByteVocabulary()))
    assert plain(TokenStore.load(tmp_path / "s")) == [{"inputs": [3], "targets": [5], "source": 0}]


@pytest.mark.parametrize("name", ["inputs.tokens", "inputs.offsets", "targets.tokens", "source"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_damage_is_refused_by_name(tmp_path, name, damage):
    write_rows(tmp_path / "s", [{"inputs": [3, 4, 5], "targets": [5]}] * 50)
    file = tmp_path / "s" / f"{name}.npy"
    content = bytearray(file.read_bytes())
    if damage == "remove":
        file.unlink()
    elif damage == "truncate":
        file.write_bytes(content[:-1])
    else:
        content[-1] ^= 1
        file.write_bytes(content)
    with pytest.raises(InputError, match=rf"{name}\.npy"):
        TokenStore.load(tmp_path / "s")


def test_a_full_disk_keeps_the_store_before(tmp_path):
    write_rows(tmp_path / "s", [{"inputs": [3], "targets": [5]}])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # as a file system that takes no more
    try:
        with pytest.raises(InputError):
            write_rows(tmp_path / "s", ({"inputs": [3] * 100, "targets": [5]} for _ in range(5000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(TokenStore.load(tmp_path / "s")) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


def test_a_store_is_read_without_jax():
    code = "import gr_jax.training.token_store, sys; assert not {'jax', 'grain', 'tensorflow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
