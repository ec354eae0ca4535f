"""The interactive report: one HTML file that needs no network (plotly is inside, 4 MB).

Figures 6.1 and 6.2 of the thesis (what the overhead is made of, by policy), 6.3 (overhead over the
mean time to preemption), and two of ours: overhead over the share of notices kept, and how the
trials spread.
"""

from __future__ import annotations

import html
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio

from spothop_master.simulator.inputs import (
    ExponentialSpec,
    InputError,
    Inputs,
    WeibullSpec,
)
from spothop_master.simulator.published import WHY, beside
from spothop_master.simulator.result import Result
from spothop_master.simulator.runner import run
from spothop_master.simulator.show import clock

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
table { border-collapse: collapse }
td, th { padding: .2em .7em; text-align: right; border-bottom: 1px solid #ddd }
td:first-child, th:first-child { text-align: left }
"""
_HEAD = (
    "policy",
    "overhead %",
    "95 % interval",
    "saving %",
    "recomputation",
    "saves",
    "allocation",
    "preparation",
    "total",
    "cost $",
    "preemptions",
)


def page(result: Result) -> str:
    """The whole report as HTML."""
    figures = [overheads(result), spread(result), kept_sweep(result.inputs)]
    if isinstance(result.inputs.lives, (ExponentialSpec, WeibullSpec)):
        figures.insert(2, mttp_sweep(result.inputs))
    plots = [
        pio.to_html(figure, full_html=False, include_plotlyjs=("inline" if i == 0 else False))
        for i, figure in enumerate(figures)
    ]
    title = html.escape(f"spothop simulation: {result.inputs.name}")
    why = [WHY[result.inputs.name]] if beside(result.inputs) else []
    words = "".join(f"<p>{html.escape(text)}</p>" for text in (*result.notes, *why))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1>{_table(result)}"
        f"{words}{''.join(plots)}"
        f"<h2>Inputs</h2><pre>{html.escape(result.inputs.model_dump_json(indent=2))}</pre>"
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
        "preparation_s": inputs.preparation_s.mean,
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
    return _titled(figure, "Overhead by policy (figures 6.1, 6.2)", None, "overhead %")


def spread(result: Result) -> Any:
    """Every trial: a mean hides the few that went badly."""
    figure = go.Figure()
    for outcome in result.outcomes:
        if outcome.row.policy != "on-demand":
            figure.add_box(name=outcome.row.policy, y=100 * outcome.overheads, boxmean=True)
    return _titled(figure, "Overhead of the single trials", None, "overhead %")


def mttp_sweep(inputs: Inputs) -> Any:
    """Figure 6.3: the same job while VMs live 1 to 12 hours on average."""
    figure = go.Figure()

    def at(hours: float) -> Inputs:
        return _with(inputs, lives=inputs.lives.model_copy(update={"mttp_s": [hours * 3_600]}))

    _lines(figure, [(float(hours), at(hours)) for hours in MTTP_HOURS])
    title = "Overhead over the mean time to preemption (figure 6.3)"
    return _titled(figure, title, "MTTP, hours", "overhead %")


def kept_sweep(inputs: Inputs) -> Any:
    """What missing notices cost."""
    figure = go.Figure()
    _lines(figure, [(100 * share, _with(inputs, notices_kept=share)) for share in KEPT])
    title = "Overhead over the share of notices kept"
    return _titled(figure, title, "notices kept, %", "overhead %")


def _with(inputs: Inputs, **changes: Any) -> Inputs:
    policies = [policy for policy in inputs.policies if policy != "on-demand"] or ["thesis"]
    trials = min(inputs.trials, SWEEP_TRIALS)
    return inputs.model_copy(update={"policies": policies, "trials": trials, **changes})


def _lines(figure: Any, points: list[tuple[float, Inputs]]) -> None:
    """One line for each policy, with the 95 % interval of the mean."""
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for x, inputs in points:
        try:
            outcomes = run(inputs).outcomes
        except InputError:  # no policy gets the job done there: the lines have a gap
            continue
        for outcome in outcomes:
            row = outcome.row
            half = 50 * (row.overhead_high - row.overhead_low)
            lines.setdefault(row.policy, []).append((x, 100 * row.overhead, half))
    for policy, line in lines.items():
        figure.add_scatter(
            name=policy,
            x=[x for x, _, _ in line],
            y=[y for _, y, _ in line],
            error_y={"array": [half for _, _, half in line]},
            mode="lines+markers",
        )


def _titled(figure: Any, title: str, x: str | None, y: str) -> Any:
    figure.update_layout(title=title, xaxis_title=x, yaxis_title=y, template="plotly_white")
    return figure


def _table(result: Result) -> str:
    lines = ["".join(f"<th>{name}</th>" for name in _HEAD)]
    for outcome in result.outcomes:
        row = outcome.row
        cells = (
            html.escape(row.policy),
            f"{100 * row.overhead:.2f}",
            f"{100 * row.overhead_low:.2f} to {100 * row.overhead_high:.2f}",
            f"{100 * row.saving:.1f}",
            clock(row.recomputation_s),
            clock(row.save_s),
            clock(row.allocation_s),
            clock(row.preparation_s),
            clock(row.total_s),
            f"{row.cost_usd:.1f}",
            f"{row.preemptions:.1f}",
        )
        lines.append("".join(f"<td>{cell}</td>" for cell in cells))
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
