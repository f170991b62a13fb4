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
_policy: contextvars.ContextVar[str | None] = contextvars.ContextVar("remat", default=None)
_Model = TypeVar("_Model")


def run(layer: nn.Module, *arrays: Any, deterministic: bool) -> Any:
    """`layer(*arrays, deterministic)`, under the policy that holds."""
    policy = _policy.get()
    if policy is None:
        return layer(*arrays, deterministic)  # type: ignore[operator]

    def again(layer: Any, *arrays: Any) -> Any:
        return layer(*arrays, deterministic)

    return nn.remat(again, policy=POLICIES[policy])(layer, *arrays)


def recomputing(model: _Model, policy: str | None) -> _Model:
    """The same model, whose `loss_fn` remembers less; itself where there is no policy.

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
        token = _policy.set(self.policy)
        try:
            return self.model.loss_fn(*arguments)
        finally:
            _policy.reset(token)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)
