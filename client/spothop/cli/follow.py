"""Follows a job: its story, its log through all attempts, and on a terminal a live status line."""

from __future__ import annotations

import base64
import codecs
import sys
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from spothop.cli import views
from spothop.cli.consoles import OurConsole
from spothop.cli.harmless import harmless
from spothop.cli.joblog import JobLog
from spothop.cli.story import Story
from spothop.eventlog import EventFilter
from spothop.figures import money, number, saved, state_text
from spothop.sdk.client import Client
from spothop.sdk.errors import NotSpothop, Unreachable
from spothop.wire import JOB_ENDED, EventView, JobDetail, JobNews, JobState, JobView, Wanted

WAIT_S = 20.0
"""How long the master may hold back an answer with nothing new in it."""
AWAY_PAUSES_S = (1.0, 2.0, 5.0)
AWAY_BUDGET_S = 600.0
"""After so long without an answer following ends; the job goes on."""


class Screen:
    """The output of a followed job. On a terminal: lines, and the status below them. Elsewhere:
    plain lines, the log on stdout, events on stderr.

    `verbose`: every event, and the agent's lines in the log.
    """

    def __init__(self, console: Console, *, terminal: bool, verbose: bool = False) -> None:
        self._console = console
        self._aside = OurConsole(stderr=True)
        self._news = EventFilter()
        self._story = None if verbose else Story()
        self._joblog = JobLog(of_agent=verbose)
        self._live = Live(console=console, transient=True) if terminal else None

    def __enter__(self) -> Screen:
        self.resume()
        return self

    def __exit__(
        self,
        type_: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.pause()

    def pause(self) -> None:
        if self._live is not None:
            self._live.stop()

    def resume(self) -> None:
        if self._live is not None:
            self._live.start()

    def event(self, event: EventView, job: JobView) -> None:
        if not self._news.is_news(event):
            return
        text = self._story.line(event, job) if self._story else event.text or event.kind
        if text is None:
            return
        told = event.model_copy(update={"text": text})
        if self._live is not None:
            views.event(self._console, told, wrap=True)
        else:
            views.event(self._aside, told, wrap=False)

    def log(self, attempt: int, piece: str) -> None:
        text = self._joblog.feed(attempt, piece)
        if self._live is None:
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        for line in text.splitlines():
            self._console.print(views.log_line(line), soft_wrap=True)

    def status(self, text: str) -> None:
        if self._live is not None:
            shown = Text(harmless(text), style="reverse", no_wrap=True, overflow="ellipsis")
            self._live.update(shown)

    def away(self, message: str) -> None:
        if self._live is not None:
            self.status(message)
        else:
            self._aside.print(message, soft_wrap=True)


def status_line(job: JobView) -> str:
    """The state of a job in one line."""
    parts = [state_text(job), f"step {number(job.step)}"]
    if "loss" in job.metrics:
        parts.append(f"loss {job.metrics['loss']:.4g}")
    parts.append(f"preempted {job.preemptions}x")
    if job.cost > 0:
        less = saved(job.cost, job.on_demand_cost, ended=job.ended_at is not None)
        parts.append(money(job.cost) + (f" ({less} than on demand)" if less else ""))
    if job.pool is not None:
        parts.append(views.place(job.pool))  # last: what a narrow terminal cuts off
    return " | ".join(parts)


def is_paused(job: JobView) -> bool:
    """And not about to go on."""
    return job.state is JobState.PAUSED and job.wanted is Wanted.PAUSED


class Follower:
    """Reads news of a job in turn; can be run again after an interruption."""

    def __init__(
        self, client: Client, job: str, screen: Screen, *, sleep: Callable[[float], None]
    ) -> None:
        self._client = client
        self._job = job
        self._screen = screen
        self._sleep = sleep
        self._event = 0
        self._seen = ""
        self._ended = False
        self._log = _Log()

    def run(self) -> JobDetail:
        """Returns the job when it has ended or is paused. While the master is away it goes on
        asking, up to 10 minutes."""
        away_s, failures, done = 0.0, 0, False
        while True:
            try:
                if done:
                    return self._client.job(self._job)
                done = self._tick()
                away_s, failures = 0.0, 0
            except (Unreachable, NotSpothop):
                if away_s >= AWAY_BUDGET_S:
                    raise
                if failures == 0:
                    self._screen.away("the master does not answer; the job goes on; asking again")
                pause = AWAY_PAUSES_S[min(failures, len(AWAY_PAUSES_S) - 1)]
                failures, away_s = failures + 1, away_s + pause
                self._sleep(pause)

    def _tick(self) -> bool:
        """One look; true when the job has ended or is paused, and everything was shown."""
        log = self._log
        news = self._client.news(
            self._job,
            after=self._event,
            attempt=0 if log.complete else log.attempt,
            offset=log.offset,
            seen=self._seen,
            wait_s=0.0 if self._ended else WAIT_S,
        )
        for event in news.events:
            self._screen.event(event, news.job)
            self._event = max(self._event, event.id)
        self._seen, self._ended = news.seen, news.job.state in JOB_ENDED or is_paused(news.job)
        self._screen.status(status_line(news.job))
        more = self._show_log(news)
        return self._ended and not more and not news.events

    def _show_log(self, news: JobNews) -> bool:
        """Show a piece; true when there is surely more to read."""
        log, piece = self._log, news.log
        if piece is not None and not log.complete:
            data = base64.b64decode(piece.data)
            log.offset, log.drained = piece.next_offset, not data
            log.complete = log.drained and (piece.complete or self._ended)
            if text := log.decoder.decode(data):
                self._screen.log(log.attempt, text)
        if log.complete and log.attempt < news.job.attempt:
            self._log = _Log(attempt=log.attempt + 1)
            self._seen = ""  # to be asked for at once
        return not self._log.complete


class _Log:
    """How far the log of one attempt was read."""

    def __init__(self, attempt: int = 0) -> None:
        self.attempt = attempt
        self.offset = 0
        self.complete = attempt == 0
        self.drained = attempt == 0
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
