"""The reliability diagram: how often answers are right, over how sure a system was of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gr_jax.errors import InputError
from gr_jax.evaluation import drawing
from gr_jax.evaluation.calibration import Reliability

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_IDEAL = "right as often as said"


def reliability_diagram(found: Mapping[str, Reliability], *, title: str) -> Figure:
    """A line for each system, beside the one of a system that is right as often as it says.

    Args:
      found: system → its bins.
      title: what is shown.
    """
    if not found:
        raise InputError("there is no system to draw", "Give one at least.")
    with drawing.style():
        figure = drawing.new_figure(4.8, 4.8)
        axes = figure.subplots()
        axes.plot((0, 1), (0, 1), color=drawing.BASELINE, linewidth=1, linestyle="--", label=_IDEAL)
        for place, (name, bins) in enumerate(found.items()):
            label = f"{name}, error {bins.error:.3f}"
            colour = drawing.COLOURS[place % len(drawing.COLOURS)]
            axes.plot(bins.said, bins.seen, color=colour, linewidth=1.5, marker="o", markersize=4, label=label)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        axes.set_title(title)
        axes.set_xlabel("probability that was said")
        axes.set_ylabel("share of right answers")
        axes.grid(True)
        drawing.add_legend(figure, [axes])
        return figure
