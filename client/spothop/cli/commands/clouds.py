"""What the clouds offer, what runs there, and what the master itself keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

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


def catalog(
    context: typer.Context,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GPU", help="Only with this GPU: A100, A100-80GB, A100:8; may be repeated."
        ),
    ] = None,
    cloud: Annotated[
        str | None, typer.Option(metavar="CLOUD", help="Only of this cloud: aws, azure, gcp.")
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(metavar="REGION", help="Only with a known price there, and that price."),
    ] = None,
    cpus: Annotated[
        str | None, typer.Option(metavar="N", help="Virtual CPUs: 16, or 16+ for 16 or more.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="GIB", help="Memory in GiB: 64, or 64+ for 64 or more.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Lay this file of VM types over the packaged ones."),
    ] = None,
    live: Annotated[
        bool,
        typer.Option("--live", help="Only what the master's clouds offer, at its spot price now."),
    ] = False,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Every one.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List VM types: GPUs, CPUs, memory, on-demand prices.

    Without a filter it lists the kinds of GPU. Asks no master, unless --live is given.

    Example: spothop catalog --gpu A100:8 --cloud aws
    """
    from spothop.cli import catalog as view

    known = view.catalogue(file)
    session = session_of(context)
    console = session.console()
    filtered = bool(gpu or cloud or region or cpus or memory or all_)
    found = known.matching(
        view.needs(known, gpu or [], cpus, memory),
        cloud=view.known_cloud(known, cloud) if cloud is not None else None,
        region=region if not live else None,
    )
    if live:
        with session.client() as client:
            offered = view.offered(found, client.pools(), region=region)
        if as_json:
            print_json(view.offers_json(offered))
        else:
            view.offers(console, offered)
    elif as_json:
        print_json(view.as_json(found))
    elif filtered:
        view.vm_types(console, found, region=region, every=all_)
    else:
        view.kinds(console, known)


def doctor(
    context: typer.Context,
    cloud: Annotated[
        str | None, typer.Option(metavar="CLOUD", help="Only this cloud of the master: aws.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check what the master's cloud accounts lack.

    Whose they are, what is allowed, quotas, images, subnets, the bucket. The master asks
    with its own credentials, and makes nothing. For admins.
    Exits with 1 when something failed.

    Example: spothop doctor --cloud aws
    """
    from spothop.cli import doctor as view
    from spothop.wire import Verdict

    session = session_of(context)
    with session.client() as client:
        found = client.checks(cloud=cloud)
    if as_json:
        print_json([check.model_dump(mode="json") for check in found])
    else:
        view.show(session.console(), found)
    if any(check.verdict is Verdict.FAILED for check in found):
        raise typer.Exit(1)


def status(context: typer.Context, as_json: JsonOption = False) -> None:
    """Show whose token this is, and what the master keeps on disk.

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


EVERY_CLOUD = "*"
"""What `--cloud` without a name stands for."""


class VmsCommand(TyperCommand):
    """`--cloud` may stand alone, which Typer's options cannot."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        whole = []
        for number, each in enumerate(args, 1):
            whole.append(each)
            if each == "--cloud" and (number == len(args) or args[number].startswith("-")):
                whole.append(EVERY_CLOUD)
        return super().parse_args(ctx, whole)


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
        str | None,
        typer.Option(
            metavar="[CLOUD]",
            help="Only VMs of this cloud. Without a name: what the clouds themselves list, and "
            "what is left over there, beside what the master knows.",
        ),
    ] = None,
    terminate_all: Annotated[
        bool,
        typer.Option(
            "--terminate-all",
            help="With --cloud: cancel the jobs, after a save, and end all that the master ever "
            "launched in this cloud, or in all.",
        ),
    ] = False,
    now: Annotated[
        bool, typer.Option("--now", help="With --terminate-all: end at once, without a save.")
    ] = False,
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

    Example: spothop vms --cloud --terminate-all
    """
    if cloud == EVERY_CLOUD or terminate_all or now:
        others = strays or end_strays or job is not None or state is not None
        _inventory(context, cloud, others, end=terminate_all, now=now, yes=yes, as_json=as_json)
    elif strays or end_strays:
        if job is not None or state is not None:
            raise typer.BadParameter("strays belong to no job and have no state")
        _strays(context, cloud, show=strays, end=end_strays, yes=yes, as_json=as_json)
    else:
        _rows(context, job, state, cloud, all_=all_, limit=limit, cursor=next_, as_json=as_json)


def _inventory(
    context: typer.Context,
    cloud: str | None,
    others: bool,
    *,
    end: bool,
    now: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """`others`: VMs are chosen in another way, too."""
    if others:
        raise typer.BadParameter("what the clouds list goes with no other choice of VMs")
    if now and not end:
        raise typer.BadParameter("--now is for --terminate-all")
    if cloud is None:
        raise typer.BadParameter("--terminate-all needs --cloud, or --cloud CLOUD for one")
    from spothop.cli import inventory

    session = session_of(context)
    if end:
        named = None if cloud == EVERY_CLOUD else cloud
        done = inventory.end(session, cloud=named, now=now, sure=yes, as_json=as_json)
    else:
        done = inventory.show(session, as_json=as_json)
    if not done:
        raise typer.Exit(1)


def _strays(
    context: typer.Context, cloud: str | None, *, show: bool, end: bool, yes: bool, as_json: bool
) -> None:
    from spothop.cli import strays as stray_views

    session = session_of(context)
    with session.client() as client:
        if end:
            found = stray_views.end(session, client, cloud=cloud, sure=yes)
        else:
            found = [row for row in client.strays() if cloud in (None, row.pool.cloud)]
    if as_json:
        print_json([row.model_dump(mode="json") for row in found])
    elif show or found:
        stray_views.table(session.console(), found, now=session.now())


def _rows(
    context: typer.Context,
    job: str | None,
    state: str | None,
    cloud: str | None,
    *,
    all_: bool,
    limit: int,
    cursor: str | None,
    as_json: bool,
) -> None:
    from spothop.cli import views

    session = session_of(context)
    with session.client() as client:
        if all_:
            listed, more = client.vms(job=job, state=state, cloud=cloud), ""
        else:
            page = client.vm_page(job=job, state=state, cloud=cloud, cursor=cursor, limit=limit)
            listed, more = page.vms, views.more_vms(page, limit=limit)
    if as_json:
        print_json([vm.model_dump(mode="json") for vm in listed])
    else:
        views.vms(session.console(), listed, now=session.now(), of_jobs=True)
    if more:
        aside(more)
