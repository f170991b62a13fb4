"""A loop whose body has several widths, of which each step takes the narrowest that is enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from jax import lax
from jaxtyping import Array, Bool

Carry = TypeVar("Carry")

# Each width's body is compiled, and a step of few hypotheses costs little anyway.
NARROWEST = 8


def narrower_widths(widest: int) -> list[int]:
    """This width, half and an eighth of it, as far as they are no less than `NARROWEST`."""
    return [widest, *(width for width in (widest // 2, widest // 8) if width >= NARROWEST)]


def narrowing_loop(
    carry: Carry,
    widths: list[int],
    needs_behind: Callable[[Carry, int], Bool[Array, ""]],
    body: Callable[[Carry, int], Carry],
) -> Carry:
    """Runs the body until nothing is needed any more.

    There is a loop for each width, within one over them all: what is needed can grow again. Loops change their carry in
    place, where branches of a condition would copy it.

    Args:
      carry: at the start.
      widths: from the widest, which is always enough.
      needs_behind: whether anything from a place on is still needed; from 0 on: whether the loop goes on. Where
        something is needed from a place on, it is so from every place before, and nothing is from the widest on. Else
        the loop never ends.
      body: one step of so many of the carry's first places.
    """

    def of_width(carry: Carry, width: int, narrower: int) -> Carry:
        """Steps of this width, while it is enough and no narrower one is."""
        return lax.while_loop(
            lambda carry: needs_behind(carry, narrower) & ~needs_behind(carry, width),
            lambda carry: body(carry, width),
            carry,
        )

    def of_every_width(carry: Carry) -> Carry:
        for width, narrower in zip(widths, [*widths[1:], 0], strict=True):
            carry = of_width(carry, width, narrower)
        return carry

    if len(widths) == 1:
        return of_every_width(carry)
    return lax.while_loop(lambda carry: needs_behind(carry, 0), of_every_width, carry)
