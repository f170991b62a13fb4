"""Several ways of asking one question, each a row of the same batch (MINDER, Li et al. 2023)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from gr_jax.constraints import Constraint, Mixed
from gr_jax.errors import InputError

QUERY = "{query}"


@dataclasses.dataclass(frozen=True)
class View:
    """A way of asking.

    Attributes:
      prompt: what the network reads, with "{query}" where the question stands.
      walks: the name or number of an `FMIndex`' view in which n-grams are written; None: its first.
      constraint: under a `Mixed`, which of its constraints is walked.
    """

    prompt: str = QUERY
    walks: str | int | None = None
    constraint: int = 0

    def __post_init__(self):
        if self.prompt.count(QUERY) != 1:
            raise InputError("a prompt has one place for the question", f"Write {QUERY} there.", value=self.prompt)

    def ask(self, query: str) -> str:
        """The text that the network reads."""
        return self.prompt.replace(QUERY, query)


def walked(constraint: Constraint, views: Sequence[View], queries: int) -> Any:
    """What `beam_search` is told of the automata that rows walk: `views` of each of so many queries, query by query.

    Raises:
      InputError: a view that the constraint does not have.
    """
    if isinstance(constraint, Mixed):
        which = [view.constraint for view in views]
        if min(which) < 0 or max(which) >= len(constraint.constraints):
            raise InputError(
                "a view walks a constraint that is not there",
                f"Give numbers below {len(constraint.constraints)}.",
                value=which,
            )
        inner = []
        for place, part in enumerate(constraint.constraints):
            # Rows of other constraints walk this one too, to no effect: in its first view.
            own = [view if view.constraint == place else View() for view in views]
            inner.append(walked(part, own, queries))
        return np.tile(np.asarray(which, np.int32), queries), tuple(inner)
    if not hasattr(constraint, "view_number"):
        named = [view.walks for view in views if view.walks is not None]
        if named:
            raise InputError(
                f"a {type(constraint).__name__} has one automaton, and a view wants another",
                "Leave `walks` out.",
                value=named[0],
            )
        return None
    numbers = [constraint.view_number(0 if view.walks is None else view.walks) for view in views]
    return np.tile(np.asarray(numbers, np.int32), queries)


def views_to_json(views: Sequence[View]) -> list[dict[str, Any]]:
    """For a manifest."""
    return [dataclasses.asdict(view) for view in views]


def views_from_json(raw: Sequence[dict[str, Any]]) -> tuple[View, ...]:
    """Reads what `views_to_json` gave."""
    return tuple(View(**fields) for fields in raw)
