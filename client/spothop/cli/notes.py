"""What a list of jobs says below its table: why a job failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from spothop.wire import JobState, JobView


def notes(jobs: Sequence[JobView]) -> Iterator[Text]:
    """A line for each job that needs its user; wrapped anywhere, for names are long."""
    for job in jobs:
        if job.state is JobState.FAILED and job.reason:
            yield Text(f"{job.id} failed: {job.reason}", overflow="fold")
