"""Jobs: which there are, what they do, and what they made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spothop.cli.commands.common import (
    PAGE,
    JobArgument,
    JsonOption,
    LimitOption,
    NdjsonOption,
    NextOption,
    RawOption,
    print_json,
    print_line,
)
from spothop.cli.session import aside, session_of


def jobs(
    context: typer.Context,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="STATE",
            help="Only jobs in this state: queued, allocating, preparing, running, draining, "
            "paused, succeeded, failed or cancelled.",
        ),
    ] = None,
    all_: Annotated[
        bool,
        typer.Option("--all", "-a", help="Every one, also those that ended over a day ago."),
    ] = False,
    name: Annotated[
        str, typer.Option(metavar="PREFIX", help="Only jobs whose name begins so.")
    ] = "",
    owner: Annotated[
        str | None, typer.Option(metavar="USER", help="Only jobs of this user.")
    ] = None,
    limit: LimitOption = PAGE,
    next_: NextOption = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, newest first, 50 at a time.

    Example: spothop jobs --state running
    """
    from spothop.cli import views

    session = session_of(context)
    with session.client() as client:
        if all_:
            found, more = [*client.iter_jobs(state=state, all=True, name=name, owner=owner)], ""
        else:
            page = client.job_page(state=state, name=name, owner=owner, cursor=next_, limit=limit)
            found, more = page.jobs, views.more_jobs(page, limit=limit)
    if as_json:
        print_json([job.model_dump(mode="json") for job in found])
    else:
        views.jobs(session.console(), found, now=session.now())
    if more:
        aside(more)


def show(context: typer.Context, job: JobArgument, as_json: JsonOption = False) -> None:
    """Show a job: attempts, VMs, checkpoints, the end of its log.

    Example: spothop show mnist-small
    """
    from spothop.cli import views

    session = session_of(context)
    with session.client() as client:
        found = client.job(job)
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        views.job(session.console(), found, now=session.now())


def logs(
    context: typer.Context,
    job: JobArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job ends.")
    ] = False,
    attempt: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Only of this attempt; they count from 1."),
    ] = None,
    raw: RawOption = False,
    as_json: NdjsonOption = False,
) -> None:
    """Print the log of a job, through all its attempts.

    It has the output of `setup:` and of the process; a line stands between two attempts. On a
    terminal its colours stay; other characters that would control it are only shown.

    Example: spothop logs mnist-small -f
    """
    from spothop.cli.harmless import HarmlessLog
    from spothop.cli.joblog import JobLog

    session, log, safe = session_of(context), JobLog(), HarmlessLog()
    with session.client() as client:
        for piece in client.logs(job, attempt=attempt, follow=follow):
            if as_json:
                print_line({"attempt": piece.attempt, "text": piece.text})
            else:
                text = log.feed(piece.attempt, piece.text)
                typer.echo(safe.feed(text) if session.terminal and not raw else text, nl=False)
    typer.echo(safe.end(), nl=False)


def events(
    context: typer.Context,
    job: JobArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job ends.")
    ] = False,
    raw: RawOption = False,
    as_json: NdjsonOption = False,
) -> None:
    """Print what happened to a job: every event, oldest first.

    Example: spothop events mnist-small -f
    """
    from spothop.cli import views
    from spothop.eventlog import EventFilter

    session = session_of(context)
    console = session.console(raw=raw)
    news = EventFilter()
    with session.client() as client:
        for event in client.follow_events(job) if follow else client.all_events(job):
            if as_json:
                print_line(event.model_dump(mode="json"))
            elif news.is_news(event):
                views.event(console, event, wrap=session.terminal)


def download(
    context: typer.Context,
    job: JobArgument,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to; default: the id of the job.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The job file, for the credentials in `checkpoint.storage.options`: the master "
            "shows them to nobody. Default: those of this machine.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch a job's newest checkpoint, verified, and its outputs.

    Example: spothop download mnist-small --to results
    """
    from spothop import jobfile

    spec = jobfile.load(file) if file is not None else None
    session = session_of(context)
    with session.client() as client:
        found = client.download(job, to, spec=spec)
    if as_json:
        checkpoint = str(found.checkpoint) if found.checkpoint is not None else None
        print_json(
            {
                "checkpoint": checkpoint,
                "step": found.step,
                "outputs": [str(path) for path in found.outputs],
                "rejected": [str(problem) for problem in found.rejected],
            }
        )
        return
    for problem in found.rejected:
        aside(f"warning: {problem}")
    if found.checkpoint is not None:
        session.line(f"{found.checkpoint} (step {found.step:,})")
    for path in found.outputs:
        session.line(str(path))
