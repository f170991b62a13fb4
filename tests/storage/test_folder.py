"""Folders are written whole or not at all, and every altered byte is noticed when they are read."""

import hashlib
import json
import pathlib
import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gr_jax.errors import InputError
from gr_jax.storage import Manifest, is_complete, load_array, read_folder, write_folder

_names = st.from_regex(r"[a-zA-Zé_][a-zA-Zé_0-9.]{0,11}", fullmatch=True).filter(lambda name: name != "manifest.json")
_paths = st.lists(_names, min_size=1, max_size=3).map("/".join)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=8,
)


def _write(path: pathlib.Path, files: dict[str, bytes], **about) -> None:
    with write_folder(path, about.pop("kind", "docids"), **about) as folder:
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)


def _content(folder: pathlib.Path) -> dict[str, bytes]:
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def _no_clash(files: dict[str, bytes]) -> bool:
    return not any(b.startswith(a + "/") for a in files for b in files)


@given(
    files=st.dictionaries(_paths, st.binary(max_size=64), max_size=4).filter(_no_clash),
    meta=st.dictionaries(st.text(max_size=5), _json, max_size=3),
    gin=st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
)
def test_what_is_written_is_read(files, meta, gin):
    with tempfile.TemporaryDirectory() as root:
        path = pathlib.Path(root) / "deep" / "docids"
        _write(path, files, corpus="c0ffee", made_from="key", meta=meta, gin=gin)
        manifest = read_folder(path, "docids")
        assert (manifest.kind, manifest.corpus, manifest.made_from, manifest.gin) == ("docids", "c0ffee", "key", gin)
        assert manifest.meta == json.loads(json.dumps(meta))
        described = {name: (hashlib.sha256(data).hexdigest(), len(data)) for name, data in files.items()}
        assert {name: (entry["sha256"], entry["bytes"]) for name, entry in manifest.files.items()} == described
        assert {name: data for name, data in _content(path).items() if name != "manifest.json"} == files
        assert [p.name for p in path.parent.iterdir()] == ["docids"]  # nothing is left beside it


@pytest.fixture(scope="module")
def artefact(tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("storage") / "index"
    with write_folder(path, "index", corpus="c0ffee", made_from="key", meta={"documents": 12}, gin="A = 1\n") as folder:
        np.save(folder / "tokens.npy", np.arange(60, dtype=np.int32).reshape(20, 3))
        (folder / "vocabulary").mkdir()
        (folder / "vocabulary" / "manifest.json").write_text('{"of": "another artefact"}')
    return path


@given(data=st.data())
def test_any_flipped_bit_is_noticed(artefact, data):
    name = data.draw(st.sampled_from(sorted(_content(artefact))), label="file")
    file = artefact / name
    original = file.read_bytes()
    place = data.draw(st.integers(0, len(original) * 8 - 1), label="bit")
    altered = bytearray(original)
    altered[place // 8] ^= 1 << place % 8
    file.write_bytes(altered)
    try:
        with pytest.raises(InputError) as error:
            read_folder(artefact, "index")
        assert str(artefact) in str(error.value)
    finally:
        file.write_bytes(original)


@given(data=st.data())
def test_any_truncation_is_noticed_even_without_reading_the_files(artefact, data):
    name = data.draw(st.sampled_from(sorted(_content(artefact))), label="file")
    file = artefact / name
    original = file.read_bytes()
    file.write_bytes(original[: data.draw(st.integers(0, len(original) - 1), label="bytes kept")])
    try:
        with pytest.raises(InputError, match=name.split("/")[0]):
            read_folder(artefact, "index", verify=False)
        assert not is_complete(artefact, "index", "key")
    finally:
        file.write_bytes(original)


def test_a_missing_file_is_named(tmp_path):
    _write(tmp_path / "a", {"x.npy": b"1"})
    (tmp_path / "a" / "x.npy").unlink()
    with pytest.raises(InputError, match=r"x\.npy: .*missing"):
        read_folder(tmp_path / "a")


@pytest.mark.parametrize(
    "content", [None, b"", b"{", b"[]", b"3", b'{"name": "an extension", "version": 2}', b"\xff\xfe"]
)
def test_folders_of_others_are_refused(tmp_path, content):
    folder = tmp_path / "theirs"
    folder.mkdir()
    if content is not None:
        (folder / "manifest.json").write_bytes(content)
    with pytest.raises(InputError, match="theirs"):
        read_folder(folder)


@given(content=st.binary(max_size=80) | _json.map(lambda value: json.dumps(value).encode()))
def test_no_manifest_makes_reading_raise_anything_else(content):
    with tempfile.TemporaryDirectory() as root:
        (pathlib.Path(root) / "manifest.json").write_bytes(content)
        with pytest.raises(InputError):
            read_folder(root)


def test_deeply_nested_json_is_refused(tmp_path):
    (tmp_path / "manifest.json").write_bytes(b"[" * 200_000)
    with pytest.raises(InputError, match="cannot be read"):
        read_folder(tmp_path)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", ".", "", "a\0b", "nothing"])
def test_a_manifest_cannot_name_files_outside(tmp_path, name):
    """Whoever hands out an index can compute checksums too: its names are checked, not only its bytes."""
    from gr_jax.storage import folder as implementation

    (tmp_path / "secret").write_text("s")
    files = {name: {"sha256": hashlib.sha256(b"s").hexdigest(), "bytes": 1}}
    raw = dict(kind="index", corpus="", made_from="", meta={}, gin="", files=files, schema=1)
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "manifest.json").write_bytes(implementation._render(raw))
    with pytest.raises(InputError, match="outside|missing"):
        read_folder(tmp_path / "index")


def test_another_layout_version_is_said_before_anything_else(tmp_path):
    raw = {"kind": "index", "made_from": "", "files": {}, "schema": 99, "what version 99 adds": True}
    (tmp_path / "manifest.json").write_text(json.dumps(raw))
    with pytest.raises(InputError, match="version 99"):
        read_folder(tmp_path)


def test_another_kind_is_refused(tmp_path):
    _write(tmp_path / "a", {}, kind="corpus")
    with pytest.raises(InputError, match="holds 'corpus', not 'docids'"):
        read_folder(tmp_path / "a", "docids")
    assert read_folder(tmp_path / "a").kind == "corpus"


def test_is_complete_asks_for_the_same_content(tmp_path):
    _write(tmp_path / "a", {"x": b"1"}, made_from="key")
    assert is_complete(tmp_path / "a", "docids", "key")
    assert not is_complete(tmp_path / "a", "docids", "another key")
    assert not is_complete(tmp_path / "a", "index", "key")
    assert not is_complete(tmp_path / "b", "docids", "key")


def test_a_failure_in_the_body_leaves_what_was_there(tmp_path):
    _write(tmp_path / "a", {"x": b"old"})
    before = _content(tmp_path / "a")
    with pytest.raises(KeyboardInterrupt), write_folder(tmp_path / "a", "docids") as folder:
        (folder / "x").write_bytes(b"new")
        raise KeyboardInterrupt
    assert _content(tmp_path / "a") == before
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_meta_may_be_filled_while_the_folder_is_open(tmp_path):
    meta: dict = {}
    with write_folder(tmp_path / "a", "docids", meta=meta):
        meta["documents"] = 3
    assert read_folder(tmp_path / "a").meta == {"documents": 3}


def test_only_artefacts_are_replaced(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    _write(home, {"x": b"1"})  # an empty folder may be taken
    _write(home, {"y": b"2"})  # and an artefact replaced
    assert sorted(_content(home)) == ["manifest.json", "y"]
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="theirs.*did not write"):
        _write(theirs, {"x": b"1"})
    assert _content(theirs) == {"thesis.tex": b"years of work"}
    with pytest.raises(InputError, match=r"thesis\.tex.*a file stands"):
        _write(theirs / "thesis.tex", {"x": b"1"})
    with pytest.raises(InputError, match="is a file"):
        _write(theirs / "thesis.tex" / "index", {"x": b"1"})


@pytest.mark.parametrize("damage", [lambda data: data[:40], lambda data: data[:-20], lambda data: b"\0" + data[1:]])
def test_a_damaged_artefact_can_be_made_again(tmp_path, damage):
    _write(tmp_path / "a", {"x": b"1"})
    manifest = tmp_path / "a" / "manifest.json"
    manifest.write_bytes(damage(manifest.read_bytes()))
    _write(tmp_path / "a", {"x": b"2"})
    assert (tmp_path / "a" / "x").read_bytes() == b"2"
    read_folder(tmp_path / "a")


@pytest.mark.parametrize("manifest", [b'{"name": "x", // an extension of a browser\n', b"", b"[" * 200_000, b"\xff"])
def test_a_manifest_of_others_that_is_no_json_is_no_damage(tmp_path, manifest):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "manifest.json").write_bytes(manifest)
    with pytest.raises(InputError, match=r"theirs.*did not write"):
        _write(tmp_path / "theirs", {"x": b"1"})
    assert _content(tmp_path / "theirs") == {"manifest.json": manifest}


def test_links_are_followed(tmp_path):
    _write(tmp_path / "big disk" / "index", {"x": b"1"})
    (tmp_path / "index").symlink_to(tmp_path / "big disk" / "index")
    _write(tmp_path / "index", {"x": b"2"})
    assert (tmp_path / "index").is_symlink()
    assert (tmp_path / "big disk" / "index" / "x").read_bytes() == b"2"


def test_manifest_is_hashable_state_only():
    """Two manifests of the same content are equal: stages compare them."""
    assert Manifest("index", made_from="a") == Manifest("index", made_from="a")
    assert Manifest("index", made_from="a") != Manifest("index", made_from="b")


def test_arrays_are_mapped_or_read(artefact):
    expected = np.arange(60, dtype=np.int32).reshape(20, 3)
    np.testing.assert_array_equal(load_array(artefact / "tokens.npy"), expected)
    mapped = load_array(artefact / "tokens.npy", mmap=True)
    assert isinstance(mapped, np.memmap) and not mapped.flags.writeable
    np.testing.assert_array_equal(mapped, expected)
