"""Figures show the numbers they were given."""

import io
import xml.etree.ElementTree

import matplotlib.text
import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.evaluation import calibration, calibration_plots, dot_plots, drawing, plots
from gr_jax.printing import printable

VALUES = {
    "test": {"BM25": {"Success@1": 0.7, "RR@10": 0.8}, "DSI": {"Success@1": 0.5, "RR@10": 0.6}},
    "test_unseen": {"BM25": {"Success@1": 0.65}, "DSI": {"Success@1": 0.2, "RR@10": float("nan")}},
}


def lay_out(figure):
    """As a file is: a figure without a canvas of its own is laid out only then."""
    with drawing.style():
        figure.draw_without_rendering()


def overlaps(boxes):
    return [(a, b) for place, a in enumerate(boxes) for b in boxes[:place] if a.overlaps(b)]


def test_one_bar_for_each_value_in_one_panel_for_each_split():
    figure = plots.metric_bars(VALUES, baseline="BM25")
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(VALUES)
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert heights == [0.7, 0.8, 0.5, 0.6]
    assert {text.get_text() for text in figure.axes[0].texts} == {".70", ".80", ".50", ".60"}
    # What was not measured has neither a bar nor a number.
    assert [text.get_text() for text in figure.axes[1].texts] == [".65", ".20"]
    colours = [bar.get_facecolor() for bar in figure.axes[0].patches]
    assert colours[0] == colours[1] != colours[2]
    lefts = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in figure.axes[0].patches)
    assert all(end <= start for (_, end), (start, _) in zip(lefts, lefts[1:], strict=False))


def test_whiskers_are_the_intervals():
    intervals = {("test", "BM25", "Success@1"): (0.66, 0.74), ("test", "DSI", "RR@10"): (0.55, 0.65)}
    figure = plots.metric_bars(VALUES, intervals=intervals)
    assert sorted(tuple(line.get_ydata()) for line in figure.axes[0].lines) == sorted(intervals.values())


def test_values_beyond_one_fit():
    figure = plots.metric_bars({"test": {"a": {"NumRet": 250.0}}})
    assert figure.axes[0].get_ylim()[1] > 250


def test_curves_are_the_records():
    records = [{"step": s, "loss": 1.0 / s, "learning_rate": 0.1} for s in range(1, 6)]
    records += [{"step": 5, "dev/Success@10": 0.4, "dev/loss": 2.0}]
    figure = plots.training_curves(records)
    (loss,) = figure.axes  # what was noted once is no curve
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["loss"]
    np.testing.assert_allclose(loss.lines[0].get_xydata(), [(s, 1 / s) for s in range(1, 6)])
    assert plots.noted_once(records) == {"dev/Success@10": (5, 0.4), "dev/loss": (5, 2.0)}
    assert plots.training_curves(records[-1:]) is None


def test_long_curves_are_smoothed_without_a_shift():
    records = [{"step": s, "loss": float(s)} for s in range(1, 401)]
    paler, smooth = plots.training_curves(records).axes[0].lines
    np.testing.assert_array_equal(paler.get_ydata(), np.arange(1.0, 401.0))
    # The running mean of a straight line is that line, but for the ends.
    np.testing.assert_allclose(smooth.get_ydata()[20:-20], np.arange(1.0, 401.0)[20:-20])


def test_survival_starts_at_one_and_names_the_largest_fall():
    figure = plots.beam_survival({"test": [0.95, 0.70, 0.68]})
    line = figure.axes[0].lines[0]
    np.testing.assert_allclose(line.get_xydata(), [(0, 1), (1, 0.95), (2, 0.70), (3, 0.68)])
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert "−25 points at token 2" in texts and "68%" in texts
    assert figure.axes[0].get_ylim()[0] <= 0.68


def test_end_labels_of_close_curves_do_not_overlap():
    figure = plots.beam_survival({"a": [0.9, 0.801], "b": [0.9, 0.80], "c": [0.9, 0.802]})
    lay_out(figure)
    assert [text.get_text() for text in figure.axes[0].texts] == ["80%"] * 3
    assert not overlaps([text.get_window_extent() for text in figure.axes[0].texts])


def test_curves_over_a_quantity_are_its_points():
    figure = plots.curves(
        {"R@100": {"one": [(100_000, 0.5), (10_000, 0.75)], "none yet": []}}, title="t", x="documents", logarithmic=True
    )
    (axes,) = figure.axes
    assert axes.lines[0].get_xydata().tolist() == [[10_000, 0.75], [100_000, 0.5]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["10k", "100k"]
    assert axes.get_xscale() == "log" and (axes.get_xlabel(), axes.get_ylabel()) == ("documents", "R@100")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one", "none yet"]
    with pytest.raises(InputError, match="no point"):
        plots.curves({"y": {"one": []}}, title="t", x="x")
    many = [(1.7 * 1.5**power, 0.5) for power in range(15)]  # to 496: ticks are round numbers then
    (axes,) = plots.curves({"y": {"one": many}}, title="t", x="x", logarithmic=True).axes
    lay_out(axes.figure)
    low, high = axes.get_xlim()
    shown = [label.get_text() for label in axes.get_xticklabels()]
    inside = [text for text, at in zip(shown, axes.get_xticks(), strict=True) if low <= at <= high]
    assert inside == ["2", "5", "10", "20", "50", "100", "200", "500"]


def test_bands_are_the_widest_intervals():
    """Of values that are 0 or 1; measured ones are nearer to their mean."""
    figure = plots.curves({"y": {"one": [(1, 0.5), (2, 0.9)]}}, title="t", x="x", queries={"y": 100})
    (band,) = figure.axes[0].collections
    expected = {(x, m + sign * 1.96 * (m * (1 - m) / 100) ** 0.5) for x, m in ((1, 0.5), (2, 0.9)) for sign in (-1, 1)}
    corners = {(x, round(y, 12)) for x, y in band.get_paths()[0].vertices}
    assert {(x, round(y, 12)) for x, y in expected} <= corners
    with pytest.raises(InputError, match="of how many"):
        plots.curves({"y": {"one": [(1, 0.5)]}}, title="t", x="x", queries={"y": 0})


def test_bands_of_differences():
    """By the share of the queries that has a part in them; zero is in the picture."""
    figure = plots.curves(
        {"gain": {"": [(1, 0.01), (2, 0.012)]}}, title="t", x="x", queries={"gain": 600}, differing=0.02
    )
    (axes,) = figure.axes
    half = 1.96 * (0.02 / 600) ** 0.5
    assert {round(y, 9) for _, y in axes.collections[0].get_paths()[0].vertices} == {
        round(middle + sign * half, 9) for middle in (0.01, 0.012) for sign in (-1, 1)
    }
    low, high = axes.get_ylim()
    assert low < 0 < high and high - low >= drawing.LEAST_SPAN and not figure.legends


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.25, "0.25"), (0.744844576, "0.7448"), (1, "1"), (1600, "1,600"), (178_775, "179k"), (10_000, "10k"),
     (1_500_000, "1.5M"), (3e-5, "0.00003"), (-0.1, "-0.1"), (1e-9, "0.000000001")],
)  # fmt: skip
def test_ticks_are_plain_numbers(value, text):
    assert drawing.plain_number(value) == text


@pytest.mark.parametrize(
    ("values", "least", "most"),
    [([0.5, 0.502], 0.05, 0.06), ([0.999, 1.0], 0.05, 0.06), ([0.2, 0.9], 0.7, 0.8), ([0.0], 0.05, 0.06)],
)
def test_small_differences_do_not_fill_an_axis(values, least, most):
    axes = drawing.new_figure(4, 3).subplots()
    drawing.set_limits(axes, values)
    low, high = axes.get_ylim()
    assert least <= high - low <= most and low <= min(values) and max(values) <= high
    assert -0.01 < low and high < 1.04


IRREGULAR = [(0.7448445767, 0.01), (0.78417, 0.02), (0.8556, 0.03), (0.8965, 0.01), (0.9004, 0.01)]
ZERO = [(0, 0.5), (0.02, 0.5), (0.05, 0.5), (0.1, 0.5), (0.3, 0.4), (1, 0.3)]


@pytest.mark.parametrize(("points", "logarithmic"), [(IRREGULAR, False), (ZERO, True), (ZERO[1:], True)])
@pytest.mark.parametrize("measures", [1, 4])
def test_no_label_of_a_tick_hides_another_and_no_legend_a_curve(points, logarithmic, measures):
    series = {"a system with a long name, trained": points, "another": points}
    panels = {f"measure {number}": series for number in range(measures)}
    figure = plots.curves(panels, title="t", x="x", logarithmic=logarithmic, queries={"measure 0": 500})
    lay_out(figure)
    for axes in figure.axes:
        assert not figure.legends[0].get_window_extent().overlaps(axes.get_tightbbox())
        low, high = axes.get_xlim()
        shown = [tick.label1 for tick in axes.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
        assert len(shown) >= 3 and max(len(label.get_text()) for label in shown) <= 5
        assert not overlaps([label.get_window_extent() for label in shown])
    assert not overlaps([axes.get_window_extent() for axes in figure.axes])


def test_legends_are_outside_of_axes():
    bins = calibration.reliability(calibration.Confidences(np.linspace(0, 1, 40), np.arange(40) % 2 == 0))
    for figure in (
        plots.metric_bars(VALUES, title="GDR on toy"),
        plots.beam_survival({"10 beams": [0.9, 0.3], "100 beams": [1.0, 0.9]}),
        dot_plots.dots({"BM25": {"before": 0.3, "after": 0.1}}, title="t", x="Brier"),
        calibration_plots.reliability_diagram({"BM25": bins}, title="toy, test"),
    ):
        lay_out(figure)
        box = figure.legends[0].get_window_extent()
        assert not any(box.overlaps(axes.get_tightbbox()) for axes in figure.axes)
        assert figure.bbox.contains(*box.min) and figure.bbox.contains(*box.max)


def test_dots_are_the_values():
    figure = dot_plots.dots({"BM25": {"before": 0.3, "after": 0.1}, "DPR": {"after": 0.2}}, title="t", x="Brier")
    before, after = figure.axes[0].lines
    assert (before.get_xdata().tolist(), after.get_xdata().tolist()) == ([0.3], [0.1, 0.2])
    assert np.round([*before.get_ydata(), *after.get_ydata()]).tolist() == [0, 0, 1]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["BM25", "DPR"]
    with pytest.raises(InputError, match="no point"):
        dot_plots.dots({"BM25": {}}, title="t", x="Brier")


def test_nothing_to_draw():
    with pytest.raises(InputError):
        plots.metric_bars({})
    with pytest.raises(InputError):
        plots.training_curves([{"step": 1, "learning_rate": 0.1}])
    with pytest.raises(InputError):
        plots.beam_survival({"test": []})


def test_files_are_images():
    image = pytest.importorskip("PIL.Image")
    figure = plots.beam_survival({"test": [0.5]})
    assert image.open(io.BytesIO(plots.to_png(figure, dpi=50))).size[0] > 200
    assert plots.to_svg(figure).startswith(b"<?xml")


def test_what_has_a_scale_of_its_own_has_a_panel_of_its_own():
    records = [
        {
            "step": s, "train/loss": 1.0, "train/loss/intra": 0.5, "train/accuracy": 0.5,
            "train/accuracy/level_0": 0.75,
            "train/gradient_norm": 30.0, "train/learning_rate": 1e-4, "dev/RR@10": 0.5, "dev_unseen/RR@10": 0.25,
            "dev/Success@1": 0.7 + s / 1000,
        }
        for s in range(1, 4)
    ]  # fmt: skip
    figure = plots.training_curves(records)
    legends = {axes.get_title("left"): axes.get_legend().get_texts() for axes in figure.axes}
    assert {title: [text.get_text() for text in texts] for title, texts in legends.items()} == {
        "Loss": ["train/loss", "train/loss/intra"],
        "RR@10": ["dev/RR@10", "dev_unseen/RR@10"],
        "Success@1": ["dev/Success@1"],
        "Accuracy": ["train/accuracy", "train/accuracy/level_0"],
        "Gradient norm": ["train/gradient_norm"],
        "Learning rate": ["train/learning_rate"],
    }
    limits = {axes.get_title("left"): axes.get_ylim() for axes in figure.axes}
    assert limits["Gradient norm"][0] == limits["Learning rate"][0] == 0 and limits["Learning rate"][1] < 0.01
    assert np.ptp(limits["Success@1"]) >= 0.2  # a thousandth a step is no trend
    lay_out(figure)
    for axes in figure.axes:  # the legend hides no line
        assert not axes.get_legend().get_window_extent().overlaps(axes.get_window_extent())


@pytest.mark.parametrize("name", ["$x$", "$\\frac{1$", "a\x1b[31m\x00b", "\u202eabc", "^{"])
def test_names_of_data_sets_are_no_formulas_and_no_control_characters(name):
    """As the names of a split and of a system."""
    for figure in (
        plots.metric_bars({name: {name: {"RR@10": 0.5}}}),
        plots.beam_survival({name: [0.5], "other": [0.25]}),
        plots.training_curves([{"step": s, "dev/" + name: 0.5} for s in (1, 2)]),
    ):
        xml.etree.ElementTree.fromstring(plots.to_svg(figure))
        texts = {text.get_text() for text in figure.findobj(matplotlib.text.Text)}
        assert any(printable(name) in text for text in texts)
