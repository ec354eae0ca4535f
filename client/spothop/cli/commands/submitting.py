"""From a job file to a job: submit, plan, and the schema of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spothop.cli.commands.common import JsonOption, print_json
from spothop.cli.session import session_of


def submit(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The job file (YAML).")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when it is submitted.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Print every event, and what the agent logs."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the job as JSON; needs --yes and --detach.")
    ] = False,
) -> int:
    """Submit a job, and follow it to its end.

    Shows what is packed, where it would run and at what price, and asks. Then it prints what
    happens to the job, a line each, and its log; Ctrl-C asks whether to stop that or to cancel the
    job. Exits with 0 when the job succeeded, 1 when it failed, 3 when it was cancelled, 4 when it
    was paused.

    Example: spothop submit job.yaml
    """
    from spothop.cli.submit import submit

    if as_json and not (yes and detach):
        raise typer.BadParameter("--json needs --yes and --detach")
    return submit(
        session_of(context), file, yes=yes, detach=detach, verbose=verbose, as_json=as_json
    )


def plan(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The job file (YAML).")],
    as_json: JsonOption = False,
) -> None:
    """Show where a job would run, at what price, and what it packs.

    Example: spothop plan job.yaml
    """
    from spothop.cli.submit import plan

    plan(session_of(context), file, as_json=as_json)


def schema() -> None:
    """Print the JSON schema of the job file, for editors.

    Example: spothop schema > job.schema.json
    """
    from spothop.jobfile import json_schema

    print_json(json_schema())
