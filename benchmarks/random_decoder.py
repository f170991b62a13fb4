"""What decoding is timed with: a T5 with random weights, random docids, and the whole decode as one function."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gr_jax.constraints import Trie
from gr_jax.decoding import beam_search
from gr_jax.docids import Docids
from gr_jax.interop import huggingface
from gr_jax.models import EncoderDecoder, GenerativeDecoder
from gr_jax.models.t5 import T5Config

WORDS, LEVELS, CODES, DOCIDS = 32_128, 6, 256, 100_000
VOCABULARY = WORDS + LEVELS * CODES


@dataclasses.dataclass(frozen=True)
class Setting:
    """A network, docids and a batch of encoded queries.

    Attributes:
      folder: holds the weights with Hugging Face's names, and docids.npy.
    """

    folder: pathlib.Path
    decoder: GenerativeDecoder
    docids: Docids
    trie: Trie

    def encoded(self, batch: int, length: int) -> tuple[jax.Array, jax.Array]:
        """Queries' tokens [batch, length] and the encoder's output."""
        tokens = jnp.asarray(np.random.default_rng(1).integers(3, 32_000, (batch, length)), jnp.int32)
        return tokens, jax.jit(functools.partial(self.decoder._apply, method="encode"))(tokens)


@functools.lru_cache(maxsize=1)
def random_setting() -> Setting:
    docids, sizes = random_docids(), {"vocab_size": VOCABULARY, "logits_via_embedding": True, "dropout_rate": 0.0}
    config = T5Config(**sizes)  # type: ignore[arg-type]
    decoder = random_network(config, docids)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="gr_jax_decoding_"))
    huggingface.save_t5(folder, config, decoder.params)
    np.save(folder / "docids.npy", docids.tokens)
    return Setting(folder, decoder, docids, Trie.from_docids(docids))


def random_docids() -> Docids:
    rng = np.random.default_rng(0)
    codes = np.unique(rng.integers(0, CODES, (DOCIDS + 1000, LEVELS)), axis=0)
    codes = codes[np.sort(rng.permutation(len(codes))[:DOCIDS])]
    levels = tuple((WORDS + CODES * level, CODES) for level in range(LEVELS))
    tokens = codes + WORDS + CODES * np.arange(LEVELS)
    return Docids.build(tokens.astype(np.int32), vocab_size=VOCABULARY, levels=levels)


def random_network(config: T5Config, docids: Docids) -> GenerativeDecoder:
    module, ones = EncoderDecoder(config), jnp.ones((1, 4), jnp.int32)
    params = jax.jit(module.init)(jax.random.key(0), ones, ones)["params"]
    return GenerativeDecoder(module, params, docids.levels, docids.eos_id)


@functools.partial(jax.jit, static_argnames=("beams", "normalize"))
def decode(decoder: GenerativeDecoder, tokens: Any, encoded: Any, trie: Trie, *, beams: int, normalize: str):
    """Our side: from the encoder's output to the top-K."""
    cache = decoder._apply(encoded, tokens, beams, LEVELS, method="init_cache")
    return beam_search(decoder, cache, trie, beams=beams, max_len=LEVELS, normalize=normalize)
