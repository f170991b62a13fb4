"""What of a network is computed again for its gradients instead of remembered: less memory, more to compute.

A stack hands its layers to `run`. Which policy holds is said around a model's loss by `recomputing`, so that networks,
and folders that keep them, know nothing of it.
"""

from __future__ import annotations

import contextvars
import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from flax import linen as nn

from gr_jax.errors import InputError

# "layers": of each layer only what it reads is remembered. "dots": products with parameters are, too.
POLICIES: dict[str, Callable | None] = {
    "layers": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}
_Model = TypeVar("_Model")


@dataclasses.dataclass
class _Holding:
    """A policy that holds, and how many layers it was asked for."""

    policy: str
    layers: int = 0


_holding: contextvars.ContextVar[_Holding | None] = contextvars.ContextVar("remat", default=None)


def run(layer: nn.Module, *arrays: Any, deterministic: bool) -> Any:
    """`layer(*arrays, deterministic)`, under the policy that holds."""
    holding = _holding.get()
    if holding is None:
        return layer(*arrays, deterministic)  # type: ignore[operator]
    holding.layers += 1

    def again(layer: Any, *arrays: Any) -> Any:
        return layer(*arrays, deterministic)

    return nn.remat(again, policy=POLICIES[holding.policy])(layer, *arrays)


def recomputing(model: _Model, policy: str | None) -> _Model:
    """The same model, whose `loss_fn` remembers less; itself where there is no policy.

    Its `loss_fn` raises InputError where the model hands no layer to `run`, so that nothing would be remembered less.

    Raises:
      InputError: an unknown policy.
    """
    if policy is None:
        return model
    if policy not in POLICIES:
        raise InputError("unknown policy of remat", f"Use one of {', '.join(POLICIES)}, or None.", value=policy)
    found: Any = _Recomputing(model, policy)
    return found


@dataclasses.dataclass(frozen=True)
class _Recomputing:
    """A model for training alone: what it does not change it takes from the model."""

    model: Any
    policy: str

    def loss_fn(self, *arguments: Any) -> Any:
        holding = _Holding(self.policy)
        token = _holding.set(holding)
        try:
            found = self.model.loss_fn(*arguments)
        finally:
            _holding.reset(token)
        if not holding.layers:
            raise InputError(
                f"{type(self.model).__name__} has no layers that could be computed again",
                "Leave remat at None.",
                value=self.policy,
            )
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)
