"""Results as tables on the screen."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from spothop_master.simulator.published import WHY, Published, beside
from spothop_master.simulator.result import Outcome, Result


def screen(result: Result) -> RenderableType:
    """Every table there is for this result."""
    parts: list[RenderableType] = [breakdown(result)]
    if beside(result.inputs):
        parts += [comparison(result), Text(WHY[result.inputs.name])]
    parts += [Text(f"left out: {note}") for note in result.notes]
    return Group(*parts)


def breakdown(result: Result) -> Table:
    """The breakdown of the thesis's tables 6.2 and 6.3, one line for each policy."""
    inputs = result.inputs
    table = Table(
        title=(
            f"{inputs.name}: {inputs.steps:,} steps, {inputs.trials:,} trials, "
            f"{100 * inputs.notices_kept:g} % of notices kept, replacement at the "
            f"{inputs.replacement}"
        ),
        caption=(
            "Overhead over the on-demand run: mean with its 95 % interval, and where 90 % of the "
            "trials lie. Computation includes recomputation. Cost: as clouds bill (from running), "
            "and as the thesis does (allocation, too)."
        ),
    )
    for name in (
        "policy",
        "overhead %",
        "5-95 %",
        "saving %",
        "comp",
        "recomp",
        "save",
        "alloc",
        "prep",
        "total",
        "useful %",
        "cost $",
        "thesis $",
        "preempted",
    ):
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    for outcome in result.outcomes:
        table.add_row(*_cells(outcome))
    return table


def comparison(result: Result) -> Table:
    """The published figures beside ours."""
    table = Table(title="published and simulated")
    for name in ("policy", "published %", "ours %", "difference", "published $", "ours $ (thesis)"):
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    for outcome, published in _published(result):
        ours = outcome.row.overhead
        table.add_row(
            outcome.row.policy,
            f"{100 * published.overhead:.2f}",
            f"{100 * ours:.2f}",
            f"{100 * (ours - published.overhead):+.2f}",
            f"{published.cost_usd:.1f}",
            f"{outcome.thesis_cost_usd:.1f}",
        )
    return table


def _published(result: Result) -> Iterator[tuple[Outcome, Published]]:
    known = beside(result.inputs)
    for outcome in result.outcomes:
        if outcome.row.policy in known:
            yield outcome, known[outcome.row.policy]


def _cells(outcome: Outcome) -> list[str]:
    row = outcome.row
    half = (row.overhead_high - row.overhead_low) / 2
    return [
        row.policy,
        f"{_percent(row.overhead):.2f} +- {100 * half:.2f}",
        f"{_percent(outcome.spread[0]):.1f}-{_percent(outcome.spread[1]):.1f}",
        f"{_percent(row.saving):.1f}",
        clock(row.computation_s),
        clock(row.recomputation_s),
        clock(row.save_s),
        clock(row.allocation_s),
        clock(row.preparation_s),
        clock(row.total_s),
        f"{100 * outcome.useful_share:.1f}",
        f"{row.cost_usd:.1f}",
        f"{outcome.thesis_cost_usd:.1f}",
        f"{row.preemptions:.1f}",
    ]


def _percent(share: float) -> float:
    return round(100 * share, 6) + 0.0  # no minus sign before a rounded 0


def clock(seconds: float) -> str:
    """`5d 11:31:28`, as in the thesis's tables."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}d ' if days else ''}{hours}:{minutes:02}:{rest:02}"
