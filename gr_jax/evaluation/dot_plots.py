"""A picture of many named things beside each other: a line for each, a dot for each of its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gr_jax.errors import InputError
from gr_jax.evaluation import drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_APART = 0.13  # of the distance between lines


def dots(values: Mapping[str, Mapping[str, float]], *, title: str, x: str) -> Figure:
    """Values of named things, from top to bottom in their order.

    Args:
      values: name → what is measured → value. A name may lack some of what others have.
      title: what is shown.
      x: what the values are.

    Raises:
      InputError: there is no value.
    """
    measured = list(dict.fromkeys(one for of_name in values.values() for one in of_name))
    if not measured:
        raise InputError("there is no point to draw", "Give each name at least one.")
    with drawing.style():
        figure = drawing.new_figure(4.2 + 0.075 * max(map(len, values)), 1.4 + 0.24 * len(values))
        axes = figure.subplots()
        for place, one in enumerate(measured):
            rows = [(row, of_name[one]) for row, of_name in enumerate(values.values()) if one in of_name]
            down, along = zip(*rows, strict=True)
            beside = _APART * (place - (len(measured) - 1) / 2)  # equal values would hide each other
            axes.plot(
                along,
                [row + beside for row in down],
                "o",
                markersize=5,
                color=drawing.COLOURS[place % len(drawing.COLOURS)],
                label=one,
            )
        for row, of_name in enumerate(values.values()):
            axes.hlines(
                row, min(of_name.values()), max(of_name.values()), color=drawing.BASELINE, linewidth=1, zorder=0
            )
        axes.set_yticks(range(len(values)), list(values))
        axes.invert_yaxis()
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        axes.set_xlabel(x)
        axes.grid(True, axis="x")
        drawing.add_legend(figure, [axes])
        return figure
