import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax.constraints import Trie
from gr_jax.decoding import beam_search
from gr_jax.docids import Docids
from tests.decoding.table_decoder import Reference, TableDecoder, exhaustive, plain_beam_search

VOCAB, D = 13, 8
search = jax.jit(beam_search, static_argnames=("beams", "max_len", "normalize", "length_penalty", "batch", "unroll"))


def make_docids(seed, count, max_len, *, eos, tokens=6):
    """Random docids of unequal lengths, with prefixes among them where there is EOS to end them."""
    rng = np.random.default_rng(seed)
    sequences = {tuple(rng.integers(2, 2 + tokens, rng.integers(1, max_len + 1)).tolist()) for _ in range(count)}
    if not eos:
        sequences = {s for s in sequences if not any(s != t and t[: len(s)] == s for t in sequences)}
    return Docids.build(sorted(sequences), vocab_size=VOCAB, eos_id=1 if eos else None)


def targets(docids):
    return [tuple(docids.target(row)) for row in range(len(docids))]


def found(beams, query=0):
    """(score, sequence) of the valid beams of a query."""
    beams = jax.tree.map(np.asarray, beams)
    return [
        (float(score), tuple(sequence[:length].tolist()))
        for score, sequence, length, valid in zip(
            beams.scores[query], beams.sequences[query], beams.lengths[query], beams.valid[query], strict=True
        )
        if valid
    ]


def assert_same(actual, expected):
    assert [sequence for _, sequence in actual] == [sequence for _, sequence in expected]
    np.testing.assert_allclose([s for s, _ in actual], [s for s, _ in expected], atol=1e-4)


@settings(max_examples=12)
@given(
    seed=st.integers(0, 2**20),
    count=st.sampled_from([1, 2, 12]),
    eos=st.booleans(),
    normalize=st.sampled_from(["vocabulary", "constraint"]),
    beams=st.sampled_from([1, 3, 30]),
    unroll=st.sampled_from([None, 1]),
    alpha=st.sampled_from([0.0, 0.8]),
)
def test_finds_what_plain_beam_search_finds(seed, count, eos, normalize, beams, unroll, alpha):
    docids = make_docids(seed, count, 4, eos=eos)
    trie = Trie.from_docids(docids)
    decoder = TableDecoder.random(seed, VOCAB, 5, eos_id=docids.eos_id)
    queries = np.random.default_rng(seed + 1).normal(size=(2, D))
    steps = docids.max_steps
    cache = decoder.init_cache(queries, beams, steps)
    beams_found = search(
        decoder, cache, trie, beams=beams, max_len=steps, normalize=normalize, unroll=unroll, length_penalty=alpha
    )
    for query in range(2):
        reference = Reference(decoder, queries[query], normalize, targets(docids))
        assert_same(found(beams_found, query), plain_beam_search(reference, targets(docids), beams, steps, alpha))
        if beams >= len(docids):
            assert_same(found(beams_found, query), exhaustive(reference, targets(docids), alpha))
    assert beams_found.valid.shape == (2, beams)
    assert np.all(np.isneginf(np.asarray(beams_found.scores)[~np.asarray(beams_found.valid)]))
