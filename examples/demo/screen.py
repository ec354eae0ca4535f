"""Live progress of the two runs: a panel on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from spothop.wire import JobView, SaveKind


def say(console: Console, text: str) -> None:
    """Print, unless nobody is left to read it: the terminal, or the pipe's other end, is gone."""
    with suppress(OSError, SystemExit):  # SystemExit: how rich takes a broken pipe
        console.print(text)


class Screen:
    """Shows jobs as they are; `note` adds a line that stays."""

    def __init__(self, console: Console, *, steps: int, every_s: float = 5.0) -> None:
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

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False)

    def show(self, jobs: dict[str, JobView], *, now: float) -> None:
        if self._console.is_terminal:
            self._live.update(Group(self._grid(jobs), Text()))
        elif now - self._printed_at >= self._every_s:
            self._printed_at = now
            for title, job in jobs.items():
                self.note(f"  {title:<13} {line(job, self._steps)}")

    def _grid(self, jobs: dict[str, JobView]) -> Table:
        grid = Table.grid(padding=(0, 1))
        for title, job in jobs.items():
            bar = ProgressBar(total=self._steps, completed=job.step or 0, width=18)
            grid.add_row(Text(title, style="bold"), bar, Text(progress(job, self._steps)))
            grid.add_row("", Text(job.state, style="dim"), Text(where(job), style="dim"))
        return grid


def progress(job: JobView, steps: int) -> str:
    loss = job.metrics.get("loss")
    shown = f"loss {loss:.3f}" if loss is not None else "loss -"
    return f"step {job.step or 0}/{steps}  {shown}  ${job.cost:.5f}"


def line(job: JobView, steps: int) -> str:
    return f"{job.state:<10} {progress(job, steps)}"


def where(job: JobView) -> str:
    saves = "/".join(str(job.saves.get(kind, 0)) for kind in SaveKind)
    pool = f"{job.pool.zone} {job.pool.vm}" if job.pool else "no VM"
    return f"{pool}, {job.preemptions} preempted, saves {saves}"
