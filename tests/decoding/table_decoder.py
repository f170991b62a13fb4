"""A decoder whose features depend on every token of the prefix and on its place, read through the ancestors, and the
same computed directly from a prefix, in NumPy."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from gr_jax.decoding import LogitScores, TableScores


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TableDecoder:
    embeddings: jax.Array  # [vocab, d]
    places: jax.Array  # [max_len, d]
    table: jax.Array  # [vocab, d]
    levels: tuple[tuple[int, int], ...] | None = dataclasses.field(metadata={"static": True}, default=None)
    eos_id: int | None = dataclasses.field(metadata={"static": True}, default=None)
    logits: bool = dataclasses.field(metadata={"static": True}, default=False)
    start_token: int = dataclasses.field(metadata={"static": True}, default=0)

    @classmethod
    def random(cls, seed, vocab, max_len, d=8, scale=2.0, **kwargs):
        rng = np.random.default_rng(seed)
        draw = lambda rows, size=1.0: jnp.asarray(size * rng.normal(size=(rows, d)), jnp.float32)  # noqa: E731
        return cls(draw(vocab), draw(max_len), draw(vocab, scale / np.sqrt(d)), **kwargs)

    def init_cache(self, queries, beams, max_len):
        """queries: [batch, d]."""
        batch, d = queries.shape
        # Slots that nobody wrote are poisoned: reading one shows in every score.
        written = np.full((batch, max_len, beams, d), np.nan, np.float32)
        return {"query": jnp.asarray(queries, jnp.float32), "written": jnp.asarray(written)}

    def step(self, tokens, step, ancestors, cache):
        batch, beam = tokens.shape
        written = jax.lax.dynamic_update_slice(
            cache["written"], (self.embeddings[tokens] * self.places[step])[:, None], (0, step, 0, 0)
        )
        max_len = written.shape[1]
        rows, steps = jnp.arange(batch)[:, None, None], jnp.arange(max_len)
        read = written[rows, steps, ancestors]  # --> [batch, beam, max_len, d]
        total = jnp.sum(jnp.where((steps <= step)[:, None], read, 0.0), axis=2)
        return jnp.tanh(cache["query"][:, None] + total), cache | {"written": written}

    def scores(self, features, level, normalize):
        settings = {"levels": self.levels, "level": level, "eos_id": self.eos_id}
        if self.logits:
            return LogitScores(features @ self.table.T, normalize, **settings)
        return TableScores(features, self.table, normalize, **settings)


class Reference:
    """Next-token log-probabilities of a prefix, by its definition."""

    def __init__(self, decoder: TableDecoder, query, normalize, sequences):
        self.embeddings, self.places, self.table = (
            np.asarray(x, np.float64) for x in (decoder.embeddings, decoder.places, decoder.table)
        )
        self.decoder, self.query, self.normalize = decoder, np.asarray(query, np.float64), normalize
        self.following: dict[tuple, set] = {}
        for sequence in sequences:
            for i, token in enumerate(sequence):
                self.following.setdefault(tuple(sequence[:i]), set()).add(token)

    def next(self, prefix: tuple) -> dict[int, float]:
        """Log-probability of each allowed token, or under "none" its logit."""
        fed = (self.decoder.start_token, *prefix)
        total = self.query + sum(self.embeddings[token] * self.places[i] for i, token in enumerate(fed))
        logits = self.table @ np.tanh(total)
        allowed = sorted(self.following.get(tuple(prefix), ()))
        if self.normalize == "none":
            return {token: float(logits[token]) for token in allowed}
        if self.normalize == "vocabulary":
            over = list(range(len(logits)))
        elif self.normalize == "constraint":
            over = allowed
        else:
            levels = self.decoder.levels
            start, size = levels[len(prefix)] if len(prefix) < len(levels) else (0, 0)
            over = list(range(start, start + size))
            if self.decoder.eos_id is not None:
                over.append(self.decoder.eos_id)
        normalizer = np.logaddexp.reduce(logits[over]) if allowed else 0.0
        return {token: float(logits[token] - normalizer) for token in allowed}

    def score(self, sequence) -> float:
        return sum(self.next(tuple(sequence[:i]))[token] for i, token in enumerate(sequence))


def penalty(length, alpha):
    return ((5 + length) / 6) ** alpha


def exhaustive(reference: Reference, sequences, alpha=0.0):
    """All sequences with their scores, best first."""
    scored = [(reference.score(s) / penalty(len(s), alpha), tuple(s)) for s in sequences]
    return sorted(scored, reverse=True)


def plain_beam_search(reference: Reference, sequences, beams, max_len, alpha=0.0):
    """Beam search with lists: the best `beams` unfinished go on, finished ones compete among themselves."""
    whole = {tuple(s) for s in sequences}
    live, complete = [(0.0, ())], []
    for _ in range(max_len):
        extended = [
            (score + log_prob, (*prefix, token))
            for score, prefix in live
            for token, log_prob in reference.next(prefix).items()
        ]
        complete += [(s / penalty(len(p), alpha), p) for s, p in extended if p in whole]
        complete = sorted(complete, reverse=True)[:beams]
        live = sorted([item for item in extended if item[1] not in whole], reverse=True)[:beams]
    return complete
