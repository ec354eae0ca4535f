"""A year of history, retention run on it, and what users and agents then wait for.

10,000 jobs that ended over the last year, each with its VM, attempt, checkpoints, events, figures
and 100 values of a metric, are written straight into a SQLite database; 200 more train now.
Retention runs as in a master, beside agents that sync all the time. Then the job list, a job's page
and a sync with progress are timed through the whole application, in turns with a master whose
database has the 200 jobs and no history.

Target: each within 1.5 times of the one without history.
Run: python benchmarks/retention_year.py [--jobs 10000] [--rounds 200]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa
from sqlalchemy.orm import Session
from starlette.applications import Starlette

from common import progress, publish, quantile
from load.fleet import OWNER, Member, RestingCloud, write
from spothop_master.app import create_app
from spothop_master.first_start import first_start
from spothop_master.loops.retention import Retention
from spothop_master.services import Services
from spothop_master.settings import MasterSettings
from spothop_master.store.schema import (
    Attempt,
    Base,
    Checkpoint,
    Event,
    Job,
    Metric,
    Observation,
    Place,
    VmRow,
    ZoneSum,
)

TARGET = 1.5
TRAINING = 200
VALUES, SAVES, EVENTS = 100, 5, 20
"""Of each job in the history."""
AT_ONCE = 500
"""Jobs written in one transaction."""
EVERY_S = 0.02
"""Between two syncs while retention runs."""


class Master:
    """The whole application over one database, without sockets and without its loops."""

    def __init__(self, home: Path) -> None:
        self.new = not home.exists()
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.settings = MasterSettings.model_validate({"home": home, "owner": OWNER})
        self.members = [Member(number=number) for number in range(TRAINING)]
        now = datetime.now(timezone.utc)
        cloud = RestingCloud(self.members, home / "launches.jsonl", now)
        self.app: Starlette = create_app(self.settings, {cloud.name: cloud}, loops=False)
        self.services: Services = self.app.state.services
        first_start(self.services)
        self.token = (home / "admin.token").read_text(encoding="utf-8").strip()
        self._seq = dict.fromkeys(self.members, 0)
        with self.services.db.begin() as session:
            if self.new:
                write(session, self.members, owner_id=1, now=now)
            else:
                for member in self.members:
                    self._seq[member] = session.get_one(VmRow, member.vm).acked_seq

    async def open(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(self.app.router.lifespan_context(self.app))
        transport = httpx.ASGITransport(self.app)
        client = httpx.AsyncClient(transport=transport, base_url="http://master")
        self.http = await stack.enter_async_context(client)
        await self.http.post("/login", data={"token": self.token})

    async def get(self, path: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}"} if path.startswith("/api/") else {}
        return await self.http.get(path, headers=headers)

    async def sync(self, round_: int) -> httpx.Response:
        member = self.members[round_ % TRAINING]
        seq = self._seq[member] = self._seq[member] + 2
        step = 1000 + 10 * seq
        reports = [
            {"kind": "steps", "step": step, "count": 10, "step_s": 0.5, "load_s": 0.0},
            {"kind": "metrics", "step": step, "values": {"loss": 1.0}},
        ]
        envelopes = [
            {"seq": seq - 1 + i, "age_s": 0.0, "attempt": 1, "report": report}
            for i, report in enumerate(reports)
        ]
        body = {"protocol": 1, "vm": member.vm, "attempt": 1, "reports": envelopes}
        headers = {"Authorization": f"Bearer {member.session}"}
        return await self.http.post("/agent/v1/sync", json=body, headers=headers)

    def acts(self) -> dict[str, Callable[[int], Awaitable[httpx.Response]]]:
        job = self.members[0].job
        return {
            "job list": lambda _: self.get("/api/v1/jobs"),
            "job list, all": lambda _: self.get("/api/v1/jobs?all=true"),
            "jobs page": lambda _: self.get("/"),
            "job page": lambda _: self.get(f"/jobs/{job}"),
            "sync with progress": self.sync,
        }


# --- the history --------------------------------------------------------------------------------


def write_year(session: Session, jobs: range, of: int, now: datetime) -> None:
    rows: dict[type[Base], list[dict[str, Any]]] = {}
    for number in jobs:
        for table, row in _job(number, now - timedelta(days=2 + 363 * (1 - number / of))):
            rows.setdefault(table, []).append(row)
    for table in (Job, VmRow, Attempt, Place, Checkpoint, Event, Observation, Metric):
        session.execute(sa.insert(table), rows[table])


def _job(number: int, at: datetime) -> Iterator[tuple[type[Base], dict[str, Any]]]:
    """One that ran for five hours and ended well."""
    job, vm, end = f"old-{number:06d}", f"old-vm-{number:06d}", at + timedelta(hours=5)
    where = Member(number=number).pool
    zone = {"cloud": where.cloud, "region": where.region, "zone": where.zone}
    zone |= {"vm_type": where.vm, "spot": True}
    spec = {"name": "old", "run": "python train.py"}
    state = {"state": "succeeded", "submitted_at": at, "ended_at": end, "bundle": "0" * 64}
    yield Job, {"id": job, "name": "old", "owner_id": 1, "submit_token": job, "spec": spec, **state}
    prices = {"price": 1.0, "on_demand_price": 3.0, "grace_s": 120.0, "dialect": "aws"}
    life = {"requested_at": at, "running_at": at, "ended_at": end, "reason": "released"}
    yield (
        VmRow,
        {
            "id": vm,
            "job_id": job,
            "token": f"launch-{vm}",
            "state": "terminated",
            **(zone | prices | life),
        },
    )
    ended = {"state": "ended", "reason": "succeeded", "ended_at": end, "step_s": 0.5}
    attempt = 10_000_000 + number
    yield Attempt, {"id": attempt, "job_id": job, "number": 1, "created_at": at, **ended}
    yield Place, {"attempt_id": attempt, "vm_id": vm, "living": False, "last_step": 36_000}
    seen = {**zone, "job_id": job, "vm_id": vm, "attempt": 1, "evidence": ""}
    for kind in ("allocation", "preparation", "life", "step"):
        evidence = {"evidence": "released", "censored": True} if kind == "life" else {}
        figure = {"censored": False, "kind": kind, "n": 0, "value": 60.0, "at": end}
        yield Observation, {**seen, **figure, **evidence}
    for n in range(SAVES):
        saved = {"job_id": job, "attempt": 1, "n": n, "kind": "insurance", "bytes": 10**8}
        yield Checkpoint, {**saved, "step": n, "delta_s": 0.4, "beta_s": 6.0, "committed_at": end}
        for kind in ("save", "backup"):
            yield Observation, {**seen, "censored": False, "kind": kind, "n": n, "value": 1.0,
                                "at": end}  # fmt: skip
    for i in range(EVENTS):
        kind = "committed" if i % 2 else "vm"
        yield Event, {"at": at, "job_id": job, "kind": kind, "text": f"event {i} of {job}"}
    for i in range(VALUES):
        value = {"step": 360 * i, "name": "loss", "value": 3.0 / (1 + i), "at": at}
        yield Metric, {"job_id": job, "attempt": 1, **value}


def sum_up(session: Session) -> None:
    """Bulk inserts pass by what keeps the sums."""
    session.execute(sa.delete(ZoneSum))
    key = [column.name for column in ZoneSum.__table__.primary_key]
    columns = [getattr(Observation, name) for name in key]
    sums = [sa.func.count(), sa.func.sum(Observation.value), sa.func.max(Observation.at)]
    query = sa.select(*columns, *sums).where(Observation.kind.in_(("life", "allocation")))
    session.execute(
        sa.insert(ZoneSum).from_select(
            [*key, "count", "total", "newest_at"], query.group_by(*columns)
        )
    )


def fill(master: Master, jobs: int, *, until: float) -> int:
    """How many of them were written until then (monotonic), one portion at least; the others are
    left out."""
    now, done = datetime.now(timezone.utc), 0
    for first in range(0, jobs, AT_ONCE):
        if done and time.monotonic() > until:
            break
        progress(f"{first} of {jobs} jobs written")
        done = min(jobs, first + AT_ONCE)
        with master.services.db.begin() as session:
            write_year(session, range(first, min(jobs, first + AT_ONCE)), jobs, now)
    with master.services.db.begin() as session:
        sum_up(session)
    return done


# --- measuring ----------------------------------------------------------------------------------


def counts(master: Master) -> dict[str, int]:
    with master.services.db.read() as session:
        return {
            model.__tablename__: session.scalar(sa.select(sa.func.count()).select_from(model)) or 0
            for model in (Job, Metric, Event, Observation)
        }


async def retain(master: Master, *, hurry: bool, until: float) -> dict[str, Any]:
    """Retention in a thread, and syncs meanwhile; what it has not done until then (monotonic), the
    next run would."""

    def rest(seconds: float) -> bool:
        over = time.monotonic() > until
        return over or (not hurry and services.stopping.wait(seconds))

    services, waits_ms = master.services, []
    before, bytes_before = counts(master), services.db.bytes()[0]
    loop = Retention(
        services.db,
        master.settings,
        logs=services.logs,
        bundles=services.bundles,
        sessions=services.sessions,
        clock=services.clock,
        rest=rest,
    )
    began = time.monotonic()
    thread = threading.Thread(target=loop.run_once)
    thread.start()
    round_ = 0
    while thread.is_alive():
        asked = time.monotonic()
        (await master.sync(round_)).raise_for_status()
        waits_ms.append(1000 * (time.monotonic() - asked))
        round_ += 1
        await asyncio.sleep(EVERY_S)
    took_s = time.monotonic() - began
    loop.run_once()
    return {
        "rows_before": before,
        "rows_after": counts(master),
        "mb_before": bytes_before / 1e6,
        "mb_after": services.db.bytes()[0] / 1e6,
        "run_s": took_s,
        "longest_write_ms": 1000 * loop.longest_write_s,
        "syncs_meanwhile": len(waits_ms),
        "sync_p50_ms": quantile(waits_ms, 0.5),
        "sync_p99_ms": quantile(waits_ms, 0.99),
        "sync_max_ms": max(waits_ms),
        "second_run_s": time.monotonic() - began - took_s,
    }


async def compare(empty: Master, year: Master, rounds: int) -> list[dict[str, Any]]:
    """In turns, so that what else the machine does is in both alike."""
    rows = []
    for name in empty.acts():
        took: dict[Master, list[float]] = {empty: [], year: []}
        for round_ in range(rounds + 20):
            for master, values in took.items():
                asked = time.perf_counter()
                (await master.acts()[name](round_)).raise_for_status()
                if round_ >= 20:  # what is read and compiled once
                    values.append(1000 * (time.perf_counter() - asked))
        row = {"what": name}
        for label, values in (("empty", took[empty]), ("year", took[year])):
            row[f"{label}_p50_ms"] = quantile(values, 0.5)
            row[f"{label}_p99_ms"] = quantile(values, 0.99)
        rows.append({**row, "times": row["year_p50_ms"] / row["empty_p50_ms"]})
    return rows


async def run(folder: Path, jobs: int, rounds: int, *, hurry: bool, minutes: float) -> int:
    began, empty, year = time.monotonic(), Master(folder / "empty"), Master(folder / "year")
    if year.new:
        jobs = fill(year, jobs, until=began + 60 * minutes / 3)
    async with AsyncExitStack() as stack:
        for master in (empty, year):
            await master.open(stack)
        progress(f"{jobs} jobs: what users and agents wait for before retention")
        unthinned = await compare(empty, year, rounds // 4)
        progress("retention")
        retention = await retain(year, hurry=hurry, until=began + 60 * minutes * 3 / 4)
        progress("and what they wait for after it")
        rows = await compare(empty, year, rounds)
    facts = {
        "jobs": jobs,
        "continued": not year.new,
        "rests": not hurry,
        "target": TARGET,
        "retention": retention,
        "before_retention": unthinned,
    }
    publish("retention_year", "with a year of history, beside none", rows, **facts)
    for name, value in retention.items():
        print(f"  {name}: {value:.4g}" if isinstance(value, float) else f"  {name}: {value}")
    missed = [row["what"] for row in rows if row["times"] > TARGET]
    if missed:
        print(f"MISSED: {', '.join(missed)}")
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument(
        "--keep", type=Path, help="use the databases in this folder, and leave them"
    )
    parser.add_argument("--hurry", action="store_true", help="retention without rests")
    parser.add_argument(
        "--minutes", type=float, default=600, help="end in time, with fewer jobs where it must be"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        found = run(
            folder, options.jobs, options.rounds, hurry=options.hurry, minutes=options.minutes
        )
        return asyncio.run(found)


if __name__ == "__main__":
    sys.exit(main())
