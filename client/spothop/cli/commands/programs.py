"""Programs that run here: the master, the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spothop.cli.session import session_of


def master(
    context: typer.Context,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address to listen on.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, metavar="N", help="Port to listen on.")
    ] = None,
    home: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where it keeps its data.")
    ] = None,
    local_cloud: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What the local cloud offers, as YAML.")
    ] = None,
    storage_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where checkpoints go if the job file does not say."),
    ] = None,
    public_url: Annotated[
        str | None, typer.Option(metavar="URL", help="URL at which VMs reach it.")
    ] = None,
    tls: Annotated[
        str | None,
        typer.Option(metavar="auto", help="Serve TLS with an authority of the master's own."),
    ] = None,
) -> None:
    """Run a master here, with the local cloud built in.

    Other options go through to `python -m spothop_master`, and so do its commands: `spothop master
    migrate-database`, `backup` and `restore` (docs/database.md).

    Example: spothop master --port 8900
    """
    from spothop.cli.local_master import start

    given = {
        "local-cloud": local_cloud,
        "storage-url": storage_url,
        "public-url": public_url,
        "tls": tls,
    }
    passed = [
        word
        for name, value in given.items()
        if value is not None
        for word in (f"--{name}", f"{value}")
    ]
    others = [*passed, *context.args]
    start(session_of(context), host=host, port=port, home=home, others=others)


def simulate(context: typer.Context) -> None:
    """Simulate a job under several policies: time, overhead, cost.

    Example: spothop simulate --preset thesis-117m --report out.html
    """
    from spothop.cli.simulate import simulate

    simulate(session_of(context), context.args)
