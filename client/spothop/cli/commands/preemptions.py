"""Preemptions on demand, to see how a job takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spothop.cli.commands.common import JsonOption, TargetArgument, print_json
from spothop.cli.session import session_of


def _notice(seconds: float | None) -> float | None:
    if seconds is not None and not 0 <= seconds < float("inf"):
        raise typer.BadParameter(f"{seconds:g} is no time; give seconds from 0 on")
    return seconds


def preempt(
    context: typer.Context,
    target: TargetArgument,
    notice: Annotated[
        float | None,
        typer.Option(callback=_notice, metavar="SECONDS", help="Grace period of the test."),
    ] = None,
    no_notice: Annotated[bool, typer.Option("--no-notice", help="Kill at once.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Take a VM away, as its cloud would.

    This is the provider's own eviction test. Without options the notice is what the pool promises.

    Example: spothop preempt mnist-small --notice 5
    """
    from spothop.cli.preempt import preempt

    if no_notice and notice is not None:
        raise typer.BadParameter("give --notice or --no-notice, not both")
    session = session_of(context)
    with session.client() as client:
        vm = preempt(client, target, 0.0 if no_notice else notice)
    if as_json:
        print_json(vm.model_dump(mode="json"))
    else:
        session.say(f"asked the cloud to preempt VM {vm.id} (now {vm.state})")


def inject(
    context: typer.Context,
    target: TargetArgument,
    mttp: Annotated[
        str | None,
        typer.Option(help="Mean times to preemption: 600,20m; the last repeats. Exponential."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Measured lives. .csv: as many as it has, drawn by the seed from its Kaplan-Meier "
            "curve, which counts lives cut short. .json: the runs of a --zone, in their order."
        ),
    ] = None,
    zone: Annotated[str | None, typer.Option(help="Which zone of the trace.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same intervals.")
    ] = None,
    no_notice: Annotated[
        float, typer.Option(metavar="P", help="Share of preemptions without notice, 0 to 1.")
    ] = 0.0,
    stop: Annotated[bool, typer.Option("--stop", help="End what is under way.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Preempt a job's VMs again and again.

    To see how your own job copes. The k-th interval runs from when the k-th VM came up to the
    cloud's own eviction test on it; a VM that does not train yet is left alone until it does. It
    ends with the job, with the trace, or with --stop; a restart of the master does not end it. With
    the id of a VM it preempts that one only, once.

    Example: spothop inject mnist-small --mttp 10m,20m --seed 7 --no-notice 0.05
    """
    from spothop.cli import inject as injecting

    if stop and any(x is not None for x in (mttp, trace, zone, seed)):
        raise typer.BadParameter("--stop goes alone")
    wanted = None
    if not stop:
        wanted = injecting.request(
            mttp=mttp, trace=trace, zone=zone, seed=seed, no_notice=no_notice
        )
    session = session_of(context)
    with session.client() as client:
        found = injecting.inject(client, target, wanted)
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        session.say(f"{found.job}: {injecting.words(found)}")
