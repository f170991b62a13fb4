"""The pictures of a report: how good, how training went, where beams die. Made with matplotlib, without its pyplot."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from gr_jax.errors import InputError
from gr_jax.printing import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Told apart by people with any colour vision (after Okabe and Ito), the most contrasting first.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195", "#8C6D1F")
BASELINE = "#9AA0A6"
_INK, _FAINT = "#24292F", "#D0D7DE"
_CLEAR = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # behind words that stand on grid lines

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
    "axes.labelcolor": _INK,
    "axes.titlecolor": _INK,
    "axes.axisbelow": True,
    "text.color": _INK,
    "text.parse_math": False,  # names come from data sets: "$x$" is one like any other
    "xtick.color": _INK,
    "ytick.color": _INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "grid.color": _FAINT,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "svg.hashsalt": "gr_jax",  # the same numbers give the same bytes
}


def metric_bars(
    values: Mapping[str, Mapping[str, Mapping[str, float]]],
    *,
    intervals: Mapping[tuple[str, str, str], tuple[float, float]] | None = None,
    baseline: str | None = None,
) -> Figure:
    """One panel for each split; measures side by side, one bar for each system.

    Args:
      values: split → system → measure → value in 0..1.
      intervals: (split, system, measure) → where the value lies, drawn as whiskers.
      baseline: the system to draw in grey.
    """
    systems = list(dict.fromkeys(system for split in values.values() for system in split))
    measures = list(dict.fromkeys(m for split in values.values() for system in split.values() for m in system))
    if not measures:
        raise InputError("there is nothing to draw", "Add a row with measures to the report first.")
    colour = _system_colours(systems, baseline)
    bars = len(systems) * len(measures)
    width = min(12.0, max(4.8, 1.4 + 0.36 * bars))
    with _style():
        figure = _figure(width, 2.75 * len(values) + 0.55)
        panels = figure.subplots(len(values), 1, squeeze=False, sharey=True)[:, 0]
        thickness = min(0.84 / len(systems), 0.3)
        heights = [v for split in values.values() for system in split.values() for v in system.values()]
        top = max([1.0, *filter(math.isfinite, heights)])
        for axes, (split, rows) in zip(panels, values.items(), strict=True):
            for place, system in enumerate(systems):
                here = np.array([rows.get(system, {}).get(measure, math.nan) for measure in measures])
                x = np.arange(len(measures)) + (place - (len(systems) - 1) / 2) * thickness
                axes.bar(x, here, 0.9 * thickness, color=colour[system], label=printable(system))
                ends = _whiskers(axes, x, here, [(intervals or {}).get((split, system, m)) for m in measures])
                for left, value, end in zip(x, here, ends, strict=True):
                    if math.isfinite(value):
                        place_above = (left, end + 0.02 * top)
                        axes.text(*place_above, _short(value), ha="center", va="bottom", fontsize=7.5, bbox=_CLEAR)
            axes.set_xticks(np.arange(len(measures)), measures)
            axes.set_title(printable(split))
            axes.set_xlim(-0.55, len(measures) - 0.45)
            axes.set_ylim(0, 1.1 * top)
            axes.yaxis.grid(True)
            axes.spines["left"].set_visible(False)
        _legend_above(figure, panels[0])
        return figure


def training_curves(records: Sequence[Mapping[str, float]]) -> Figure:
    """How a training went, over steps: a panel each for losses, for measures of dev, and for each family of what was
    noted of the training itself (accuracies, norms, rates), as these have scales of their own.

    Args:
      records: lines of metrics.jsonl: "step", a loss (any name that ends in "loss"), measures ("dev/Success@10").
    """
    series = _series(records, lambda name: "/" in name or name.endswith("loss"))
    families: dict[str, list[str]] = {"Loss": [], "Measures": []}
    for name in series:
        families.setdefault(_family(name), []).append(name)
    panels = [(family, names) for family, names in families.items() if names]
    if not panels:
        raise InputError("the training metrics hold neither a loss nor a measure", "Give metrics.jsonl of a training.")
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    with _style():
        figure = _figure(4.0 * columns + 0.4, 3.3 * rows)
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for spare in grid[len(panels) :]:
            spare.remove()
        for axes, (title, names) in zip(grid, panels, strict=False):
            drawn = {name: series[name] for name in names}
            lines = [
                _draw_series(axes, *points, COLOURS[place % len(COLOURS)])
                for place, points in enumerate(drawn.values())
            ]
            axes.set_title(title)
            axes.set_xlabel("step")
            axes.grid(True)
            axes.xaxis.set_major_locator(import_matplotlib().ticker.MaxNLocator(5, integer=True))
            axes.xaxis.set_major_formatter(lambda step, _: f"{step / 1000:g}k" if step >= 1000 else f"{step:g}")
            if title in ("Measures", "Accuracy") and all(
                0 <= value <= 1 for _, values in drawn.values() for value in values
            ):
                axes.set_ylim(0, 1)
            # Below the panel, where it hides nothing.
            axes.legend(lines, map(printable, names), fontsize=8.5, loc="upper left", bbox_to_anchor=(0, -0.16))
        return figure


def _family(name: str) -> str:
    """The panel that a series of metrics.jsonl is drawn in: "train/accuracy/level_1" under "Accuracy"."""
    group, _, quantity = name.partition("/")
    noted = quantity.partition("/")[0] if group == "train" else ""
    if name.endswith("loss") or noted == "loss":
        return "Loss"
    return printable(noted.replace("_", " ")).capitalize() or "Measures"


def beam_survival(curves: Mapping[str, Float[np.ndarray, " depth"] | Sequence[float]]) -> Figure:
    """Where beams die: the share of queries whose gold docid's prefix is still in the beam, by depth.

    Args:
      curves: name (a split, a beam width) → shares; the i-th is the share after i + 1 tokens. Before the first token
        it is 1.
    """
    if not curves or not all(len(curve) for curve in curves.values()):
        raise InputError("there is no depth to draw", "Give one share for each depth.")
    with _style():
        figure = _figure(max(5.2, min(9.0, 2.4 + 0.8 * max(map(len, curves.values())))), 3.3)
        axes = figure.subplots()
        ends = []
        for place, (name, curve) in enumerate(curves.items()):
            shares = np.concatenate([[1.0], np.asarray(curve, np.float64)])
            colour = COLOURS[place % len(COLOURS)]
            depth = np.arange(len(shares))
            axes.plot(depth, shares, color=colour, linewidth=2, marker="o", markersize=4.5, label=printable(name))
            ends.append((depth[-1], shares[-1], colour))
            fall = int(np.argmin(np.diff(shares)))
            lost = shares[fall] - shares[fall + 1]
            if len(curves) == 1 and lost > 0:
                axes.annotate(
                    f"−{100 * lost:.0f} points at token {fall + 1}",
                    ((depth[fall] + depth[fall + 1]) / 2, (shares[fall] + shares[fall + 1]) / 2),
                    xytext=(8, 12),
                    textcoords="offset points",
                    fontsize=8.5,
                    bbox=_CLEAR,
                )
        # A line may start its axis where it is; tens, so that the axis reads easily.
        bottom = max(0.0, math.floor(10 * min(min(curve) for curve in curves.values()) - 0.5) / 10)
        _label_ends(axes, ends, gap=0.065 * (1 - bottom))
        axes.set_title("Queries whose gold docid is still in the beam")
        axes.set_xlabel("tokens written")
        axes.set_ylim(bottom, 1 + 0.04 * (1 - bottom))
        axes.set_xlim(-0.15, max(map(len, curves.values())) + 0.6)
        ticker = import_matplotlib().ticker
        axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(ticker.MultipleLocator(0.05 if bottom > 0.65 else 0.1 if bottom > 0.35 else 0.2))
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f}%")
        axes.yaxis.grid(True)
        if len(curves) > 1:
            axes.legend(fontsize=8.5, loc="lower left")
        return figure


_TICKS = 10  # of more places their numbers would run into each other


def curves(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    x: str,
    y: str,
    logarithmic: bool = False,
    questions: int | None = None,
) -> Figure:
    """Values over a quantity, a line for each name: quality over the size of the corpus, over a setting. Few places
    are ticks of the axis themselves.

    Args:
      series: name → points (x, y).
      title, x, y: what is shown, and what the axes are.
      logarithmic: of x.
      questions: so many questions' values in 0..1 have each y as their mean. A band is then the widest interval of 95%
        that such a mean can have, that of values which are all 0 or 1; questions that points have in common make
        differences between them surer than bands say.
    """
    if not any(series.values()):
        raise InputError("there is no point to draw", "Give each name at least one.")
    if questions is not None and questions < 1:
        raise InputError("bands are of means over questions", "Say of how many.", value=questions)
    with _style():
        figure = _figure(5.6, 3.4)
        axes = figure.subplots()
        ticks = sorted({at for points in series.values() for at, _ in points})
        for place, (name, points) in enumerate(series.items()):
            at, values = zip(*sorted(points), strict=True) if points else ((), ())
            colour = COLOURS[place % len(COLOURS)]
            axes.plot(at, values, color=colour, linewidth=2, marker="o", label=name)
            if questions is not None:
                mean = np.asarray(values)
                half = 1.96 * np.sqrt(mean * (1 - mean) / questions)
                axes.fill_between(at, mean - half, mean + half, color=colour, alpha=0.15, linewidth=0)
        ticker = import_matplotlib().ticker
        if logarithmic:
            axes.set_xscale("log")
            axes.xaxis.set_minor_locator(ticker.NullLocator())
        if len(ticks) <= _TICKS:
            axes.set_xticks(ticks, [f"{at:,.10g}" for at in ticks])
        elif logarithmic:
            axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda at, _: f"{at:,.10g}"))
        axes.set_title(title)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(True)
        axes.legend(fontsize=8.5)
        return figure


def to_svg(figure: Figure) -> bytes:
    """The figure as an SVG file without fonts or links: letters are outlines."""
    buffer = io.BytesIO()
    with _style():
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def to_png(figure: Figure, *, dpi: int = 144) -> bytes:
    """The figure as a PNG file."""
    buffer = io.BytesIO()
    with _style():
        figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


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


def _style() -> Any:
    return import_matplotlib().rc_context(_STYLE)


def _figure(width: float, height: float) -> Figure:
    matplotlib = import_matplotlib()
    layout = matplotlib.layout_engine.ConstrainedLayoutEngine(h_pad=0.09, w_pad=0.09)
    return matplotlib.figure.Figure(figsize=(width, height), layout=layout, facecolor="white")


def _system_colours(systems: Sequence[str], baseline: str | None) -> dict[str, str]:
    others = [system for system in systems if system != baseline]
    colours = {system: COLOURS[place % len(COLOURS)] for place, system in enumerate(others)}
    return {system: colours.get(system, BASELINE) for system in systems}


def _whiskers(
    axes: Axes, x: np.ndarray, values: np.ndarray, intervals: Sequence[tuple[float, float] | None]
) -> list[float]:
    """Draws the intervals that are known; returns where each bar's drawing ends, for its label."""
    for left, interval in zip(x, intervals, strict=True):
        if interval is not None:
            axes.plot([left, left], interval, color=_INK, linewidth=1, alpha=0.65, solid_capstyle="butt")
    return [
        value if interval is None else max(value, interval[1])
        for value, interval in zip(values, intervals, strict=True)
    ]


def _series(records: Sequence[Mapping[str, float]], wanted: Any) -> dict[str, tuple[list[float], list[float]]]:
    series: dict[str, tuple[list[float], list[float]]] = {}
    for record in records:
        for name, value in record.items():
            if name != "step" and wanted(name) and isinstance(value, int | float) and math.isfinite(value):
                steps, values = series.setdefault(name, ([], []))
                steps.append(record["step"])
                values.append(value)
    return series


def _draw_series(axes: Axes, steps: Sequence[float], values: Sequence[float], colour: str) -> Any:
    """A line with its points; where there are too many to tell apart, their running mean over a paler line."""
    if len(values) <= 60:
        return axes.plot(steps, values, color=colour, linewidth=2, marker="o", markersize=3.5)[0]
    axes.plot(steps, values, color=colour, linewidth=0.7, alpha=0.35)
    window = np.ones(max(3, len(values) // 40) | 1)
    smooth = np.convolve(values, window, "same") / np.convolve(np.ones(len(values)), window, "same")
    return axes.plot(steps, smooth, color=colour, linewidth=2)[0]


def _label_ends(axes: Axes, ends: Sequence[tuple[float, float, str]], gap: float) -> None:
    """Writes the last value of each curve beside it, moved apart where they would overlap."""
    last = -math.inf
    for x, y, colour in sorted(ends, key=lambda end: end[1]):
        last = max(y, last + gap)
        axes.text(x + 0.12, last, f"{100 * y:.0f}%", color=colour, va="center", fontweight="bold", fontsize=9)


def _legend_above(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=max(1, min(len(labels), 4)), fontsize=9)


def _short(value: float) -> str:
    return f"{value:.2f}".removeprefix("0") if value < 1 else f"{value:.4g}"
