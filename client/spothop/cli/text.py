"""Ages, and text, facts and tables that fit the width of a terminal, without trailing blanks.

A name that somebody will copy (a pool, a job, a VM) is never broken. So a table that is too wide
does not fold its cells: it moves columns to a line of their own, first those that the caller named,
below the row; then the first column, above the row. What is too wide even then is folded between
words; and where that is not enough, figures move below the row, the last first. Words and figures
are broken only where nothing else is left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from spothop.durations import NOTHING, duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

GAP = "  "
INDENT = "  "
NARROWEST = 8
"""A column is folded to so many characters at least."""


def age(moment: datetime | None, *, now: datetime) -> str:
    """How long ago; clocks that differ never make it negative."""
    return duration(max((now - moment).total_seconds(), 0.0)) if moment else NOTHING


def print_text(
    console: Console, text: str | Text, *, first: str | Text = "", indent: str = ""
) -> None:
    """A paragraph, or several, wrapped at words; `first` and `indent` begin its lines."""
    from rich.text import Text

    whole = Text(text) if isinstance(text, str) else text
    room = max(console.width - max(len(first), len(indent)), NARROWEST)
    begin = Text(first) if isinstance(first, str) else first
    for line in whole.wrap(console, room, overflow="fold") or [Text("")]:
        made = begin + line
        made.rstrip()
        console.print(made, soft_wrap=True)
        begin = Text(indent)


def print_facts(console: Console, facts: Sequence[tuple[str, str]]) -> None:
    """A name and a value a line."""
    width = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        print_text(console, value, first=f"{name:<{width}}{GAP}", indent=" " * width + GAP)


def print_table(
    console: Console,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Iterable[str] = (),
    under: Sequence[str] = (),
) -> None:
    """A table without borders; the first column says what a row is about.

    `under`: what moves below the row where the table is too wide, in this order. `right`: columns
    that end at their right side.
    """
    all_rows = [tuple(columns), *(tuple(row) for row in rows)]
    layout = _Layout(columns, all_rows, console.width, under, set(right))
    adjusted = [name in right for name in columns]
    for number, row in enumerate(all_rows):
        style = "bold" if number == 0 else ""
        _print_row(console, layout, row, adjusted, style)


class _Layout:
    """Which columns stand in the row, which below it, and whether the first stands above."""

    def __init__(
        self,
        columns: Sequence[str],
        rows: Sequence[tuple[str, ...]],
        width: int,
        under: Sequence[str],
        figures: Collection[str],
    ) -> None:
        from rich.cells import cell_len

        def longest_word(i: int) -> int:
            return max(cell_len(word) for row in rows for word in row[i].split() or [""])

        self.widths = [max(cell_len(row[i]) for row in rows) for i in range(len(columns))]
        self.within = list(range(len(columns)))
        self.below: list[int] = []
        self.above: int | None = None
        self.indent = ""
        for name in under:
            if self._total() > width:
                self.within.remove(columns.index(name))
                self.below.append(columns.index(name))
        if self._total() > width and self.widths[0] > NARROWEST and len(self.within) > 1:
            self.above, self.indent = self.within.pop(0), INDENT
        text = [i for i in self.within if columns[i] not in figures]
        self._fold({i: max(NARROWEST, longest_word(i)) for i in text}, width)
        for i in reversed(self.within[1:]):
            if self._total() > width and columns[i] in figures:
                self.within.remove(i)
                self.below.insert(0, i)
        self._fold(dict.fromkeys(self.within, NARROWEST), width)

    def _fold(self, least: Mapping[int, int], width: int) -> None:
        """Make columns narrower, the widest first, down to the `least` of each."""
        while self._total() > width:
            wide = [i for i in least if self.widths[i] > least[i]]
            if not wide:
                return
            self.widths[max(wide, key=lambda i: self.widths[i])] -= 1

    def _total(self) -> int:
        gaps = len(GAP) * (len(self.within) - 1)
        return len(self.indent) + sum(self.widths[i] for i in self.within) + gaps


def _print_row(
    console: Console, layout: _Layout, row: Sequence[str], right: Sequence[bool], style: str
) -> None:
    from rich.text import Text

    if layout.above is not None:
        print_text(console, Text(row[layout.above], style=style), indent=INDENT)
    cells = {
        i: Text(row[i]).wrap(console, layout.widths[i], overflow="fold") or [Text("")]
        for i in layout.within
    }
    for number in range(max(len(lines) for lines in cells.values())):
        parts = []
        for i, lines in cells.items():
            part = lines[number].copy() if number < len(lines) else Text("")
            part.rstrip()
            part.align("right" if right[i] else "left", layout.widths[i])
            parts.append(part)
        line = Text(layout.indent) + Text(GAP).join(parts)
        line.rstrip()
        line.stylize(style)
        console.print(line, soft_wrap=True)
    shown = [row[i] for i in layout.below if row[i] not in ("", NOTHING)]
    together = GAP.join(shown)
    for text in [together] if len(INDENT + together) <= console.width else shown:
        if text:
            print_text(console, Text(text, style=style), first=INDENT, indent=INDENT)
