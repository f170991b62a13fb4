"""The same weights give the same numbers in transformers: live where installed, stored outputs everywhere."""

import functools

import jax
import numpy as np
import peer_outputs
import pytest

from gr_jax.interop import huggingface
from gr_jax.models import EncoderDecoder, EncoderDecoderModel, TextEncoder

SOURCES = ("stored", pytest.param("live", marks=pytest.mark.slow))  # the same, computed anew
T5_VARIANTS = ("t5_1_0", "t5_1_1")


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("variant", T5_VARIANTS)
def test_t5_logits(variant, source, tiny_folders, peer_output):
    config, params = huggingface.load_t5(tiny_folders[variant])
    inputs = peer_outputs.t5_inputs(config.vocab_size)
    logits = jax.jit(EncoderDecoder(config).apply)(
        {"params": params}, inputs["encoder_input_tokens"], inputs["decoder_input_tokens"]
    )
    expected = peer_output(variant, source)["logits"]
    assert np.abs(expected).max() > 1  # there is something to agree on
    np.testing.assert_allclose(logits, expected, atol=1e-4)


@pytest.mark.parametrize("source", SOURCES)
def test_bert_states(source, tiny_folders, peer_output):
    config, params = huggingface.load_bert(tiny_folders["bert"])
    tokens = peer_outputs.bert_inputs(config.vocab_size)
    states = jax.jit(TextEncoder(config).apply)({"params": params}, tokens)
    real = tokens != 0
    np.testing.assert_allclose(states[real], peer_output("bert", source)["states"][real], atol=1e-4)


@functools.cache  # the same for stored and live outputs of the peer
def generate(folder, *, beams, eos_id):
    config, params = huggingface.load_t5(folder)
    model = EncoderDecoderModel(EncoderDecoder(config), eos_id=eos_id, max_decode_length=peer_outputs.STEPS)

    @jax.jit
    def predict(params, queries):
        batch = {"encoder_input_tokens": queries}
        return model.predict_batch_with_aux(params, batch, return_all_decodes=True, num_decodes=beams)

    sequences, aux = predict(params, peer_outputs.t5_inputs(config.vocab_size)["queries"])
    return np.asarray(sequences)[:, ::-1], np.asarray(aux["scores"])[:, ::-1]  # best last → best first


GENERATED = [(variant, beams, eos) for variant in T5_VARIANTS for beams in (1, peer_outputs.BEAMS) for eos in (None, 1)]
DEFAULT = {("t5_1_0", peer_outputs.BEAMS, 1), ("t5_1_1", 1, None)}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("variant", "beams", "eos_id"),
    [pytest.param(*one, marks=() if one in DEFAULT else pytest.mark.slow) for one in GENERATED],
)
def test_generates_the_same_text(variant, beams, eos_id, source, tiny_folders, peer_output):
    sequences, scores = generate(tiny_folders[variant], beams=beams, eos_id=eos_id)
    expected = peer_output(variant, source)
    name = f"{'open' if eos_id is None else 'eos'}_{beams}"
    expected_sequences = expected[f"{name}_sequences"]
    if eos_id is not None:
        assert (expected_sequences == eos_id).any()
        # transformers fills up with EOS or padding, we with padding.
        ended = np.cumsum(expected_sequences == eos_id, axis=-1) - (expected_sequences == eos_id)
        expected_sequences = np.where(ended > 0, 0, expected_sequences)
    np.testing.assert_array_equal(sequences, expected_sequences)
    if beams > 1:
        np.testing.assert_allclose(scores, expected[f"{name}_scores"], atol=1e-4)
