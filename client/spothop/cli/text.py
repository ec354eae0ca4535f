"""Figures and tables for people: durations, prices, sizes, and tables that fit 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

NOTHING = "-"
LONGEST_WHOLE = 30
"""Ids up to here stay in one line, at the cost of the other columns."""


def duration(seconds: float | None) -> str:
    """`0.41 s`, `12 s`, `3m 20s`, `2h 5m`, `4d 1h`."""
    if seconds is None:
        return NOTHING
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 9.95:
        return f"{seconds:.2g} s" if seconds < 0.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, size, below, below_size in (("d", 86400, "h", 3600), ("h", 3600, "m", 60)):
        if whole >= size:
            rest = whole % size // below_size
            return f"{whole // size}{unit}" + (f" {rest}{below}" if rest else "")
    if whole >= 60:
        return f"{whole // 60}m" + (f" {whole % 60}s" if whole % 60 else "")
    return f"{whole} s"


def age(moment: datetime | None, *, now: datetime) -> str:
    """How long ago; clocks that differ never make it negative."""
    return duration(max((now - moment).total_seconds(), 0.0)) if moment else NOTHING


def dollars(usd: float) -> str:
    """Cents from a dollar up, three significant digits below, so that small jobs show a cost."""
    if usd == 0 or abs(usd) >= 1:
        return f"${usd:,.2f}"
    return f"${usd:.2f}" if abs(usd) >= 0.1 else f"${usd:.2g}" if abs(usd) >= 1e-4 else "<$0.0001"


def saved(cost: float, on_demand: float) -> str:
    """Share of the on-demand price that was not paid."""
    return f"{1 - cost / on_demand:.0%}" if on_demand > 0 else NOTHING


def size(count: float) -> str:
    """Decimal units, as storage is billed."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.3g} TB"


def number(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = ()
) -> Table:
    """A borderless table whose cells fold; the first column, the id, last and only when long."""
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    whole = max((len(row[0]) for row in rows), default=0) <= LONGEST_WHOLE
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for name in columns:
        made.add_column(
            name,
            justify="right" if name in right else "left",
            overflow="fold",
            no_wrap=whole and name == columns[0],
            header_style="bold",
        )
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))  # Text: a job's name is no markup
    return made
