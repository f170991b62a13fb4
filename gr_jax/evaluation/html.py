"""A report as one HTML file: no script, no link, plots inside as SVG."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from html import escape as escape_markup
from typing import TYPE_CHECKING

from gr_jax.evaluation import plots, render
from gr_jax.printing import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gr_jax.evaluation.results import Example, Results

_CSS = """
:root { --ink: #24292f; --soft: #57606a; --line: #d0d7de; --wash: #f6f8fa; --good: #1a7f37; --bad: #b35900; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2.5rem 1.25rem 4rem; color: var(--ink); background: #fff;
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .7rem; padding-bottom: .3rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.4rem 0 .5rem; }
p { max-width: 46rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .38rem .8rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { font-weight: 600; white-space: nowrap; }
th.number, td.number { text-align: right; white-space: nowrap; }
tbody tr:hover { background: var(--wash); }
td.note { color: var(--soft); font-size: .9em; }
td small { display: block; color: var(--soft); font-size: .76em; line-height: 1.2; }
.better { color: var(--good); } .worse { color: var(--bad); }
.soft { color: var(--soft); font-size: .9em; }
img { display: block; max-width: 100%; height: auto; margin: .6rem 0; }
details { margin: 1rem 0; } summary { cursor: pointer; color: var(--soft); }
.examples { display: grid; grid-template-columns: repeat(auto-fill, minmax(25rem, 1fr)); gap: 1rem; }
.example { border: 1px solid var(--line); border-radius: .5rem; padding: .8rem 1rem; min-width: 0; }
.example b { display: block; margin-bottom: .4rem; overflow-wrap: anywhere; }
.example p { margin: .2rem 0 .4rem; }
.example ol { margin: 0; padding-left: 1.5rem; }
.example li { margin: .25rem 0; overflow-wrap: anywhere; }
.example li.relevant { color: var(--good); font-weight: 600; }
code { font: .82em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; color: var(--soft); font-weight: 400; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 40rem) { dl, .examples { grid-template-columns: 1fr; } dd { margin-bottom: .5rem; } }
"""


def escape(text: str) -> str:
    """Text of a data set within HTML."""
    return escape_markup(printable(text))


def html(report: Results) -> str:
    """See `Report.html`."""
    comparisons = report.comparisons()
    body = [f"<h1>{escape(report.title)}</h1>"]
    if report.introduction:
        body.append(f"<p>{escape(report.introduction)}</p>")
    if report.rows:
        body += _results(report)
    body += map(_remark, report.remarks)
    if comparisons:
        header, rows = render.comparison_table(report, comparisons)
        body += [
            f'<p class="soft">{escape(render.legend(report, comparisons))}</p>',
            f"<details><summary>All differences from {escape(report.baseline or '')}</summary>",
            table(header, [[escape(cell) for cell in row] for row in rows], numbers=header[3:]),
            "</details>",
        ]
    if report.curves:
        body.append("<h2>Training</h2>")
    for name, records in report.curves.items():
        figure = plots.training_curves(records, title=f"{report.title}: training of {name}")
        body += [f"<h3>{escape(name)}</h3>", *([image(figure, f"Training curves of {name}")] if figure else [])]
        once = [f"{noted} {value:.4g} at step {step:g}" for noted, (step, value) in plots.noted_once(records).items()]
        body += [f'<p class="soft">Noted once: {escape(", ".join(once))}.</p>'] if once else []
    if report.survival:
        text = "The beam can only end at the right document while the first tokens of its docid are still in it."
        figure = plots.beam_survival(report.survival)
        body += ["<h2>Where beams die</h2>", f"<p>{text}</p>", image(figure, "Gold docids in the beam by depth")]
    if report.examples:
        chosen = [f"<p>{escape(sentence)}</p>" for sentence in render.drawn(report)]
        shown = ['<div class="examples">', *map(_example, report.examples), "</div>"]
        body += ["<h2>Example searches</h2>", *chosen, *shown]
    body += ["<h2>What these numbers rest on</h2>", "<dl>"]
    body += [f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in report.rests_on]
    body.append("</dl>")
    return page(report.title, body)


def page(title: str, body: Sequence[str]) -> str:
    """One HTML file around parts that are HTML."""
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n"
    )
    return head + "\n".join(body) + "\n</body>\n</html>\n"


def _results(report: Results) -> list[str]:
    intervals = report.intervals()
    marks = render.marks(report.comparisons())
    figure = plots.metric_bars(
        report.values_by_split(), title=report.title, intervals=intervals, baseline=report.baseline
    )
    parts = ["<h2>Results</h2>", image(figure, "Measures of every system on every split")]
    for split in report.splits:
        header, rows = render.split_table(report, split, {})
        systems = [row for row in report.rows if row.split == split]
        best = {
            measure: max((row.values[measure] for row in systems if measure in row.values), default=None)
            for measure in report.measures
        }
        cells = []
        for row, shown in zip(systems, rows, strict=True):
            line = [escape(shown[0])]
            for measure, text in zip(header[1:], shown[1:], strict=True):
                if measure not in row.values:
                    line.append(escape(text))
                    continue
                is_best = len(systems) > 1 and row.values[measure] == best[measure]
                mark = marks.get((row.system, split, measure), "")
                cell = f"<strong>{text}</strong>" if is_best else text
                if mark:
                    cell += f' <span class="{"better" if mark == render.BETTER else "worse"}">{mark}</span>'
                interval = intervals.get((split, row.system, measure))
                if interval is not None:
                    cell += f"<small>{render.format_value(interval[0])} – {render.format_value(interval[1])}</small>"
                line.append(cell)
            cells.append(line)
        parts += [f"<h3>{escape(split)}</h3>", table(header, cells, numbers=report.measures)]
    if intervals:
        parts.append('<p class="soft">Small figures and whiskers: 95% bootstrap intervals over queries.</p>')
    return parts


def _remark(sentence: str) -> str:
    """A sentence whose commands stand between backquotes."""
    return "<p>" + re.sub("`([^`]*)`", r"<code>\1</code>", escape(sentence)) + "</p>"


def table(header: Sequence[str], body: Sequence[Sequence[str]], numbers: Sequence[str]) -> str:
    """`body` holds HTML; columns named in `numbers` are set to the right."""
    kinds = [' class="number"' if name in numbers else ' class="note"' if name == "note" else "" for name in header]
    head = "".join(f"<th{kind}>{escape(name)}</th>" for name, kind in zip(header, kinds, strict=True))
    rows = (
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in body
    )
    lines = "\n".join(rows)
    return f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody>\n</table></div>'


def _example(example: Example) -> str:
    items = []
    for hit in example.hits:
        doc_id = hit.doc_id if hit.title not in ("", hit.doc_id) else ""
        names = "".join(f" <code>{escape(name)}</code>" for name in (doc_id, hit.docid) if name)
        kind, tick = (' class="relevant"', " ✓") if hit.relevant else ("", "")
        score = f'<span class="soft">{hit.score:.2f}</span>'
        items.append(f"<li{kind}>{escape(hit.title or hit.doc_id)}{tick} {score}{names}</li>")
    by = f'<span class="soft">{escape(example.system)}</span>' if example.system else ""
    found = f"<ol>{''.join(items)}</ol>" if items else '<span class="soft">nothing found</span>'
    where = f"<p>{escape(example.where)}</p>" if example.where else ""
    return f'<div class="example"><b>{escape(example.query)}</b>{by}{where}{found}</div>'


def image(figure: Figure, description: str) -> str:
    data = base64.b64encode(plots.to_svg(figure)).decode("ascii")
    return f'<img alt="{escape(description)}" src="data:image/svg+xml;base64,{data}">'
