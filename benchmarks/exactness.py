"""Is the top-K what it should be? Beam search against enumeration and against beam search with lists.

The references know nothing of caches, ancestors or tries: every docid is given to the network whole (teacher forcing),
and what follows which prefix is looked up in a dictionary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gr_jax import docids as schemes
from gr_jax.constraints import Trie
from gr_jax.decoding import beam_search
from gr_jax.docids import Docids
from gr_jax.models import EncoderDecoder, EncoderDecoderModel, GenerativeDecoder
from gr_jax.models.t5 import T5Config
from gr_jax.text import ByteVocabulary

SOURCE_LENGTH = 6  # of a query: digits of its document's number
TOLERANCE = 1e-4


def _vectors(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 8)).astype(np.float32)


def _titles(n: int, seed: int) -> Docids:
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(list("abcde"), rng.integers(1, 6))) for _ in range(n)]
    return schemes.titles(words, ByteVocabulary(), max_length=12)


SCHEMES: dict[str, Callable[[int, int], Docids]] = {
    "atomic": lambda n, seed: schemes.atomic(n),
    "naive numeric": lambda n, seed: schemes.naive_numeric(n),
    "hierarchical k-means, tokens by position": lambda n, seed: schemes.hierarchical_kmeans(
        _vectors(n, seed), branching=8, leaf_capacity=8
    ),
    "hierarchical k-means, tokens by node": lambda n, seed: schemes.hierarchical_kmeans(
        _vectors(n, seed), branching=8, leaf_capacity=8, tokens="node"
    ),
    "titles": _titles,
    "residual quantisation": lambda n, seed: schemes.residual_quantization(_vectors(n, seed), levels=3, bits=4),
}


def queries(documents: np.ndarray) -> np.ndarray:
    """A query for each document: the octal digits of its number, int32[n, SOURCE_LENGTH]."""
    return (documents[:, None] // 8 ** np.arange(SOURCE_LENGTH) % 8 + 2 + 8 * np.arange(SOURCE_LENGTH)).astype(np.int32)


def network(docids: Docids, layers: int, seed: int, dtype: str = "float32") -> tuple[EncoderDecoderModel, Any]:
    """A small random encoder-decoder for these docids, and its parameters."""
    sizes: dict[str, Any] = {
        "emb_dim": 32,
        "num_heads": 2,
        "head_dim": 16,
        "mlp_dim": 64,
        "dropout_rate": 0.0,
        "dtype": dtype,
    }
    sizes |= {"num_encoder_layers": layers, "num_decoder_layers": layers}
    module = EncoderDecoder(
        T5Config(vocab_size=2 + 8 * SOURCE_LENGTH, **sizes), T5Config(vocab_size=docids.vocab_size, **sizes)
    )
    model = EncoderDecoderModel(module, levels=docids.levels, eos_id=docids.eos_id)
    shapes = {"encoder_input_tokens": (1, SOURCE_LENGTH), "decoder_input_tokens": (1, docids.max_steps)}
    return model, jax.jit(lambda key: model.get_initial_variables(key, shapes))(jax.random.key(seed))["params"]


def targets(docids: Docids) -> np.ndarray:
    """What is written for each docid, EOS included where there is one, int32[num_docids, max_steps]."""
    matrix = np.zeros((len(docids), docids.max_steps), np.int32)
    for row in range(len(docids)):
        target = docids.target(row)
        matrix[row, : len(target)] = target
    return matrix


def train(model: EncoderDecoderModel, params: Any, docids: Docids, steps: int, seed: int) -> Any:
    """Parameters after so many batches of queries and docids."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, len(docids), (steps, 64))
    sources = queries(np.asarray([docids.documents_of(row)[0] for row in range(len(docids))]))[rows]
    wanted = targets(docids)[rows]
    # At a constant rate weights end so sharp that float32 kernels of the same matrix product differ by 1e-4 in scores.
    optimizer = optax.adam(optax.linear_schedule(3e-3, 0.0, steps))

    def update(carry, batch):
        params, state = carry
        source, target = batch
        shifted = jnp.pad(target, ((0, 0), (1, 0)))[:, :-1]
        features = {"encoder_input_tokens": source, "decoder_input_tokens": shifted, "decoder_target_tokens": target}
        gradients, _ = jax.grad(lambda p: model.loss_fn(p, features), has_aux=True)(params)
        updates, state = optimizer.update(jax.tree.map(lambda g: g / target.size, gradients), state)
        return (optax.apply_updates(params, updates), state), None

    run = jax.jit(lambda params, *batches: jax.lax.scan(update, (params, optimizer.init(params)), batches)[0][0])
    return run(params, sources, wanted)


class Reference:
    """Log-probabilities of what may follow each prefix, for one query, from whole docids given to the network."""

    def __init__(self, model: EncoderDecoderModel, params: Any, docids: Docids, query: np.ndarray, normalize: str):
        matrix = targets(docids)
        self.whole = {tuple(docids.target(row)) for row in range(len(docids))}
        self.following: dict[tuple[int, ...], dict[int, float]] = {}
        for start in range(0, len(matrix), 512):
            part = matrix[start : start + 512]
            shifted = np.pad(part, ((0, 0), (1, 0)))[:, :-1]
            source = np.broadcast_to(query, (len(part), len(query)))
            logits = np.asarray(_forward(model.module, params, source, shifted), np.float64)  # [rows, steps, vocab]
            for row, tokens in enumerate(part.tolist()):
                for level, token in enumerate(tokens):
                    prefix = tuple(tokens[:level])
                    if prefix in self.whole or token in self.following.get(prefix, ()):
                        continue
                    value = logits[row, level, token]
                    if normalize != "constraint":
                        value -= np.logaddexp.reduce(logits[row, level, self._over(docids, normalize, level)])
                    self.following.setdefault(prefix, {})[token] = float(value)
        if normalize == "constraint":
            for prefix, found in self.following.items():
                total = np.logaddexp.reduce(list(found.values()))
                self.following[prefix] = {token: value - total for token, value in found.items()}

    @staticmethod
    def _over(docids: Docids, normalize: str, level: int) -> Any:
        if normalize == "vocabulary":
            return slice(None)
        assert docids.levels is not None
        start, size = docids.levels[level] if level < len(docids.levels) else (0, 0)
        return [*range(start, start + size), *([] if docids.eos_id is None else [docids.eos_id])]

    def enumerate(self) -> list[tuple[float, tuple[int, ...]]]:
        """All docids with their scores, best first."""
        scored = [(sum(self.following[d[:i]][token] for i, token in enumerate(d)), d) for d in self.whole]
        return sorted(scored, reverse=True)

    def beam_search(self, beams: int, steps: int) -> list[tuple[float, tuple[int, ...]]]:
        """The best `beams` unfinished go on, finished ones compete among themselves."""
        live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        complete: list[tuple[float, tuple[int, ...]]] = []
        for _ in range(steps):
            extended = [
                (score + value, (*prefix, token))
                for score, prefix in live
                for token, value in self.following[prefix].items()
            ]
            complete = sorted(complete + [item for item in extended if item[1] in self.whole], reverse=True)[:beams]
            live = sorted((item for item in extended if item[1] not in self.whole), reverse=True)[:beams]
        return complete


@functools.partial(jax.jit, static_argnums=0)
def _forward(module: EncoderDecoder, params: Any, source: np.ndarray, shifted: np.ndarray) -> jax.Array:
    logits: Any = module.apply({"params": params}, source, shifted)
    return logits


@functools.partial(jax.jit, static_argnames=("beams", "max_len", "normalize"))
def search(decoder: GenerativeDecoder, source: jax.Array, trie: Trie, *, beams: int, max_len: int, normalize: str):
    """What is measured: the library's beam search."""
    cache = decoder.start(source, beams=beams, max_len=max_len)
    return beam_search(decoder, cache, trie, beams=beams, max_len=max_len, normalize=normalize)


def widest_level(docids: Docids) -> int:
    """The most prefixes of one length."""
    return max(len(np.unique(targets(docids)[:, : i + 1], axis=0)) for i in range(docids.max_steps))


def compare(found: list[tuple[float, tuple]], expected: list[tuple[float, tuple]], scores: dict) -> tuple[int, float]:
    """Ranks at which another docid stands than should, and the largest difference of scores.

    Docids whose scores differ by no more than rounding may change places.
    """
    wrong = abs(len(found) - len(expected))
    largest = 0.0
    for (score, docid), (wanted, other) in zip(found, expected, strict=False):
        largest = max(largest, abs(score - scores[docid]), abs(score - wanted))
        wrong += docid != other and abs(scores[docid] - wanted) > TOLERANCE
    return wrong + len(found) - len({docid for _, docid in found}), largest


def measure(
    scheme: str,
    *,
    documents: int,
    trained: bool,
    few: int,
    count: int,
    layers: int = 2,
    steps: int = 1000,
    seed: int = 0,
    normalizers: Sequence[str] = ("vocabulary", "constraint", "level"),
) -> dict[str, float]:
    """Compares, for some queries.

    Args:
      scheme: of `SCHEMES`.
      documents: how many.
      trained: for so many `steps`; else random parameters.
      few: beams of the search that is compared with beam search with lists.
      count: queries.
      layers, steps, seed: of the network and its training.
      normalizers: "level" is left out where docids have no levels.

    Returns:
      "wrong": ranks that are wrong, in all comparisons. "difference": largest of scores. "found": the share of queries
      whose own document is best, to show that the trained network is one.
    """
    docids = SCHEMES[scheme](documents, seed)
    model, params = network(docids, layers, seed)
    if trained:
        params = train(model, params, docids, steps, seed)
    trie, widest = Trie.from_docids(docids), widest_level(docids)
    decoder = model.decoder(params)
    chosen = np.random.default_rng(seed).integers(0, documents, count)
    wrong, largest, hits = 0, 0.0, 0
    for normalize in normalizers:
        if normalize == "level" and docids.levels is None:
            continue
        for beams in (few, widest):
            for document in chosen:
                query = queries(np.asarray([document]))
                reference = _reference(model, params, docids, int(document), normalize)
                everything = reference.enumerate()
                expected = everything[:beams] if beams == widest else reference.beam_search(beams, docids.max_steps)
                beamed = search(decoder, query, trie, beams=beams, max_len=docids.max_steps, normalize=normalize)
                ranks = _ranks(beamed)
                more, difference = compare(ranks, expected, {docid: score for score, docid in everything})
                wrong, largest = wrong + more, max(largest, difference)
                own = {tuple(docids.target(row)) for row in docids.rows_of(int(document))}
                hits += normalize == normalizers[0] and beams == widest and ranks[0][1] in own
    return {"wrong": wrong, "difference": largest, "found": hits / count}


def _ranks(beams: Any) -> list[tuple[float, tuple]]:
    sequences, lengths, scores, valid = (
        np.asarray(x[0]) for x in (beams.sequences, beams.lengths, beams.scores, beams.valid)
    )
    return [(float(scores[i]), tuple(sequences[i, : lengths[i]].tolist())) for i in range(len(valid)) if valid[i]]


def _reference(model, params, docids, document: int, normalize: str) -> Reference:
    return Reference(model, params, docids, queries(np.asarray([document]))[0], normalize)
