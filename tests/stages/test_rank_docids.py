"""A document's score is the one by which it was retrieved; its slopes are those of finite differences; a batch costs
what its lists cost one by one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gr_jax import corpus as corpus_lib
from gr_jax import models, storage
from gr_jax.constraints import Trie
from gr_jax.decoding import beam_search
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from gr_jax.losses.ranking import DistilledRankNet, RankedLists
from gr_jax.models import EncoderDecoder, T5Config
from gr_jax.retrievers import Ranking
from gr_jax.retrievers.base import Evidence
from gr_jax.stages import rank_docids
from gr_jax.stages.graph import Place
from gr_jax.stages.rank_docids import DistilledDocidWriter, DocidDistilling, docids_found, read_questions
from gr_jax.stages.teaching import FoundDocuments
from gr_jax.training.docid_lists import DocidTargets, targets_of
from tests import small_data

DEPTH = 12
SIZES = {
    "emb_dim": 8, "num_heads": 2, "head_dim": 4, "num_encoder_layers": 1, "num_decoder_layers": 1, "mlp_dim": 8,
    "dropout_rate": 0.0,
}  # fmt: skip
# Of different lengths, so that something has to end them; document 2 has two.
SEQUENCES, OWNERS = [[1, 3], [1, 4], [1], [2, 3], [2, 4]], [0, 1, 2, 2, 3]


def writer(scorer, *, loss=None, base=1.0, generation=0.0, also=None):
    return DistilledDocidWriter(scorer, also, loss or DistilledRankNet(1.0, 0.5), base, generation)


@pytest.fixture(scope="module")
def student(memorised):
    """The retriever, its questions, what it finds, and the batch of all that it finds."""
    retriever = memorised.searcher.retriever
    texts = corpus_lib.read_beir(memorised.corpus).split_queries("train").texts[:5]
    ranking = retriever.retrieve(texts, DEPTH)
    rows = docids_found(ranking, retriever.docids, 1)
    sources = read_questions(retriever.vocabulary, retriever.transform, texts, retriever.max_query_length)
    places = np.tile(np.arange(DEPTH), (len(texts), 1))
    tokens = DocidTargets(targets_of(retriever.docids), rows, sources).of(np.arange(len(texts)), places)
    batch = {"encoder_input_tokens": jnp.asarray(sources), "docid_tokens": jnp.asarray(tokens)}
    return retriever, texts, ranking, batch


def scores_of(model, params, batch):
    return np.asarray(jax.jit(model.scores)(params, batch))


def scorer_of(retriever, normalize):
    model = retriever.model
    return models.EncoderDecoderModel(model.module, normalize=normalize, levels=model.levels, eos_id=model.eos_id)


@pytest.mark.parametrize("normalize", ["level", "vocabulary"])
def test_it_is_the_score_of_retrieval(student, normalize, monkeypatch):
    retriever, texts, _, batch = student
    monkeypatch.setattr(retriever, "normalize", normalize)
    ranking = retriever.retrieve(texts, 64)
    model = writer(scorer_of(retriever, normalize))
    scores = scores_of(model, retriever.model.params, batch)
    for row, own in enumerate(batch["docid_tokens"][:, :, 0].tolist()):
        documents = [retriever.docids.documents_of(retriever.docids.row_of([t for t in one if t]))[0] for one in own]
        expected = [float(ranking.score[row, ranking.doc_index[row] == one][0]) for one in documents]
        np.testing.assert_allclose(scores[row], expected, atol=1e-4)


def test_padding_is_worth_nothing(student):
    retriever, _, _, batch = student
    model, params = writer(scorer_of(retriever, "level")), retriever.model.params
    scores = scores_of(model, params, batch)
    tokens = np.zeros((5, 7, 2, batch["docid_tokens"].shape[-1] + 2), np.int32)  # more docids, places and tokens
    tokens[:, 1, 1, :-2], tokens[:, 4, 0, :-2] = batch["docid_tokens"][:, 3, 0], batch["docid_tokens"][:, 0, 0]
    wider = {
        "encoder_input_tokens": np.pad(batch["encoder_input_tokens"], ((0, 0), (0, 9))), "docid_tokens": tokens,
    }  # fmt: skip
    wider = {name: jnp.asarray(one) for name, one in wider.items()}
    other = scores_of(model, params, wider)
    np.testing.assert_allclose(other[:, [1, 4]], scores[:, [3, 0]], atol=1e-5)
    assert not np.delete(other, [1, 4], axis=1).any()

    def total(params, weights):
        return jnp.sum(weights * model.scores(params, wider))

    first = np.zeros(other.shape, np.float32)
    first[:, 0] = 1
    nothing = jax.device_get(jax.jit(jax.grad(total))(params, first))
    assert all(np.isfinite(one).all() and not np.any(one) for one in jax.tree.leaves(nothing))


@functools.cache
def small():
    """A network from scratch, docids that end in a token, and three questions with three documents each."""
    docids = Docids.build(SEQUENCES, vocab_size=6, eos_id=5, documents=OWNERS)
    module = EncoderDecoder(
        T5Config(vocab_size=12, **SIZES), T5Config(vocab_size=6, **SIZES), share_embeddings=False, query_residual=True
    )
    sources = np.random.default_rng(0).integers(1, 12, (3, 5)).astype(np.int32)
    params = jax.jit(module.init)(jax.random.key(0), sources, np.ones((3, 3), np.int32))["params"]
    rows = np.full((3, 4, 2), -1, np.int32)
    for document in range(4):
        own = docids.rows_of(document)
        rows[:, document, : len(own)] = own
    targets = DocidTargets(targets_of(docids), rows, sources)
    tokens = targets.of(np.arange(3), np.array([[2, 0, 3], [1, 2, -1], [-1, -1, -1]]))
    model = writer(models.EncoderDecoderModel(module, eos_id=5))
    batch = {"encoder_input_tokens": jnp.asarray(sources), "docid_tokens": jnp.asarray(tokens)}
    return docids, model, params, batch


def test_a_document_has_the_score_of_the_best_of_its_docids():
    docids, model, params, batch = small()
    scores = scores_of(model, params, batch)
    decoder = models.GenerativeDecoder(model.scorer.module, params, None, 5)
    start = functools.partial(models.GenerativeDecoder.start, beams=5, max_len=3)
    cache = jax.jit(start)(decoder, batch["encoder_input_tokens"])
    settings = {"beams": 5, "max_len": 3, "normalize": "vocabulary"}
    search = jax.jit(functools.partial(beam_search, **settings))
    beams = jax.device_get(search(decoder, cache, Trie.from_docids(docids)))
    expected = np.full((3, 4), -np.inf)
    for row in range(3):
        for beam in np.flatnonzero(beams.valid[row]):
            tokens = [int(token) for token in beams.sequences[row, beam, : beams.lengths[row, beam]]]
            for document in docids.documents_of(docids.row_of(tokens[:-1])):
                expected[row, document] = max(expected[row, document], float(beams.scores[row, beam]))
    np.testing.assert_allclose(scores[0], expected[0, [2, 0, 3]], atol=1e-5)
    np.testing.assert_allclose(scores[1, :2], expected[1, [1, 2]], atol=1e-5)
    assert not scores[1, 2:].any() and not scores[2].any()


def test_slopes_beside_finite_differences():
    """Along random directions of all parameters, of a weighted sum of scores."""
    _, model, params, batch = small()
    with jax.enable_x64(True):
        params = jax.tree.map(lambda one: np.asarray(one, np.float64), params)
        weights = jnp.asarray(np.random.default_rng(1).normal(size=(3, 3)))

        @jax.jit
        def total(params):
            return jnp.sum(weights * model.scores(params, batch))

        slopes = jax.device_get(jax.jit(jax.grad(total))(params))
        assert all(np.isfinite(one).all() for one in jax.tree.leaves(slopes))
        rng = np.random.default_rng(2)
        for _ in range(4):
            way = jax.tree.map(lambda one: rng.normal(size=one.shape), params)
            expected = sum(np.sum(a * b) for a, b in zip(*map(jax.tree.leaves, (slopes, way)), strict=True))
            # Logits are float32 whatever parameters are, so steps are not small.
            ends = [total(jax.tree.map(lambda one, d, s=s: one + s * d, params, way)) for s in (1e-2, -1e-2)]
            assert expected == pytest.approx(float(ends[0] - ends[1]) / 2e-2, rel=2e-2, abs=2e-3)


def test_a_batch_costs_what_its_lists_cost_one_by_one():
    """Beside what writing costs, as often as there are questions with lists."""
    _, model, params, batch = small()
    rng = np.random.default_rng(3)
    valid = np.array([[[True] * 3] * 1, [[True, True, False]], [[False] * 3]])
    teacher = rng.normal(size=valid.shape).astype(np.float32)
    batch = batch | {"list_valid": valid, "list_teacher": teacher}
    written = {
        "encoder_input_tokens": jnp.asarray(rng.integers(1, 12, (2, 5))),
        "decoder_input_tokens": jnp.asarray([[0, 1, 3], [0, 1, 0]]),
        "decoder_target_tokens": jnp.asarray([[1, 3, 5], [1, 5, 0]]),
        "decoder_loss_weights": jnp.asarray([[1.0, 1, 1], [1, 1, 0]]),
    }
    batch |= {f"write_{name}": one for name, one in written.items()}
    loss, base = DistilledRankNet(1.0, 0.5), 0.4
    scores, expected = scores_of(model, params, batch), 0.0
    for row in (0, 1):
        expected += float(jax.jit(loss)(scores[row] / base, RankedLists(valid[row, 0], teacher[row, 0])))
    logits = jax.jit(model.scorer.module.apply)(
        {"params": params}, written["encoder_input_tokens"], written["decoder_input_tokens"]
    )
    logits = np.asarray(logits, np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    costs = [-log_probs[0, 0, 1], -log_probs[0, 1, 3], -log_probs[0, 2, 5], -log_probs[1, 0, 1], -log_probs[1, 1, 5]]
    whole = writer(model.scorer, loss=loss, base=base, generation=0.7, also=model.scorer)
    total, metrics = jax.jit(whole.loss_fn)(params, batch)
    assert float(total) == pytest.approx(expected + 0.7 * 2 * np.mean(costs), rel=1e-4)
    assert float(metrics["ranking"][0]) == pytest.approx(expected, rel=1e-4) and float(metrics["weight_sum"]) == 2
    alone, _ = jax.jit(writer(model.scorer, loss=loss, base=base).loss_fn)(params, batch)
    assert float(alone) == pytest.approx(expected, rel=1e-4)


def test_docids_are_those_by_which_documents_were_found():
    docids = Docids.build(SEQUENCES, vocab_size=6, eos_id=5, documents=OWNERS)
    why = [[("docid", [2, 3]), ("docid", [1])], [("docid", [1, 4])]]
    evidence = tuple(tuple(Evidence(kind, "", 0.0, tuple(own)) for kind, own in one) for one in why)
    ranking = Ranking(np.array([[2, 1, -1]], np.int32), np.zeros((1, 3), np.float32), (evidence,))
    rows = docids_found(ranking, docids, 2)
    found = [[None if row < 0 else docids.sequence(row) for row in one] for one in rows[0]]
    assert found == [[[2, 3], [1]], [[1, 4], None], [None, None]]
    assert docids.sequence(docids_found(ranking, docids, 1)[0, 0, 0]) == [2, 3]


def test_candidates_are_what_retrieval_finds(memorised, student, tmp_path):
    retriever, _, _, _ = student
    shared = memorised.model_dir.parent / "shared"
    place, asked = Place(tmp_path / "stage", tmp_path / "work", {}), tmp_path / "asked"
    place.folder.mkdir()
    small_data.write_asked(asked, corpus_lib.read_beir(memorised.corpus))
    rank_docids.docid_candidates.function(
        place, next(shared.glob("corpus-*")), asked, next(shared.glob("docids-*")), memorised.model_dir / "index",
        depth=100, most=3,
    )  # fmt: skip
    found = FoundDocuments.load(place.folder)
    questions = corpus_lib.read_beir(memorised.corpus).split_queries("train").texts
    ranking = retriever.retrieve(questions, 64)
    np.testing.assert_array_equal(found.documents, ranking.doc_index)
    np.testing.assert_array_equal(found.scores, np.where(ranking.doc_index >= 0, ranking.score, 0))
    rows = storage.load_array(place.folder / "found" / "docids.npy")
    assert rows.shape == (64, 64, 1)
    for question, place_ in ((0, 0), (9, 5), (63, 30)):
        assert rows[question, place_, 0] in retriever.docids.rows_of(int(found.documents[question, place_]))


def test_settings():
    assert DocidDistilling().drawing.labelled
    with pytest.raises(InputError, match=r"Set DocidDistilling\.length to 6"):
        DocidDistilling(length=8, pool=5)
    with pytest.raises(InputError, match=r"DocidDistilling\.docids"):
        DocidDistilling(docids=0)
    assert DocidDistilling().shuffled == 0
