import numpy as np
import pytest

from gr_jax import clustering
from gr_jax.docids import Docids, residual_quantization
from gr_jax.errors import InputError

SETTINGS = {"levels": 2, "bits": 2, "seed": 1}


@pytest.fixture(scope="module")
def points() -> np.ndarray:
    """60 points for 16 docids: some must share their codes."""
    return np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def quantised(points):
    return clustering.residual_quantization(points, **SETTINGS)


def test_tokens_are_codes_in_blocks_and_then_a_number(points, quantised, tmp_path):
    docids = residual_quantization(points, **SETTINGS, first_token=5)
    docids.check()
    assert len(docids) == 60 and docids.eos_id is None
    before: dict[tuple, int] = {}
    groups = [tuple(codes) for codes in quantised.codes.tolist()]
    for document, codes in enumerate(groups):
        (row,) = docids.rows_of(document)
        number = before[codes] = before.get(codes, -1) + 1
        expected = [*codes, number] if groups.count(codes) > 1 else [*codes]
        assert docids.name(row) == "-".join(map(str, expected))
        assert docids.sequence(row)[:2] == [5 + codes[0], 9 + codes[1]]
    assert docids.levels == ((5, 4), (9, 4), (13, max(before.values()) + 1))
    assert docids.vocab_size == sum(docids.levels[-1])
    assert docids.meta["colliding_documents"] == sum(groups.count(codes) > 1 for codes in groups) > 0
    assert docids.meta["reconstruction_error"] == pytest.approx(quantised.error)
    docids.save(tmp_path / "docids")
    loaded = Docids.load(tmp_path / "docids")
    np.testing.assert_array_equal(loaded.tokens, docids.tokens)
    assert loaded.meta == docids.meta and loaded.levels == docids.levels


def test_documents_of_the_same_codes_may_share_them(points, quantised):
    docids = residual_quantization(points, **SETTINGS, collisions="share")
    assert docids.levels == ((2, 4), (6, 4))
    for row in range(len(docids)):
        codes = [token - start for token, (start, _) in zip(docids.sequence(row), docids.levels, strict=True)]
        assert docids.documents_of(row).tolist() == np.flatnonzero((quantised.codes == codes).all(axis=1)).tolist()
    assert len(docids) == len(np.unique(quantised.codes, axis=0))


def test_no_level_of_numbers_where_all_codes_differ():
    corners = np.stack(np.meshgrid(*[[-1.0, 1.0]] * 4, indexing="ij"), axis=-1).reshape(-1, 4) * [8, 8, 1, 1]
    docids = residual_quantization(corners, **SETTINGS)
    assert docids.meta["colliding_documents"] == 0 and docids.meta["reconstruction_error"] < 1e-6
    assert len(docids) == 16 and docids.levels == ((2, 4), (6, 4)) and set(docids.lengths) == {2}


def test_refused(points):
    with pytest.raises(InputError, match="60 points cannot fill 64 codewords"):
        residual_quantization(points, levels=2, bits=6)
    with pytest.raises(InputError, match="unknown policy.*number, share"):
        residual_quantization(points, **SETTINGS, collisions="drop")
    with pytest.raises(InputError, match="first_token"):
        residual_quantization(points, **SETTINGS, first_token=0)
    with pytest.raises(InputError, match="row 3"):
        residual_quantization(np.where(np.arange(60)[:, None] == 3, np.nan, points), **SETTINGS)


def test_reserved_numbers_end_every_docid_and_others_can_join(points, quantised):
    """The tokens are the same for any documents: those of more documents, by the codebooks of the first."""
    first = residual_quantization(points[:40], **SETTINGS, collisions="reserved", reserved=20)
    assert first.levels == ((2, 4), (6, 4), (10, 20)) and set(first.lengths) == {3} and len(first) == 40
    books = clustering.residual_quantization(points[:40], **SETTINGS).codebooks
    more = residual_quantization(points, collisions="reserved", reserved=20, codebooks=books)
    assert more.levels == first.levels and more.vocab_size == first.vocab_size and len(more) == 60
    for document in range(40):
        assert more.sequence(*more.rows_of(document)) == first.sequence(*first.rows_of(document))
    codes, errors = clustering.quantize(points, books)
    for document in range(60):
        tokens = more.sequence(*more.rows_of(document))
        assert [tokens[0] - 2, tokens[1] - 6] == codes[document].tolist()
        same = (codes[:document] == codes[document]).all(axis=1).sum()
        assert tokens[2] - 10 == same
    assert more.meta["reconstruction_error"] == pytest.approx(errors.mean())
    with pytest.raises(InputError, match="1 numbers are reserved"):
        residual_quantization(points, **SETTINGS, collisions="reserved", reserved=1)


def test_given_codebooks_are_those_that_would_be_learnt(points, quantised):
    own = residual_quantization(points, **SETTINGS)
    given = residual_quantization(points, codebooks=quantised.codebooks, seed=1)
    np.testing.assert_array_equal(own.tokens, given.tokens)
    assert own.levels == given.levels and own.meta == given.meta
