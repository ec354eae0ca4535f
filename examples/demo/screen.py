"""Live progress of the two runs: a panel on a terminal, lines now and then elsewhere."""

from __future__ import annotations

import textwrap
from contextlib import suppress
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from spothop.wire import JobView, SaveKind

WIDTH = 80
INDENT = 16
"""Columns before the text of a line about a run, its title among them."""


def say(console: Console, text: str) -> None:
    """Print, unless the terminal, or the reader of the pipe, is gone."""
    with suppress(OSError, SystemExit):  # SystemExit: how rich takes a broken pipe
        console.print(text)


class Screen:
    """Shows jobs as they are; `note` adds a line that stays."""

    def __init__(self, console: Console, *, steps: int, every_s: float = 10.0) -> None:
        self._console = console
        self._steps = steps
        self._every_s = every_s
        self._printed_at = float("-inf")
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Screen:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):  # a closed terminal
            self._live.stop()

    def note(self, text: str, *, title: str | None = None) -> None:
        """A line, of the run with this title if there is one; what does not fit goes below."""
        head = "" if title is None else f"  {title}".ljust(INDENT)
        below = " " * INDENT
        lines = textwrap.wrap(head + text, WIDTH, subsequent_indent=below, break_on_hyphens=False)
        self._console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)

    def show(self, jobs: dict[str, JobView], *, now: float) -> None:
        if self._console.is_terminal:
            self._live.update(Group(panel(jobs, self._steps), Text()))
        elif now - self._printed_at >= self._every_s:
            self._printed_at = now
            for title, job in jobs.items():
                self.note(f"{job.state:<10} {figures(job, self._steps)}", title=title)
                self.note(where(job), title="")


def panel(jobs: dict[str, JobView], steps: int) -> Table:
    """Two rows for each run: how far it is, and where."""
    grid = Table.grid(padding=(0, 1))
    for title, job in jobs.items():
        bar = ProgressBar(total=steps, completed=job.step or 0, width=10)
        grid.add_row(Text(title, style="bold"), bar, Text(figures(job, steps)))
        grid.add_row("", Text(job.state, style="dim"), Text(where(job), style="dim"))
    return grid


def figures(job: JobView, steps: int) -> str:
    loss = job.metrics.get("loss")
    shown = f"loss {loss:.3f}" if loss is not None else "loss -"
    return f"step {job.step or 0}/{steps}  {shown}  ${job.cost:.5f}  preempted {job.preemptions}x"


def where(job: JobView) -> str:
    saves = "/".join(str(job.saves.get(kind, 0)) for kind in SaveKind)
    place = "no VM"
    if job.pool is not None:
        place = f"{job.vm} {job.pool.zone}/{job.pool.vm}" + ("" if job.pool.spot else " on demand")
    return f"{place}  saves {saves}"
