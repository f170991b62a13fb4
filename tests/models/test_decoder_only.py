"""The decoder-only network: steps behind a shared prompt equal whole rows, which are read once, packed or not."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gr_jax.constraints import Trie
from gr_jax.decoding import beam_search, score_docids
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from gr_jax.models import DecoderOnly, DecoderOnlyConfig, DecoderOnlyModel, PromptedDecoder, network_folder
from tests import compiled
from tests.retrievers.random_network import random_parameters

# Tokens 0 … 9 are text, 10 … 17 docids', 18 ends them, 19 starts them. 0 is a token like others.
SIZES = {"vocab_size": 20, "start_token": 19, "emb_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 24}
DOCIDS = Docids.build(
    [[10], [10, 14], [11, 14, 16], [11, 14, 17], [12, 15], [13, 15, 16]],
    vocab_size=20, eos_id=18, levels=[(10, 4), (14, 2), (16, 2)],
)  # fmt: skip
PROMPT = (3, 0, 5)
QUERIES = [[1, 0, 0, 7, 2], [4], [0, 9, 8]]
TOKENS = np.array([query + [6] * (5 - len(query)) for query in QUERIES], np.int32)  # padded with a real token
LENGTHS = np.array([5, 1, 3], np.int32)


def network(cls=DecoderOnly, **changes):
    module = cls(DecoderOnlyConfig(**{**SIZES, "num_decoder_layers": 2, **changes}))
    return module, random_parameters(module, 0)


def decoder(cls=DecoderOnly, prompt=PROMPT, **changes) -> PromptedDecoder:
    return PromptedDecoder(*network(cls, **changes), prompt, DOCIDS.levels, DOCIDS.eos_id)


@functools.partial(jax.jit, static_argnames=("beams", "normalize"))
def search(model, trie, tokens, lengths, *, beams, normalize="vocabulary"):
    cache = model.start(tokens, lengths, beams=beams, max_len=4)
    return beam_search(model.decoder(), cache, trie, beams=beams, max_len=4, normalize=normalize)


@jax.jit
def forced(model, tokens, lengths, sequences, written):
    return score_docids(model, model.start(tokens, lengths, beams=sequences.shape[1], max_len=4), sequences, written)


def scores_of_rows(model: PromptedDecoder, query: list[int]) -> dict[tuple, float]:
    """Log-probability of every docid from the logits of whole rows, without a cache."""
    before = [*model.prompt, *query, model.start_token]
    rows = [before + DOCIDS.target(row) for row in range(len(DOCIDS))]
    padded = np.array([row + [6] * (16 - len(row)) for row in rows], np.int32)  # behind the end; one width, one program
    logits = np.asarray(compiled.run(model.module, model.params, padded))
    log_probs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    return {
        tuple(row[len(before) :]): sum(float(of[at - 1, row[at]]) for at in range(len(before), len(row)))
        for row, of in zip(rows, log_probs, strict=True)
    }


@pytest.mark.parametrize(
    ("prompt", "changes"),
    [
        (PROMPT, {}),
        pytest.param((), {"logits_via_embedding": True, "mlp_activations": ("relu",)}, marks=pytest.mark.slow),
    ],
)
def test_beams_and_teacher_forcing_equal_whole_rows(prompt, changes):
    model, trie = decoder(prompt=prompt, **changes), Trie.from_docids(DOCIDS)
    found = search(model, trie, TOKENS, LENGTHS, beams=6)
    again = forced(model, TOKENS, LENGTHS, found.sequences, found.lengths)
    for row, query in enumerate(QUERIES):
        expected = sorted(scores_of_rows(model, query).items(), key=lambda item: -item[1])
        written = [tuple(s[:n].tolist()) for s, n in zip(found.sequences[row], found.lengths[row], strict=True)]
        assert written == [target for target, _ in expected]
        np.testing.assert_allclose(found.scores[row], [score for _, score in expected], atol=1e-4)
        np.testing.assert_allclose(again[row], found.scores[row], atol=1e-4)


def test_a_loop_over_steps_is_the_same():
    model, trie = decoder(), Trie.from_docids(DOCIDS)

    @jax.jit
    def rolled(model, trie):
        cache = model.start(TOKENS, LENGTHS, beams=6, max_len=4)
        return beam_search(model, cache, trie, beams=6, max_len=4, unroll=1)

    expected = search(model, trie, TOKENS, LENGTHS, beams=6)
    np.testing.assert_allclose(rolled(model, trie).scores, expected.scores, atol=1e-5)


class Counting(DecoderOnly):
    """Counts the prompts that are read when programs run, not when they are traced."""

    def read_prompt(self, tokens):
        jax.debug.callback(lambda: READ.append(tokens.shape[1]))
        return super().read_prompt(tokens)


READ: list[int] = []


def test_the_prompt_is_read_once_for_all_queries_and_beams():
    READ.clear()
    model, trie = decoder(Counting), Trie.from_docids(DOCIDS)
    jax.effects_barrier()
    assert READ == [3]
    for lengths in (LENGTHS, LENGTHS[::-1]):
        jax.block_until_ready(search(model, trie, TOKENS, lengths, beams=3))
    jax.effects_barrier()
    assert READ == [3]
    cache = jax.eval_shape(lambda: model.start(TOKENS, LENGTHS, beams=6, max_len=4))
    assert cache.prompt is not None and cache.prompt[0][0].shape == (1, 3, 2, 8)  # not repeated for queries
    assert cache.queries[0][0].shape == (3, 5, 2, 8) and cache.written[0][0].shape == (3, 4, 6, 2, 8)
    model.with_parameters(model.params)
    jax.effects_barrier()
    assert READ == [3, 3]


def test_a_search_does_not_compute_the_prompt():
    """A longer prompt costs a search the products with its keys and values, not the layers that made them."""

    def flops(length: int) -> float:
        model = decoder(prompt=(1,) * length, mlp_dim=2048)
        return search.lower(model, Trie.from_docids(DOCIDS), TOKENS, LENGTHS, beams=2).cost_analysis()["flops"]

    of_layers = 60 * 2 * (16 * 2048 * 3) * 2  # the feed-forward of 60 tokens in two layers
    assert flops(64) - flops(4) < 0.2 * of_layers


def rows():
    """Two queries with a docid each, as rows of their own, and packed into one."""
    sequences = [[*PROMPT, *query, 19, *DOCIDS.target(row)] for query, row in zip(QUERIES[:2], (2, 4), strict=True)]
    weighted = [len(DOCIDS.target(row)) for row in (2, 4)]
    length = sum(map(len, sequences))
    apart = {name: np.zeros((2, length), kind) for name, kind in (("tokens", np.int32), ("loss_weights", np.float32))}
    packed = {name: np.zeros((1, length + 2), kind) for name, kind in (
        ("tokens", np.int32), ("loss_weights", np.float32), ("segment_ids", np.int32), ("positions", np.int32)
    )}  # fmt: skip
    start = 0
    for row, (sequence, count) in enumerate(zip(sequences, weighted, strict=True)):
        end = len(sequence)
        apart["tokens"][row, :end] = sequence
        apart["loss_weights"][row, end - count : end] = 1
        packed["tokens"][0, start : start + end] = sequence
        packed["loss_weights"][0, start + end - count : start + end] = 1
        packed["segment_ids"][0, start : start + end] = row + 1
        packed["positions"][0, start : start + end] = np.arange(end)
        start += end
    return apart, packed


def test_the_loss_of_a_row_is_minus_its_identifiers_score():
    module, params = network()
    model, (apart, packed) = DecoderOnlyModel(module), rows()
    decoding = model.decoder(params, PROMPT)
    expected = [scores_of_rows(decoding, QUERIES[row])[tuple(DOCIDS.target(d))] for row, d in ((0, 2), (1, 4))]
    np.testing.assert_allclose(jax.jit(model.score_batch)(params, apart), expected, atol=1e-4)
    loss_of = jax.jit(model.loss_fn)
    for batch in (apart, packed, {name: packed[name] for name in ("tokens", "loss_weights", "segment_ids")}):
        loss, metrics = loss_of(params, batch)
        np.testing.assert_allclose(loss, -sum(expected), rtol=1e-5)
        assert float(metrics["weight_sum"]) == 4 + 3
    assert model.summarize(metrics)["nll"] == pytest.approx(-sum(expected) / 7, rel=1e-5)


def test_it_learns_what_it_shall_write():
    module, _ = network(dropout_rate=0.1)
    model, (_, packed) = DecoderOnlyModel(module), rows()
    shapes = {name: value.shape for name, value in packed.items()}
    variables = jax.jit(lambda key: model.get_initial_variables(key, shapes))(jax.random.key(0))
    axes = jax.tree.leaves(variables["params_axes"], is_leaf=lambda leaf: hasattr(leaf, "names"))
    assert len(axes) == len(jax.tree.leaves(variables["params"]))
    optimizer = optax.adam(1e-2)

    @jax.jit
    def update(params, state, rng):
        gradients, metrics = jax.grad(model.loss_fn, has_aux=True)(params, packed, rng)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, metrics

    params = variables["params"]
    state = jax.jit(optimizer.init)(params)
    for key in jax.random.split(jax.random.key(0), 60):
        params, state, metrics = update(params, state, key)
    found = search(model.decoder(params, PROMPT), Trie.from_docids(DOCIDS), TOKENS, LENGTHS, beams=6)
    for row, docid in ((0, 2), (1, 4)):
        assert found.sequences[row, 0, : found.lengths[row, 0]].tolist() == DOCIDS.target(docid)


def test_parameters_are_called_as_in_t5x():
    _, params = network(num_decoder_layers=1)
    assert set(params) == {"decoder"}
    assert set(params["decoder"]) == {"token_embedder", "layers_0", "decoder_norm", "logits_dense"}
    layer = params["decoder"]["layers_0"]
    assert set(layer) == {"pre_self_attention_layer_norm", "self_attention", "pre_mlp_layer_norm", "mlp"}
    assert set(layer["self_attention"]) == {"query", "key", "value", "out"}


def test_a_network_comes_back(tmp_path):
    made = decoder()
    made.save(tmp_path)
    found = network_folder.load_model(tmp_path)
    assert isinstance(found, PromptedDecoder)
    assert (found.prompt, found.start_token, found.levels, found.eos_id) == (PROMPT, 19, DOCIDS.levels, 18)
    trie = Trie.from_docids(DOCIDS)
    one, other = (search(m, trie, TOKENS, LENGTHS, beams=2, normalize="level") for m in (made, found))
    np.testing.assert_array_equal(one.scores, other.scores)
    config = json.loads((tmp_path / network_folder.CONFIG_FILE).read_text())
    del config["decoder"]["start_token"]
    (tmp_path / network_folder.CONFIG_FILE).write_text(json.dumps(config))
    with pytest.raises(InputError, match="start_token"):
        network_folder.load_model(tmp_path)
    with pytest.raises(InputError, match="'decoder_only' where 'encoder_decoder'"):
        network_folder.load_network(tmp_path)


def test_what_does_not_fit():
    with pytest.raises(InputError, match="start token"):
        network(start_token=20)
    with pytest.raises(InputError, match="even"):
        network(head_dim=7)
    with pytest.raises(InputError, match="prompt.*below 20"):
        decoder(prompt=(3, 20))
    half = decoder(dtype="bfloat16")
    started = jax.eval_shape(lambda: half.start(TOKENS, beams=2, max_len=2))
    assert jnp.issubdtype(started.queries[0][0].dtype, jnp.bfloat16)
