import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gr_jax.constraints import Trie
from gr_jax.constraints.token_text_trie import TokenTextTrie, text_of_ids
from gr_jax.decoding import LogitScores, beam_search, score_docids
from gr_jax.decoding.processors import TokenBias
from gr_jax.decoding.sampling import sample
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from tests.compiled import call
from tests.decoding.table_decoder import Reference, TableDecoder

TEXT_VOCAB, BATCH, D = 9, 2, 8
TEXTS = [[2, 3], [2], [2, 3, 4], [4, 5], [5, 2], [6], [4, 2, 2]]
# Decoder ids: 0 pads, 3 ends; the others write text tokens 2 … 6, in no order; 12 writes one that no text has.
TEXT_OF = np.array([-1, 2, 3, 1, 4, 2, 5, 6, 4, 3, 2, 5, 8, -1])
VOCAB = len(TEXT_OF)
IDS = {text: [i for i in range(VOCAB) if TEXT_OF[i] == text] for text in range(1, TEXT_VOCAB)}

SETTINGS = ("beams", "max_len", "normalize", "merge", "unroll")
search = jax.jit(beam_search, static_argnames=SETTINGS)


@pytest.fixture(scope="module")
def docids():
    return Docids.build(TEXTS, vocab_size=TEXT_VOCAB, eos_id=1)


@pytest.fixture(scope="module")
def trie(docids):
    return TokenTextTrie.from_docids(docids, TEXT_OF)


def ways(text):
    """All sequences of decoder ids that write a text and its end."""
    return list(itertools.product(*(IDS[token] for token in (*text, 1))))


SEQUENCES = {way: tuple(text) for text in TEXTS for way in ways(text)}


def text_decoder(seed, max_len=4):
    """A decoder whose next scores depend on the text alone: ids of the same text have the same input embedding. Then
    the best way, and the sum of all ways, are found step by step."""
    decoder = TableDecoder.random(seed, VOCAB, max_len, eos_id=3)
    first = jnp.asarray([IDS[t][0] if t > 0 else i for i, t in enumerate(TEXT_OF)])
    return dataclasses.replace(decoder, embeddings=decoder.embeddings[first])


def found_of(beams, query):
    return [
        (tuple(s[:n].tolist()), float(score))
        for s, n, score, valid in zip(
            *(np.asarray(x[query]) for x in (beams.sequences, beams.lengths, beams.scores, beams.valid)), strict=True
        )
        if valid
    ]


def test_what_may_follow(trie):
    """Candidates, masks and steps of every prefix, against the list of all sequences."""
    prefixes = sorted({way[:n] for way in SEQUENCES for n in range(len(way) + 1)})
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(1, 60, VOCAB)).astype(np.float32)
    step = jax.jit(lambda trie, state, token: trie.advance(state, token))
    look = jax.jit(
        lambda trie, state: (
            trie.allowed(state),
            trie.accepts(state),
            trie.documents(state, 3),
            trie.key(state),
            trie.candidates(state, LogitScores(jnp.asarray(logits), "constraint"), 3),
        )
    )
    keys: dict = {}
    for start in range(0, len(prefixes), 60):
        part = prefixes[start : start + 60]
        state = jax.tree.map(lambda leaf: np.repeat(leaf, 60, axis=1), call(trie, "initial_state", batch=1))
        for i in range(4):
            token = np.asarray([[p[i] if i < len(p) else 0 for p in part] + [0] * (60 - len(part))], np.int32)
            going = np.asarray([[i < len(p) for p in part] + [False] * (60 - len(part))])
            state = jax.tree.map(
                lambda new, old, going=going: np.where(going, new, old), step(trie, state, token), state
            )
        allowed, accepts, (documents, count), key, found = jax.tree.map(np.asarray, look(trie, state))
        for row, prefix in enumerate(part):
            n = len(prefix)
            following = {way[n] for way in SEQUENCES if way[:n] == prefix and len(way) > n}
            assert set(np.flatnonzero(allowed[0, row])) == following
            below = {text for way, text in SEQUENCES.items() if way[:n] == prefix}
            assert count[0, row] == len(below)
            texts = {tuple(TEXTS[d]) for d in documents[0, row] if d >= 0}
            assert texts <= below and len(texts) == min(3, len(below))
            assert accepts[0, row] == (prefix in SEQUENCES or (*prefix, 3) in SEQUENCES)
            text = tuple(TEXT_OF[list(prefix)].tolist())
            assert keys.setdefault(text, tuple(key[0, row])) == tuple(key[0, row])
            valid = found.valid[0, row]
            token, log_prob = found.token[0, row][valid], found.log_prob[0, row][valid]
            assert sorted(token) == sorted(following)
            if following:
                expected = np.asarray(logits[0, row])[token]
                np.testing.assert_allclose(log_prob, expected - np.logaddexp.reduce(expected), atol=1e-5)
            ends = token == 3
            assert ends.tolist() == [i >= found.token.shape[-1] - found.ending for i in np.flatnonzero(valid)]
        for column in range(found.token.shape[-1]):
            after = jax.tree.map(lambda leaf, i=column: leaf[..., i], found.next_state)
            allowed, accepts, *_ = look(trie, after)
            dead = ~found.valid[..., column]
            assert not np.asarray(accepts)[dead].any() and not np.asarray(allowed)[dead].any()
    assert len(set(keys.values())) == len(keys)


@pytest.mark.parametrize(
    ("normalize", "unroll"), [("constraint", 1), pytest.param("vocabulary", None, marks=pytest.mark.slow)]
)
def test_without_merging_every_way_is_a_hypothesis(trie, docids, normalize, unroll):
    decoder, queries = TableDecoder.random(0, VOCAB, 4, eos_id=3), np.random.default_rng(0).normal(size=(BATCH, D))
    beams = len(SEQUENCES) + 3
    result = search(
        decoder, decoder.init_cache(queries, beams, 4), trie, beams=beams, max_len=4, normalize=normalize, unroll=unroll
    )
    for query in range(BATCH):
        reference = Reference(decoder, queries[query], normalize, SEQUENCES)
        expected = sorted(((reference.score(way), way) for way in SEQUENCES), reverse=True)
        found = found_of(result, query)
        assert [way for way, _ in found] == [way for _, way in expected]
        np.testing.assert_allclose([s for _, s in found], [s for s, _ in expected], atol=1e-4)
    documents, count = jax.tree.map(np.asarray, call(trie, "documents", result.states, limit=1))
    for i, (way, _) in enumerate(found_of(result, 0)):
        assert count[0, i] == 1 and tuple(TEXTS[int(documents[0, i, 0])]) == SEQUENCES[way]


@pytest.mark.parametrize(
    ("merge", "normalize"),
    [
        ("max", "vocabulary"),
        ("sum", "constraint"),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (("max", "constraint"), ("sum", "vocabulary"))),
    ],
)
def test_merged_texts(trie, merge, normalize):
    """Each text once, with its best way or the sum of all its ways."""
    decoder, queries = text_decoder(1), np.random.default_rng(1).normal(size=(BATCH, D))
    result = search(
        decoder, decoder.init_cache(queries, 9, 4), trie, beams=9, max_len=4, normalize=normalize, merge=merge
    )
    for query in range(BATCH):
        reference = Reference(decoder, queries[query], normalize, SEQUENCES)
        by_text = {}
        for way, text in SEQUENCES.items():
            by_text.setdefault(text, []).append((reference.score(way), way))
        score = {
            text: max(scored)[0] if merge == "max" else np.logaddexp.reduce([s for s, _ in scored])
            for text, scored in by_text.items()
        }
        expected = sorted(score, key=score.get, reverse=True)
        found = found_of(result, query)
        assert [SEQUENCES[way] for way, _ in found] == expected
        np.testing.assert_allclose([s for _, s in found], [score[text] for text in expected], atol=1e-4)
        if merge == "max":
            assert [way for way, _ in found] == [max(by_text[text])[1] for text in expected]


class Unmerged:
    """A trie of token texts that leaves merging to the search."""

    open_ended = False

    def __init__(self, trie):
        self.trie = trie

    def __getattr__(self, name):
        if name == "merged":
            raise AttributeError(name)
        return getattr(self.trie, name)


# Most settings once; all of them together among the slow tests.
SETTINGS_OF_MERGING = [("max", "vocabulary", 2, 1), ("sum", "constraint", 4, 1)]
PRODUCT = itertools.product(("max", "sum"), ("vocabulary", "constraint", "none"), (2, 4, 9), (None, 1))
SETTINGS_OF_MERGING += [pytest.param(*one, marks=pytest.mark.slow) for one in PRODUCT if one not in SETTINGS_OF_MERGING]


@pytest.mark.parametrize("merge, normalize, beams, unroll", SETTINGS_OF_MERGING)
def test_merged_as_the_search_merges(trie, merge, normalize, beams, unroll):
    """By a decoder that goes on differently after each way to write a text, and with fewer beams than texts."""
    decoder, queries = TableDecoder.random(7, VOCAB, 4, eos_id=3), np.random.default_rng(7).normal(size=(BATCH, D))
    cache = decoder.init_cache(queries, beams, 4)
    settings = {"beams": beams, "max_len": 4, "normalize": normalize, "merge": merge, "unroll": unroll}
    found = search(decoder, cache, trie, **settings)
    expected = jax.jit(lambda *given: beam_search(*given, Unmerged(trie), **settings))(decoder, cache)
    np.testing.assert_array_equal(found.valid, expected.valid)
    np.testing.assert_array_equal(found.sequences, expected.sequences)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)


@pytest.mark.parametrize(("merge", "normalize"), [(None, "vocabulary"), ("max", "constraint")])
def test_a_text_with_very_many_continuations(merge, normalize):
    """Their candidates are one list for all beams; two beams may stand at the same text, and then share it."""
    spread = 50  # so that no level is dense in the vocabulary
    texts = [[2 * spread, x * spread] for x in range(3, 60)] + [[y * spread, 3 * spread] for y in range(60, 70)]
    docids = Docids.build(texts, vocab_size=70 * spread)
    vocab = 77
    text_of = np.concatenate([[-1, -1], np.arange(2, 70) * spread, np.array([2, 2, 2, 2, 2, 3, 60]) * spread])
    trie = TokenTextTrie.from_docids(docids, text_of)
    decoder, queries = TableDecoder.random(6, vocab, 2), np.random.default_rng(6).normal(size=(BATCH, D))
    ids = {text: np.flatnonzero(text_of == text).tolist() for text in set(text_of.tolist())}
    sequences = {way: tuple(text) for text in texts for way in itertools.product(*(ids[token] for token in text))}
    if merge is not None:
        first = jnp.asarray([ids[t][0] if t > 0 else i for i, t in enumerate(text_of)])
        decoder = dataclasses.replace(decoder, embeddings=decoder.embeddings[first])
    state = jax.tree.map(lambda leaf: np.repeat(leaf, 12, axis=1), call(trie, "initial_state", batch=BATCH))
    shapes = jax.eval_shape(
        lambda state: trie.candidates(state, LogitScores(jnp.zeros((BATCH, 12, vocab))), 12, range(1, 2)), state
    )
    assert shapes.parent is not None
    result = search(
        decoder,
        decoder.init_cache(queries, 12, 2),
        trie,
        beams=12,
        max_len=2,
        normalize=normalize,
        merge=merge,
        processors=(TokenBias.of({}, vocab),),  # which changes nothing, but how scores are computed
    )
    for query in range(BATCH):
        reference = Reference(decoder, queries[query], normalize, sequences)
        expected = sorted(((reference.score(way), way) for way in sequences), reverse=True)
        if merge is not None:
            best: dict = {}
            for score, way in expected:
                best.setdefault(sequences[way], (score, way))
            expected = list(best.values())
        found = found_of(result, query)
        assert [way for way, _ in found] == [way for _, way in expected[:12]]
        np.testing.assert_allclose([s for _, s in found], [s for s, _ in expected[:12]], atol=1e-4)


def test_teacher_forcing(trie):
    """Of every way, and of one that writes no text."""
    decoder, queries = TableDecoder.random(2, VOCAB, 4, eos_id=3), np.random.default_rng(2).normal(size=(BATCH, D))
    every = [*SEQUENCES, (IDS[2][0], IDS[6][0])]
    rows, lengths = np.zeros((len(every), 4), np.int32), np.array([len(way) for way in every])
    for row, way in zip(rows, every, strict=True):
        row[: len(way)] = way
    forced = jax.jit(score_docids, static_argnames="normalize")(
        decoder, decoder.init_cache(queries, len(every), 4), np.stack([rows] * BATCH), np.stack([lengths] * BATCH),
        normalize="constraint", constraint=trie,
    )  # fmt: skip
    for query in range(BATCH):
        reference = Reference(decoder, queries[query], "constraint", SEQUENCES)
        expected = [reference.score(way) for way in SEQUENCES]
        np.testing.assert_allclose(forced[query], [*expected, -np.inf], atol=1e-4)


@pytest.mark.slow
def test_sampling(trie):
    decoder, queries = TableDecoder.random(2, VOCAB, 4, eos_id=3), np.random.default_rng(2).normal(size=(BATCH, D))
    drawn = jax.jit(sample, static_argnames=("samples", "max_len", "normalize"))(
        decoder, decoder.init_cache(queries, 30, 4), trie, samples=30, max_len=4, key=jax.random.key(0),
        normalize="constraint",
    )  # fmt: skip
    assert drawn.valid.all()
    for query in range(BATCH):
        reference = Reference(decoder, queries[query], "constraint", SEQUENCES)
        found = found_of(drawn, query)
        np.testing.assert_allclose([s for _, s in found], [reference.score(way) for way, _ in found], atol=1e-4)


def test_filters(trie, docids):
    allowed = np.zeros((BATCH, len(TEXTS)), bool)
    allowed[0, [0, 3]] = allowed[1, [5, 6]] = True
    decoder, queries = text_decoder(3), np.random.default_rng(3).normal(size=(BATCH, D))
    result = search(
        decoder,
        decoder.init_cache(queries, 9, 4),
        call(trie, "restrict", allowed),
        beams=9,
        max_len=4,
        normalize="vocabulary",
        merge="sum",
    )
    for query in range(BATCH):
        texts = {SEQUENCES[way] for way, _ in found_of(result, query)}
        assert texts == {tuple(TEXTS[d]) for d in np.flatnonzero(allowed[query])}


def test_no_decoder_id_at_all(trie):
    state = call(trie, "advance", trie.initial_state(3), np.array([[-1], [-3], [VOCAB]]))
    assert not np.asarray(call(trie, "allowed", state)).any() and not np.asarray(call(trie, "accepts", state)).any()


def test_one_id_each_is_the_trie_itself():
    docids = Docids.build([[2, 3], [2, 4], [5, 2]], vocab_size=6)
    same, plain = TokenTextTrie.from_docids(docids, [-1, -1, 2, 3, 4, 5]), Trie.from_docids(docids)
    assert same.eos_id is None and same.max_steps == plain.max_steps == 2
    decoder, queries = TableDecoder.random(4, 6, 2), np.random.default_rng(4).normal(size=(BATCH, D))
    arguments = {"beams": 4, "max_len": 2, "normalize": "vocabulary"}
    one, other = (search(decoder, decoder.init_cache(queries, 4, 2), t, **arguments) for t in (same, plain))
    np.testing.assert_array_equal(one.sequences, other.sequences)
    np.testing.assert_allclose(one.scores, other.scores, atol=1e-6)
    np.testing.assert_array_equal(one.valid, [[True] * 3 + [False]] * BATCH)


def test_saved_and_loaded(trie, tmp_path):
    trie.save(tmp_path / "trie", corpus="c")
    for mmap in (False, True):
        again = TokenTextTrie.load(tmp_path / "trie", mmap=mmap, vocab_size=VOCAB)
        assert jax.tree.structure(again) == jax.tree.structure(trie)
        jax.tree.map(np.testing.assert_array_equal, again, trie)
    with pytest.raises(InputError, match="14 decoder ids where 15"):
        TokenTextTrie.load(tmp_path / "trie", vocab_size=15)


def changed(**arrays):
    return lambda trie: dataclasses.replace(trie, **{name: jnp.asarray(x) for name, x in arrays.items()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed(text_of=np.roll(TEXT_OF, 1).astype(np.int32)), "contradict"),
        (changed(text_of=TEXT_OF[:-1].astype(np.int32)), "as long"),
        (changed(ids=np.full((TEXT_VOCAB, 2), -1, np.int32)), "writes a token"),
        (changed(ids=np.full((TEXT_VOCAB, 2), VOCAB, np.int32)), "outside"),
        (changed(ids=np.zeros(TEXT_VOCAB, np.int32)), "shapes"),
        (lambda trie: dataclasses.replace(trie, eos_id=4), "ends a text"),
    ],
)
def test_wrong_contents_are_not_loaded(trie, tmp_path, change, message):
    change(trie).save(tmp_path / "trie")
    with pytest.raises(InputError, match=message):
        TokenTextTrie.load(tmp_path / "trie")


def test_altered_files_are_not_loaded(trie, tmp_path):
    trie.save(tmp_path / "trie")
    file = tmp_path / "trie" / "ids.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"\x07")
    with pytest.raises(InputError, match="ids.npy"):
        TokenTextTrie.load(tmp_path / "trie")


def test_lists_of_ids():
    text_of = text_of_ids([0, 0, 1, 3, 3], [4, 1, 2], 6)
    assert text_of.tolist() == [-1, 2, 2, -1, 1, -1]


def test_texts_that_are_added(docids):
    """The trie that grew is the one of all texts, also of tokens that no text had before."""
    first = Docids.build(TEXTS[:4], vocab_size=TEXT_VOCAB, eos_id=1)
    more = Docids.build(TEXTS[4:], vocab_size=TEXT_VOCAB, eos_id=1)
    whole = TokenTextTrie.from_docids(first.joined(more), TEXT_OF)
    grown = TokenTextTrie.from_docids(first, TEXT_OF).add(more)
    assert jax.tree.structure(grown) == jax.tree.structure(whole) and grown.num_documents == len(TEXTS)
    for one, other in zip(jax.tree.leaves(grown), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(InputError, match="no decoder id writes text token 7"):
        TokenTextTrie.from_docids(first, TEXT_OF).add(Docids.build([[7]], vocab_size=TEXT_VOCAB, eos_id=1))


@pytest.mark.parametrize(
    ("text_of", "message"),
    [
        (np.where(TEXT_OF == 6, -1, TEXT_OF), "no decoder id writes text token 6"),
        (np.where(TEXT_OF == 1, -1, TEXT_OF), "no decoder id writes text token 1"),
        (np.where(TEXT_OF == 8, 1, TEXT_OF), "2 decoder ids write EOS"),
        (np.where(TEXT_OF == 8, 9, TEXT_OF), "decoder id 12 writes a text token that is not there"),
        (np.where(TEXT_OF == 8, -2, TEXT_OF), "decoder id 12"),
        (TEXT_OF.astype(float), "no map"),
        (TEXT_OF[None], "no map"),
    ],
)
def test_bad_maps(docids, text_of, message):
    with pytest.raises(InputError, match=message):
        TokenTextTrie.from_docids(docids, text_of)


@pytest.mark.parametrize(
    ("offsets", "ids", "message"),
    [
        ([0, 1, 3], [4, 1, 4], "id 4 writes several"),
        ([0, 1, 3], [4, 1, 6], "outside"),
        ([0, 1, 3], [4, 1, -1], "outside"),
        ([0, 1, 2], [4, 1, 2], "offsets"),
        ([0, 3, 2, 3], [4, 1, 2], "offsets"),
        ([0], [], "offsets"),
    ],
)
def test_bad_lists(offsets, ids, message):
    with pytest.raises(InputError, match=message):
        text_of_ids(offsets, ids, 6)
