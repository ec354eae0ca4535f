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
        typer.Option(
            callback=_notice, metavar="SECONDS", help="From the notice to the end of the VM."
        ),
    ] = None,
    no_notice: Annotated[
        bool, typer.Option("--no-notice", help="End the VM at once, without a notice.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Take a VM away, as its cloud would.

    This is the cloud's own eviction test. Without options the VM has the time that its pool
    promises. Of a job it is the VM that trains or, while none does, the one that prepares.

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
        typer.Option(
            metavar="TIMES",
            help="Draw how long each VM lives, exponentially with this mean. Several means, such "
            "as 600,20m, are for the first VM, the second and so on; the last repeats.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Take the lives from measured ones. A .csv has lives, drawn by the seed from "
            "their Kaplan-Meier curve; a .json has zones, see --zone. docs/checkpointing.md "
            "has both.",
        ),
    ] = None,
    zone: Annotated[
        str | None,
        typer.Option(metavar="ZONE", help="The zone of the .json; its lives come in order."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="The same number draws the same lives again.")
    ] = None,
    no_notice: Annotated[
        float, typer.Option(metavar="P", help="Share of preemptions without a notice, 0 to 1.")
    ] = 0.0,
    stop: Annotated[bool, typer.Option("--stop", help="Preempt no more.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Preempt a job's VMs again and again.

    Shows how your job copes. Each VM is preempted by its cloud's own eviction test when its time is
    over; one that does not train yet is left alone until it does. That goes on, also over a restart
    of the master, until the job ends, the lives of the trace are used up, or --stop. With the id of
    a VM, that VM is preempted once.

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
