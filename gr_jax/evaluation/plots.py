"""The pictures of a report: how good, how training went, where beams die. Made with matplotlib, without its pyplot."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from gr_jax.errors import InputError
from gr_jax.evaluation import drawing
from gr_jax.evaluation.drawing import BASELINE, CLEAR, COLOURS, INK
from gr_jax.printing import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SPAN_ON_DEV = 0.2  # of the axis of a measure of a few hundred queries, which chance moves by hundredths


def metric_bars(
    values: Mapping[str, Mapping[str, Mapping[str, float]]],
    *,
    title: str = "",
    intervals: Mapping[tuple[str, str, str], tuple[float, float]] | None = None,
    baseline: str | None = None,
) -> Figure:
    """One panel for each split; measures side by side, one bar for each system.

    Args:
      values: split → system → measure → value in 0..1.
      title: what is shown: the system and the data.
      intervals: (split, system, measure) → where the value lies, drawn as whiskers.
      baseline: the system to draw in grey.
    """
    systems = list(dict.fromkeys(system for split in values.values() for system in split))
    measures = list(dict.fromkeys(m for split in values.values() for system in split.values() for m in system))
    if not measures:
        raise InputError("there is nothing to draw", "Add a row with measures to the report first.")
    colour = _system_colours(systems, baseline)
    bars = len(systems) * len(measures)
    width = min(12.0, max(1.2 + 0.95 * len(measures), 1.4 + 0.36 * bars, 4.0))
    with drawing.style():
        figure = drawing.new_figure(width, 2.75 * len(values) + 0.55)
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
                        axes.text(*place_above, _short(value), ha="center", va="bottom", fontsize=7.5, bbox=CLEAR)
            axes.set_xticks(np.arange(len(measures)), measures)
            axes.set_title(", ".join(filter(None, (printable(title), printable(split)))))
            axes.set_ylabel("mean over queries")
            axes.set_xlim(-0.55, len(measures) - 0.45)
            axes.set_ylim(0, 1.1 * top)
            axes.yaxis.grid(True)
            axes.spines["left"].set_visible(False)
        drawing.add_legend(figure, panels)
        return figure


def training_curves(records: Sequence[Mapping[str, float]], *, title: str = "") -> Figure | None:
    """How a training went, over steps: a panel each for losses, for each measure of dev, and for each family of what
    was noted of the training itself (accuracies, norms, rates), as these have scales of their own. None where nothing
    was noted twice: a dot is no curve.

    Args:
      records: lines of metrics.jsonl: "step", a loss (any name that ends in "loss"), measures ("dev/Success@10").
      title: whose training it is.
    """
    series = _series(records)
    if not series:
        raise InputError("the training metrics hold neither a loss nor a measure", "Give metrics.jsonl of a training.")
    panels: dict[str, list[str]] = {"Loss": []}
    for name, (steps, values) in series.items():
        if len(steps) > 1 and (any(values) or not name.endswith("loss")):  # a loss that is off is noted as zero
            panels.setdefault(_family(name), []).append(name)
    panels = {family: names for family, names in panels.items() if names}
    if not panels:
        return None
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    last = max(steps[-1] for steps, _ in series.values())
    with drawing.style():
        figure = drawing.new_figure(4.0 * columns + 0.4, 3.3 * rows + 0.3 * bool(title))
        if title:
            figure.suptitle(printable(title), x=0.01, ha="left", fontsize=11, fontweight="bold")
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for spare in grid[len(panels) :]:
            spare.remove()
        for axes, (family, names) in zip(grid, panels.items(), strict=False):
            lines = [
                _draw_series(axes, *series[name], COLOURS[place % len(COLOURS)]) for place, name in enumerate(names)
            ]
            axes.set_title(family)
            axes.set_xlabel("step")
            axes.grid(True)
            axes.set_xlim(-0.03 * last, 1.03 * last)
            axes.xaxis.set_major_locator(drawing.import_matplotlib().ticker.MaxNLocator(5, integer=True))
            axes.xaxis.set_major_formatter(lambda step, _: drawing.plain_number(step))
            values = [value for name in names for value in series[name][1]]
            if all(0 <= value <= 1 for value in values) and (family == "Accuracy" or not _is_noted(names[0])):
                drawing.set_limits(axes, values, least_span=_SPAN_ON_DEV)
            elif min(values) >= 0:
                axes.set_ylim(0, 1.08 * max(values) or 1.0)
            # Below the panel, where it hides nothing.
            axes.legend(lines, map(printable, names), fontsize=8.5, loc="upper left", bbox_to_anchor=(0, -0.16))
        return figure


def noted_once(records: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """name → (step, value) of what `training_curves` leaves out: what was noted a single time."""
    return {name: (steps[0], values[0]) for name, (steps, values) in _series(records).items() if len(steps) == 1}


def _is_noted(name: str) -> bool:
    return name.startswith("train/") or name.endswith("loss")


def _family(name: str) -> str:
    """The panel that a series of metrics.jsonl is drawn in: "train/accuracy/level_1" under "Accuracy", "dev/RR@10" and
    "dev_unseen/RR@10" under "RR@10"."""
    _, _, quantity = name.partition("/")
    if not _is_noted(name):
        return printable(quantity) or "Measures"
    noted = quantity.partition("/")[0]
    if name.endswith("loss") or noted == "loss":
        return "Loss"
    return printable(noted.replace("_", " ")).capitalize()


def beam_survival(curves: Mapping[str, Float[np.ndarray, " depth"] | Sequence[float]]) -> Figure:
    """Where beams die: the share of queries whose gold docid's prefix is still in the beam, by depth.

    Args:
      curves: name (a split, a beam width) → shares; the i-th is the share after i + 1 tokens. Before the first token
        it is 1.
    """
    if not curves or not all(len(curve) for curve in curves.values()):
        raise InputError("there is no depth to draw", "Give one share for each depth.")
    with drawing.style():
        whose = f"{printable(next(iter(curves)))}: " if len(curves) == 1 else ""
        title = f"{whose}{'gold' if whose else 'Gold'} docids still in the beam"
        wide = max(5.2, 0.11 * len(title), min(9.0, 2.4 + 0.8 * max(map(len, curves.values()))))
        figure = drawing.new_figure(wide, 3.3)
        axes = figure.subplots()
        ends = []
        for place, (name, curve) in enumerate(curves.items()):
            shares = np.concatenate([[1.0], np.asarray(curve, np.float64)])
            colour = COLOURS[place % len(COLOURS)]
            depth = np.arange(len(shares))
            label = printable(name) if len(curves) > 1 else ""  # one is named by the title
            axes.plot(depth, shares, color=colour, linewidth=2, marker="o", markersize=4.5, label=label)
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
                    bbox=CLEAR,
                )
        # A line may start its axis where it is; tens, so that the axis reads easily.
        bottom = max(0.0, math.floor(10 * min(min(curve) for curve in curves.values()) - 0.5) / 10)
        _label_ends(axes, ends, gap=0.065 * (1 - bottom))
        axes.set_title(title)
        axes.set_xlabel("tokens written")
        axes.set_ylabel("share of queries")
        axes.set_ylim(bottom, 1 + 0.04 * (1 - bottom))
        longest = max(map(len, curves.values()))
        axes.set_xlim(-0.03 * longest, 1.03 * longest)
        ticker = drawing.import_matplotlib().ticker
        axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(ticker.MultipleLocator(0.05 if bottom > 0.65 else 0.1 if bottom > 0.35 else 0.2))
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f}%")
        axes.yaxis.grid(True)
        drawing.add_legend(figure, [axes])
        return figure


def curves(
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    *,
    title: str,
    x: str,
    logarithmic: bool = False,
    queries: Mapping[str, int] | None = None,
    differing: float | None = None,
) -> Figure:
    """Measures over a quantity, a panel for each measure and a line for each name: quality over the size of the corpus,
    over a setting. Few places are ticks of the axis themselves.

    Args:
      panels: measure → name → points (x, y).
      title, x: what is shown, and what the quantity is.
      logarithmic: of x.
      queries: measure → so many queries' values in 0..1 have each y as their mean. A band is then the widest interval
        of 95% that such a mean can have, that of values which are all 0 or 1; queries that points have in common make
        differences between them surer than bands say.
      differing: y are differences from one system, of which this share of the queries has a part. Bands are as wide as
        these can make them, and zero is in the picture.
    """
    panels = {measure: {name: sorted(points) for name, points in series.items()} for measure, series in panels.items()}
    if not all(any(series.values()) for series in panels.values()) or not panels:
        raise InputError("there is no point to draw", "Give each measure at least one.")
    if any(count < 1 for count in (queries or {}).values()):
        raise InputError("bands are of means over queries", "Say of how many.", value=queries)
    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    width = 5.6 if columns == 1 else 3.8
    names = list(dict.fromkeys(name for series in panels.values() for name in series))
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(names)}
    with drawing.style():
        figure = drawing.new_figure(width * columns, 0.5 + (3.2 if rows == 1 else 2.4) * rows)
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for spare in grid[len(panels) :]:
            spare.remove()
        for axes, (measure, series) in zip(grid, panels.items(), strict=False):
            shown = [0.0] if differing is not None else []
            for name, points in series.items():
                at, values = np.array(points, np.float64).reshape(-1, 2).T
                axes.plot(at, values, color=colours[name], linewidth=2, marker="o", markersize=5, label=printable(name))
                half = _half_band(values, (queries or {}).get(measure), differing)
                if half.any():
                    axes.fill_between(at, values - half, values + half, color=colours[name], alpha=0.15, linewidth=0)
                    if len(points) == 1:
                        axes.errorbar(at, values, half, color=colours[name], linewidth=1)
                shown += [*(values - half), *(values + half)]
            drawing.set_limits(axes, shown)
            if differing is not None:
                axes.axhline(0, color=BASELINE, linewidth=1, zorder=1)
            places = [place for points in series.values() for place, _ in points]
            drawing.set_ticks(axes, places, logarithmic=logarithmic, width=width - 0.8)
            axes.set_ylabel(measure)
            axes.grid(True)
        counted = sorted({*(queries or {}).values()})
        bands = f"bands: 95% for means over {', '.join(f'{count:,}' for count in counted)} queries" if counted else ""
        bands += f", {differing:.0%} of which differ" if counted and differing is not None else ""
        if len(panels) == 1:
            grid[0].set_title(title)
            grid[0].set_xlabel("\n".join(filter(None, (x, bands))))
        else:
            figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
            figure.supxlabel("\n".join(filter(None, (x, bands))), fontsize=9.5)
        figure.align_ylabels()
        drawing.add_legend(figure, grid[: len(panels)])
        return figure


def _half_band(values: np.ndarray, queries: int | None, differing: float | None) -> np.ndarray:
    if queries is None:
        return np.zeros_like(values)
    variance = values * (1 - values) if differing is None else np.full_like(values, differing)
    return 1.96 * np.sqrt(variance / queries)


def to_svg(figure: Figure) -> bytes:
    """The figure as an SVG file without fonts or links: letters are outlines."""
    buffer = io.BytesIO()
    with drawing.style():
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def to_png(figure: Figure, *, dpi: int = 144) -> bytes:
    """The figure as a PNG file."""
    buffer = io.BytesIO()
    with drawing.style():
        figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


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
            axes.plot([left, left], interval, color=INK, linewidth=1, alpha=0.65, solid_capstyle="butt")
    return [
        value if interval is None else max(value, interval[1])
        for value, interval in zip(values, intervals, strict=True)
    ]


def _series(records: Sequence[Mapping[str, float]]) -> dict[str, tuple[list[float], list[float]]]:
    series: dict[str, tuple[list[float], list[float]]] = {}
    for record in records:
        for name, value in record.items():
            drawn = name != "step" and ("/" in name or name.endswith("loss"))
            if drawn and isinstance(value, int | float) and math.isfinite(value):
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
        axes.annotate(
            f"{100 * y:.0f}%", (x, last), xytext=(7, 0), textcoords="offset points", color=colour, va="center",
            fontweight="bold", fontsize=9, annotation_clip=False,
        )  # fmt: skip


def _short(value: float) -> str:
    return f"{value:.2f}".removeprefix("0") if value < 1 else f"{value:.4g}"
