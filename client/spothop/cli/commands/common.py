"""Arguments and output that several commands share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="The id or name of a job. Of several with this name it is the one that has not "
        "ended, else the newest.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NdjsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]
RawOption = Annotated[
    bool,
    typer.Option(
        "--raw", help="Pass on to a terminal what controls it, as it was written; can be abused."
    ),
]
PAGE = 50
LimitOption = Annotated[
    int, typer.Option(min=1, max=500, metavar="N", help="How many at a time, at most 500.")
]
NextOption = Annotated[
    str | None,
    typer.Option("--next", metavar="CURSOR", help="Go on where a list ended that said so."),
]
TargetArgument = Annotated[
    str, typer.Argument(metavar="JOB|VM", help="The id or name of a job, or the id of a VM.")
]


def print_json(value: Any) -> None:
    import json

    typer.echo(json.dumps(value, indent=2))


def print_line(value: Any) -> None:
    """As one line of a stream."""
    import json

    typer.echo(json.dumps(value))
