"""Figures show the numbers they were given."""

import io
import xml.etree.ElementTree

import matplotlib.text
import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.evaluation import dot_plots, plots
from gr_jax.printing import printable

VALUES = {
    "test": {"BM25": {"Success@1": 0.7, "RR@10": 0.8}, "DSI": {"Success@1": 0.5, "RR@10": 0.6}},
    "test_unseen": {"BM25": {"Success@1": 0.65}, "DSI": {"Success@1": 0.2, "RR@10": float("nan")}},
}


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
    loss, measures = figure.axes
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["loss", "dev/loss"]
    assert [text.get_text() for text in measures.get_legend().get_texts()] == ["dev/Success@10"]
    np.testing.assert_allclose(loss.lines[0].get_xydata(), [(s, 1 / s) for s in range(1, 6)])


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
    heights = sorted(text.get_position()[1] for text in figure.axes[0].texts)
    bottom, top = figure.axes[0].get_ylim()
    assert min(np.diff(heights)) >= 0.05 * (top - bottom)


def test_curves_over_a_quantity_are_its_points():
    figure = plots.curves(
        {"one": [(100_000, 0.5), (10_000, 0.75)], "none yet": []}, title="t", x="documents", y="R@100", logarithmic=True
    )
    (axes,) = figure.axes
    assert axes.lines[0].get_xydata().tolist() == [[10_000, 0.75], [100_000, 0.5]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["10,000", "100,000"]
    assert axes.get_xscale() == "log" and (axes.get_xlabel(), axes.get_ylabel()) == ("documents", "R@100")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["one", "none yet"]
    with pytest.raises(InputError, match="no point"):
        plots.curves({"one": []}, title="t", x="x", y="y")
    many = [(1.7 * 1.5**power, 0.5) for power in range(15)]  # to 496: ticks are round numbers then
    (axes,) = plots.curves({"one": many}, title="t", x="x", y="y", logarithmic=True).axes
    axes.figure.canvas.draw()
    low, high = axes.get_xlim()
    shown = [label.get_text() for label in axes.get_xticklabels()]
    inside = [text for text, at in zip(shown, axes.get_xticks(), strict=True) if low <= at <= high]
    assert inside == ["2", "5", "10", "20", "50", "100", "200", "500"]


def test_bands_are_the_widest_intervals():
    """Of values that are 0 or 1; measured ones are nearer to their mean."""
    figure = plots.curves({"one": [(1, 0.5), (2, 0.9)]}, title="t", x="x", y="y", questions=100)
    (band,) = figure.axes[0].collections
    expected = {(x, m + sign * 1.96 * (m * (1 - m) / 100) ** 0.5) for x, m in ((1, 0.5), (2, 0.9)) for sign in (-1, 1)}
    corners = {(x, round(y, 12)) for x, y in band.get_paths()[0].vertices}
    assert {(x, round(y, 12)) for x, y in expected} <= corners
    with pytest.raises(InputError, match="of how many"):
        plots.curves({"one": [(1, 0.5)]}, title="t", x="x", y="y", questions=0)


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
        }
        for s in range(1, 4)
    ]  # fmt: skip
    figure = plots.training_curves(records)
    legends = {axes.get_title("left"): axes.get_legend().get_texts() for axes in figure.axes}
    assert {title: [text.get_text() for text in texts] for title, texts in legends.items()} == {
        "Loss": ["train/loss", "train/loss/intra"],
        "Measures": ["dev/RR@10", "dev_unseen/RR@10"],
        "Accuracy": ["train/accuracy", "train/accuracy/level_0"],
        "Gradient norm": ["train/gradient_norm"],
        "Learning rate": ["train/learning_rate"],
    }
    limits = {axes.get_title("left"): axes.get_ylim() for axes in figure.axes}
    assert limits["Measures"] == limits["Accuracy"] == (0, 1) and limits["Learning rate"][1] < 0.01
    figure.canvas.draw()
    for axes in figure.axes:  # the legend hides no line
        assert not axes.get_legend().get_window_extent().overlaps(axes.get_window_extent())


@pytest.mark.parametrize("name", ["$x$", "$\\frac{1$", "a\x1b[31m\x00b", "\u202eabc", "^{"])
def test_names_of_data_sets_are_no_formulas_and_no_control_characters(name):
    """As the names of a split and of a system."""
    for figure in (
        plots.metric_bars({name: {name: {"RR@10": 0.5}}}),
        plots.beam_survival({name: [0.5], "other": [0.25]}),
        plots.training_curves([{"step": 1, "dev/" + name: 0.5}]),
    ):
        xml.etree.ElementTree.fromstring(plots.to_svg(figure))
        texts = {text.get_text() for text in figure.findobj(matplotlib.text.Text)}
        assert any(printable(name) in text for text in texts)
