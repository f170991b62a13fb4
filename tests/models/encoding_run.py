"""One encoding, as a process that can be killed, and what it encodes."""

import hashlib
import pathlib
import time

import jax
import numpy as np

from gr_jax.models import SentenceEncoder, TextEncoder, encode_corpus
from gr_jax.models.bert import BertConfig
from gr_jax.text import ByteVocabulary

SHARD = 7
TINY = BertConfig(vocab_size=259, emb_dim=8, num_heads=2, num_encoder_layers=1, mlp_dim=8, max_positions=32)


def texts(count=45):
    """Texts of many lengths, each of which begins with its number."""
    rng = np.random.default_rng(5)
    return [f"{number} {'x' * int(rng.integers(0, 40))}" for number in range(count)]


def encoder(**changes):
    module = TextEncoder(TINY)
    params = jax.jit(module.init)(jax.random.key(0), np.ones((1, 4), np.int32))["params"]
    return SentenceEncoder(module, params, ByteVocabulary(), **changes)


class Digests:
    """Digests for vectors: an encoder that is ready at once."""

    dimension, fingerprint = 8, "digests"

    def encode(self, texts, *, batch_size, max_length, advance):
        digests = [hashlib.sha256(text.encode()).digest()[:8] for text in texts]
        return np.array([list(digest) for digest in digests], np.float32)


class Watched(Digests):
    """Says what it does, and takes its time.

    Args:
      log: gets a line for every text that is begun.
      seconds: what a batch takes; where it takes any, each is printed.
    """

    def __init__(self, log, seconds):
        self._log, self._seconds = log, seconds

    def encode(self, texts, *, batch_size, max_length, advance):
        with open(self._log, "a") as log:
            log.writelines(f"{text.split()[0]}\n" for text in texts)
        for start in range(0, len(texts), batch_size):
            if self._seconds:
                print("batch", flush=True)
                time.sleep(self._seconds)
            advance(len(texts[start : start + batch_size]))
        return super().encode(texts, batch_size=batch_size, max_length=max_length, advance=advance)


def run(folder: pathlib.Path, seconds: float) -> None:
    """Encodes the texts into `folder/embeddings`, after a line in `folder/log`."""
    with open(folder / "log", "a") as file:
        file.write("start\n")
    encode_corpus(
        Watched(folder / "log", seconds), texts(), folder / "embeddings", shard_size=SHARD, batch_size=2,
        max_length=32, process=(0, 1),
    )  # fmt: skip
