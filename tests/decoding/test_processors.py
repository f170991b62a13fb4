import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gr_jax.constraints import Everything, Trie
from gr_jax.constraints.base import normalize_over
from gr_jax.decoding import LogitScores, beam_search, processors
from gr_jax.decoding.processors import Written, process
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from tests.decoding.table_decoder import Reference, TableDecoder, exhaustive

BATCH, BEAM, VOCAB, LENGTH, STEP = 2, 3, 11, 9, 6
EOS = 1


@pytest.fixture(scope="module")
def case():
    """Logits, and sequences with repetitions among their first STEP tokens."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(BATCH, BEAM, VOCAB)).astype(np.float32) * 3
    sequences = rng.integers(2, 6, (BATCH, BEAM, LENGTH)).astype(np.int32)
    return logits, sequences


def written(sequences, constraint=None, states=None, step=STEP):
    """What was written; by default nothing constrains it."""
    constraint = constraint or Everything(VOCAB, eos_id=EOS)
    if states is None:
        states = jax.tree.map(lambda x: jnp.repeat(x, BEAM, axis=1), constraint.initial_state(BATCH))
    return Written(jnp.asarray(sequences), step, constraint, states)


def every(scores):
    return scores.at(jnp.broadcast_to(jnp.arange(VOCAB), (BATCH, BEAM, VOCAB)))


@functools.partial(jax.jit, static_argnames=("normalize", "step"))
def _processed(chain, logits, sequences, constraint, states, normalize, step):
    scores = process(chain, LogitScores(logits, normalize), written(sequences, constraint, states, step))
    assert scores.normalize == normalize
    return every(scores)


def processed(chain, logits, sequences, constraint=None, states=None, normalize="vocabulary", step=STEP):
    """The scores of all tokens."""
    return np.asarray(_processed(tuple(chain), logits, sequences, constraint, states, normalize, step))


def log_softmax(logits):
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def peers():
    """Ours, and transformers' name and arguments of the same."""
    p = processors
    return {
        "temperature": (p.Temperature(0.7), "TemperatureLogitsWarper", (0.7,)),
        "top_k": (p.TopK(4), "TopKLogitsWarper", (4,)),
        "top_k of all": (p.TopK(50), "TopKLogitsWarper", (50,)),
        "top_p": (p.TopP(0.8), "TopPLogitsWarper", (0.8,)),
        "top_p of one": (p.TopP(0.01), "TopPLogitsWarper", (0.01,)),
        "min_p": (p.MinP(0.1), "MinPLogitsWarper", (0.1,)),
        "repetition": (p.RepetitionPenalty(1.7), "RepetitionPenaltyLogitsProcessor", (1.7,)),
        "1-grams": (p.NoRepeatNgram(1), "NoRepeatNGramLogitsProcessor", (1,)),
        "2-grams": (p.NoRepeatNgram(2), "NoRepeatNGramLogitsProcessor", (2,)),
        "9-grams": (p.NoRepeatNgram(9), "NoRepeatNGramLogitsProcessor", (9,)),
        "min_length": (p.MinLength(STEP + 1, EOS), "MinLengthLogitsProcessor", (STEP + 1, EOS)),
        "min_length reached": (p.MinLength(STEP, EOS), "MinLengthLogitsProcessor", (STEP, EOS)),
        "bias": (p.TokenBias.of({3: 1.5, 4: -2.0}, VOCAB), "SequenceBiasLogitsProcessor", ({(3,): 1.5, (4,): -2.0},)),
        "bad words": (
            p.ForbidSequences.of([[3], [2, 4], [5, 2, 6], [2] * 9]),
            "NoBadWordsLogitsProcessor",
            ([[3], [2, 4], [5, 2, 6], [2] * 9],),
        ),
        "renormalize": (p.Renormalize(), "LogitNormalization", ()),
    }


ON_LOGITS = {"top_p", "repetition", "renormalize"}  # where it could matter most


@pytest.mark.parametrize(
    ("name", "on"),
    [
        pytest.param(name, on, marks=pytest.mark.slow if on == "logits" and name not in ON_LOGITS else ())
        for name in peers()
        for on in ("log-probabilities", "logits")
    ],
)
def test_as_transformers(case, name, on):
    """On the log-softmaxed scores that transformers' beam search processes, and on logits as its sampling does."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    logits, sequences = case
    sequences = sequences.copy()
    sequences[0, 0, :STEP] = [2, 4, 5, 2, 4, 2]  # 4 may follow 2 no more
    processor, peer, arguments = peers()[name]
    before = log_softmax(logits) if on == "log-probabilities" else logits
    expected = getattr(transformers, peer)(*arguments)(
        torch.tensor(sequences[..., :STEP].reshape(BATCH * BEAM, STEP)).long(),
        torch.tensor(before.reshape(BATCH * BEAM, VOCAB)),
    )
    normalize = "vocabulary" if on == "log-probabilities" else "constraint"
    actual = processed([processor], logits, sequences, normalize=normalize)
    np.testing.assert_allclose(actual, expected.numpy().reshape(logits.shape), atol=1e-5)


CHAINS = {
    "elementwise": [processors.Temperature(0.5), processors.RepetitionPenalty(1.3), processors.NoRepeatNgram(2)],
    "cuts": [processors.TopK(6), processors.Temperature(1.5), processors.TopP(0.7), processors.Renormalize()],
    "bias": [processors.TokenBias.of({2: 3.0, 7: -np.inf}, VOCAB), processors.Renormalize("vocabulary")],
}


PARENT = np.array([[2, 0, 0, 1], [1, 1, 2, 0]])
TOKEN = np.array([[3, 3, 10, 1], [2, 4, 2, 5]])


@functools.partial(jax.jit, static_argnames="normalize")
def _ways_to_ask(chain, logits, sequences, normalize):
    scores = process(chain, LogitScores(logits, normalize), written(sequences))
    flat = scores.at_parents(PARENT, TOKEN)
    total = scores.log_normalizer() if normalize == "constraint" else None
    return every(scores), scores.top(4), scores.top(2, below=5), scores.between(2, 6), flat, total


@pytest.mark.parametrize(
    ("chain", "normalize"),
    [
        ("elementwise", "constraint"),
        ("cuts", "constraint"),
        ("bias", "vocabulary"),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (("elementwise", "vocabulary"), ("cuts", "vocabulary"), ("bias", "constraint"))
        ),
    ],
)
def test_every_way_to_ask_gives_the_same(case, chain, normalize):
    found = jax.tree.map(np.asarray, _ways_to_ask(tuple(CHAINS[chain]), *case, normalize))
    whole, (tokens, values), (below, least), between, flat, total = found
    assert not np.allclose(whole, processed((), *case, normalize=normalize))
    np.testing.assert_allclose(values, -np.sort(-whole, axis=-1)[..., :4], atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(whole, tokens, -1), values, atol=1e-6)
    np.testing.assert_allclose(least, -np.sort(-whole[..., :5], axis=-1)[..., :2], atol=1e-6)
    assert (below < 5).all()
    np.testing.assert_allclose(between, whole[..., 2:8], atol=1e-6)
    np.testing.assert_allclose(flat, whole[np.arange(BATCH)[:, None], PARENT, TOKEN], rtol=1e-6)
    if normalize == "constraint":
        np.testing.assert_allclose(total, np.logaddexp.reduce(whole, axis=-1), atol=1e-5)


def test_cuts_compare_allowed_tokens_only(case):
    """What transformers gets by constraining before it warps."""
    logits, sequences = case
    docids = Docids.build([[2, 3], [4, 5], [6, 7], [8, 9]], vocab_size=VOCAB)
    constraint = Trie.from_docids(docids)
    allowed = np.isin(np.arange(VOCAB), [2, 4, 6, 8])
    masked = np.where(allowed, log_softmax(logits), -np.inf)
    top = processed([processors.TopK(2)], *case, constraint)
    np.testing.assert_array_equal((top > -np.inf) & allowed, masked >= -np.sort(-masked, axis=-1)[..., 1:2])
    probability = np.exp(masked) / np.exp(masked).sum(-1, keepdims=True)
    kept = (processed([processors.TopP(0.6)], *case, constraint) > -np.inf) & allowed
    for p, k in zip(probability.reshape(-1, VOCAB), kept.reshape(-1, VOCAB), strict=True):
        order = np.argsort(-p)
        needed = int(np.searchsorted(np.cumsum(p[order]), 0.6)) + 1
        assert set(np.flatnonzero(k)) == set(order[:needed])
    total = np.exp(processed([processors.Renormalize()], *case, constraint))[..., allowed].sum(-1)
    np.testing.assert_allclose(total, 1.0, atol=1e-5)


def test_dead_states_stay_dead_and_are_no_nan(case):
    constraint = Trie.from_docids(Docids.build([[2, 3], [4, 5]], vocab_size=VOCAB))

    @jax.jit
    def dead():
        states = jax.tree.map(lambda x: jnp.repeat(x, BEAM, axis=1), constraint.initial_state(BATCH))
        return constraint.advance(states, jnp.full((BATCH, BEAM), 9))

    chain = [processors.TopP(0.5), processors.MinP(0.5), processors.TopK(2), processors.Renormalize()]
    assert not np.isnan(processed(chain, *case, constraint, dead())).any()


def test_ties_stay_together(case):
    flat = np.zeros((BATCH, BEAM, VOCAB), np.float32)
    for processor in (processors.TopK(2), processors.TopP(0.2), processors.MinP(1.0), processors.TopP(1.0)):
        assert np.isfinite(processed([processor], flat, case[1])).all()


def test_traced_steps_and_settings(case):
    """One program serves every step, temperature and penalty."""
    logits, sequences = case

    @jax.jit
    def run(step, chain):
        return every(process(chain, LogitScores(jnp.asarray(logits)), written(sequences, step=step)))

    def chain(scale):
        p = processors
        return [
            p.Temperature(scale),
            p.RepetitionPenalty(scale + 1),
            p.ForbidSequences.of([[3, 4], [2]]),
            p.NoRepeatNgram(2),
            p.MinLength(4, EOS),
            p.TopP(scale),
        ]

    for step, scale in ((0, 0.5), (1, 0.7), (LENGTH, 0.9)):
        expected = processed(chain(scale), logits, sequences, step=step)
        np.testing.assert_allclose(run(jnp.int32(step), chain(scale)), expected, atol=1e-5)
    assert run._cache_size() == 1


@pytest.mark.parametrize("normalize", ["constraint", pytest.param("vocabulary", marks=pytest.mark.slow)])
def test_beam_search_with_processors(normalize):
    """Beams as wide as the tree find the best of all sequences under the processed scores."""
    sequences = [[2, 3, 4], [2, 3, 5], [2, 5, 2], [4, 4, 4], [4, 3, 2], [5, 2, 3], [5, 5, 5]]
    docids = Docids.build(sequences, vocab_size=VOCAB)
    decoder = TableDecoder.random(1, VOCAB, 3)
    queries = np.random.default_rng(1).normal(size=(2, 8))
    chain = (
        processors.Temperature(0.5),
        processors.TokenBias.of({3: -1.0}, VOCAB),
        processors.RepetitionPenalty(1.5),
        processors.NoRepeatNgram(2),
    )
    cache = decoder.init_cache(queries, 8, 3)
    beams = jax.jit(beam_search, static_argnames=("beams", "max_len", "normalize"))(
        decoder, cache, Trie.from_docids(docids), beams=8, max_len=3, normalize=normalize, processors=chain
    )
    beams = jax.tree.map(np.asarray, beams)
    for query in range(2):
        reference = _ProcessedReference(decoder, queries[query], normalize, docids)
        expected = [item for item in exhaustive(reference, sequences) if np.isfinite(item[0])]
        valid = beams.valid[query]
        assert [tuple(s) for s in beams.sequences[query][valid].tolist()] == [s for _, s in expected]
        np.testing.assert_allclose(beams.scores[query][valid], [s for s, _ in expected], atol=1e-4)
        assert len(expected) == 5  # all but [4, 4, 4] and [5, 5, 5], which repeat a pair


class _ProcessedReference(Reference):
    """The chain of the test above, by its definition."""

    def __init__(self, decoder, query, normalize, docids):
        super().__init__(decoder, query, "vocabulary", [docids.target(row) for row in range(len(docids))])
        self.constrained = normalize == "constraint"

    def next(self, prefix):
        scores = super().next(prefix)
        if self.constrained:
            # Logits differ from log-probabilities by a constant, which the penalty does not ignore: undo it.
            fed = (0, *prefix)
            total = self.query + sum(self.embeddings[token] * self.places[i] for i, token in enumerate(fed))
            logits = self.table @ np.tanh(total)
            scores = {token: logits[token] for token in scores}
        pairs = set(zip(prefix, prefix[1:], strict=False))
        for token in scores:
            value = scores[token] / 0.5 - (token == 3)
            if token in prefix:
                value = value * 1.5 if value < 0 else value / 1.5
            if prefix and (prefix[-1], token) in pairs:
                value = -np.inf
            scores[token] = value
        if self.constrained and scores:
            total = np.logaddexp.reduce(list(scores.values()))
            scores = {token: value - total if np.isfinite(total) else -np.inf for token, value in scores.items()}
        return scores


def test_a_state_whose_every_token_is_forbidden_has_no_candidates():
    assert np.isneginf(normalize_over(jnp.full((2, 3), -jnp.inf), jnp.array([[True] * 3, [False] * 3]))).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: processors.Temperature(0.0), "temperature"),
        (lambda: processors.TopK(0), "no tokens"),
        (lambda: processors.TopP(0.0), "probability"),
        (lambda: processors.TopP(1.5), "probability"),
        (lambda: processors.MinP(-1.0), "ratio"),
        (lambda: processors.NoRepeatNgram(0), "n-grams"),
        (lambda: processors.RepetitionPenalty(-1.0), "penalty"),
        (lambda: processors.TokenBias.of({VOCAB: 1.0}, VOCAB), "outside of the vocabulary"),
        (lambda: processors.forbid_tokens([-1], VOCAB), "outside of the vocabulary"),
        (lambda: processors.ForbidSequences.of([[1], []]), "empty"),
        (lambda: processors.ForbidSequences.of([]), "empty"),
        (lambda: processors.Renormalize("level"), "normalise over"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_levels_cannot_be_normalised_over_the_vocabulary(case):
    logits, sequences = case
    scores = LogitScores(jnp.asarray(logits), "level", levels=((2, 4),))
    with pytest.raises(InputError, match="of one level"):
        processors.Renormalize("vocabulary")(scores, written(sequences))
