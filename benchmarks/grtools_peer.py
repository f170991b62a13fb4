"""grtools' trie-constrained beam search, in an interpreter of its own; `benchmarks.decoding` talks to it over pipes.

Requests and answers are lines of JSON: a request names a file of encoded queries, beams and a file for the
answer; what comes back is the seconds that it took. Only grtools, Keras and NumPy are imported here.

The weights are set layer by layer: grtools' T5 is T5 1.0 where it is given ReLU, one kernel and tied embeddings. Its
cached step attends to the slots of the steps to come as well, where keys of padding lie, so its scores are not those of
the same network on the whole sequence; `mask_future` hides those slots, and only so can answers be compared. Timings
are of the masked form; the mask is one addition to a bias that is added anyway.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import numpy as np


def load(folder: str, beams: int, *, mask_future: bool):
    """The model with a folder's weights (Hugging Face's names), its sampler over the folder's docids."""
    from grtools.models.t5.backbone import T5Backbone
    from grtools.models.t5.seq2seq_lm import T5Seq2SeqLM
    from grtools.models.trie_sampler import StaticTrieBeamSampler, StaticTrieIndex
    from keras import ops
    from safetensors.numpy import load_file

    class Given(T5Seq2SeqLM):
        def call_encoder(self, token_ids, padding_mask, training=None):
            return token_ids  # the encoder's output is given

    class Masked(Given):
        def _run_decoder_layer_with_cache(self, *args, **kwargs):
            written, cache = kwargs.get("cache_update_index"), kwargs.get("self_past_kv")
            if written is not None and cache is not None:
                kwargs["decoder_attn_mask"] = (ops.arange(cache[0].shape[2]) <= written)[None, None, :]
            return super()._run_decoder_layer_with_cache(*args, **kwargs)

    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    tensors = load_file(os.path.join(folder, "model.safetensors"))
    backbone = T5Backbone(
        vocabulary_size=config["vocab_size"],
        num_layers=config["num_layers"],
        num_heads=config["num_heads"],
        hidden_dim=config["d_model"],
        intermediate_dim=config["d_ff"],
        key_value_dim=config["d_kv"],
        dropout=0.0,
        use_gated_activation=False,
        tie_embedding_weights=True,
    )

    def attention(layer, name):
        for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o")):
            getattr(layer, f"{ours}_projector").kernel.assign(tensors[f"{name}.{theirs}.weight"].T)
        if layer.use_relative_attention_bias:
            layer.relative_attention_bias.assign(tensors[f"{name}.relative_attention_bias.weight"])

    backbone.token_embedding.embeddings.assign(tensors["shared.weight"])
    for stack in ("encoder", "decoder"):
        for i, layer in enumerate(getattr(backbone, f"{stack}_transformer_layers")):
            block = f"{stack}.block.{i}.layer"
            attention(layer.self_attention, f"{block}.0.SelfAttention")
            layer.self_attention_layer_norm.weight.assign(tensors[f"{block}.0.layer_norm.weight"])
            last = 1
            if stack == "decoder":
                attention(layer.cross_attention, f"{block}.1.EncDecAttention")
                layer.cross_attention_layer_norm.weight.assign(tensors[f"{block}.1.layer_norm.weight"])
                last = 2
            layer.layer_norm.weight.assign(tensors[f"{block}.{last}.layer_norm.weight"])
            layer.input_projector.kernel.assign(tensors[f"{block}.{last}.DenseReluDense.wi.weight"].T)
            layer.output_projector.kernel.assign(tensors[f"{block}.{last}.DenseReluDense.wo.weight"].T)
        getattr(backbone, f"{stack}_layer_norm").weight.assign(tensors[f"{stack}.final_layer_norm.weight"])
    model = (Masked if mask_future else Given)(backbone=backbone)
    index = StaticTrieIndex.build(np.load(os.path.join(folder, "docids.npy")), config["vocab_size"])
    model.compile(sampler=StaticTrieBeamSampler(index, num_beams=beams, return_all_beams=True))
    return model, index.num_levels


def decode(model, levels: int, encoded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Docids [batch, beams, levels] and their log-probabilities, best first."""
    written = np.zeros((len(encoded), 1 + levels), np.int32)
    inputs = {
        "encoder_token_ids": encoded,
        "encoder_padding_mask": np.ones(encoded.shape[:2], np.int32),
        "decoder_token_ids": written,
        "decoder_padding_mask": np.broadcast_to(np.arange(1 + levels) < 1, written.shape).astype(np.int32),
    }
    found, scores = model.make_generate_function()(inputs)["decoder_token_ids"]
    return np.asarray(found)[:, :, 1:], np.asarray(scores)


def main() -> None:
    """Answers requests until its input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    models: dict[tuple[int, bool], tuple[Any, int]] = {}
    for line in sys.stdin:
        request = json.loads(line)
        key = request["beams"], request["mask_future"]
        if key not in models:
            models[key] = load(request["folder"], request["beams"], mask_future=request["mask_future"])
        encoded = np.load(request["encoded"])
        start = time.perf_counter()
        found, scores = decode(*models[key], encoded)
        seconds = time.perf_counter() - start
        np.savez(request["answer"], sequences=found, scores=scores)
        print(json.dumps({"seconds": seconds}), file=answers, flush=True)


if __name__ == "__main__":
    main()
