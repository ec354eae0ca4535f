"""What the clouds themselves list of the master's: the comparison, and the end of all of it."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from rich.console import Console

from spothop.cli.commands.common import print_json
from spothop.cli.session import Session, aside
from spothop.cli.text import age, print_table, print_text
from spothop.durations import NOTHING
from spothop.sdk.client import Client
from spothop.sdk.errors import ClientError
from spothop.wire import InventoryView, ListedAs

PAUSE_S = 5.0
"""Between two steps towards the end."""
STEPS = 240
"""20 minutes: a last save may take ten, the end of a large VM some."""
ERRORS = 6
"""Steps in a row in which a cloud answers nothing but errors, and lists nothing more."""

WORDS = {
    ListedAs.KNOWN: "known",
    ListedAs.ORPHAN: "orphan",
    ListedAs.UNLISTED: "not listed",
}


def show(session: Session, *, as_json: bool) -> bool:
    """Of all clouds; False when something could not be seen."""
    with session.client() as client:
        found = client.inventory()
    if as_json:
        print_json([each.model_dump(mode="json") for each in found])
    else:
        for each in found:
            table(session, session.console(), each)
    return not any(each.errors for each in found)


def table(session: Session, console: Console, found: InventoryView) -> None:
    rows = [
        (
            vm.cloud_id or NOTHING,
            str(vm.pool),
            vm.state,
            WORDS[vm.listed_as],
            vm.job or NOTHING,
            age(vm.requested_at, now=session.now()),
            NOTHING if vm.price is None else f"{vm.price:.4f}",
        )
        for vm in found.vms
    ]
    if rows:
        columns = ("VM", "POOL", "STATE", "MASTER", "JOB", "AGE", "USD/H")
        print_table(console, columns, rows, right=("AGE", "USD/H"), under=("POOL", "JOB"))
    for vm in found.vms:
        if vm.note:
            print_text(console, f"{vm.cloud_id or vm.vm}: {vm.note}")
    for remain in found.remains:
        print_text(
            console, f"left over: {remain.kind} {remain.id} in {remain.region}: {remain.detail}"
        )
    for error in found.errors:
        print_text(console, f"error: {error}")
    print_text(console, f"{found.cloud}: {_summary(found)}")


def end(session: Session, *, cloud: str | None, now: bool, sure: bool, as_json: bool) -> bool:
    """Ask, unless `sure`; go on until nothing is left, or it is plain that this does not help.
    Whether nothing is left."""
    with session.client() as client:
        found = client.inventory(cloud=cloud)
        if not sure:
            _ask(session, found, now=now)
        left = [_end(session, client, each.cloud, now=now) for each in found]
    if as_json:
        print_json([each.model_dump(mode="json") for each in left])
    else:
        for each in left:
            _conclude(session, each)
    return not any(map(_is_left, left))


def _ask(session: Session, found: Sequence[InventoryView], *, now: bool) -> None:
    console = session.console()
    for each in found:
        table(session, console, each)
    if not session.can_ask:
        raise ClientError("cannot ask, the input is no terminal", "add --yes to end everything")
    vms, jobs = sum(len(each.vms) for each in found), max((each.jobs for each in found), default=0)
    how = "without a save" if now else "after a save"
    clouds = ", ".join(each.cloud for each in found)
    text = f"Cancel {_many(jobs, 'job')} {how}, and end {_many(vms, 'VM')} and all else in {clouds}"
    if not typer.confirm(f"{text}?"):
        typer.echo("nothing is ended", err=True)
        raise typer.Exit(1)


def _end(session: Session, client: Client, cloud: str, *, now: bool) -> InventoryView:
    """Progress goes to the standard error."""
    told, failing = "", 0
    for step in range(STEPS):
        if step:
            session.sleep(PAUSE_S)
        found = client.end_inventory(cloud, now=now)
        if not _is_left(found):
            break
        text = f"{cloud}: {_summary(found)}"
        if text != told:
            aside(text)
            told = text
        stuck = all(vm.listed_as is ListedAs.UNLISTED for vm in found.vms)
        failing = failing + 1 if found.errors and stuck else 0
        if failing >= ERRORS:
            break
    return found


def _conclude(session: Session, left: InventoryView) -> None:
    if _is_left(left):
        table(session, session.console(), left)
        session.say(f"something of this installation is left in {left.cloud}, or may be")
    else:
        session.say(f"nothing of this installation is left in {left.cloud}")


def _is_left(found: InventoryView) -> bool:
    return bool(found.vms or found.remains or found.jobs or found.errors)


def _summary(found: InventoryView) -> str:
    count = {
        kind: sum(vm.listed_as is kind for vm in found.vms) for kind in ListedAs
    }  # in this order
    listed = count[ListedAs.KNOWN] + count[ListedAs.ORPHAN]
    parts = [f"{_many(listed, 'VM')} listed, {found.price:.4f} USD/h"]
    unpriced = sum(vm.price is None for vm in found.vms)
    parts += [f"{unpriced} of unknown price"] if unpriced else []
    parts += [f"{_many(count[ListedAs.ORPHAN], 'orphan')}"] if count[ListedAs.ORPHAN] else []
    parts += [f"{count[ListedAs.UNLISTED]} not listed"] if count[ListedAs.UNLISTED] else []
    parts += [f"{len(found.remains)} left over"] if found.remains else []
    parts += [_many(found.jobs, "job")] if found.jobs else []
    parts += [_many(len(found.errors), "error")] if found.errors else []
    return ", ".join(parts)


def _many(count: int, what: str) -> str:
    return f"1 {what}" if count == 1 else f"{count:,} {what}s"
