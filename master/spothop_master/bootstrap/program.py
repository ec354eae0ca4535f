"""`python -m spothop_master.bootstrap`: the plan, the question, the work, and where to go then.

The program behind `spothop bootstrap aws`, whose options these are.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from hashlib import sha256
from typing import Annotated

import typer

from spothop.catalog.table import packaged
from spothop.tls import fingerprint, trusting
from spothop_master.boot.packages import PackageError
from spothop_master.bootstrap import desired, software
from spothop_master.bootstrap.acting import Failed, Runner
from spothop_master.bootstrap.costs import costs, total
from spothop_master.bootstrap.desired import Wanted
from spothop_master.bootstrap.found import Do, Found, Refused, Step
from spothop_master.bootstrap.on_vm import CA, READY, STATUS, TOKEN
from spothop_master.bootstrap.plan import plan, the_address
from spothop_master.bootstrap.reading import Reader
from spothop_master.bootstrap.removal import removal
from spothop_master.clouds.aws.calls import AwsCalls, Caller
from spothop_master.clouds.base import AuthFailed, CloudError

READY_WITHIN_S, LOOK_S = 900.0, 5.0
_BUCKET = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_CREDENTIALS = (
    "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, of an administrator"
)


@dataclass(kw_only=True)
class World:
    """What a run gets from outside; tests make their own."""

    calls: Caller
    say: Callable[[str], None] = typer.echo
    ask: Callable[[str], bool] = typer.confirm
    can_ask: bool = False
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)
    build: Callable[[], bytes] = software.build
    answers: Callable[[str, str], bool] = lambda url, ca: _answers(url, ca)
    endpoint: str = ""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options of one run."""

    region: str
    bucket: str = ""
    vm_type: str = ""
    dry_run: bool = False
    yes: bool = False
    delete: bool = False
    with_data: bool = False
    lose_backup: bool = False


def bootstrap(asked: Asked, world: World) -> int:
    """The exit code. Raises Failed, Refused, CloudError and PackageError."""
    _check_region(asked.region)
    reader = Reader(world.calls, asked.region)
    account = reader.account()
    known = reader.bucket_name()
    content = b"" if asked.delete else world.build()
    wanted = Wanted(
        region=asked.region,
        bucket=asked.bucket or known or desired.default_bucket(account, asked.region),
        software=sha256(content).hexdigest(),
        vm_type=asked.vm_type,
        lose_backup=asked.lose_backup,
        with_data=asked.with_data,
        endpoint=world.endpoint,
    )
    _check_bucket(wanted.bucket, known)
    found = reader.found(account, wanted, removing=asked.delete)
    steps = _steps(asked, wanted, found, world)
    _show(world, account, wanted, found, steps, delete=asked.delete)
    if asked.dry_run:
        return 0
    if any(step.do is not Do.KEEP for step in steps):
        if not (asked.yes or _agreed(world)):
            world.say("nothing was changed")
            return 1
        found = Runner(
            calls=world.calls,
            region=asked.region,
            found=found,
            read=lambda before, touched: reader.found(
                account, wanted, removing=asked.delete, before=before, touched=touched
            ),
            plan=lambda now: _steps(asked, wanted, now, world),
            software=content,
            tell=lambda line: world.say(f"  {line}"),
            sleep=world.sleep,
        ).run()
    if not asked.delete:
        return _await_master(world, reader, found)
    world.say("everything is removed" if found.bucket is None else "the bucket is left")
    return 0


def _steps(asked: Asked, wanted: Wanted, found: Found, world: World) -> list[Step]:
    return removal(wanted, found) if asked.delete else plan(wanted, found, now=world.now())


def _check_region(region: str) -> None:
    """The policies name ARNs of the partition `aws`, and the other parts of AWS are other ones,
    those in China with addresses of their own, too (amazonaws.com.cn)."""
    if region.startswith(("cn-", "us-gov-")):
        hint = 'set it up by hand: docs/aws.md, "China and GovCloud"'
        raise Refused((f"--region = {region}: bootstrap knows AWS's common regions only", hint))


def _check_bucket(name: str, known: str) -> None:
    if not _BUCKET.fullmatch(name):
        hint = "3 to 63 of a-z, 0-9 and -, as S3 takes them"
        raise Refused((f"--bucket = {name}: no name of a bucket", hint))
    if known and name != known:
        hint = "leave --bucket out; to move, remove the installation with --delete first"
        raise Refused((f"--bucket = {name}: the installation has the bucket {known}", hint))


def _agreed(world: World) -> bool:
    if not world.can_ask:
        raise Refused(("nobody can be asked here", "add --yes, or --dry-run for the plan alone"))
    return world.ask("Go on?")


def _show(
    world: World,
    account: str,
    wanted: Wanted,
    found: Found,
    steps: Sequence[Step],
    *,
    delete: bool,
) -> None:
    world.say(f"AWS account {account}, region {wanted.region}")
    for step in steps:
        told = f"  ({step.reason})" if step.reason else ""
        world.say(f"  {step.do.value:<7} {step.subject}{told}")
    if delete:
        return
    kept = found.masters[0].vm_type if found.masters else desired.VM_TYPE
    rows = costs(packaged(), region=wanted.region, vm_type=wanted.vm_type or kept)
    world.say("cost in a month, before any job:")
    for row in rows:
        world.say(f"  {_usd(row.usd)}  {row.what}")
    world.say(f"  {_usd(total(rows))}  USD in all; and 0.023 USD for each GB of checkpoints")


def _usd(price: float | None) -> str:
    return "      ?" if price is None else f"{price:7.2f}"


def _await_master(world: World, reader: Reader, found: Found) -> int:
    """Tells how far the VM is until the master answers. Raises Refused."""
    [vm], address = [vm.id for vm in found.masters], the_address(found)
    assert address is not None, "the plan is done"
    url = f"https://{address.ip}:{desired.PORT}"
    last = ""
    for _ in range(int(READY_WITHIN_S / LOOK_S)):
        told_by, _, status = reader.parameter(STATUS).partition(" ")
        if told_by == vm:
            if status not in (last, READY):
                world.say(f"  {vm} {status}")
            last = status
            ca = reader.parameter(CA) if status == READY else ""
            if ca and world.answers(url, ca):
                return _told(world, url, ca, reader.region)
        world.sleep(LOOK_S)
    hint = f"see what it says: aws ec2 get-console-output --latest --instance-id {vm}"
    fact = f"{vm} is {last or 'silent'}, and no master answers at {url}"
    raise Refused((fact, f"{hint}; run the same command to wait on"))


def _told(world: World, url: str, ca: str, region: str) -> int:
    world.say(f"master: {url}")
    world.say(f"  certificate authority: {fingerprint(ca)}")
    world.say(f"  admin token: parameter {TOKEN} of SSM, encrypted")
    token = (
        f"$(aws ssm get-parameter --name {TOKEN} --with-decryption"
        f" --region {region} --query Parameter.Value --output text)"
    )
    world.say("try:")
    world.say(f"  export SPOTHOP_URL={url} SPOTHOP_CA={fingerprint(ca)}")
    world.say(f"  export SPOTHOP_TOKEN={token}")
    world.say("  spothop submit job.yaml")
    return 0


def _answers(url: str, ca: str) -> bool:
    import httpx

    try:
        answer = httpx.get(f"{url}/healthz", verify=trusting(url, ca), timeout=LOOK_S)
    except (OSError, ValueError, httpx.HTTPError):
        return False
    return answer.status_code == 200


def main(
    region: Annotated[str | None, typer.Option(help="Where; default: of the SDK.")] = None,
    bucket: Annotated[str, typer.Option(help="Name of the bucket to make.")] = "",
    vm_type: Annotated[str, typer.Option(help="Of the master's VM.")] = "",
    profile: Annotated[str | None, typer.Option(help="Of the SDK's configuration.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y")] = False,
    delete: Annotated[bool, typer.Option("--delete")] = False,
    with_data: Annotated[bool, typer.Option("--with-data")] = False,
    lose_backup: Annotated[bool, typer.Option("--lose-last-backup")] = False,
) -> None:
    """Make, mend or remove an installation of spothop in an AWS account."""
    if with_data and not delete:
        raise typer.BadParameter("it goes with --delete")
    try:
        asked = Asked(
            region=region or _own_region(profile),
            bucket=bucket,
            vm_type=vm_type,
            dry_run=dry_run,
            yes=yes,
            delete=delete,
            with_data=with_data,
            lose_backup=lose_backup,
        )
        world = World(calls=AwsCalls(profile=profile), can_ask=sys.stdin.isatty())
        code = run(asked, world)
    except KeyboardInterrupt:
        typer.echo("interrupted; the same command goes on", err=True)
        code = 130
    raise typer.Exit(code)


def run(asked: Asked, world: World, *, complain: Callable[[str], None] | None = None) -> int:
    """The exit code; what a user or AWS did is told in words."""
    complain = complain or (lambda line: typer.echo(line, err=True))
    try:
        return bootstrap(asked, world)
    except Refused as error:
        problems = error.problems
    except Failed as error:
        problems = ((str(error), error.hint),)
    except AuthFailed as error:
        problems = ((str(error), _CREDENTIALS),)
    except (CloudError, PackageError) as error:
        problems = ((str(error), "run the same command again"),)
    for fact, hint in problems:
        complain(f"error: {fact}")
        complain(f"hint: {hint}")
    return 1


def _own_region(profile: str | None) -> str:
    """Of the SDK's configuration, or where AWS has most."""
    import boto3
    from botocore.exceptions import ProfileNotFound

    try:
        return boto3.Session(profile_name=profile).region_name or "us-east-1"
    except ProfileNotFound:
        return "us-east-1"  # the first call tells it
