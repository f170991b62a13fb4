"""What figures share: style, plain numbers on axes, limits that do not make noise a trend, legends outside of axes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from gr_jax.errors import InputError
from gr_jax.printing import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Told apart by people with any colour vision (after Okabe and Ito), the most contrasting first.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195", "#8C6D1F")
BASELINE = "#9AA0A6"
INK, _FAINT = "#24292F", "#D0D7DE"
CLEAR = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # behind words that stand on grid lines
LEAST_SPAN = 0.05  # of an axis of measures in 0..1: less would draw chance as high as the figure
_INCHES_PER_CHARACTER = 0.085
_INCHES_PER_ENTRY = 0.19  # of a legend
_MARGIN = 0.05  # of an axis, around what it shows

_STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-12, 12),
    "text.color": INK,
    "text.parse_math": False,  # names come from data sets: "$x$" is one like any other
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "grid.color": _FAINT,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "svg.hashsalt": "gr_jax",  # the same numbers give the same bytes
}


def import_matplotlib() -> Any:
    """The package matplotlib, or an InputError that names the extra."""
    try:
        import matplotlib
        import matplotlib.figure
        import matplotlib.layout_engine
        import matplotlib.ticker
    except ImportError as error:
        raise InputError("plots need the package matplotlib", "pip install 'gr_jax[eval]'") from error
    return matplotlib


def style() -> Any:
    """A context in which figures are drawn and written."""
    return import_matplotlib().rc_context(_STYLE)


def new_figure(width: float, height: float) -> Figure:
    """An empty white figure, in inches."""
    matplotlib = import_matplotlib()
    layout = matplotlib.layout_engine.ConstrainedLayoutEngine(h_pad=0.09, w_pad=0.09)
    return matplotlib.figure.Figure(figsize=(width, height), layout=layout, facecolor="white")


def plain_number(value: float) -> str:
    """A number as an axis shows it, with at most four digits: 0.25, 10, 1,600, 32k, 1.5M."""
    for unit, letter in ((1e6, "M"), (1e4, "k")):
        if abs(value) >= unit:
            return _digits(value / (1e6 if letter == "M" else 1e3), 3) + letter
    return f"{value:,.4g}" if abs(value) >= 1 else _digits(value, 4)


def _digits(value: float, count: int) -> str:
    return np.format_float_positional(float(f"{value:.{count}g}") + 0.0, trim="-")


def set_ticks(axes: Axes, places: Iterable[float], *, logarithmic: bool, width: float) -> None:
    """Ticks of the x axis: the places themselves where their labels have room, else round numbers.

    Args:
      axes: with what it shows.
      places: where there are values.
      logarithmic: of the axis; zero is shown beside the smallest place above it.
      width: of the panel, in inches.
    """
    ticker, ticks = import_matplotlib().ticker, sorted(set(places))
    if logarithmic and ticks[0] > 0:
        axes.set_xscale("log")
    elif logarithmic:
        least = min((tick for tick in ticks if tick > 0), default=1.0)
        axes.set_xscale("symlog", linthresh=least, linscale=0.5)
        axes.set_xlim(-0.2 * least, 1.15 * ticks[-1])
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    along = axes.transAxes.inverted().transform(axes.transData.transform([(tick, 0.0) for tick in ticks]))[:, 0]
    room = _INCHES_PER_CHARACTER * (1 + max(len(plain_number(tick)) for tick in ticks))
    if axes.get_xscale() == "symlog" or len(ticks) == 1 or width * np.diff(along).min() >= room:
        kept = [0]
        for place in range(1, len(ticks)):
            if width * (along[place] - along[kept[-1]]) >= room:
                kept.append(place)
        axes.set_xticks([ticks[place] for place in kept])
    elif axes.get_xscale() == "log":
        axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    else:
        axes.xaxis.set_major_locator(ticker.MaxNLocator(6, steps=(1, 2, 5, 10)))
    axes.xaxis.set_major_formatter(lambda value, _: plain_number(value))


def set_limits(axes: Axes, values: Iterable[float], *, least_span: float = LEAST_SPAN) -> None:
    """Limits of the y axis: around the values, and never so close that small differences fill the axis.

    Args:
      axes: a panel.
      values: what it shows, ends of intervals too.
      least_span: of the axis.
    """
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite), max(finite)
    within = 0 <= low and high <= 1
    wider = max(least_span - (high - low), 0) / 2
    bottom, top = low - wider, high + wider
    if within:  # a measure: there is nothing above 1 or below 0
        bottom, top = bottom - max(top - 1, 0), top - min(bottom, 0)
        bottom, top = max(bottom, 0.0), min(top, 1.0)
    margin = _MARGIN * (top - bottom)
    axes.set_ylim(bottom - margin, top + margin)


def add_legend(figure: Figure, axes: Iterable[Axes]) -> None:
    """A legend below the panels, of each name once. What has no name needs none."""
    named: dict[str, Any] = {}
    for panel in axes:
        for handle, name in zip(*panel.get_legend_handles_labels(), strict=True):
            named.setdefault(name, handle)
    if named:
        longest = max(len(printable(name)) for name in named)
        columns = max(1, min(4, len(named), int(figure.get_figwidth() / (_INCHES_PER_CHARACTER * longest + 0.55))))
        figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=columns, fontsize=8.5)
        figure.set_figheight(figure.get_figheight() + 0.1 + _INCHES_PER_ENTRY * -(-len(named) // columns))
