"""VMs with the master's tag that no job owns: the list, and letting those go that are held."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import typer
from rich.console import Console

from spothop.cli.session import Session
from spothop.cli.text import age, print_table, print_text
from spothop.sdk.client import Client
from spothop.wire import StrayView


def end(session: Session, client: Client, *, cloud: str | None, sure: bool) -> list[StrayView]:
    """Ask, unless `sure`, and let the master end those that it holds."""
    held = [row for row in client.strays() if row.held and cloud in (None, row.pool.cloud)]
    if not held:
        session.say("no stray is held")
        return []
    if not sure and not session.can_ask:
        raise typer.BadParameter("cannot ask, the input is no terminal: add --yes")
    if not sure:
        table(session.console(), held, now=session.now())
        if not typer.confirm(f"End {_many(len(held))}, with all that is on them?"):
            typer.echo("nothing is ended", err=True)
            raise typer.Exit(1)
    found = client.end_strays(cloud=cloud)
    session.say(f"the master ends {_many(len(found))} with its next sweep")
    return found


def table(console: Console, strays: Sequence[StrayView], *, now: datetime) -> None:
    if not strays:
        console.print("no strays: every VM with the master's tag has a job")
        return
    rows = [
        (row.cloud_id, str(row.pool), age(row.launched_at, now=now), "held" if row.held else "ends")
        for row in strays
    ]
    print_table(console, ("VM", "POOL", "AGE", "STATE"), rows, right=("AGE",), under=("POOL",))
    for why in sorted({f"{row.pool.cloud}: {row.held}" for row in strays if row.held}):
        print_text(console, f"held: {why}")
    for row in strays:
        if row.error:
            print_text(console, f"{row.cloud_id} is not ended: {row.error}")


def _many(count: int) -> str:
    return "1 VM" if count == 1 else f"{count} VMs"
