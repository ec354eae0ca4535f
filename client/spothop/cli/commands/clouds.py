"""What the clouds offer, and what runs there."""

from __future__ import annotations

import typer

from spothop.cli.commands.common import JsonOption, print_json
from spothop.cli.session import session_of


def pools(context: typer.Context, as_json: JsonOption = False) -> None:
    """List pools: prices, lives of VMs, notices.

    Example: spothop pools
    """
    from spothop.cli import views

    session = session_of(context)
    with session.client() as client:
        found = client.pools()
    if as_json:
        print_json([pool.model_dump(mode="json") for pool in found])
    else:
        views.pools(session.console(), found)


def vms(context: typer.Context, as_json: JsonOption = False) -> None:
    """List VMs.

    Example: spothop vms
    """
    from spothop.cli import views

    session = session_of(context)
    with session.client() as client:
        found = client.vms()
    if as_json:
        print_json([vm.model_dump(mode="json") for vm in found])
    else:
        views.vms(session.console(), found, now=session.now())
