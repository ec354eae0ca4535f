"""An installation of spothop in a cloud account: made, mended, removed."""

from __future__ import annotations

from typing import Annotated

import typer

from spothop.cli.session import session_of

bootstrap = typer.Typer(
    name="bootstrap",
    help="Make a master in a cloud account (AWS).",
    epilog="Example: spothop bootstrap aws --dry-run",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@bootstrap.callback()
def _group() -> None:
    """So that the cloud is named, although there is one."""


@bootstrap.command()
def aws(
    context: typer.Context,
    region: Annotated[
        str | None,
        typer.Option(
            metavar="R", help="Where. Default: that of AWS's configuration, else us-east-1."
        ),
    ] = None,
    bucket: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Bucket to make. Default: spothop-ACCOUNT-REGION."),
    ] = None,
    vm_type: Annotated[
        str | None, typer.Option(metavar="TYPE", help="The master's VM. Default: t3.small.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of AWS's configuration files.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and its cost; change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="End all VMs and remove everything it made.")
    ] = False,
    with_data: Annotated[
        bool, typer.Option("--with-data", help="With --delete: the bucket's content too.")
    ] = False,
    lose_last_backup: Annotated[
        bool,
        typer.Option("--lose-last-backup", help="Replace a VM that made no backup at its stop."),
    ] = False,
) -> None:
    """From an empty account to a master that answers; again: mend or upgrade it.

    Shows what it will make, change or keep, and what that costs in a month, and
    asks. Needs the credentials of an administrator (docs/aws.md).

    Example: spothop bootstrap aws --region us-east-1 --dry-run
    """
    from spothop.cli.local_master import bootstrap

    named = {"region": region, "bucket": bucket, "vm-type": vm_type, "profile": profile}
    switches = {
        "dry-run": dry_run,
        "yes": yes,
        "delete": delete,
        "with-data": with_data,
        "lose-last-backup": lose_last_backup,
    }
    options = [word for name, value in named.items() if value for word in (f"--{name}", value)]
    options += [f"--{name}" for name, given in switches.items() if given]
    bootstrap(session_of(context), options)
