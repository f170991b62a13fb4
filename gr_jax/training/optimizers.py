"""Optimisers and learning-rate schedules, described by plain values so that a checkpoint can say what made it.

Parameters are a flat dict {"a/b/c": array}. Every group of them can have its own factor on the learning rate; a factor
of 0 freezes the group: its gradient is not computed and it has no optimiser state.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from gr_jax.errors import InputError

DECAYS = ("constant", "linear", "rsqrt")
# Biases and the scales of layer norms: pulling them towards 0 makes no function simpler.
NO_WEIGHT_DECAY = (r".*/(bias|scale)", r".*_scale", r"bias|scale")


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A learning rate over steps: linear warm-up, then one of T5X's decays.

    Attributes:
      learning_rate: the peak, reached after the warm-up.
      warmup_steps: update n of the warm-up (from 1) has n / warmup_steps of the peak.
      decay: "constant"; "linear" down to `end_factor` of the peak at `total_steps`; "rsqrt": peak · √(warmup / step).
      total_steps: end of a linear decay.
      end_factor: what remains then.
    """

    learning_rate: float = 1e-3
    warmup_steps: int = 0
    decay: str = "constant"
    total_steps: int | None = None
    end_factor: float = 0.0

    def __post_init__(self):
        if self.decay not in DECAYS:
            raise InputError("unknown decay of the learning rate", f"Use one of {', '.join(DECAYS)}.", value=self.decay)
        if self.decay == "linear" and (self.total_steps is None or self.total_steps <= self.warmup_steps):
            raise InputError(
                "a linear decay needs an end after the warm-up",
                f"Set total_steps above warmup_steps={self.warmup_steps}.",
                value=self.total_steps,
            )
        if not self.learning_rate >= 0 or self.warmup_steps < 0:
            raise InputError("a learning rate and its warm-up are not negative", "Raise them.", value=self)

    def __call__(self, step: jax.Array | int) -> jax.Array:
        """The rate of the update after `step` updates."""
        step = jnp.asarray(step, jnp.float32)
        warm = jnp.minimum(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        if self.decay == "linear":
            assert self.total_steps is not None
            left = (self.total_steps - step) / (self.total_steps - self.warmup_steps)
            factor = self.end_factor + (1 - self.end_factor) * jnp.clip(left, 0.0, 1.0)
        elif self.decay == "rsqrt":
            start = max(self.warmup_steps, 1)
            factor = jnp.sqrt(start / jnp.maximum(step + 1, start))
        else:
            factor = jnp.float32(1.0)
        return self.learning_rate * warm * factor


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimiser and how fast each group of parameters learns.

    Attributes:
      kind: "adamw" or "adafactor".
      schedule: the learning rate.
      options: the numbers of `adamw` or `adafactor`.
      clip: largest global norm of a gradient; 0 does not clip.
      multipliers: regular expression → factor on the learning rate. An expression means the parameters whose path, or
        a folder above them, it matches as a whole: "encoder/layers_0" is everything below, ".*/embedding" all tables.
        The first that matches counts; without a match the factor is 1.
    """

    kind: str
    schedule: Schedule
    options: Mapping[str, Any]
    clip: float = 1.0
    multipliers: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        for pattern, factor in self.multipliers.items():
            try:
                re.compile(pattern)
            except re.error as error:
                raise InputError(f"not a regular expression: {error}", "Correct it.", value=pattern) from error
            if not factor >= 0:
                raise InputError("a learning-rate multiplier is negative", "Use 0 to freeze.", value=factor)

    @property
    def pads(self) -> bool:
        """Whether zeros behind a parameter change nothing: each number is updated by itself."""
        return self.kind == "adamw"

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides the updates, JSON."""
        return {
            "kind": self.kind,
            "schedule": dataclasses.asdict(self.schedule),
            "options": {name: list(v) if isinstance(v, tuple) else v for name, v in self.options.items()},
            "clip": self.clip,
            "multipliers": [[pattern, float(factor)] for pattern, factor in self.multipliers.items()],
        }

    def factors(self, paths: Iterable[str]) -> dict[str, float]:
        """The learning-rate factor of every parameter.

        Raises:
          InputError: an expression matches none (a misspelt one would silently train what was to be frozen), or
            nothing is left to train.
        """
        factors, used = {}, set()
        for path in paths:
            factors[path] = 1.0
            for pattern, factor in self.multipliers.items():
                if covers(pattern, path):
                    used.add(pattern)
                    factors[path] = float(factor)
                    break
        for pattern in self.multipliers:
            if pattern not in used and not any(covers(pattern, path) for path in factors):
                raise InputError(
                    "a learning-rate multiplier matches no parameter",
                    f"Match one of the paths, such as {', '.join(sorted(factors)[:3])}.",
                    value=pattern,
                )
        if factors and not any(factors.values()):
            raise InputError(
                "every parameter is frozen", "Give some a multiplier above 0.", value=dict(self.multipliers)
            )
        return factors

    def build(self, factors: Mapping[str, float]) -> optax.GradientTransformation:
        """The optax transformation of a flat dict with the paths of `factors`."""
        parts = [optax.clip_by_global_norm(self.clip)] if self.clip else []
        if self.kind == "adamw":
            options = dict(self.options)
            decay, exempt = options.pop("weight_decay"), options.pop("no_weight_decay")
            parts.append(optax.scale_by_adam(**options))
            if decay:
                mask = {path: not any(covers(pattern, path) for pattern in exempt) for path in factors}
                parts.append(optax.add_decayed_weights(decay, mask=mask))
            parts.append(optax.scale_by_learning_rate(self.schedule))
        elif self.kind == "adafactor":
            parts.append(optax.adafactor(learning_rate=self.schedule, **self.options))
        else:
            raise InputError("unknown optimiser", "Use adamw or adafactor.", value=self.kind)
        if any(factor != 1 for factor in factors.values()):
            parts.append(_scale_by(dict(factors)))
        return optax.chain(*parts)


def adamw(
    schedule: Schedule | float = 1e-3,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    no_weight_decay: tuple[str, ...] = NO_WEIGHT_DECAY,
    clip: float = 1.0,
    multipliers: Mapping[str, float] | None = None,
) -> Optimizer:
    """AdamW (Loshchilov & Hutter, 2019); weight decay is multiplied by the learning rate.

    Args:
      schedule: a schedule, or a constant learning rate.
      no_weight_decay: expressions, as in `Optimizer.multipliers`, of parameters that do not decay.
      clip, multipliers: see `Optimizer`.
    """
    options = {"b1": b1, "b2": b2, "eps": eps, "weight_decay": weight_decay, "no_weight_decay": tuple(no_weight_decay)}
    return Optimizer("adamw", _as_schedule(schedule), options, clip, dict(multipliers or {}))


def adafactor(
    schedule: Schedule | float = 1e-3,
    *,
    decay_rate: float = 0.8,
    min_dim_size_to_factor: int = 128,
    multiply_by_parameter_scale: bool = True,
    clipping_threshold: float | None = 1.0,
    momentum: float | None = None,
    weight_decay_rate: float | None = None,
    clip: float = 0.0,
    multipliers: Mapping[str, float] | None = None,
) -> Optimizer:
    """Adafactor (Shazeer & Stern, 2018): for a matrix, second moments of rows and columns only.

    Args:
      schedule: a schedule, or a constant; relative to a parameter's own size where `multiply_by_parameter_scale`.
      clip, multipliers: see `Optimizer`. Updates are clipped by `clipping_threshold` already.
    """
    options = {
        "decay_rate": decay_rate,
        "min_dim_size_to_factor": min_dim_size_to_factor,
        "multiply_by_parameter_scale": multiply_by_parameter_scale,
        "clipping_threshold": clipping_threshold,
        "momentum": momentum,
        "weight_decay_rate": weight_decay_rate,
    }
    return Optimizer("adafactor", _as_schedule(schedule), options, clip, dict(multipliers or {}))


def covers(pattern: str, path: str) -> bool:
    """Whether `pattern` matches, as a whole, `path` or a folder above it."""
    parts = path.split("/")
    return any(re.fullmatch(pattern, "/".join(parts[: n + 1])) for n in range(len(parts)))


def _as_schedule(value: Schedule | float) -> Schedule:
    return value if isinstance(value, Schedule) else Schedule(learning_rate=float(value))


def _scale_by(factors: Mapping[str, float]) -> optax.GradientTransformation:
    """Multiplies the update of each path; after the learning rate, so it does so for every optimiser alike."""
    return optax.stateless(lambda updates, _: {path: update * factors[path] for path, update in updates.items()})
