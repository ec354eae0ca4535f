"""`spothop inject`: makes a request from the options."""

from __future__ import annotations

import random
import reprlib
import secrets
from bisect import bisect_left
from pathlib import Path

import typer
from pydantic import ValidationError

from spothop import traces
from spothop.cli.target import job_or_vm
from spothop.durations import parse_seconds
from spothop.injections import plan_text
from spothop.policy.estimators import Life, kaplan_meier
from spothop.sdk.client import Client
from spothop.sdk.errors import ClientError
from spothop.traces import TraceError
from spothop.wire import InjectionView, InjectRequest


def request(
    *,
    mttp: str | None,
    trace: Path | None,
    zone: str | None,
    seed: int | None,
    no_notice: float,
) -> InjectRequest:
    """Raises BadParameter for wrong options, ClientError for a file that is no trace."""
    if (mttp is None) == (trace is None):
        raise typer.BadParameter("give --mttp or --trace (or --stop), one of them")
    if zone is not None and trace is None:
        raise typer.BadParameter("--zone chooses a zone of a --trace")
    seed = secrets.randbelow(2**31) if seed is None else seed
    try:
        return InjectRequest(
            mttp_s=_means(mttp) if mttp is not None else [],
            lives_s=lives(trace, zone, seed=seed) if trace is not None else [],
            seed=seed,
            no_notice=no_notice,
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        option = _OPTIONS[str(first["loc"][0])]
        raise typer.BadParameter(
            f"{option}: {reprlib.repr(first['input'])}: {first['msg'].removeprefix('Input ')}"
        ) from None


_OPTIONS = {
    "mttp_s": "--mttp",
    "lives_s": "--trace",
    "seed": "--seed",
    "no_notice": "--no-notice",
}
"""The option of each field of the request."""


def _means(text: str) -> list[float]:
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise typer.BadParameter(f"--mttp: {error}") from None


def lives(path: Path, zone: str | None, *, seed: int) -> list[float]:
    """Lives like those of a trace; raises ClientError.

    Of a zone: its runs that ended in a preemption, in their order. Of a CSV: as many as it has,
    drawn by the seed, because a file is sorted by deaths and some of its lives are censored.
    """
    try:
        if path.suffix.lower() == ".json":
            return _of_zone(path, zone)
        if zone is not None:
            raise typer.BadParameter(f"--zone: {path} has lives, no zones")
        return _drawn(traces.read_lives(path), random.Random(seed))
    except TraceError as error:
        raise ClientError(str(error), "docs/checkpointing.md has the formats of traces") from None


def _drawn(seen: list[Life], rng: random.Random) -> list[float]:
    """From the Kaplan-Meier curve; a life beyond its last death gets the longest age seen
    (Efron 1967)."""
    curve = kaplan_meier(seen)
    died = [1 - point.share for point in curve]
    ages = [*(point.age_s for point in curve), max(life.duration_s for life in seen)]
    return [ages[bisect_left(died, rng.random())] for _ in seen]


def _of_zone(path: Path, name: str | None) -> list[float]:
    trace = traces.read_zones(path, names=None if name is None else [name])
    if len(trace.zones) > 1:
        names = ", ".join(zone.name for zone in trace.zones)
        raise typer.BadParameter(f"{path} has {len(trace.zones)} zones, choose one: --zone {names}")
    found = traces.zone_lives(trace.zones[0], trace.tick_s)
    ended = [life.duration_s for life in found if life.preempted]
    if not ended:
        raise TraceError(f"{path}: zone {trace.zones[0].name} is never taken away: no preemption")
    return ended


def inject(client: Client, target: str, wanted: InjectRequest | None) -> InjectionView:
    """Into the job with this id or name, or the VM with this id; None ends what is under way.

    Raises ApiError.
    """
    if wanted is None:
        return job_or_vm(target, client.stop_injection, client.stop_injection_vm)
    return job_or_vm(
        target,
        lambda job: client.inject(job, wanted),
        lambda vm: client.inject_vm(vm, wanted),
    )


def words(found: InjectionView) -> str:
    """One line about an injection: its plan, and how far it is."""
    times = f"{found.done} preemption{'' if found.done == 1 else 's'} so far"
    if found.ended_at is not None:
        times = f"ended after {found.done}: {found.reason}"
    text = f"{plan_text(found)}; {times}"
    return f"{text} (only VM {found.vm})" if found.vm else text
