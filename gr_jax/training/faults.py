"""What happens where a loss or a gradient is not finite, or a loss is far above those before it."""

from __future__ import annotations

import collections
import dataclasses
import math
import warnings
from collections.abc import Mapping
from typing import Any

from gr_jax.errors import InputError, InputWarning

KINDS = ("stop", "skip", "back")
_FEWEST = 5  # losses that a mean is made of


class GoBack(Exception):
    """Training is to go on from its latest checkpoint, without the data since."""

    def __init__(self, step: int, why: str):
        super().__init__(why)
        self.step = step


@dataclasses.dataclass(frozen=True)
class Faults:
    """What is done about them: "stop" ends training with an error; "skip" leaves the update out; "back" goes on from
    the latest checkpoint, without the data since, as PaLM's training did (Chowdhery et al. 2022, section 5.1).

    Attributes:
      not_finite: where loss or gradient is not finite.
      spike: where a loss is more than `factor` times the mean of the `window` before it; None: it is no fault.
      factor, window: see `spike`. The last loss is not among those before it: nobody waits for it.
      most: updates left out in a row, or goings back without a checkpoint between them, after which training stops.

    Raises:
      InputError: a kind that does not exist, or numbers out of their range.
    """

    not_finite: str = "stop"
    spike: str | None = None
    factor: float = 3.0
    window: int = 50
    most: int = 10

    def __post_init__(self):
        for name in ("not_finite", "spike"):
            kind = getattr(self, name)
            if kind not in KINDS and not (kind is None and name == "spike"):
                raise InputError(f"Faults.{name} is unknown", f"Use one of {', '.join(KINDS)}.", value=kind)
        if not self.factor > 1 or self.window < _FEWEST or self.most < 1:
            raise InputError(
                "Faults need factor > 1, window ≥ 5 and most ≥ 1", "Correct them.",
                value=(self.factor, self.window, self.most),
            )  # fmt: skip

    def does(self, kind: str) -> bool:
        """Whether "skip", or "back", is done about anything."""
        return kind in (self.not_finite, self.spike)

    @property
    def settings(self) -> dict[str, Any] | None:
        """What must be the same when training goes on; None for what was done before there was a choice."""
        if self.not_finite == "stop" and self.spike is None:
            return None
        return dataclasses.asdict(self)


class Watch:
    """Judges the losses of one training. What it says follows from them alone, wherever training was interrupted.

    Args:
      faults: what is done.
    """

    def __init__(self, faults: Faults):
        self._faults = faults
        self._losses: collections.deque[tuple[int, float]] = collections.deque(maxlen=faults.window + 2)
        self._in_row = self._backs = 0

    def limit(self, step: int) -> float:
        """The loss above which the update that makes `step` is a spike; infinite where nothing is."""
        losses = [loss for at, loss in self._losses if at <= step - 2][-self._faults.window :]
        mean = sum(losses) / len(losses) if len(losses) >= _FEWEST else 0.0
        return self._faults.factor * mean if self._faults.spike is not None and mean > 0 else math.inf

    def judge(self, step: int, loss: float, norm: float) -> None:
        """Looks at one update.

        Raises:
          FloatingPointError: training is to stop.
          GoBack: training is to go back.
        """
        finite = math.isfinite(loss) and math.isfinite(norm)
        kind = self._faults.not_finite if not finite else self._faults.spike if loss > self.limit(step) else None
        if kind is None:
            self._losses.append((step, loss))
            self._in_row = 0
            return
        why = f"step {step}: loss {loss}, gradient norm {norm}" + (f", limit {self.limit(step):.4g}" if finite else "")
        self._in_row += 1
        self._backs += kind == "back"
        faults = max(self._in_row, self._backs)
        if kind == "stop" or faults > self._faults.most:
            often = f" This was fault {faults} in a row." if faults > 1 else ""
            raise FloatingPointError(
                f"{why}.{often} Lower the learning rate, warm up longer or clip gradients, or in a new folder let "
                'not_finite or spike be "skip" or "back"; the checkpoints before are as they were.'
            )
        if kind == "back":
            raise GoBack(step, why)
        warnings.warn(InputWarning(f"{why}. This update is left out."), stacklevel=2)

    def back(self, state: Mapping[str, Any] | None) -> None:
        """Goes on from an earlier state, after one more fault in a row."""
        in_row = self._in_row
        self.restore(state)
        self._in_row = in_row

    def saved(self) -> None:
        """A checkpoint was kept: whoever goes back now does not go where the last one went."""
        self._backs = 0

    def progress(self) -> dict[str, Any]:
        """What a checkpoint keeps; nothing where nothing is judged by what was before."""
        if self._faults.settings is None:
            return {}
        return {"faults": {"losses": [list(one) for one in self._losses], "in_row": self._in_row}}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Goes on from what `progress` gave under "faults"."""
        self._losses.clear()
        self._losses.extend((int(step), float(loss)) for step, loss in (state or {}).get("losses", ()))
        self._in_row = int((state or {}).get("in_row", 0))
