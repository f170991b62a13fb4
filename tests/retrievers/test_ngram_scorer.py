"""SEAL's scorer against the same with dictionaries, on random texts and n-grams."""

import jax
import numpy as np
import pytest

from benchmarks import slow_ngram_scorer
from gr_jax.constraints import FMIndex, ShardedFMIndex
from gr_jax.docids.spans import TokenText
from gr_jax.errors import InputError
from gr_jax.retrievers.ngram_scorer import Ngrams, NgramScorer, NgramScoring, log_odds

pytest.importorskip("pydivsufsort")
pytest.importorskip("numba")

VOCAB, VIEWS = 12, ("said", "asked")


def random_text(rng, documents=14):
    """Segments of few different tokens, some documents without any, some with several in one view. There are as many
    tokens whatever is drawn, and every one of them, so that nothing is compiled again."""
    owners = np.sort(rng.integers(0, documents, 24))
    views = rng.integers(0, len(VIEWS), len(owners))
    lengths = rng.permutation(np.repeat(np.arange(1, 13), 2))
    tokens = rng.permutation(np.append(np.arange(1, VOCAB), rng.integers(1, VOCAB, lengths.sum() - VOCAB + 1)))
    segments = np.split(tokens, np.cumsum(lengths)[:-1])
    return TokenText.of(segments, VOCAB, documents=owners, views=views, view_names=VIEWS, num_documents=documents)


def index_of(text, parts=1):
    """In so many parts of about equally many documents."""
    ends = np.linspace(0, text.num_documents, parts + 1).astype(int).tolist()
    texts = [text.between(first, last) for first, last in zip(ends, ends[1:], strict=False)]
    made = [FMIndex.from_text(one, filters=True, sample_rate=1) for one in texts]
    return ShardedFMIndex(made) if parts > 1 else made[0]


rows_of = jax.jit(lambda index, ngrams, view: index.rows(index.walk(ngrams, view)))


def random_ngrams(rng, text, index, count=30):
    """N-grams that stand in the text, some of them whole segments: {(root, tokens): log p} and what a scorer takes."""
    chosen = {}
    for _ in range(count):
        segment = int(rng.integers(len(text.documents)))
        tokens = text.tokens[text.offsets[segment] : text.offsets[segment + 1]].tolist()
        view = int(text.views[segment])
        if rng.random() < 0.3:
            start, end, root = 0, len(tokens), view + len(VIEWS)
        else:
            start = int(rng.integers(len(tokens)))
            end = int(rng.integers(start + 1, len(tokens) + 1))
            root = view
        chosen[root, tuple(tokens[start:end])] = float(-rng.exponential(2.0))
    rows, roots = np.full((count, 12), -1, np.int32), np.zeros(count, np.int32)
    for place, (root, tokens) in enumerate(chosen):
        rows[place, : len(tokens)], roots[place] = tokens, root
    low, high = (np.asarray(ends)[: len(chosen), 0] for ends in rows_of(index, rows, roots))
    counts = (high - low).sum(axis=1)
    found = Ngrams(
        np.maximum(rows[: len(chosen)], 0),
        np.array([len(tokens) for _, tokens in chosen], np.int32),
        np.array([root for root, _ in chosen], np.int32),
        np.array(list(chosen.values())),
        low,
        high,
        counts,
    )
    return chosen, dict(zip(chosen, counts.tolist(), strict=True)), found


@pytest.mark.parametrize("seed, parts", [*((seed, 1) for seed in range(16)), *((seed, 3) for seed in range(40, 43))])
def test_equal_to_dictionaries(seed, parts):
    rng = np.random.default_rng(seed)
    text = random_text(rng)
    index = index_of(text, parts)
    settings = NgramScoring(
        alpha=float(rng.choice([0.0, 0.5, 1.0, 2.0, 3.0])),
        beta=float(rng.choice([0.0, 0.8, 1.0])),
        smoothing=float(rng.choice([0.1, 5.0])),
        most_occurrences=int(rng.choice([1, 3, 100])),
        most_documents=int(rng.choice([2, 100])),
    )
    scorer = NgramScorer(text, np.asarray(index.row_documents), settings)
    log_probs, counts, ngrams = random_ngrams(rng, text, index)
    singles = {int(token): float(-rng.exponential(2.0)) for token in rng.permutation(VOCAB)[:8]}
    allowed = rng.random(text.num_documents) < 0.6 if seed % 2 else None
    expected = slow_ngram_scorer.scores(text, log_probs, counts, singles, settings, allowed)
    weighted = scorer.weighted(ngrams, np.array(list(singles)), np.array(list(singles.values())))
    documents, scores = scorer.search(weighted, 100, allowed)
    assert sorted(documents.tolist()) == sorted(expected)
    np.testing.assert_allclose(scores, [expected[document] for document in documents.tolist()], rtol=1e-9, atol=1e-9)
    assert [*zip(-scores, documents, strict=True)] == sorted(zip(-scores, documents, strict=True))
    for document, score in zip(documents.tolist(), scores.tolist(), strict=True):
        counted = scorer.explain(weighted, document)
        np.testing.assert_allclose(sum(one.score for one in counted), score, rtol=1e-9, atol=1e-9)
        every = [token for _, tokens in slow_ngram_scorer.segments_of(text)[document] for token in tokens]
        assert all(every[one.place : one.place + len(one.tokens)] == list(one.tokens) for one in counted)
    few, best = scorer.search(weighted, 3, allowed)
    np.testing.assert_array_equal(few, documents[:3])
    np.testing.assert_array_equal(best, scores[:3])


def test_ngrams_of_documents_that_are_not_allowed_leave_the_others_their_rarest():
    """One n-gram is rare enough and stands in a document that is not allowed; the other is too frequent."""
    text = TokenText.of([[3, 4], [5, 6], [5, 6], [7, 8]], VOCAB)
    index = index_of(text)
    low, high = (np.array([np.asarray(ends)[0, 0] for ends in both]) for both in zip(
        *(index.rows(index.find([ngram])) for ngram in ([3, 4], [5, 6])), strict=True))  # fmt: skip
    ngrams = Ngrams(
        np.array([[3, 4], [5, 6]], np.int32), np.full(2, 2, np.int32), np.zeros(2, np.int32), np.full(2, -0.1),
        low, high, (high - low).reshape(2, -1).sum(axis=1),
    )  # fmt: skip
    scorer = NgramScorer(text, np.asarray(index.row_documents), NgramScoring(most_occurrences=1, smoothing=0.1))
    weighted = scorer.weighted(ngrams)
    assert scorer.search(weighted, 4)[0].tolist() == [0]
    assert scorer.search(weighted, 4, np.array([False, True, True, True]))[0].tolist() == [1, 2]
    assert scorer.search(weighted, 4, np.array([False, False, False, True]))[0].tolist() == []


def test_what_speaks_against_a_document_does_not_count_at_the_power_of_0():
    text = TokenText.of([[3, 4], [5, 6]], VOCAB)
    index = index_of(text)
    low, high = (np.asarray(ends)[0, 0].reshape(1, -1) for ends in index.rows(index.find([[3, 4]])))
    ngrams = Ngrams(
        np.array([[3, 4]], np.int32), np.array([2], np.int32), np.zeros(1, np.int32), np.array([-50.0]), low, high,
        (high - low).sum(axis=1),
    )  # fmt: skip
    scorer = NgramScorer(text, np.asarray(index.row_documents), NgramScoring(alpha=0.0))
    assert not len(scorer.weighted(ngrams).weights)


def test_of_equal_ngrams_the_likeliest_counts():
    text = TokenText.of([[1, 2, 3], [4, 5]], VOCAB)
    index = FMIndex.from_text(text, filters=True)
    state = index.find([[1, 2]])
    low, high = int(state.low[0, 0]), int(state.high[0, 0])
    twice = Ngrams(
        np.array([[1, 2, 9], [1, 2, 7]], np.int32),  # what stands behind the length does not count
        np.array([2, 2], np.int32),
        np.zeros(2, np.int32),
        np.array([-3.0, -1.0]),
        np.array([low, low], np.int32),
        np.array([high, high], np.int32),
        np.array([1, 1]),
    )
    scorer = NgramScorer(text, np.asarray(index.row_documents), NgramScoring(smoothing=0.1))
    weighted = scorer.weighted(twice)
    assert weighted.ngrams.log_probs.tolist() == [-1.0]


@pytest.mark.parametrize("parts", [1, 2])
def test_what_is_too_frequent_in_all_parts_together_nominates_nothing(parts):
    """Twice in each half, and at most three times may nominate: the n-gram of one half does, and only its document."""
    text = TokenText.of([[1, 2, 5], [1, 2], [1, 2], [1, 2, 6]], VOCAB)
    index = index_of(text, parts)
    ranges = [[np.asarray(x)[0, 0] for x in index.rows(index.find([ngram]))] for ngram in ([1, 2], [2, 6])]
    low, high = (np.array(ends) for ends in zip(*ranges, strict=True))
    counts = (high - low).sum(axis=1)
    assert counts.tolist() == [4, 1] and low.shape == (2, parts)
    tokens, log_probs = np.array([[1, 2], [2, 6]], np.int32), np.array([-0.1, -0.1])
    ngrams = Ngrams(tokens, np.full(2, 2, np.int32), np.zeros(2, np.int32), log_probs, low, high, counts)
    settings = NgramScoring(most_occurrences=3, smoothing=0.1)
    scorer = NgramScorer(text, np.asarray(index.row_documents), settings)
    assert scorer.search(scorer.weighted(ngrams), 4)[0].tolist() == [3]
    scorer = NgramScorer(text, np.asarray(index.row_documents), NgramScoring(most_occurrences=4, smoothing=0.1))
    assert sorted(scorer.search(scorer.weighted(ngrams), 4)[0].tolist()) == [0, 1, 2, 3]


def test_log_odds_of_sure_and_impossible():
    np.testing.assert_allclose(log_odds(np.log([0.5, 0.9])), np.log([1.0, 9.0]), atol=1e-12)
    assert np.isfinite(log_odds(np.zeros(1))).all() and log_odds(np.array([-1e9]))[0] == -1e9


@pytest.mark.parametrize(
    "wrong", [{"alpha": -1.0}, {"beta": 1.5}, {"smoothing": 0.0}, {"most_occurrences": 0}, {"most_documents": 0}]
)
def test_settings_out_of_range_are_named(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        NgramScoring(**wrong)


@pytest.mark.parametrize("document", [-1, 2])
def test_a_row_of_no_document_is_named(document):
    text = TokenText.of([[1, 2], [3]], VOCAB)
    with pytest.raises(InputError, match=rf"not among the 2 of the text \(got {document}\)"):
        NgramScorer(text, np.array([0, 1, document, 0]))


def test_ngrams_of_rows_that_the_index_does_not_have_are_refused():
    rng = np.random.default_rng(0)
    text = random_text(rng)
    index = FMIndex.from_text(text, filters=True)
    *_, ngrams = random_ngrams(rng, text, index, count=20)
    scorer = NgramScorer(text, np.asarray(index.row_documents))
    scorer.search(scorer.weighted(ngrams), 2)
    beyond = ngrams._replace(high=ngrams.high + len(index.row_documents))
    with pytest.raises(InputError, match="rows that the index does not have"):
        scorer.search(scorer.weighted(beyond), 2)
