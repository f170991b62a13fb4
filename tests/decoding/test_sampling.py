import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gr_jax.constraints import Everything, Trie
from gr_jax.decoding import processors, score_docids
from gr_jax.decoding.sampling import sample
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from tests.decoding.table_decoder import Reference, TableDecoder

VOCAB, D, MANY, BATCH = 11, 8, 4000, 2
STATIC = ("samples", "max_len", "normalize", "batch", "unroll", "children", "top_k")
jitted = jax.jit(sample, static_argnames=STATIC)
documents_of = jax.jit(lambda trie, states: trie.documents(states, 1))

FIXED = [[2, 3, 4], [2, 3, 5], [2, 5, 2], [4, 4, 4], [4, 3, 2], [5, 2, 3], [5, 5, 5]]
UNEQUAL = [[2], [2, 3], [2, 3, 4], [4, 5], [5], [6, 2], [6, 3]]


def draw(*arguments, **settings):
    return jax.tree.map(np.asarray, jitted(*arguments, **settings))


def make(eos, seed=0, max_len=4):
    docids = Docids.build(UNEQUAL if eos else FIXED, vocab_size=VOCAB, eos_id=1 if eos else None)
    decoder = TableDecoder.random(seed, VOCAB, max_len, eos_id=docids.eos_id)
    queries = np.random.default_rng(seed).normal(size=(BATCH, D)).astype(np.float32)
    return docids, decoder, queries


def targets(docids):
    return [tuple(docids.target(row)) for row in range(len(docids))]


def drawn_sequences(samples, query):
    return [
        tuple(sequence[:length].tolist())
        for sequence, length, valid in zip(
            samples.sequences[query], samples.lengths[query], samples.valid[query], strict=True
        )
        if valid
    ]


def assert_distributed(found, probability):
    """Pearson's chi-square below a bound that chance exceeds once in 10⁹ (for 3 to 8 cells), seeds being fixed anyway;
    and nothing outside."""
    total = sum(probability.values())
    counts = {sequence: found.count(sequence) for sequence in probability}
    assert sum(counts.values()) == len(found)
    expected = {sequence: p / total * len(found) for sequence, p in probability.items()}
    cells = [s for s in expected if expected[s] >= 5]
    assert len(cells) >= 3
    assert sum((counts[s] - expected[s]) ** 2 / expected[s] for s in cells) < 60
    assert all(counts[s] < 40 for s in expected if s not in cells)


@pytest.mark.parametrize(
    ("eos", "normalize", "children"),
    [
        (True, "constraint", False),
        (False, "vocabulary", True),
        pytest.param(True, "vocabulary", True, marks=pytest.mark.slow),
        pytest.param(False, "constraint", False, marks=pytest.mark.slow),
    ],
)
def test_draws_each_docid_with_its_probability(eos, normalize, children):
    max_len = 4 if eos else 3
    docids, decoder, queries = make(eos, max_len=max_len)
    assert docids.max_steps == max_len
    cache = decoder.init_cache(queries, MANY, max_len)
    samples = draw(
        decoder,
        cache,
        Trie.from_docids(docids),
        samples=MANY,
        max_len=max_len,
        key=jax.random.key(3),
        normalize=normalize,
        children=children,
    )
    assert samples.valid.all()
    for query in range(BATCH):
        # Whatever the scores are normalised over, tokens are drawn in proportion among those that are allowed.
        constrained = Reference(decoder, queries[query], "constraint", targets(docids))
        probability = {s: np.exp(constrained.score(s)) for s in targets(docids)}
        assert_distributed(drawn_sequences(samples, query), probability)
        reference = Reference(decoder, queries[query], normalize, targets(docids))
        score = {s: reference.score(s) for s in targets(docids)}
        sequences = drawn_sequences(samples, query)
        np.testing.assert_allclose(samples.scores[query], [score[s] for s in sequences], atol=1e-4)
        np.testing.assert_allclose(samples.drawn[query], [np.log(probability[s]) for s in sequences], atol=1e-4)
    documents, count = documents_of(Trie.from_docids(docids), samples.states)
    assert np.all(np.asarray(count) == 1)
    first = drawn_sequences(samples, 0)
    named = [targets(docids)[docids.rows_of(document)[0]] for document in np.asarray(documents)[0, :, 0]]
    assert named == first


def test_processors_change_what_is_drawn_and_not_the_scores():
    docids, decoder, queries = make(True)
    chain = (processors.Temperature(0.6), processors.TokenBias.of({3: -0.5, 2: 0.5}, VOCAB), processors.MinLength(2, 1))
    cache = decoder.init_cache(queries, MANY, 4)
    trie = Trie.from_docids(docids)
    samples = draw(decoder, cache, trie, samples=MANY, max_len=4, key=jax.random.key(0), processors=chain)
    # [5] has nothing but its EOS, which comes too early: a dead end.
    assert not samples.valid.all() and samples.valid.any()
    assert np.isneginf(samples.scores[~samples.valid]).all()
    assert (samples.sequences[~samples.valid] == 0).all()
    for query in range(BATCH):
        reference = Reference(decoder, queries[query], "vocabulary", targets(docids))
        probability = {}
        for sequence in targets(docids):
            log_prob = 0.0
            for i, token in enumerate(sequence):
                scores = {
                    t: -np.inf if t == 1 and i < 2 else v / 0.6 + {3: -0.5, 2: 0.5}.get(t, 0.0)
                    for t, v in reference.next(sequence[:i]).items()
                }
                total = np.logaddexp.reduce(list(scores.values()))
                log_prob += scores[token] - total if np.isfinite(total) else -np.inf
            if np.isfinite(log_prob):
                probability[sequence] = np.exp(log_prob)
        sequences = drawn_sequences(samples, query)
        assert_distributed(sequences, probability)
        valid = samples.valid[query]
        expected = [reference.score(s) for s in sequences]
        np.testing.assert_allclose(samples.scores[query][valid], expected, atol=1e-4)
        expected = [np.log(probability[s]) for s in sequences]
        np.testing.assert_allclose(samples.drawn[query][valid], expected, atol=1e-4)


def test_a_loop_draws_what_unrolled_steps_draw():
    docids, decoder, queries = make(True)
    cache = decoder.init_cache(queries, 20, 4)
    arguments = {"samples": 20, "max_len": 4, "key": jax.random.key(1)}
    trie = Trie.from_docids(docids)
    one = draw(decoder, cache, trie, **arguments, unroll=4, children=False)
    other = draw(decoder, cache, trie, **arguments, unroll=1, children=False)
    np.testing.assert_array_equal(one.sequences, other.sequences)
    np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)
    rescored = jax.jit(score_docids)(decoder, decoder.init_cache(queries, 20, 4), one.sequences, one.lengths)
    np.testing.assert_allclose(one.scores, rescored, atol=1e-4)
    arguments["key"] = jax.random.key(2)
    another = draw(decoder, cache, trie, **arguments, unroll=1, children=False)
    assert (another.sequences != one.sequences).any()


@pytest.mark.parametrize("children", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_free_text(children):
    """Two tokens of five, EOS among them: every text is drawn as often as it should be."""
    decoder = TableDecoder.random(5, 5, 2, scale=0.7)
    queries = np.random.default_rng(5).normal(size=(1, D)).astype(np.float32)
    samples = draw(
        decoder,
        decoder.init_cache(queries, MANY, 2),
        Everything(5, eos_id=1),
        samples=MANY,
        max_len=2,
        key=jax.random.key(0),
        children=children,
    )
    assert samples.valid.all()
    tokens = range(5)
    texts = [(1,)] + [(a, b) for a in tokens if a != 1 for b in tokens]
    reference = Reference(decoder, queries[0], "vocabulary", texts)
    probability = {text: np.exp(reference.score(text)) for text in texts}
    assert sum(probability.values()) == pytest.approx(1.0)
    assert_distributed(drawn_sequences(samples, 0), probability)


def test_what_is_not_complete_in_time_is_not_valid():
    docids, decoder, queries = make(True, max_len=2)
    cache = decoder.init_cache(queries, 50, 2)
    samples = draw(decoder, cache, Trie.from_docids(docids), samples=50, max_len=2, key=jax.random.key(0))
    whole = {s for s in targets(docids) if len(s) <= 2}
    assert 0 < samples.valid.sum() < 2 * 50
    assert set(drawn_sequences(samples, 0)) | set(drawn_sequences(samples, 1)) <= whole


def test_samples_of_a_restricted_trie():
    docids, decoder, queries = make(False, max_len=3)
    allowed = np.arange(7) % 2 == np.arange(2)[:, None]
    trie = jax.jit(lambda trie, allowed: trie.restrict(allowed))(Trie.from_docids(docids), allowed)
    samples = draw(decoder, decoder.init_cache(queries, 50, 3), trie, samples=50, max_len=3, key=jax.random.key(0))
    assert samples.valid.all()
    documents, _ = documents_of(trie, samples.states)
    for query in range(2):
        assert set(np.asarray(documents)[query, :, 0].tolist()) <= {d for d in range(7) if d % 2 == query}


@pytest.mark.parametrize(
    "wrong", [{"samples": 0}, {"max_len": 0}, {"normalize": "softmax"}], ids=["samples", "max_len", "normalize"]
)
def test_bad_settings(wrong):
    docids, decoder, queries = make(False)
    arguments = {"samples": 2, "max_len": 3, "key": jax.random.key(0)} | wrong
    with pytest.raises(InputError):
        sample(decoder, decoder.init_cache(queries, 2, 3), Trie.from_docids(docids), **arguments)


TOP_K = [
    (free, normalize, warm)
    for free in (True, False)
    for normalize, warm in (("vocabulary", False), ("constraint", False), ("vocabulary", True))
]
TOP_K_DEFAULT = {(False, "constraint", False), (True, "vocabulary", True)}


@pytest.mark.parametrize(
    ("free", "normalize", "warm"),
    [pytest.param(*one, marks=() if one in TOP_K_DEFAULT else pytest.mark.slow) for one in TOP_K],
)
def test_top_k_draws_among_the_best_of_each_step(free, normalize, warm):
    docids, decoder, queries = make(eos=True, max_len=3)
    constraint = Everything(VOCAB, 1) if free else Trie.from_docids(docids)
    sequences = [()] if free else targets(docids)
    samples = draw(
        decoder, decoder.init_cache(queries, 200, 3), constraint, samples=200, max_len=3, key=jax.random.key(1),
        normalize=normalize, top_k=2, processors=(processors.Temperature(jnp.float32(2.0)),) if warm else (),
    )  # fmt: skip
    for query in range(BATCH):
        reference = Reference(decoder, queries[query], "vocabulary" if free else normalize, sequences)
        if free:
            reference.following = {}
        rows = zip(samples.sequences[query], samples.lengths[query], samples.valid[query], strict=True)
        for place, (sequence, length, valid) in enumerate(rows):
            if not valid:
                continue
            written = sequence[:length].tolist()
            score = drawn = 0.0
            for step, token in enumerate(written):
                if free:
                    reference.following[tuple(written[:step])] = set(range(VOCAB))
                following = reference.next(tuple(written[:step]))
                best = sorted(following, key=following.get)[-2:]
                assert token in best
                score += following[token]
                mass = {other: np.exp(following[other] / (2.0 if warm else 1.0)) for other in best}
                drawn += np.log(mass[token] / sum(mass.values()))
            np.testing.assert_allclose(samples.scores[query, place], score, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(samples.drawn[query, place], drawn, rtol=1e-3, atol=1e-5)
        assert len(set(drawn_sequences(samples, query))) > 1


def test_top_k_of_none_is_refused():
    docids, decoder, queries = make(eos=True)
    with pytest.raises(InputError, match="top_k"):
        sample(
            decoder, decoder.init_cache(queries, 2, 4), Trie.from_docids(docids), samples=2, max_len=4,
            key=jax.random.key(0), top_k=0,
        )  # fmt: skip
