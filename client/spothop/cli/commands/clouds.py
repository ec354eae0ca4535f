"""What the clouds offer, and what runs there."""

from __future__ import annotations

from typing import Annotated

import typer

from spothop.cli.commands.common import JsonOption, print_json
from spothop.cli.session import session_of


def pools(context: typer.Context, as_json: JsonOption = False) -> None:
    """List pools: prices, how long VMs live, notices.

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


def vms(
    context: typer.Context,
    job: Annotated[
        str | None, typer.Option(metavar="JOB", help="Only VMs of this job, by id or name.")
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="STATE",
            help="Only VMs in this state: requested, booting, ready, running, draining, "
            "terminating or terminated.",
        ),
    ] = None,
    cloud: Annotated[
        str | None, typer.Option(metavar="CLOUD", help="Only VMs of this cloud.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List VMs, newest first.

    Those that are over stay in the list; at most 200 are shown.

    Example: spothop vms --job mnist-small --state running
    """
    from spothop.cli import views

    session = session_of(context)
    with session.client() as client:
        found = client.vms(job=job, state=state, cloud=cloud)
    if as_json:
        print_json([vm.model_dump(mode="json") for vm in found])
    else:
        views.vms(session.console(), found, now=session.now(), of_jobs=True)
