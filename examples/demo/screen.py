"""Progress of the two runs: a story of events, and below it one live line for each run."""

from __future__ import annotations

import textwrap
from contextlib import suppress
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from names import vm_name
from spothop.figures import money
from spothop.wire import JobDetail, SaveKind

WIDTH = 80
INDENT = 16
"""Columns before the text of a line about a run, its title among them."""


def say(console: Console, text: RenderableType) -> None:
    """Print, unless the terminal, or the reader of the pipe, is gone."""
    with suppress(OSError, SystemExit):  # SystemExit: how rich takes a broken pipe
        console.print(text)


class Screen:
    """Shows jobs as they are; `note` adds a line that stays.

    On a terminal the two lines stand below the story and change; elsewhere they are printed now and
    then, so that whoever reads the log sees that it goes on.
    """

    def __init__(self, console: Console, *, steps: int, every_s: float = 30.0) -> None:
        self._console = console
        self._steps = steps
        self._every_s = every_s
        self._printed_at: float | None = None
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

    def show(self, jobs: dict[str, JobDetail], *, now: float) -> None:
        """`now` in monotonic seconds."""
        if self._console.is_terminal:
            lines = [Text(line(title, job, self._steps)) for title, job in jobs.items()]
            self._live.update(Group(*lines))
        elif self._printed_at is None:
            self._printed_at = now
        elif now - self._printed_at >= self._every_s:
            self._printed_at = now
            for title, job in jobs.items():
                self._console.print(line(title, job, self._steps), markup=False, soft_wrap=True)


def line(title: str, job: JobDetail, steps: int) -> str:
    """How far a run is, what it has cost, and where it runs."""
    loss = job.metrics.get("loss")
    parts = [
        f"  {title}".ljust(INDENT) + f"step {job.step or 0}/{steps}".ljust(13),
        f"loss {loss:.2f}" if loss is not None else "loss -   ",
        money(job.cost).ljust(7),
        f"{job.saves.get(SaveKind.INSURANCE, 0)} insurance",
        vm_name(job, job.vm) if job.state == "running" else job.state.value,
    ]
    return " ".join(parts)
