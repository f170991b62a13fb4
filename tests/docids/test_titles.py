import pytest
from hypothesis import given
from hypothesis import strategies as st

from gr_jax.corpus import read_beir
from gr_jax.docids import Docids, titles
from gr_jax.errors import InputError
from gr_jax.text import ByteVocabulary, HuggingFaceVocabulary


def spelt(docids: Docids, row: int) -> str:
    """What a docid of bytes reads."""
    shift = docids.meta["shift"]
    return bytes(token - shift - 3 for token in docids.sequence(row)).decode("utf-8", errors="replace")


def called(docids: Docids) -> list[str]:
    return [docids.name(int(docids.rows_of(document)[0])) for document in range(docids.num_documents)]


# Few letters, so that titles are often equal, and some that end as numbered ones do.
some_titles = st.lists(
    st.one_of(st.text("ab", min_size=1, max_size=3), st.sampled_from(["a (2)", "a (3)", "a (2) (2)", "é", "b (2)"])),
    min_size=1,
    max_size=30,
)


@given(some_titles)
def test_numbers_tell_equal_titles_apart(texts):
    docids = titles(texts, ByteVocabulary())
    docids.check()
    assert len(docids) == len(texts) and docids.eos_id == 1 and docids.vocab_size == 259
    reached = called(docids)
    assert len(set(reached)) == len(texts)
    seen = set()
    for text, name in zip(texts, reached, strict=True):
        if text not in seen:
            assert name == text  # who comes first keeps its title
        else:
            head, _, number = name.rpartition(" (")
            assert head == text and int(number.removesuffix(")")) >= 2
        seen.add(text)
    assert [spelt(docids, row) for row in range(len(docids))] == [docids.name(row) for row in range(len(docids))]


@given(some_titles)
def test_shared_titles_lead_to_all_their_documents(texts):
    docids = titles(texts, ByteVocabulary(), duplicates="share")
    assert called(docids) == texts and len(docids) == len(set(texts))
    for row in range(len(docids)):
        assert docids.documents_of(row).tolist() == [i for i, text in enumerate(texts) if text == docids.name(row)]


@given(st.lists(st.text("ab", min_size=1, max_size=12), min_size=1, max_size=12))
def test_what_is_cut_keeps_its_number(texts):
    docids = titles(texts, ByteVocabulary(), max_length=6)
    assert len(docids) == len(texts) and docids.lengths.max() <= 6
    seen = set()
    for document, text in enumerate(texts):
        written = spelt(docids, int(docids.rows_of(document)[0]))
        if text[:6] in seen:
            head, _, number = written.rpartition(" (")
            assert text.startswith(head) and number.endswith(")")
        else:
            assert written == text[:6]
        seen.add(text[:6])


def test_refused():
    with pytest.raises(InputError, match="'x' and document 'z' have the same docid"):
        titles(["a", "b", "a"], ByteVocabulary(), duplicates="refuse", names=["x", "y", "z"])
    for names, name in ((None, "1"), (["x", "y"], "'y'")):
        with pytest.raises(InputError, match=f"document {name} has no title"):
            titles(["a", ""], ByteVocabulary(), names=names)
    with pytest.raises(InputError, match="unknown policy.*number, share, refuse"):
        titles(["a"], ByteVocabulary(), duplicates="keep")
    with pytest.raises(InputError, match="max_length"):
        titles(["a"], ByteVocabulary(), max_length=0)
    with pytest.raises(InputError, match="no room for a number.*max_length > 4"):
        titles(["aaaaaaa", "aaaaaaa"], ByteVocabulary(), max_length=4)
    with pytest.raises(InputError, match="no room for a number.*max_length > 4"):
        titles(["a", "a"], ByteVocabulary(), max_length=1)
    with pytest.raises(InputError, match="there are no docids"):
        titles([], ByteVocabulary())


def test_documents_without_a_title():
    assert called(titles(["", "a", ""], ByteVocabulary(), untitled="?")) == ["?", "a", "? (2)"]


class Toy:
    """A vocabulary of words whose special ids can be anywhere."""

    prefix = suffix = ()
    fingerprint = "toy"

    def __init__(self, words: str, pad: str, eos: str):
        self._words = words.split()
        self.size, self.pad_id, self.eos_id = len(self._words), self._words.index(pad), self._words.index(eos)
        self.unk_id = self._words.index("?")

    def encode(self, text):
        return [self._words.index(w) if w in self._words else self.unk_id for w in text.split()]

    def encode_batch(self, texts):
        return [self.encode(text) for text in texts]


def test_ids_are_shifted_where_0_is_a_piece_of_text():
    plain = titles(["red cat", "red </s> dog <pad>"], Toy("<pad> red cat dog ? </s>", "<pad>", "</s>"))
    assert plain.tokens.tolist() == [[1, 2], [1, 3]] and (plain.eos_id, plain.vocab_size) == (5, 6)
    late = titles(["red cat", "red dog"], Toy("red cat dog ? </s> <pad>", "<pad>", "</s>"))
    assert late.tokens.tolist() == [[1, 2], [1, 3]] and (late.eos_id, late.vocab_size) == (5, 7)
    one = titles(["red cat", "red dog"], Toy("<end> red cat dog ?", "<end>", "<end>"))
    assert one.tokens.tolist() == [[2, 3], [2, 4]] and (one.eos_id, one.vocab_size) == (1, 6)


def test_a_title_that_the_vocabulary_cannot_write():
    """Words that it lacks among others are passed over; where nothing else is left the title says nothing."""
    words = Toy("<pad> red cat ? </s>", "<pad>", "</s>")
    with pytest.raises(InputError, match="cannot write the title of document 'd2'.*blue dog.*vocabulary of bytes"):
        titles(["red", "blue dog"], words, names=["d1", "d2"])
    assert len(titles(["red", "red dog"], words)) == 2
    assert len(titles(["😀", "𒀀𒀁"], ByteVocabulary())) == 2


def test_a_vocabulary_without_digits_cannot_number():
    words = Toy("<pad> red cat ? </s>", "<pad>", "</s>")
    with pytest.raises(InputError, match="cannot write the numbers"):
        titles(["red cat", "red cat"], words)
    assert len(titles(["red cat", "red cat"], words, duplicates="share")) == 1


def test_a_vocabulary_with_digits_only_as_words_cannot_number_beyond_them():
    words = Toy("<pad> red (0) (1) (2) (3) (4) (5) (6) (7) (8) (9) ? </s>", "<pad>", "</s>")
    assert len(titles(["red"] * 9, words)) == 9
    with pytest.raises(InputError, match="cannot write the numbers"):
        titles(["red"] * 12, words)


def test_save_and_load(tmp_path):
    docids = titles(["a", "ü", "a"], ByteVocabulary())
    docids.save(tmp_path / "docids")
    for mmap in (False, True):
        loaded = Docids.load(tmp_path / "docids", mmap=mmap)
        assert called(loaded) == ["a", "ü", "a (2)"] and loaded.meta == docids.meta
    (tmp_path / "docids" / "texts.blob").write_bytes(b"a")
    with pytest.raises(InputError, match="texts.blob"):
        Docids.load(tmp_path / "docids")


def test_real_titles(shared_data):
    pytest.importorskip("tokenizers")
    from gr_jax.interop import huggingface

    minilm = huggingface.find_minilm()
    if minilm is None:
        pytest.skip("MiniLM's vocabulary is not installed")
    folder = shared_data / "wiki_intro_179k"
    corpus = read_beir(folder, subset=folder / "subsets" / "10k.ids.gz").corpus
    vocabulary = HuggingFaceVocabulary(minilm / "tokenizer.json")
    texts = [document.title for document in corpus]
    docids = titles(texts, vocabulary)
    assert len(docids) == len(texts)
    for document in range(0, len(texts), 97):
        (row,) = docids.rows_of(document)
        assert docids.name(row).startswith(texts[document])
        assert vocabulary.decode(docids.sequence(row)) == vocabulary.decode(vocabulary.encode(docids.name(row))[:32])
