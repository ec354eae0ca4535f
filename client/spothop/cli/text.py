"""Ages, and tables that fit 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from spothop.durations import NOTHING, duration

if TYPE_CHECKING:
    from rich.table import Table

LONGEST_WHOLE = 30
"""Ids up to here stay in one line, at the cost of the other columns."""


def age(moment: datetime | None, *, now: datetime) -> str:
    """How long ago; clocks that differ never make it negative."""
    return duration(max((now - moment).total_seconds(), 0.0)) if moment else NOTHING


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
