"""What a constraint is, and what it asks of a model's scores."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from gr_jax.errors import InputError

State: TypeAlias = Any  # arrays that lead with [batch, beam]


class Scores(Protocol):
    """Next-token log-probabilities at states [...], computed only where someone asks.

    Attributes:
      normalize: "vocabulary": over all tokens; "level": over the block of tokens of this position; "constraint":
        `at` and `top` give raw logits and the constraint normalises over what it allows. "none": they give raw logits,
        and nobody normalises them.
    """

    normalize: str

    def at(self, tokens: Int[Array, "... width"]) -> Float[Array, "... width"]:
        """Log-probabilities of tokens, each state its own."""
        ...

    def at_parents(self, parent: Int[Array, "batch n"], tokens: Int[Array, "batch n"]) -> Float[Array, "batch n"]:
        """The same for a flat list of tokens of each query, each at the state of the beam that `parent` names; states
        are [batch, beam]."""
        ...

    def top(self, n: int, below: int | None = None) -> tuple[Int[Array, "... n"], Float[Array, "... n"]]:
        """The n best tokens of the whole vocabulary, or of those below `below`, best first. Costs a top-k over it."""
        ...

    def log_normalizer(self) -> Float[Array, ...]:
        """What `at` subtracts from logits; where it subtracts nothing, that of the whole vocabulary."""
        ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Candidates:
    """Tokens that may be written next.

    Attributes:
      token, log_prob, valid: [..., width]. log_prob is meaningless where not valid.
      next_state: the states after them; leaves [..., width]. Where not valid they allow and accept nothing.
      ending: static; the last `ending` columns complete an identifier, the others do not.
      parent: None, or the candidates of all beams of a query are one flat list, all leaves are [batch, n], and this
        says which beam each extends: a state with very many candidates then does not pad every other's.
    """

    token: Int[Array, "... width"]
    log_prob: Float[Array, "... width"]
    next_state: State
    valid: Bool[Array, "... width"]
    ending: int = dataclasses.field(metadata={"static": True}, default=0)
    parent: Int[Array, "batch n"] | None = None


class Constraint(Protocol):
    """An automaton over token sequences: a pytree of arrays with pure methods, all of which work under `jit`.

    Attributes:
      open_ended: whether what stands when decoding reaches its last step counts as complete.
    """

    @property
    def open_ended(self) -> bool: ...

    def initial_state(self, batch: int, view: Any = None) -> State:
        """States [batch, 1] before the first token. view: which automaton each row walks, where there are several."""
        ...

    def candidates(self, state: State, scores: Scores, k: int, steps: range | None = None) -> Candidates:
        """At least the k best allowed tokens of every state, exactly.

        Args:
          state: leaves [..., ].
          scores: at the same states.
          k: how many are needed; all children may be given instead.
          steps: static; the numbers of tokens that the states can have consumed. A single step lets a trie use the
            width of that level; None allows any.
        """
        ...

    def advance(self, state: State, token: Int[Array, ...]) -> State:
        """States after a token each; after a token that is not allowed a state allows and accepts nothing."""
        ...

    def allowed(self, state: State) -> Bool[Array, "... vocab"]:
        """The same as a mask over the vocabulary."""
        ...

    def accepts(self, state: State) -> Bool[Array, ...]:
        """Whether what was written is an identifier, its EOS written or not."""
        ...

    def key(self, state: State) -> Int[Array, "... n"]:
        """Equal keys = the same text."""
        ...

    def documents(self, state: State, limit: int) -> tuple[Int[Array, "... limit"], Int[Array, ...]]:
        """The first `limit` documents below (−1 where there are fewer), and how many there are."""
        ...

    def restrict(self, allowed: Bool[Array, "batch docs"]) -> Constraint:
        """The constraint that leads to no other documents than those allowed, per query; what a filter before excluded
        stays excluded. Shapes do not depend on the filter, so nothing is compiled again for another one."""
        ...


def check_filter(
    allowed: Bool[Array, "batch docs"], num_documents: int, before: int | None
) -> Bool[Array, "batch docs"]:
    """What `restrict` is given.

    Args:
      allowed: a boolean for each document, per query.
      num_documents: of the constraint.
      before: queries of the filter that the constraint has already; None: it has none.

    Raises:
      InputError: another shape.
    """
    shape = jnp.shape(allowed)
    if len(shape) != 2 or shape[1] != num_documents or before not in (None, shape[0]):
        batch = "batch" if before is None else before
        raise InputError(
            f"a filter of shape {shape} for {num_documents} documents", f"Give booleans [{batch}, {num_documents}]."
        )
    return jnp.asarray(allowed, bool)


def normalize_over(log_prob: Float[Array, "... width"], valid: Bool[Array, "... width"]) -> Float[Array, "... width"]:
    """Log-softmax over the valid candidates of each state; −inf elsewhere, and where all of a state are −inf."""
    masked = jnp.where(valid, log_prob, -jnp.inf)
    largest = jnp.max(masked, axis=-1, keepdims=True, initial=-jnp.inf)
    largest = jnp.where(jnp.isfinite(largest), largest, 0.0)  # a state without candidates has no −inf − −inf
    mass = jnp.sum(jnp.exp(masked - largest), axis=-1, keepdims=True)
    total = jnp.log(jnp.where(mass > 0, mass, 1.0))
    return jnp.where(valid, masked - largest - total, -jnp.inf)
