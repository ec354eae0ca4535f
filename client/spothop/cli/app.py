"""The application: its options, and its commands in the order of `spothop --help`."""

from __future__ import annotations

from typing import Annotated

import typer

from spothop.cli.commands import (
    access,
    bootstrap,
    clouds,
    jobs,
    preemptions,
    programs,
    submitting,
    wishes,
)

app = typer.Typer(
    name="spothop",
    help="Train on spot VMs as if they were reliable.",
    epilog="Settings: SPOTHOP_URL, SPOTHOP_TOKEN, SPOTHOP_CA, SPOTHOP_HOME.\n\n"
    "Example: spothop submit job.yaml",
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"spothop {version('spothop')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""For programs that have options of their own."""

app.command(context_settings=_PASS_ON)(programs.master)
app.command()(submitting.submit)
app.command()(submitting.plan)
app.command()(jobs.jobs)
app.command()(jobs.show)
app.command()(jobs.logs)
app.command()(jobs.events)
app.command()(wishes.pause)
app.command()(wishes.resume)
app.command()(wishes.cancel)
app.command()(preemptions.preempt)
app.command()(preemptions.inject)
app.command()(clouds.pools)
app.command()(clouds.catalog)
app.command(context_settings=_PASS_ON, add_help_option=False)(programs.simulate)  # it has its own
app.command(cls=clouds.VmsCommand)(clouds.vms)
app.command()(clouds.doctor)
app.command()(clouds.status)
app.command()(jobs.download)
app.command()(submitting.schema)
app.add_typer(bootstrap.bootstrap)
app.add_typer(access.user)
app.add_typer(access.token)
