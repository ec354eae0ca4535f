"""Programs that run here: the master, the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spothop.cli.session import session_of


def master(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on.")] = None,
    home: Annotated[Path | None, typer.Option(help="Where it keeps its data.")] = None,
) -> None:
    """Run a master here, with the local cloud built in.

    Other options go through to `python -m spothop_master`.

    Example: spothop master --port 8900
    """
    from spothop.cli.local_master import start

    start(session_of(context), host=host, port=port, home=home, others=context.args)


def simulate(context: typer.Context) -> None:
    """Simulate a job under several policies: time, overhead, cost.

    Example: spothop simulate --preset thesis-117m --report out.html
    """
    from spothop.cli.simulate import simulate

    simulate(session_of(context), context.args)
