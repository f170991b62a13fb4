"""Latent semantic analysis against scikit-learn's."""

import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.models.lsa import latent_semantic_vectors
from tests import small_data

# All of one pattern: many of the singular values are equal.
PATTERN = [f"{row['title']} {row['text']}" for row in small_data.documents(64)]


def _texts(count: int, words: int) -> list[str]:
    """Texts of words as frequent as Zipf has them; few enough words make more rows than columns."""
    random = np.random.default_rng(0)
    weights = 1 / np.arange(1, words + 1)
    names = [f"w{i}" for i in range(words)]
    return [" ".join(random.choice(names, random.integers(3, 30), p=weights / weights.sum())) for _ in range(count)]


TEXTS = _texts(60, 200)


def reference(texts: list[str], dimension: int) -> np.ndarray:
    """Unit rows of scikit-learn's truncated SVD of its own TF-IDF."""
    decomposition = pytest.importorskip("sklearn.decomposition")
    extraction = pytest.importorskip("sklearn.feature_extraction.text")
    tfidf = extraction.TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+").fit_transform(texts)
    vectors = decomposition.TruncatedSVD(dimension, algorithm="arpack", random_state=0).fit_transform(tfidf)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("dimension", [2, 5, 12])
@pytest.mark.parametrize("words", [200, 20])
def test_cosines_are_scikit_learns(words, dimension):
    texts = [*_texts(60, words), "Under w1, under W1: UNDER!"]
    vectors = latent_semantic_vectors(texts, dimension=dimension)
    assert vectors.shape == (61, dimension) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    expected = reference(texts, dimension)
    np.testing.assert_allclose(vectors @ vectors.T, expected @ expected.T, atol=1e-4)


def test_with_as_many_dimensions_as_texts_the_cosines_are_those_of_tf_idf():
    extraction = pytest.importorskip("sklearn.feature_extraction.text")
    texts = TEXTS[:5]
    tfidf = extraction.TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+").fit_transform(texts)
    for dimension in (5, 128):
        vectors = latent_semantic_vectors(texts, dimension=dimension)
        assert vectors.shape == (5, dimension)
        np.testing.assert_allclose(vectors @ vectors.T, (tfidf @ tfidf.T).toarray(), atol=1e-5)


@pytest.mark.parametrize("texts", [PATTERN, TEXTS], ids=["pattern", "texts"])
def test_it_is_deterministic(texts):
    one = latent_semantic_vectors(texts, dimension=6)
    np.testing.assert_array_equal(latent_semantic_vectors(list(texts), dimension=6), one)


@pytest.mark.parametrize("dimension", [3, 128])
def test_texts_without_words_are_zero(dimension):
    vectors = latent_semantic_vectors(["", *TEXTS[:20], " ?! "], dimension=dimension)
    assert not vectors[[0, -1]].any()
    np.testing.assert_allclose(np.linalg.norm(vectors[1:-1], axis=1), 1, atol=1e-6)


def test_one_text_and_equal_texts():
    np.testing.assert_allclose(np.abs(latent_semantic_vectors(["a b"], dimension=3)), [[1, 0, 0]], atol=1e-6)
    vectors = latent_semantic_vectors(["a b", "c", "a b", "b a"], dimension=2)
    np.testing.assert_allclose(vectors[[2, 3]], vectors[[0, 0]], atol=1e-5)
    assert abs(vectors[0] @ vectors[1]) < 1e-5


@pytest.mark.parametrize("texts", [[""], ["", " - "]])
def test_no_words_at_all(texts):
    with pytest.raises(InputError, match="word"):
        latent_semantic_vectors(texts)


def test_texts_without_spaces_are_near_where_they_share_pairs_of_characters():
    texts = ["東大寺の仏像について", "奈良の東大寺と仏像", "蒸気機関車の歴史", "the steam engine"]
    first, same, other, english = latent_semantic_vectors(texts, dimension=4)
    assert first @ same > first @ other + 0.1
    assert abs(first @ english) < 1e-5


def test_a_name_in_other_letters_is_the_same_beside_a_script_without_spaces():
    alone, within, other = latent_semantic_vectors(["NHK 2021", "NHKの2021年", "BBC 1999"], dimension=3)
    assert alone @ within > 0.5 > abs(alone @ other)
