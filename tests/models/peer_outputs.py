"""What `transformers` and `sentence-transformers` answer on the folders of `random_folders`, and on MiniLM."""

from __future__ import annotations

import pathlib

import numpy as np
import random_folders

BEAMS = 4
STEPS = 6
SENTENCES = (
    "how do I shard an array over a mesh?",
    "",
    "Paris is the capital of France.",
    "jax.lax.scan(f, init, xs) carries a value through a loop; naïve façade, 東京, 🙂",
    "The quick brown fox jumps over the lazy dog. " * 30,
)


def t5_inputs(vocab_size: int) -> dict[str, np.ndarray]:
    """A batch for logits (one row reaches past the farthest relative position) and queries to generate from."""
    decoder = random_folders.token_batch(1, (7, 7, 4), 7, vocab_size)
    return {
        "encoder_input_tokens": random_folders.token_batch(0, (140, 9, 1), 140, vocab_size),
        "decoder_input_tokens": np.pad(decoder, ((0, 0), (1, 0)))[:, :-1],
        "queries": random_folders.token_batch(2, (11, 9, 2, 1, 12), 12, vocab_size),
    }


def t5(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Logits `[batch, length, vocab]`; sequences and scores of greedy and beam search, with and without an EOS."""
    import torch
    from transformers import T5ForConditionalGeneration

    model = T5ForConditionalGeneration.from_pretrained(folder).eval()
    inputs = {name: torch.tensor(array).long() for name, array in t5_inputs(model.config.vocab_size).items()}
    source, queries = inputs["encoder_input_tokens"], inputs["queries"]
    with torch.no_grad():
        logits = model(
            input_ids=source,
            attention_mask=(source != 0).long(),
            decoder_input_ids=inputs["decoder_input_tokens"],
        ).logits
    found = {"logits": logits.numpy()}
    for ending, eos_id in (("open", None), ("eos", 1)):
        model.generation_config.eos_token_id = eos_id
        for beams in (1, BEAMS):
            arguments = {"early_stopping": "never", "length_penalty": 0.0} if beams > 1 else {}
            output = model.generate(
                input_ids=queries,
                attention_mask=(queries != 0).long(),
                num_beams=beams,
                num_return_sequences=beams,
                max_new_tokens=STEPS,
                do_sample=False,
                return_dict_in_generate=True,
                output_scores=True,
                **arguments,
            )
            sequences = output.sequences[:, 1:].reshape(len(queries), beams, -1).numpy().astype(np.int32)
            missing = STEPS - sequences.shape[2]
            found[f"{ending}_{beams}_sequences"] = np.pad(sequences, ((0, 0), (0, 0), (0, missing)))
            if beams > 1:
                found[f"{ending}_{beams}_scores"] = output.sequences_scores.reshape(len(queries), beams).numpy()
    return found


def bert_inputs(vocab_size: int) -> np.ndarray:
    """Token rows of several lengths."""
    return random_folders.token_batch(0, (20, 9, 1), 20, vocab_size)


def bert(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Last hidden states `[batch, length, d]`."""
    import torch
    from transformers import BertModel

    model = BertModel.from_pretrained(folder).eval()
    tokens = torch.tensor(bert_inputs(model.config.vocab_size)).long()
    with torch.no_grad():
        states = model(tokens, attention_mask=(tokens != 0).long()).last_hidden_state
    return {"states": states.numpy()}


def minilm(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Vectors of `SENTENCES`, cut at 128 tokens."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    model.max_seq_length = 128
    return {"vectors": model.encode(list(SENTENCES), normalize_embeddings=True)}
