"""What a list of jobs says below its table: why a job failed, and what protects none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from spothop.figures import alarm_words
from spothop.wire import Alarm, JobState, JobView, UnprotectedView


def notes(jobs: Sequence[JobView]) -> Iterator[Text]:
    """A line for each job that needs its user; wrapped anywhere, for names are long."""
    for job in jobs:
        if job.state is JobState.FAILED and job.reason:
            yield Text(f"{job.id} failed: {job.reason}", overflow="fold")
        elif job.state is JobState.PAUSED and job.reason:
            since = f" since {job.paused_at.astimezone():%Y-%m-%d %H:%M}" if job.paused_at else ""
            yield Text(f"{job.id} is paused{since}: {job.reason}", overflow="fold")
        elif job.unprotected is not None:
            yield Text(f"{job.id} is unprotected: {job.unprotected.reason}", overflow="fold")
            yield from missing(job.unprotected)
        for alarm in job.alarms:
            if job.unprotected is None or alarm.kind not in (Alarm.UNPROTECTED, Alarm.STORAGE):
                words = alarm_words(alarm.kind)
                yield Text(f"{job.id}: alarm {words}: {alarm.reason}", overflow="fold")


def missing(found: UnprotectedView) -> Iterator[Text]:
    """The lines that its script lacks."""
    if found.add:
        yield Text("add to the script:")
    for line in found.add:
        yield Text(f"    {line}")
