"""A student's score of a document is the one by which it was retrieved; its slopes are those of finite differences."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.models.copying import CopyNetworkModel
from gr_jax.retrievers.ngrams import NgramView
from gr_jax.systems import SEAL
from gr_jax.systems.ngram import Asking, NgramWriting, candidates, list_batches, passage_scores
from gr_jax.systems.ngram.list_batches import ListRows
from gr_jax.systems.ngram.passage_scores import NgramColumns
from tests import small_data

pytest.importorskip("bm25s")
pytest.importorskip("Stemmer")
pytest.importorskip("pydivsufsort")
pytest.importorskip("numba")
pytest.importorskip("sentencepiece")

WRITING = NgramWriting(
    encoder="t5", vocabulary="sentencepiece", vocabulary_size=330, width=32, heads=2, mlp_width=32, encoder_layers=1,
    decoder_layers=1, dropout=0.0, words=32, query_tokens=64, row_targets=48, span_tokens=4, title_tokens=4,
)  # fmt: skip
DEPTH, QUESTIONS = 12, ["who saw a red cat", "where is the goat", "a black horse of the farm"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A retriever, what it finds for questions with all n-grams, and how the network reads them."""
    folder = small_data.write_beir(tmp_path_factory.mktemp("beir") / "animals", count=24)
    system = SEAL(writing=WRITING, trained=False, asking=Asking(beams=4, tokens=4, title_tokens=4))
    searcher = system.run(folder, tmp_path_factory.mktemp("seal"), until="index", say=lambda line: None)
    retriever = searcher.retriever
    kept = candidates.find(retriever, QUESTIONS, DEPTH, ngrams=10_000)
    sources, lengths = retriever._reader.read(QUESTIONS, retriever.views)
    sources = np.where(np.arange(sources.shape[1]) < lengths[:, None], sources, 0).astype(np.int32)
    model = CopyNetworkModel(retriever.model.module, tuple(np.asarray(retriever.model.words).tolist()))
    return retriever, kept, sources, model


_scores_of_batch = jax.jit(passage_scores.scores_of_batch, static_argnums=(0, 3, 4))


def _scores(found, rows: ListRows, lists):
    retriever, _, _, model = found
    batch = rows.batch(range(len(lists)), lists)
    views, alpha = retriever.documents_of.views, retriever.documents_of.scorer.settings.alpha
    return np.asarray(_scores_of_batch(model, retriever.model.params, batch, tuple(views), alpha))


def _rows(found, prefixes=800, ngrams=400):
    retriever, kept, sources, _ = found
    return ListRows(kept, sources, len(retriever.views), prefixes, ngrams)


def test_rows_are_as_long_as_a_batch_needs(found, monkeypatch):
    """A power of two shorter than there is room for, and scores are the same."""
    _, kept, _, _ = found
    lists = np.where(kept.documents >= 0, np.arange(DEPTH), -1)
    rows = _rows(found)
    batch = rows.batch(range(len(lists)), lists)
    length = batch["decoder_input_tokens"].shape[1]
    needed = 1 + int((batch["decoder_input_tokens"] != 0).sum(axis=1).max())  # no n-gram has token 0
    assert 1 < needed <= length < 800 and 800 % length == 0
    scores = _scores(found, rows, lists)
    monkeypatch.setattr(list_batches, "SHORTER", ())
    assert rows.batch(range(len(lists)), lists)["decoder_input_tokens"].shape[1] == 800
    np.testing.assert_allclose(scores, _scores(found, rows, lists), rtol=1e-5)


def test_it_is_the_score_of_retrieval(found):
    retriever, kept, _, _ = found
    ranking = retriever.retrieve(QUESTIONS, DEPTH)
    np.testing.assert_array_equal(kept.documents, ranking.doc_index)
    np.testing.assert_allclose(kept.held, (kept.documents >= 0).astype(float), rtol=1e-5)
    lists = np.where(kept.documents >= 0, np.arange(DEPTH), -1)
    scores = _scores(found, _rows(found), lists)
    there = kept.documents >= 0
    assert there.sum() > 20
    np.testing.assert_allclose(scores[there], ranking.score[there], rtol=2e-3)
    assert not scores[~there].any()
    # In another order, without some, with padding before the others: each document's is the same number.
    other = np.full((len(lists), 5), -1)
    other[:, 1:4] = lists[:, [3, 0, 2]]
    np.testing.assert_allclose(_scores(found, _rows(found), other)[:, 1:4], scores[:, [3, 0, 2]], rtol=1e-4)


def test_fewer_ngrams_hold_less_of_the_score_and_say_how_much(found):
    retriever, whole, sources, _ = found
    few = candidates.find(retriever, QUESTIONS, DEPTH, ngrams=2)
    np.testing.assert_array_equal(few.documents, whole.documents)
    lists = np.where(few.documents >= 0, np.arange(DEPTH), -1)
    scores = _scores(found, dataclasses.replace(_rows(found), candidates=few), lists)
    there = few.documents >= 0
    np.testing.assert_allclose(scores[there], (few.scores * few.held)[there], rtol=2e-3)
    assert (few.held[there] < 0.999).any() and (few.held <= 1 + 1e-6).all()


def test_rows_without_room_keep_what_counts_for_most_documents(found):
    _, kept, _, _ = found
    lists = np.where(kept.documents >= 0, np.arange(DEPTH), -1)
    batch = _rows(found, prefixes=12, ngrams=4).batch([0], lists[:1])
    ngrams = np.unique(np.concatenate([kept.parts_of(0, place)[0] for place in range((lists[0] >= 0).sum())]))
    assert len(ngrams) > 4 * len(found[0].views)
    total = dict.fromkeys(ngrams.tolist(), 0.0)
    for place in range((lists[0] >= 0).sum()):
        for ngram, coefficient in zip(*kept.parts_of(0, place), strict=True):
            total[int(ngram)] += float(coefficient) * float(kept.weights[ngram])
    best = max(total, key=lambda n: (total[n], -n))
    row = int(kept.views[best])
    wanted = kept.tokens[best, : kept.lengths[best]]
    written = batch["ngram_targets"][row, 0, : len(wanted)]
    np.testing.assert_array_equal(batch["decoder_target_tokens"][row, written], wanted)


@pytest.mark.parametrize("prefixes, ngrams", [(12, 4), (1, 400), (800, 400)])
def test_rows_say_which_share_of_scores_they_hold(found, prefixes, ngrams):
    _, kept, _, _ = found
    lists = np.where(kept.documents >= 0, np.arange(DEPTH), -1)
    rows = _rows(found, prefixes, ngrams)
    scores, there = _scores(found, rows, lists), kept.documents >= 0
    held = np.stack([rows.held(question, lists[question].tolist()) for question in range(len(lists))])
    np.testing.assert_allclose((held * kept.scores)[there], scores[there], rtol=3e-3, atol=1e-3)
    assert not held[~there].any() and (held.min(where=there, initial=1) > 0.999) == (prefixes == 800)


def test_slopes_beside_finite_differences(found):
    """With respect to log p(n|q), shifted and cut as MINDER's are; impossible n-grams have none."""
    rng = np.random.default_rng(0)
    log_probs = -rng.exponential(3.0, (4, 6))
    log_probs[1, 2] = -np.inf
    views = (NgramView(), NgramView(shift=2.0, most=-1.0))
    with jax.enable_x64(True):
        columns = NgramColumns(
            -rng.exponential(6.0, (4, 6)) - 1, rng.random((4, 6)) < 0.3, rng.random((2, 3, 12))
        )  # fmt: skip
        weights = rng.normal(size=(2, 3))

        @jax.jit
        def total(x, columns):
            return jnp.sum(weights * passage_scores.passage_scores(x, columns, views, 1.7))

        slopes = np.asarray(jax.jit(jax.grad(total))(log_probs, columns))
        assert np.isfinite(slopes).all() and slopes[1, 2] == 0 and slopes.any()
        for place in np.ndindex(log_probs.shape):
            if np.isfinite(log_probs[place]):
                high, low = log_probs.copy(), log_probs.copy()
                high[place] += 1e-6
                low[place] -= 1e-6
                expected = (float(total(high, columns)) - float(total(low, columns))) / 2e-6
                assert slopes[place] == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_a_definition_beside_it():
    """One n-gram at a time, by the formula."""
    rng = np.random.default_rng(1)
    log_probs, chance = -rng.exponential(3.0, (2, 5)), -rng.exponential(6.0, (2, 5)) - 1
    single, coefficients = rng.random((2, 5)) < 0.4, rng.random((1, 2, 10))
    views = (NgramView(), NgramView(shift=14.0, most=-1.0))
    expected = np.zeros(2)
    for view in range(2):
        for n in range(5):
            log_p = log_probs[view, n]
            if view == 1:
                log_p = min(log_p + 14.0, -1.0)
            odds = [x - np.log(1 - np.exp(x)) for x in (log_p, chance[view, n])]
            weight = max(0.0, odds[0] - odds[1]) ** (1.0 if single[view, n] else 2.0)
            expected += coefficients[0, :, 5 * view + n] * weight
    of_batch = jax.jit(lambda *given: passage_scores.passage_scores(*given, views, 2.0))
    found = of_batch(log_probs, NgramColumns(chance, single, coefficients))
    np.testing.assert_allclose(found[0], expected, rtol=1e-4)


def test_candidates_are_read_back(found, tmp_path):
    kept = found[1]
    kept.save(tmp_path / "candidates")
    loaded = candidates.Candidates.load(tmp_path / "candidates")
    for field in dataclasses.fields(kept):
        np.testing.assert_array_equal(getattr(loaded, field.name), getattr(kept, field.name))
    twice = candidates.joined([kept, loaded])
    assert len(twice) == 2 * len(kept)
    for one, other in zip(twice.parts_of(len(kept) + 1, 2), kept.parts_of(1, 2), strict=True):
        np.testing.assert_array_equal(one - (len(kept.lengths) if one.dtype.kind == "i" else 0), other)


def test_a_retriever_without_ngrams_is_named(memorised):
    from gr_jax import load

    with pytest.raises(InputError, match="keeps no n-grams"):
        candidates.find(load(memorised.model_dir / "index").retriever, ["red"], 3, 3)
