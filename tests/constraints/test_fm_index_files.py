import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gr_jax import storage
from gr_jax.constraints.fm_index import FMIndex
from gr_jax.corpus import Corpus
from gr_jax.corpus.documents import Document
from gr_jax.docids.spans import TokenText
from gr_jax.errors import InputError
from gr_jax.text.vocabulary import ByteVocabulary

pytest.importorskip("pydivsufsort")


@pytest.fixture(scope="module")
def corpus():
    return Corpus.from_documents(
        Document(f"d{i}", f"Title {i}", f"The text of document {i} says that {i} is {'odd' if i % 2 else 'even'}.")
        for i in range(6)
    )


@pytest.fixture(scope="module")
def index(corpus):
    return FMIndex.from_corpus(corpus, ByteVocabulary(), filters=True)


def test_what_is_loaded_is_what_was_saved(index, corpus, tmp_path):
    index.save(tmp_path / "index")
    loaded = FMIndex.load(tmp_path / "index", vocabulary=ByteVocabulary())
    assert jax.tree.structure(loaded) == jax.tree.structure(index)
    for one, other in zip(jax.tree.leaves(loaded), jax.tree.leaves(index), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    assert storage.read_folder(tmp_path / "index").corpus == corpus.fingerprint
    plain = FMIndex.from_corpus(corpus, ByteVocabulary(), views=["title+body"])
    plain.save(tmp_path / "index")
    assert FMIndex.load(tmp_path / "index").row_documents is None


def test_mapped_arrays_are_not_copied(index, tmp_path, mapped):
    index.save(tmp_path / "index")
    loaded = FMIndex.load(tmp_path / "index")
    places = {array.ctypes.data for array in mapped}
    for leaf in (loaded.bwt, loaded.wavelet.blocks, loaded.marks, loaded.samples, loaded.row_documents):
        assert leaf.unsafe_buffer_pointer() in places


@pytest.mark.parametrize("damage", ["cut", "flip", "remove"])
@pytest.mark.parametrize("file", ["bwt.npy", "wavelet_blocks.npy", "samples.npy", "manifest.json"])
def test_damaged_files_are_refused(index, tmp_path, file, damage):
    index.save(tmp_path / "index")
    path = tmp_path / "index" / file
    content = path.read_bytes()
    if damage == "cut":
        path.write_bytes(content[:-3])
    elif damage == "flip":
        path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    else:
        path.unlink()
    with pytest.raises(InputError):
        FMIndex.load(tmp_path / "index")


@pytest.mark.parametrize(
    "name, change",
    [
        ("bwt", lambda x: x[:-1]),
        ("bwt", lambda x: np.full_like(x, 255)),
        ("bwt", lambda x: x.astype(np.int32)),
        ("first", lambda x: x[:1]),
        ("first", lambda x: x.astype(np.float32)),
        ("view_rows", lambda x: x[::-1]),
        ("symbols", lambda x: x[:-1]),
        ("symbols", lambda x: np.zeros_like(x)),
        ("tokens", lambda x: x[::-1]),
        ("tokens", lambda x: x[:0]),
        ("marks", lambda x: x * 0),
        ("samples", lambda x: x + 10_000),
        ("segment_documents", lambda x: x + 6),
        ("segment_starts", lambda x: x[1:]),
        ("segment_starts", lambda x: x[::-1]),
        ("wavelet_blocks", lambda x: x[:-1]),
        ("wavelet_zeros", lambda x: x[:0]),
        ("row_documents", lambda x: x[1:]),
        ("row_documents", lambda x: x - 1),
    ],
)
def test_arrays_that_do_not_fit_are_refused_whatever_their_checksums(index, tmp_path, name, change):
    index.save(tmp_path / "index")
    manifest = storage.read_folder(tmp_path / "index")
    arrays = {file: np.load(tmp_path / "index" / file) for file in manifest.files}
    arrays[f"{name}.npy"] = change(arrays[f"{name}.npy"])
    with storage.write_folder(tmp_path / "index", manifest.kind, corpus=manifest.corpus, meta=manifest.meta) as new:
        for file, array in arrays.items():
            np.save(new / file, array)
    with pytest.raises(InputError, match="do not fit one another"):
        FMIndex.load(tmp_path / "index")


def test_another_vocabulary_is_refused(index, tmp_path):
    index.save(tmp_path / "index")
    with pytest.raises(InputError, match="vocabulary of 259 tokens where the given one has 260"):
        FMIndex.load(tmp_path / "index", vocabulary=ByteVocabulary(1))
    other = ByteVocabulary()
    other.__dict__["fingerprint"] = "another"
    with pytest.raises(InputError, match="another vocabulary of the same size"):
        FMIndex.load(tmp_path / "index", vocabulary=other)


def test_other_folders_are_refused(tmp_path):
    with storage.write_folder(tmp_path / "other", "trie"):
        pass
    with pytest.raises(InputError):
        FMIndex.load(tmp_path / "other")
    with pytest.raises(InputError):
        FMIndex.load(tmp_path / "nothing")


def test_an_index_of_a_corpus(corpus):
    vocabulary = ByteVocabulary()
    bodies = list(corpus.texts)
    index = FMIndex.from_corpus(corpus, vocabulary, views=("title", "title+body"))
    state = index.find([vocabulary.encode("document 3")], "title+body")
    found = index.locate(state, 2)
    assert (found.document[0, 0].tolist(), found.segment[0, 0].tolist()) == ([3, -1], [15, -1])
    assert found.position[0, 0, 0] == bodies[3].index("document 3")
    assert index.count(index.find([vocabulary.encode("Title")], "title"))[0, 0] == 6


@pytest.mark.parametrize("segments", [[], [[], []]])
def test_no_tokens_are_refused(segments):
    with pytest.raises(InputError, match="no tokens"):
        FMIndex.from_text(TokenText.of(segments, 9))


@pytest.mark.parametrize(
    "settings, problem",
    [
        ({"eos_id": 9}, "outside of the vocabulary"),
        ({"eos_id": 2}, "stands in the text"),
        ({"sample_rate": 0}, "sample"),
    ],
)
def test_settings_that_are_wrong_are_refused(settings, problem):
    with pytest.raises(InputError, match=problem):
        FMIndex.from_text(TokenText.of([[1, 2, 3]], 9), **settings)


def test_too_many_tokens_are_refused_before_anything_is_made():
    text = TokenText.of([[1]], 9)
    many = np.broadcast_to(np.uint16(1), 2**31)
    huge = TokenText(many, np.array([0, 2**31]), text.documents, text.views, ("body",), 1, 9)
    with pytest.raises(InputError, match="2³¹ tokens or more"):
        FMIndex.from_text(huge)


def test_what_cannot_be_asked_is_refused_by_name(index, corpus):
    plain = FMIndex.from_corpus(corpus, ByteVocabulary(), views=["title"])
    with pytest.raises(InputError, match="filters=True"):
        plain.restrict(jnp.ones((1, 6), bool))
    with pytest.raises(InputError, match="of shape .2, 5. for 6 documents"):
        index.restrict(jnp.ones((2, 5), bool))
    with pytest.raises(InputError, match="out of the vocabulary"):
        index.find([[5, 999]])


def test_without_the_package_the_error_says_what_to_install(monkeypatch, corpus):
    monkeypatch.setitem(sys.modules, "pydivsufsort", None)
    with pytest.raises(InputError, match=r"pip install 'gr_jax\[ngrams\]'"):
        FMIndex.from_corpus(corpus, ByteVocabulary())
