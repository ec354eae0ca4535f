"""What the clouds offer, what runs there, and what the master itself keeps."""

from __future__ import annotations

from typing import Annotated

import typer

from spothop.cli.commands.common import PAGE, JsonOption, LimitOption, NextOption, print_json
from spothop.cli.session import aside, session_of


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


def status(context: typer.Context, as_json: JsonOption = False) -> None:
    """Show whose token this is, and what the master keeps on its disk.

    Example: spothop status
    """
    from spothop.cli import views

    session = session_of(context)
    with session.client() as client:
        me, disk = client.me(), client.disk()
    if as_json:
        print_json({"me": me, "disk": disk.model_dump(mode="json")})
    else:
        views.status(session.console(), me, disk)


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
    strays: Annotated[
        bool,
        typer.Option("--strays", help="Those that no job owns, though they have the master's tag."),
    ] = False,
    end_strays: Annotated[
        bool,
        typer.Option("--end-strays", help="Let the master end the strays that it holds."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Every one.")] = False,
    limit: LimitOption = PAGE,
    next_: NextOption = None,
    as_json: JsonOption = False,
) -> None:
    """List VMs, newest first, 50 at a time.

    Those that are over stay in the list. Strays are for admins: the master
    ends them by itself, unless they are so many, or so old, that its database may be the wrong one.

    Example: spothop vms --job mnist-small --state running
    """
    from spothop.cli import strays as stray_views
    from spothop.cli import views

    session = session_of(context)
    if strays or end_strays:
        if job is not None or state is not None:
            raise typer.BadParameter("strays belong to no job and have no state")
        with session.client() as client:
            if end_strays:
                found = stray_views.end(session, client, cloud=cloud, sure=yes)
            else:
                found = [row for row in client.strays() if cloud in (None, row.pool.cloud)]
        if as_json:
            print_json([row.model_dump(mode="json") for row in found])
        elif strays or found:
            stray_views.table(session.console(), found, now=session.now())
        return
    with session.client() as client:
        if all_:
            listed, more = client.vms(job=job, state=state, cloud=cloud), ""
        else:
            page = client.vm_page(job=job, state=state, cloud=cloud, cursor=next_, limit=limit)
            listed, more = page.vms, views.more_vms(page, limit=limit)
    if as_json:
        print_json([vm.model_dump(mode="json") for vm in listed])
    else:
        views.vms(session.console(), listed, now=session.now(), of_jobs=True)
    if more:
        aside(more)
