"""One encoding, as a process that can be killed: `python encoding_run.py FOLDER LOG SECONDS_PER_BATCH`.

Prints a line for every batch; LOG gets a line for every text that is begun, after one for every start.
"""

import pathlib
import sys
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


class Watched:
    """An encoder that says what it does, and takes its time."""

    def __init__(self, log=None, seconds=0.0):
        self._encoder, self._log, self._seconds = encoder(), log, seconds
        self.dimension, self.fingerprint = self._encoder.dimension, self._encoder.fingerprint

    def encode(self, texts, *, advance, **settings):
        with open(self._log, "a") as log:
            log.writelines(f"{text.split()[0]}\n" for text in texts)

        def slowly(count):
            print("batch", flush=True)
            time.sleep(self._seconds)
            advance(count)

        return self._encoder.encode(texts, advance=slowly, **settings)


def main(folder, log, seconds):
    with open(log, "a") as file:
        file.write("start\n")
    encode_corpus(
        Watched(log, float(seconds)), texts(), pathlib.Path(folder), shard_size=SHARD, batch_size=2, max_length=32
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
