"""Several constraints in one batch: each query walks one of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from gr_jax.constraints.base import Candidates, Constraint, Scores, State
from gr_jax.errors import InputError


class MixedState(NamedTuple):
    """Attributes:
    which: int32[...], the constraint that is walked; every beam of a query walks the same.
    states: of all constraints, leaves [...]; those of the others are arbitrary.
    """

    which: Int[Array, ...]
    states: tuple[State, ...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mixed:
    """Lets each query of a batch walk another constraint, in one program: titles for some and codes for others, spans
    here and free text there. A query gets what its constraint alone would give it.

    All constraints are computed for all queries, so a step costs what theirs cost together; `view` says which each
    walks and is an ordinary argument.

    Attributes:
      constraints: over the same decoder's vocabulary; those that lead to documents number the same ones.
    """

    constraints: tuple[Constraint, ...]

    def __post_init__(self):
        if not isinstance(self.constraints, Sequence) or not self.constraints:
            raise InputError("no constraints to choose from", "Give at least one.", value=self.constraints)
        object.__setattr__(self, "constraints", tuple(self.constraints))

    @property
    def open_ended(self) -> bool:
        """Whether what stands at the last step can be complete: `open_rows` says of which queries."""
        return any(constraint.open_ended for constraint in self.constraints)

    @property
    def eos_id(self) -> int | None:
        """The token that ends identifiers, where they have one.

        Raises:
          InputError: they end in several.
        """
        found: list[int | None] = [getattr(constraint, "eos_id", None) for constraint in self.constraints]
        ends = {eos_id for eos_id in found if eos_id is not None}
        if len(ends) > 1:
            raise InputError("the constraints end in different tokens", "Make them with one EOS.", value=sorted(ends))
        return ends.pop() if ends else None

    @property
    def vocab_size(self) -> int:
        """Tokens of the largest of the constraints' vocabularies."""
        return max(constraint.vocab_size for constraint in self.constraints)  # type: ignore[attr-defined]

    @property
    def num_documents(self) -> int:
        """Of those constraints that lead to documents; no attribute where none does.

        Raises:
          InputError: they lead to different numbers of documents, which so cannot be the same ones.
        """
        found: list[int | None] = [getattr(constraint, "num_documents", None) for constraint in self.constraints]
        numbers = {number for number in found if number is not None}
        if not numbers:
            raise AttributeError("num_documents")
        if len(numbers) > 1:
            raise InputError(
                "the constraints number their documents differently", "Make them of one corpus.", value=sorted(numbers)
            )
        return numbers.pop()

    @property
    def max_steps(self) -> int:
        """Decoding steps of the longest identifier; no attribute where a constraint knows no longest."""
        return max(constraint.max_steps for constraint in self.constraints)  # type: ignore[attr-defined]

    def initial_state(self, batch: int, view: Any = None) -> MixedState:
        """States before the first token.

        Args:
          batch: queries.
          view: int[batch], the constraint that each query walks, by its place in `constraints`; or that and the views
            that the constraints themselves get, as a pair (int[batch], one view or None for each constraint).

        Raises:
          InputError: no view, one of another shape, or a constraint that is not there.
        """
        which, views = view if isinstance(view, tuple) else (view, (None,) * len(self.constraints))
        if which is None:
            raise InputError("nothing says which constraint each query walks", "Give view=int[batch].")
        if np.shape(which) != (batch,):
            raise InputError(f"a view of shape {np.shape(which)} for {batch} queries", f"Give integers [{batch}].")
        if len(views) != len(self.constraints):
            raise InputError(
                f"views of {len(views)} constraints where {len(self.constraints)} are mixed",
                "Give one view, or None, for each.",
            )
        if not isinstance(which, jax.core.Tracer):
            outside = (np.asarray(which) < 0) | (np.asarray(which) >= len(self.constraints))
            if outside.any():
                raise InputError(
                    "a query walks a constraint that is not there",
                    f"Give numbers below {len(self.constraints)}.",
                    value=int(np.asarray(which)[outside][0]),
                )
        states = tuple(
            constraint.initial_state(batch, own) for constraint, own in zip(self.constraints, views, strict=True)
        )
        return MixedState(jnp.asarray(which, jnp.int32)[:, None], states)

    def candidates(self, state: MixedState, scores: Scores, k: int, steps: range | None = None) -> Candidates:
        """Those of each query's own constraint, in as many columns as the widest needs."""
        found = [
            constraint.candidates(own, scores, k, steps)
            for constraint, own in zip(self.constraints, state.states, strict=True)
        ]
        if any(one.parent is not None for one in found):
            found = [_flat(one) for one in found]
        flat = found[0].parent is not None
        axis = 1 if flat else state.which.ndim
        ending = max(one.ending for one in found)
        going_on = max(one.token.shape[axis] - one.ending for one in found)
        found = [_widen(one, axis, going_on, ending) for one in found]
        which = state.which[:, :1] if flat else state.which[..., None]
        own = [which == i for i in range(len(found))]
        valid = _choose(own, [one.valid for one in found], False)
        return Candidates(
            token=_choose(own, [one.token for one in found], 0),
            log_prob=_choose(own, [one.log_prob for one in found], -jnp.inf),
            # What walks no constraint is allowed nothing.
            next_state=MixedState(jnp.where(valid, which, -1), tuple(one.next_state for one in found)),
            valid=valid,
            ending=ending,
            parent=_choose(own, [one.parent for one in found], 0) if flat else None,
        )

    def advance(self, state: MixedState, token: Int[Array, ...]) -> MixedState:
        return state._replace(states=tuple(self._each(state, lambda constraint, own: constraint.advance(own, token))))

    def allowed(self, state: MixedState) -> Bool[Array, "... vocab"]:
        """The same as a mask over the largest of the constraints' vocabularies."""
        masks = self._each(state, lambda constraint, own: constraint.allowed(own))
        size = max(mask.shape[-1] for mask in masks)
        masks = [_pad(mask, -1, size) for mask in masks]
        return _choose([state.which[..., None] == i for i in range(len(masks))], masks, False)

    def accepts(self, state: MixedState) -> Bool[Array, ...]:
        return self._of_own(state, lambda constraint, own: constraint.accepts(own), False)

    def open_rows(self, state: MixedState) -> Bool[Array, ...]:
        """Where what stands when decoding reaches its last step counts as complete."""
        return self._of_own(state, lambda constraint, own: jnp.full(state.which.shape, constraint.open_ended), False)

    def key(self, state: MixedState) -> Int[Array, "... n"]:
        keys = self._each(state, lambda constraint, own: constraint.key(own))
        size = max(key.shape[-1] for key in keys)
        own = [state.which[..., None] == i for i in range(len(keys))]
        key = _choose(own, [_pad(key, -1, size) for key in keys], 0)
        return jnp.concatenate([state.which[..., None], key], axis=-1)

    def documents(self, state: MixedState, limit: int) -> tuple[Int[Array, "... limit"], Int[Array, ...]]:
        found = self._each(state, lambda constraint, own: constraint.documents(own, limit))
        own = [state.which == i for i in range(len(found))]
        documents = _choose([x[..., None] for x in own], [documents for documents, _ in found], -1)
        return documents, _choose(own, [count for _, count in found], 0)

    def restrict(self, allowed: Bool[Array, "batch docs"]) -> Mixed:
        """See `Constraint.restrict`.

        Raises:
          InputError: a constraint that cannot be restricted.
        """
        return Mixed(tuple(constraint.restrict(allowed) for constraint in self.constraints))

    def _each(self, state: MixedState, function: Callable[[Constraint, State], Any]) -> list:
        return [function(constraint, own) for constraint, own in zip(self.constraints, state.states, strict=True)]

    def _of_own(self, state: MixedState, function: Callable[[Constraint, State], Array], otherwise: Any) -> Array:
        values = self._each(state, function)
        return _choose([state.which == i for i in range(len(values))], values, otherwise)


def _choose(own: list[Array], values: list[Any], otherwise: Any) -> Array:
    """The value of each query's own constraint."""
    return jnp.select(own, values, otherwise)


def _pad(x: Array, axis: int, size: int) -> Array:
    missing = [(0, 0)] * x.ndim
    missing[axis] = (0, size - x.shape[axis])
    return jnp.pad(x, missing)


def _widen(found: Candidates, axis: int, going_on: int, ending: int) -> Candidates:
    """Adds columns that are not valid, before those that complete an identifier and after them."""
    split = found.token.shape[axis] - found.ending

    def widen(x: Array) -> Array:
        one, other = jnp.split(x, [split], axis=axis)
        return jnp.concatenate([_pad(one, axis, going_on), _pad(other, axis, ending)], axis=axis)

    return dataclasses.replace(jax.tree.map(widen, found), ending=ending)


def _flat(found: Candidates) -> Candidates:
    """Candidates [batch, beam, width] as one list for each query."""
    if found.parent is not None:
        return found
    batch, beam, width = found.token.shape
    split = width - found.ending

    def flatten(x: Array) -> Array:
        parts = jnp.split(x, [split], axis=2)
        return jnp.concatenate([part.reshape(batch, -1, *x.shape[3:]) for part in parts], axis=1)

    parent = jnp.broadcast_to(jnp.arange(beam, dtype=jnp.int32)[:, None], found.token.shape)
    flat = jax.tree.map(flatten, dataclasses.replace(found, parent=parent))
    return dataclasses.replace(flat, ending=beam * found.ending)
