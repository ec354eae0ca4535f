"""Results as tables on the screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from spothop.simulator.published import WHY, Published, beside
from spothop.simulator.result import Outcome, Result

ABOUT = (
    "Overhead over the on-demand run: mean with its 95 % interval, and where 90 % of the trials "
    "lie. Useful: time in steps that were not computed again. Computation includes recomputation. "
    "Cost as clouds bill: from running on."
)


class _Trimmed:
    """Whatever it is, without blanks at the ends of lines: tables fill their last column."""

    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for line in Segment.split_lines(console.render(self._inner, options)):
            text = "".join(segment.text for segment in line)
            left = len(text.rstrip())
            for segment in line:
                if shown := segment.text[: max(left, 0)]:
                    yield Segment(shown, segment.style)
                left -= len(segment.text)
            yield Segment.line()


class Sheet(NamedTuple):
    """A table of words: the policy, then a figure for each column."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def screen(result: Result) -> RenderableType:
    """Every table there is for this result; each of them fits 80 columns."""
    parts: list[RenderableType] = [_table(overview(result)), Text(ABOUT), Text()]
    parts.append(_table(breakdown(result)))
    if beside(result.inputs):
        parts += [Text(), _table(comparison(result)), Text(WHY[result.inputs.name])]
    parts += [Text(note) for note in result.notes]
    return _Trimmed(Group(*parts))


def overview(result: Result) -> Sheet:
    """What each policy comes to."""
    inputs = result.inputs
    title = (
        f"{inputs.name}: {inputs.steps:,} steps, {inputs.trials:,} trials, "
        f"{100 * inputs.notices_kept:g} % of notices kept, replacement at the {inputs.replacement}"
    )
    columns = ("overhead %", "5-95 %", "saving %", "useful %", "cost $", "preempted")
    sheet = Sheet(title, columns, [])
    for outcome in result.outcomes:
        row = outcome.row
        half = (row.overhead_high - row.overhead_low) / 2
        cells = (
            f"{_percent(row.overhead):.2f} +- {100 * half:.2f}",
            f"{_percent(outcome.spread[0]):.1f}-{_percent(outcome.spread[1]):.1f}",
            f"{_percent(row.saving):.1f}",
            f"{100 * outcome.useful_share:.1f}",
            f"{row.cost_usd:.1f}",
            f"{row.preemptions:.1f}",
        )
        sheet.rows.append((row.policy, *cells))
    return sheet


def breakdown(result: Result) -> Sheet:
    """Where the time goes, as in the thesis's tables 6.2 and 6.3."""
    columns = ("comp", "recomp", "save", "alloc", "prep", "total")
    sheet = Sheet("mean time of a run", columns, [])
    for row in (outcome.row for outcome in result.outcomes):
        times = (
            *(row.computation_s, row.recomputation_s, row.save_s),
            *(row.allocation_s, row.preparation_s, row.total_s),
        )
        sheet.rows.append((row.policy, *map(clock, times)))
    return sheet


def comparison(result: Result) -> Sheet:
    """The published figures beside ours."""
    columns = ("published %", "ours %", "difference", "published $", "ours $ (thesis)")
    sheet = Sheet("published and simulated", columns, [])
    for outcome, published in _published(result):
        ours = outcome.row.overhead
        cells = (
            f"{100 * published.overhead:.2f}",
            f"{100 * ours:.2f}",
            f"{100 * (ours - published.overhead):+.2f}",
            f"{published.cost_usd:.1f}",
            f"{outcome.thesis_cost_usd:.1f}",
        )
        sheet.rows.append((outcome.row.policy, *cells))
    return sheet


def _published(result: Result) -> Iterator[tuple[Outcome, Published]]:
    known = beside(result.inputs)
    for outcome in result.outcomes:
        if outcome.row.policy in known:
            yield outcome, known[outcome.row.policy]


def _table(sheet: Sheet) -> Table:
    words = Text(sheet.title)  # a job's name is no markup
    table = Table(title=words, title_justify="left", box=SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("policy", no_wrap=True)
    for name in sheet.columns:
        table.add_column(name, justify="right", overflow="fold")
    for row in sheet.rows:
        table.add_row(*row)
    return table


def _percent(share: float) -> float:
    return round(100 * share, 6) + 0.0  # no minus sign before a rounded 0


def clock(seconds: float) -> str:
    """`5d 11:31:28`, as in the thesis's tables."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}d ' if days else ''}{hours}:{minutes:02}:{rest:02}"
