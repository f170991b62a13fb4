"""Generative retrieval against scoring every docid by teacher forcing in NumPy, and what it must refuse."""

from __future__ import annotations

import functools
import warnings

import jax
import numpy as np
import pytest

from gr_jax import models, text
from gr_jax.docids import Docids, hierarchical_kmeans, naive_numeric
from gr_jax.errors import InputError, InputWarning
from gr_jax.retrievers import GenerativeRetriever, generative_search
from gr_jax.retrievers.query_reader import QueryReader
from gr_jax.training.features import Pair, PairFeatures
from tests.retrievers.random_network import random_parameters

QUERIES = ["a red cat", "dogs", "where is it?", "x"]  # all of them in one batch of one length
VOCABULARY = text.ByteVocabulary()


def _vectors(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 6)).astype(np.float32)


def tree() -> Docids:
    """Of unequal lengths."""
    return hierarchical_kmeans(_vectors(14), branching=3, leaf_capacity=3)


def sentences() -> Docids:
    """Six documents with one to five docids each."""
    return tree().for_documents(np.repeat(np.arange(6), [1, 5, 2, 1, 3, 2]), 6)


def clusters() -> Docids:
    """A docid stands for up to four documents, and of the documents some have two docids."""
    rows = [[2, 5], [2, 6], [3, 5], [3, 6], [4, 5]]
    of = [0, 1, 2, 3, 4, 0, 1, 1, 2, 0, 3]
    return Docids.build(
        [rows[r] for r in of], vocab_size=8, documents=[0, 1, 2, 3, 4, 5, 6, 7, 8, 3, 2], duplicates="share"
    )


def with_levels_and_eos() -> Docids:
    """Docids that are prefixes of others, in blocks of tokens by position."""
    rows = [[2], [2, 5], [3, 6], [3, 6, 8], [3, 6, 9], [4, 5], [4, 7, 8], [4]]
    return Docids.build(rows, vocab_size=10, eos_id=1, levels=[(2, 3), (5, 3), (8, 2)])


def network(docids: Docids, *, query_residual: bool = False, seed: int = 1):
    """A network with random parameters, larger than at initialisation, so that scores differ clearly."""
    sizes = {"emb_dim": 16, "num_heads": 2, "head_dim": 8, "num_encoder_layers": 1, "num_decoder_layers": 1}
    module = models.EncoderDecoder(
        encoder_config=models.T5Config(vocab_size=VOCABULARY.size, mlp_dim=24, dropout_rate=0.0, **sizes),
        decoder_config=models.T5Config(vocab_size=docids.vocab_size, mlp_dim=24, dropout_rate=0.0, **sizes),
        share_embeddings=False,
        query_residual=query_residual,
    )
    return module, random_parameters(module, seed)


def retriever(docids: Docids, *, seed: int = 1, query_residual: bool = False, **settings) -> GenerativeRetriever:
    """With as many beams as there are docids and documents."""
    module, params = network(docids, seed=seed, query_residual=query_residual)
    settings = {"beams": _enough(docids), "max_query_length": 32, "batch_size": len(QUERIES), **settings}
    return GenerativeRetriever.over_docids(module, params, VOCABULARY, docids, **settings)


def _enough(docids: Docids) -> int:
    return max(len(docids), docids.num_documents)


@functools.partial(jax.jit, static_argnums=0)
def _logits(module, params, read, inputs):
    return module.apply({"params": params}, read, inputs)


def docid_scores(made: GenerativeRetriever, queries: list[str]) -> np.ndarray:
    """Log-probability of every docid of every query, float64 [queries, docids], from the logits of teacher forcing."""
    written = [made.docids.target(row) for row in range(len(made.docids))]
    inputs = np.zeros((len(written), max(map(len, written))), np.int32)
    for row, tokens in enumerate(written):
        inputs[row, 1 : len(tokens)] = tokens[:-1]
    read, _ = text.encode_texts(VOCABULARY, queries, made.max_query_length)
    logits = _logits(
        made.model.module, made.model.params, np.repeat(read, len(written), axis=0), np.tile(inputs, (len(queries), 1))
    )
    logits = np.asarray(logits, np.float64).reshape(len(queries), len(written), *logits.shape[1:])
    scores = np.zeros((len(queries), len(written)))
    for docid, tokens in enumerate(written):
        for step, token in enumerate(tokens):
            here = logits[:, docid, step]
            among = here[:, _normalised_over(made, written, tokens, step)]
            scores[:, docid] += here[:, token] - np.log(np.sum(np.exp(among), axis=1))
    return scores


def _normalised_over(made: GenerativeRetriever, written, tokens, step) -> list[int]:
    """The tokens whose probabilities sum to one at a step."""
    if made.normalize == "vocabulary":
        return list(range(made.model.module.vocab_size))
    if made.normalize == "level":
        levels, eos = made.docids.levels, made.docids.eos_id
        block = [] if step >= len(levels) else list(range(levels[step][0], sum(levels[step])))
        return block + ([] if eos is None else [eos])
    return sorted({other[step] for other in written if len(other) > step and other[:step] == tokens[:step]})


def brute_force(made: GenerativeRetriever, queries: list[str], allowed=None) -> list[list[tuple[int, float]]]:
    """For each query all documents, best first, with the best score of their docids."""
    answers = []
    for number, scores in enumerate(docid_scores(made, queries)):
        best: dict[int, float] = {}
        for row, score in enumerate(scores):
            for document in made.docids.documents_of(row):
                if allowed is None or allowed[number][document]:
                    best[int(document)] = max(best.get(int(document), -np.inf), float(score))
        answers.append(sorted(best.items(), key=lambda pair: -pair[1]))
    return answers


def check(ranking, expected: list[list[tuple[int, float]]], k: int) -> None:
    """The documents, in an order in which scores that are equal but for rounding may stand either way."""
    assert ranking.doc_index.shape == ranking.score.shape == (len(expected), k)
    assert (ranking.doc_index.dtype, ranking.score.dtype) == (np.int32, np.float32)
    for row, pairs in enumerate(expected):
        n = min(k, len(pairs))
        found = ranking.doc_index[row, :n].tolist()
        true = dict(pairs)
        assert len(set(found)) == n and (ranking.doc_index[row, n:] == -1).all()
        assert np.isneginf(ranking.score[row, n:]).all()
        np.testing.assert_allclose(ranking.score[row, :n], [score for _, score in pairs[:n]], atol=1e-4)
        np.testing.assert_allclose(ranking.score[row, :n], [true[document] for document in found], atol=1e-4)
        assert (np.diff(ranking.score[row, :n]) <= 0).all()


@pytest.mark.parametrize(
    ("docids", "normalize", "query_residual"),
    [
        (tree, "level", True),
        (sentences, "vocabulary", False),
        (with_levels_and_eos, "constraint", False),
        pytest.param(clusters, "constraint", False, marks=pytest.mark.slow),
        pytest.param(lambda: naive_numeric(14), "vocabulary", False, marks=pytest.mark.slow),
        pytest.param(with_levels_and_eos, "level", False, marks=pytest.mark.slow),
    ],
)
def test_it_ranks_as_scoring_every_docid_does(docids, normalize, query_residual):
    made = retriever(docids(), normalize=normalize, query_residual=query_residual)
    expected = brute_force(made, QUERIES)
    enough = _enough(made.docids)
    found = made.retrieve(QUERIES, enough)
    check(found, expected, enough)
    check(made.retrieve(QUERIES, 3), expected, 3)
    if len(made.docids) == made.num_documents:
        # Under the constraint's normaliser all docids have the sum 1, under others they share it with what is no docid.
        total = np.exp(np.asarray(found.score, np.float64)).sum(axis=1)
        least = 1 - 1e-5 if normalize == "constraint" else 0
        assert (total > least).all() and (total < (1 + 1e-5 if normalize == "constraint" else 1)).all()
    # As many documents as are asked for, however few the beams: so many are kept.
    few = retriever(docids(), normalize=normalize, query_residual=query_residual, beams=2)
    check(few.retrieve(QUERIES, enough), expected, enough)


def test_loss_and_answer_agree_on_a_docids_score():
    """What training lowers is minus what retrieval ranks by."""
    made = retriever(tree(), normalize="level", query_residual=True)
    model = models.EncoderDecoderModel(module=made.model.module, normalize="level", levels=made.docids.levels)
    ranking = made.retrieve(QUERIES, 14)
    read, _ = text.encode_texts(VOCABULARY, QUERIES[:1], 32)
    rows = [int(made.docids.rows_of(int(document))[0]) for document in ranking.doc_index[0]]
    targets = made.docids.tokens[rows]
    batch = {
        "encoder_input_tokens": np.tile(read, (len(rows), 1)),
        "decoder_input_tokens": np.pad(targets, ((0, 0), (1, 0)))[:, :-1],
        "decoder_target_tokens": targets,
        "decoder_loss_weights": (targets != 0).astype(np.float32),
    }
    np.testing.assert_allclose(jax.jit(model.score_batch)(made.model.params, batch), ranking.score[0], atol=1e-4)


def test_a_document_of_several_docids_stands_once_with_the_best_of_their_scores():
    made = retriever(sentences())
    by_docid = docid_scores(made, QUERIES)
    ranking, plain = (made.retrieve(QUERIES, 6, explain=explain) for explain in (True, False))
    for row, evidence in enumerate(ranking.evidence):
        documents = ranking.doc_index[row].tolist()
        assert sorted(documents) == list(range(6))
        for document, score, reasons in zip(documents, ranking.score[row], evidence, strict=True):
            own = made.docids.rows_of(document)
            own = own[np.argsort(-by_docid[row, own])]
            assert [list(reason.tokens) for reason in reasons] == [made.docids.sequence(r) for r in own]
            np.testing.assert_allclose([reason.score for reason in reasons], by_docid[row, own], atol=1e-4)
            assert score == reasons[0].score
            assert {reason.kind for reason in reasons} == {"docid"}
            assert reasons[0].text == "-".join(map(str, reasons[0].tokens))
            assert plain.docid_of(row, documents.index(document)) == reasons[0].text


def test_evidence_leaves_eos_out():
    made = retriever(with_levels_and_eos(), normalize="constraint")
    count = made.num_documents
    ranking = made.retrieve(QUERIES, count, explain=True)
    for row in range(len(QUERIES)):
        for document, (reason,) in zip(ranking.doc_index[row], ranking.evidence[row], strict=True):
            assert list(reason.tokens) == made.docids.sequence(int(made.docids.rows_of(int(document))[0]))
    assert made.retrieve(QUERIES, count).evidence is None


@pytest.mark.parametrize("make", [with_levels_and_eos, pytest.param(tree, marks=pytest.mark.slow)])
def test_with_beams_for_all_the_search_keeps_every_prefix(make):
    docids = make()
    made = retriever(docids)
    rows = [tuple(docids.sequence(row)) for row in range(len(docids))]
    for query, kept in enumerate(made.kept_prefixes(QUERIES)):
        assert kept == [{row[:depth] for row in rows} for depth in range(1, docids.tokens.shape[1] + 1)], query


@pytest.mark.slow
@pytest.mark.parametrize("make", [tree, with_levels_and_eos])
def test_with_few_beams_what_is_found_was_kept_before(make):
    few = retriever(make(), beams=2)
    ranking = few.retrieve(QUERIES, 2, explain=True)
    for query, kept in enumerate(few.kept_prefixes(QUERIES)):
        found = {reason.tokens for reasons in ranking.evidence[query] for reason in reasons}
        assert found <= kept[-1] and all(docid[:depth] in kept[depth - 1] for docid in found for depth in (1, 2))
        assert all(2 <= len(prefixes) <= 4 for prefixes in kept)
        assert all(prefix[:-1] in kept[0] for prefix in kept[1] if len(prefix) == 2)


@pytest.mark.parametrize("docids", [clusters, pytest.param(lambda: naive_numeric(14), marks=pytest.mark.slow)])
def test_filters_are_exact_for_each_query(docids):
    made = retriever(docids())
    documents = made.num_documents
    allowed = np.random.default_rng(0).random((len(QUERIES), documents)) < 0.4
    allowed[1] = False
    allowed[2] = True
    check(made.retrieve(QUERIES, documents, allowed=allowed), brute_force(made, QUERIES, allowed), documents)
    for row in (allowed[0], allowed[1]):
        each = np.tile(row, (len(QUERIES), 1))
        check(made.retrieve(QUERIES, documents, allowed=row), brute_force(made, QUERIES, each), documents)


def test_a_narrow_filter_is_exact_with_few_beams():
    """What is not allowed takes no beam: with no more docids than beams left, all of them are found."""
    made = retriever(clusters(), beams=2)
    allowed = np.zeros((len(QUERIES), 9), bool)
    for row, picked in enumerate(([0, 5], [4, 6], [], [7])):
        allowed[row, picked] = True
    check(made.retrieve(QUERIES, 2, allowed=allowed), brute_force(made, QUERIES, allowed), 2)


def test_answers_depend_on_the_query_alone():
    """Not on the queries beside it, on their order, or on what the batch is padded to."""
    queries = ["a red cat", "where is the crab near a lake", "dogs", "an owl"]
    expected = retriever(clusters(), batch_size=3).retrieve(queries, 9)  # three short ones, and the long one alone
    order = [3, 1, 0, 2]
    found = retriever(clusters(), batch_size=8).retrieve([queries[i] for i in order], 9)
    np.testing.assert_array_equal(found.doc_index, expected.doc_index[order])
    np.testing.assert_allclose(found.score, expected.score[order], atol=1e-5)


def test_no_queries_no_rows():
    made = retriever(tree())
    ranking = made.retrieve([], 3, explain=True)
    assert ranking.doc_index.shape == (0, 3) and ranking.evidence == ()


def test_a_long_query_is_cut_as_in_training_and_said_to_be():
    made = retriever(clusters(), max_query_length=12)
    long = "where is the red owl " * 3
    with pytest.warns(InputWarning, match="12 tokens"):
        found = made.retrieve([long], 9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        cut = made.retrieve([long[:11]], 9)  # the twelfth is EOS
    np.testing.assert_array_equal(found.doc_index, cut.doc_index)
    np.testing.assert_allclose(found.score, cut.score, atol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error", InputWarning)
        made.retrieve([long[:10]], 1)
    read, lengths = text.encode_texts(VOCABULARY, [long], 12)
    trained = PairFeatures(VOCABULARY, max_input_length=12).row(Pair(long, [2]))["inputs"]
    np.testing.assert_array_equal(read[0, : lengths[0]], trained)


def test_the_transform_is_applied_to_queries():
    plain = retriever(clusters())
    split = retriever(clusters(), transform="split_identifiers")
    np.testing.assert_array_equal(
        split.retrieve(["jax.tree_map"] * 4, 5).doc_index, plain.retrieve(["jax tree map"] * 4, 5).doc_index
    )


def test_with_other_parameters():
    one, other = retriever(sentences(), seed=1), retriever(sentences(), seed=2)
    before = one.retrieve(QUERIES, 6)
    swapped = one.with_parameters(other.model.params).retrieve(QUERIES, 6)
    expected = other.retrieve(QUERIES, 6)
    np.testing.assert_array_equal(swapped.doc_index, expected.doc_index)
    np.testing.assert_allclose(swapped.score, expected.score, atol=1e-5)
    np.testing.assert_array_equal(one.retrieve(QUERIES, 6).doc_index, before.doc_index)
    assert (before.doc_index != expected.doc_index).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["ok", ""], 3), "query 1 is empty"),
        (([" \t\n"], 3), "query 0 is empty"),
        ((["ok"], 0), "k is how many"),
        (("ok", 3), "sequence of texts"),
    ],
)
def test_bad_questions(arguments, message):
    with pytest.raises(InputError, match=message):
        retriever(tree()).retrieve(*arguments)


@pytest.mark.parametrize("allowed", [np.ones(13, bool), np.ones((2, 14), bool), np.ones(14, np.int32)])
def test_bad_filters(allowed):
    with pytest.raises(InputError, match="allowed"):
        retriever(tree()).retrieve(["ok"], 3, allowed=allowed)


def test_scores_that_are_no_numbers_are_refused():
    made = retriever(tree())
    diverged = made.with_parameters(jax.tree.map(lambda leaf: leaf * np.nan, made.model.params))
    with pytest.raises(InputError, match="no numbers"):
        diverged.retrieve(QUERIES, 3)


def test_queries_are_padded_to_no_more_than_is_read():
    reader = QueryReader(VOCABULARY, "none", 48, 4)
    tokens, lengths = reader.read(["a" * 40, "ab"])
    assert reader.padded(tokens, int(lengths.max())).shape[1] == 48
    assert reader.padded(tokens[1:], int(lengths[1])).shape[1] == 16


class WideVocabulary(text.ByteVocabulary):
    size = 300


def test_parts_of_other_models_are_refused():
    module, params = network(tree())
    larger = hierarchical_kmeans(_vectors(200), branching=10, leaf_capacity=10)
    with pytest.raises(InputError, match=f"the docids need {larger.vocab_size}"):
        GenerativeRetriever.over_docids(module, params, VOCABULARY, larger)
    with pytest.raises(InputError, match="300 tokens, the encoder reads"):
        GenerativeRetriever.over_docids(module, params, WideVocabulary(), tree())
    with pytest.raises(InputError, match="beam"):
        GenerativeRetriever.over_docids(module, params, VOCABULARY, tree(), beams=0)
    for docids, normalize in ((tree(), "softmax"), (naive_numeric(14), "level")):
        with pytest.raises(InputError, match=f"'{normalize}'"):
            GenerativeRetriever.over_docids(*network(docids), VOCABULARY, docids, normalize=normalize)


def test_saved_and_loaded_it_answers_the_same(tmp_path):
    made = retriever(tree(), normalize="level", transform="split_identifiers", query_residual=True)
    made.save(tmp_path / "retriever", corpus="c0ffee", meta={"step": 3})
    loaded = GenerativeRetriever.load(tmp_path / "retriever")
    names = ("normalize", "transform", "max_query_length", "beams")
    assert [getattr(loaded, name) for name in names] == [getattr(made, name) for name in names]
    loaded._reader.batch_size = (
        made._reader.batch_size
    )  # how to compute, which is not kept; another would round otherwise
    expected, found = (r.retrieve(QUERIES, 14, explain=True) for r in (made, loaded))
    np.testing.assert_array_equal(found.doc_index, expected.doc_index)
    np.testing.assert_array_equal(found.score, expected.score)
    assert found.evidence == expected.evidence


def test_a_flipped_byte_or_a_truncated_file_is_refused_by_name(tmp_path):
    folder = tmp_path / "retriever"
    retriever(tree()).save(folder, corpus="")
    for file in sorted(f for f in folder.rglob("*") if f.is_file()):
        data = file.read_bytes()
        for altered in (
            data[:-1],
            data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 64]) + data[len(data) // 2 + 1 :],
        ):
            file.write_bytes(altered)
            with pytest.raises(InputError) as caught:
                GenerativeRetriever.load(folder)
            assert str(file) in str(caught.value) or (file.name == "manifest.json" and str(folder) in str(caught.value))
        file.write_bytes(data)
    GenerativeRetriever.load(folder)


def test_more_documents_than_there_are_compile_nothing_anew():
    made = retriever(tree())
    everything = made.retrieve(QUERIES, made.num_documents)
    programs = generative_search.search._cache_size()
    for k in (made.num_documents + 1, 5000):
        found = made.retrieve(QUERIES, k)
        np.testing.assert_array_equal(found.doc_index[:, : made.num_documents], everything.doc_index)
        assert found.doc_index.shape[1] == k and (found.doc_index[:, made.num_documents :] == -1).all()
    assert generative_search.search._cache_size() == programs
    with pytest.raises(InputError, match=f"far above the {made.num_documents} documents"):
        made.retrieve(QUERIES, 10**9)


@pytest.mark.parametrize(("queries", "k"), [([3], 3), ([None], 3), ([b"a"], 3), (["a"], "3"), (["a"], 1.5)])
def test_questions_that_are_none(queries, k):
    with pytest.raises(InputError, match="no text|k is how many"):
        retriever(tree()).retrieve(queries, k)
