"""The interactive report: one HTML file that needs no network (plotly is inside, 4 MB).

Figures 6.1 and 6.2 of the thesis (what the overhead is made of, by policy), 6.3 (overhead over the
mean time to preemption), and two of ours: overhead over the share of notices kept, and how the
trials spread. Where one policy is far off, a logarithmic axis keeps the others legible; its bar is
cut off.
"""

from __future__ import annotations

import html
import json
from statistics import median_low
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio

from spothop.simulator.engine import Seen
from spothop.simulator.inputs import (
    ExponentialSpec,
    InputError,
    Inputs,
    WeibullSpec,
)
from spothop.simulator.published import WHY, beside
from spothop.simulator.result import Result
from spothop.simulator.runner import run
from spothop.simulator.show import ABOUT, Sheet, breakdown, comparison, overview

MTTP_HOURS = tuple(range(1, 13))
KEPT = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 1.0)
SWEEP_TRIALS = 200

_PARTS = (
    ("recomputation", "recomputation_s", "#c0392b"),
    ("saving", "save_s", "#27ae60"),
    ("allocation", "allocation_s", "#2980b9"),
    ("preparation", "preparation_s", "#8e44ad"),
)
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; margin: 1.5em 0 .5em }
caption { text-align: left; font-weight: bold; white-space: nowrap }
td, th { padding: .2em .7em; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap }
td:first-child, th:first-child { text-align: left }
"""
_WHOLE = {
    "comp": "computation",
    "recomp": "recomputation",
    "alloc": "allocation",
    "prep": "preparation",
}
"""Headings that the screen has no room for."""
_FLOOR = 0.01
"""Percent: what lies below stands there on a logarithmic axis."""
_WIDE = 50.0
"""A linear axis shows nothing of the lowest line when the highest is so many times as high."""
_FAR = 5.0
"""A bar so many times as high as the median one is cut off."""


def page(result: Result, *, seen: Seen | None = None) -> str:
    """The whole report as HTML; its sweeps simulate again, and tell `seen` how far they are."""
    figures = [overheads(result), spread(result), kept_sweep(result.inputs, seen=seen)]
    if isinstance(result.inputs.lives, (ExponentialSpec, WeibullSpec)):
        figures.insert(2, mttp_sweep(result.inputs, seen=seen))
    plots = [
        pio.to_html(figure, full_html=False, include_plotlyjs=("inline" if i == 0 else False))
        for i, figure in enumerate(figures)
    ]
    # a file name may be no text: escapes say so
    inputs = json.dumps(result.inputs.model_dump(), indent=2, default=str)
    title = html.escape(f"spothop simulation: {result.inputs.name}")
    tables = _table(overview(result)) + _words(ABOUT, *result.notes) + _table(breakdown(result))
    if beside(result.inputs):
        tables += _table(comparison(result)) + _words(WHY[result.inputs.name])
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1>{tables}"
        f"{''.join(plots)}"
        f"<h2>Inputs</h2><pre>{html.escape(inputs)}</pre>"
        "</body></html>\n"
    )


def overheads(result: Result) -> Any:
    """Figures 6.1 and 6.2: time beyond the on-demand run, by what it was spent on."""
    inputs, rows = result.inputs, [o.row for o in result.outcomes if o.row.policy != "on-demand"]
    saves = inputs.steps // inputs.periodic_every if inputs.periodic_every else 0
    stall = (inputs.stall_s or inputs.save_s).mean
    own = {
        "recomputation_s": 0.0,
        "save_s": saves * stall,
        "allocation_s": inputs.allocation_s.mean,
        "preparation_s": inputs.prepares_s,
    }
    total = inputs.steps * inputs.step_s.mean + sum(own.values())
    figure = go.Figure()
    for name, key, colour in _PARTS:
        beyond = [100 * (getattr(row, key) - own[key]) / total for row in rows]
        figure.add_bar(name=name, x=[row.policy for row in rows], y=beyond, marker_color=colour)
    published = beside(inputs)
    known = [row.policy for row in rows if row.policy in published]
    figure.add_scatter(
        name="published total",
        x=known,
        y=[100 * published[policy].overhead for policy in known],
        mode="markers",
        marker={"symbol": "line-ew-open", "size": 40, "color": "black"},
        visible=bool(known),
    )
    figure.update_layout(barmode="relative")
    _cut(figure, [(row.policy, 100 * row.overhead) for row in rows])
    return _titled(figure, "Overhead by policy (figures 6.1, 6.2)", None, "overhead %")


def _cut(figure: Any, bars: list[tuple[str, float]]) -> None:
    """Cut off the bars that would leave no height to the others, and write theirs down."""
    most = _FAR * median_low(y for _, y in bars) if bars else 0.0
    whole = [y for _, y in bars if y <= most]
    if len(whole) == len(bars) or most <= 0:
        return
    top = 1.6 * max(whole)
    figure.update_yaxes(range=[min(0.0, 1.1 * min(whole)), top])
    for policy, y in bars:
        if y > top:
            text = f"<b>{y:,.0f} %</b>, cut off"
            figure.add_annotation(x=policy, y=top, text=text, showarrow=False, bgcolor="white")


def spread(result: Result) -> Any:
    """Every trial: a mean hides the few that went badly."""
    figure = go.Figure()
    for outcome in result.outcomes:
        if outcome.row.policy != "on-demand":
            figure.add_box(name=outcome.row.policy, y=100 * outcome.overheads, boxmean=True)
    _legible(figure)
    return _titled(figure, "Overhead of the single trials", None, "overhead %")


def mttp_sweep(inputs: Inputs, *, seen: Seen | None = None) -> Any:
    """Figure 6.3: the same job while VMs live 1 to 12 hours on average."""
    figure = go.Figure()

    def at(hours: float) -> Inputs:
        return _with(inputs, lives=inputs.lives.model_copy(update={"mttp_s": [hours * 3_600]}))

    _lines(figure, [(float(hours), at(hours)) for hours in MTTP_HOURS], seen)
    title = "Overhead over the mean time to preemption (figure 6.3)"
    return _titled(figure, title, "MTTP, hours", "overhead %")


def kept_sweep(inputs: Inputs, *, seen: Seen | None = None) -> Any:
    """What missing notices cost."""
    figure = go.Figure()
    _lines(figure, [(100 * share, _with(inputs, notices_kept=share)) for share in KEPT], seen)
    title = "Overhead over the share of notices kept"
    return _titled(figure, title, "notices kept, %", "overhead %")


def _with(inputs: Inputs, **changes: Any) -> Inputs:
    policies = [policy for policy in inputs.policies if policy != "on-demand"] or ["thesis"]
    trials = min(inputs.trials, SWEEP_TRIALS)
    return inputs.model_copy(update={"policies": policies, "trials": trials, **changes})


def _lines(figure: Any, points: list[tuple[float, Inputs]], seen: Seen | None) -> None:
    """One line for each policy, with the 95 % interval of the mean."""
    lines: dict[str, list[tuple[float, float, float]]] = {
        policy: [] for policy in points[0][1].policies
    }
    for x, inputs in points:
        try:
            outcomes = run(inputs, seen=seen).outcomes
        except InputError:  # no policy gets the job done there: the lines have a gap
            continue
        for outcome in outcomes:
            row = outcome.row
            half = 50 * (row.overhead_high - row.overhead_low)
            lines[row.policy].append((x, 100 * row.overhead, half))
    for policy, line in lines.items():  # an empty one, too: colours stay the same
        figure.add_scatter(
            name=policy,
            x=[x for x, _, _ in line],
            y=[y for _, y, _ in line],
            error_y={"array": [half for _, _, half in line]},
            mode="lines+markers",
        )
    _legible(figure)


def _legible(figure: Any) -> None:
    """A logarithmic axis where a linear one would show the highest line only."""
    drawn = [trace for trace in figure.data if len(trace.y)]
    lows = [max(min(trace.y), _FLOOR) for trace in drawn]
    if not lows or max(max(trace.y) for trace in drawn) < _WIDE * min(lows):
        return
    for trace in drawn:
        seen = list(trace.y)
        trace.y = [max(y, _FLOOR) for y in seen]
        if trace.type == "scatter":
            errors = list(trace.error_y.array)
            low = [min(half, y - _FLOOR) for y, half in zip(trace.y, errors, strict=True)]
            trace.error_y = {"array": errors, "arrayminus": low, "symmetric": False}
            trace.customdata = seen
            trace.hovertemplate = "%{x}: %{customdata:.2f} %"
    figure.update_yaxes(type="log", dtick="D2", minor_showgrid=True)


def _titled(figure: Any, title: str, x: str | None, y: str) -> Any:
    figure.update_layout(title=title, xaxis_title=x, yaxis_title=y, template="plotly_white")
    return figure


def _words(*paragraphs: str) -> str:
    return "".join(f"<p>{html.escape(text)}</p>" for text in paragraphs)


def _table(sheet: Sheet) -> str:
    head = "".join(f"<th>{_WHOLE.get(name, name)}</th>" for name in ("policy", *sheet.columns))
    lines = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in sheet.rows]
    body = "".join(f"<tr>{line}</tr>" for line in (head, *lines))
    return f"<table><caption>{html.escape(sheet.title)}</caption>{body}</table>"
