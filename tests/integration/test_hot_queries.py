"""No query that is asked all the time reads a table from end to end, or more in a longer history.

The statements are taken while the real master works, so that a new one is looked at by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from fakes.http_master import HttpAgent, HttpMaster
from spothop_master.loops.contacts import Contacts
from spothop_master.loops.inject import Injector
from spothop_master.loops.prices import Prices
from spothop_master.loops.sweep import Sweep, hold_limits
from spothop_master.store import pool_figures
from spothop_master.store.schema import (
    REGION,
    Attempt,
    Base,
    Checkpoint,
    Event,
    Job,
    Metric,
    Observation,
    VmRow,
)
from spothop_master.store.vms import pool_of
from spothop_master.store.zone_observations import MAX_LIVES
from support.queries import captured, full_scans, work

pytestmark = pytest.mark.databases(only="sqlite")  # reads its plans

GROWING = {
    "jobs",
    "attempts",
    "places",
    "vms",
    "checkpoints",
    "events",
    "metrics",
    "observations",
    "prices",
}

COUNTED = "SELECT jobs.state, count(*) AS count_1 \nFROM jobs GROUP BY jobs.state"
"""How many jobs there ever were in each state: of a list of all jobs."""

JOBS = "/api/v1/jobs"


@pytest.fixture
def master(tmp_path: Path) -> Iterator[HttpMaster]:
    with HttpMaster(tmp_path) as master:
        yield master


def train(master: HttpMaster, agent: HttpAgent) -> None:
    """Syncs of every sort: progress, heartbeats, reports that change a state."""
    agent.train(step=100)
    for step in (110, 120):
        agent.sync(
            agent.envelope(kind="steps", step=step, count=10, step_s=0.5, load_s=0.0),
            agent.envelope(kind="metrics", step=step, values={"loss": 1.0, "accuracy": 0.5}),
        )
        master.look(1.0)
    commit(agent, n=2, step=120)
    agent.sync()
    agent.post_log(b"hello\n", offset=0)


def commit(agent: HttpAgent, *, n: int, step: int, save: str = "insurance") -> None:
    report = {"n": n, "step": step, "save": save, "bytes": 9, "delta_s": 0.1, "beta_s": 0.1}
    agent.sync(agent.envelope(kind="committed", **report))


def look_at_everything(master: HttpMaster, job: str) -> None:
    """Every route and page that people and programs follow."""
    cookie = master.cookie()
    for path in (
        f"{JOBS}/{job}",
        f"{JOBS}/mnist",
        f"{JOBS}/{job}/events",
        f"{JOBS}/{job}/events?after=3",
        f"{JOBS}/{job}/logs",
        f"/api/v1/vms?job={job}",
        JOBS,
        f"{JOBS}?all=true",
        "/api/v1/vms",
        "/",
        "/vms",
        "/api/v1/pools",
        "/api/v1/disk",
        f"/jobs/{job}",
        "/pools",
    ):
        answer = master.get(path, headers=cookie)
        assert answer.status_code == 200, (path, answer.text)


def run_loops(master: HttpMaster) -> None:
    services = master.services
    limits = hold_limits(services.settings)
    Sweep(services.db, services.clouds, services.watcher, master.clock, limits=limits).run_once()
    Prices(services.db, services.watcher).run_once()
    Injector(services.db, services.clouds, master.clock).run_once()
    Contacts(services.db, services.heartbeats, services.clock).run_once()
    services.supervisor.run_due()


def hop(master: HttpMaster, agent: HttpAgent) -> None:
    """A notice, an emergency save, the replacement that goes on."""
    agent.sync(agent.envelope(kind="notice", event="e-1", deadline_in_s=30.0, fits=True))
    commit(agent, n=3, step=130, save="emergency")
    master.post(f"{JOBS}/{agent.job}/preempt", json={"notice_s": 0})
    for _ in range(6):
        master.look(1.0)
    second = HttpAgent(master, master.cloud.launches[-1].user_data.token)
    second.join()
    master.look(1.0)


def live(master: HttpMaster) -> None:
    agent = master.joined()
    train(master, agent)
    look_at_everything(master, agent.job)
    run_loops(master)
    hop(master, agent)
    run_loops(master)
    master.post(f"{JOBS}/{agent.job}/cancel")
    for _ in range(4):
        master.look(1.0)
    look_at_everything(master, agent.job)


def test_no_statement_reads_a_table_that_grows_from_end_to_end(master: HttpMaster) -> None:
    db = master.services.db
    master.look()  # what is done once, at the start
    with captured(db) as statements:
        live(master)
    assert len(statements) > 60
    found = {text: full_scans(db, each, GROWING) for text, each in statements.items()}
    scans = {text: scans for text, scans in found.items() if scans}
    if counting := scans.pop(COUNTED, None):  # rows of the index alone, in its order
        assert counting == ["SCAN jobs USING COVERING INDEX ix_jobs_state"]
    assert scans == {}


# --- the same after a long history ---------------------------------------------------------------


def age(master: HttpMaster, agent: HttpAgent, *, rows: int, first: int) -> None:
    """So many rows of every sort more: of others that ran in the same region, and of the job."""
    at, job = master.clock() - timedelta(hours=1), agent.job
    with master.services.db.begin() as session:
        own = session.get_one(VmRow, agent.vm)
        zone = {name: getattr(own, name) for name in (*REGION, "zone")}
        copied = {c.name: getattr(own, c.name) for c in VmRow.__table__.columns}
        copied |= {"join_hash": None, "session_hash": None, "job_id": "other", "ended_at": at}
        if first == 0:
            row = session.get_one(Job, job)
            columns = {c.name: getattr(row, c.name) for c in Job.__table__.columns}
            ended = {"id": "other", "submit_token": "other", "state": "succeeded", "ended_at": at}
            session.execute(insert(Job), [{**columns, **ended}])
        made: dict[type[Base], Callable[[int], dict[str, Any]]] = {
            VmRow: lambda i: {**copied, "id": f"old-{i}", "token": f"{i}", "state": "terminated"},
            Attempt: lambda i: {"job_id": "other", "number": i, "state": "ended", "created_at": at},
            Checkpoint: lambda i: {
                "job_id": job,
                "attempt": 1,
                "n": 1000 + i,
                "step": i,
                "bytes": 1,
                "kind": "insurance",
                "delta_s": 1.0,
                "beta_s": 1.0,
                "committed_at": at,
            },
            Event: lambda i: {"job_id": job, "at": at, "kind": "phase", "text": ""},
            Metric: lambda i: {
                "job_id": job,
                "attempt": 1,
                "step": i,
                "name": "other",
                "value": 1.0,
                "at": at,
            },
        }
        seen = {**zone, "value": 9.0, "job_id": job, "at": at}
        numbers = range(first, first + rows)
        for table, row_of in made.items():
            session.execute(insert(table), [row_of(i) for i in numbers])
        for kind in ("life", "allocation", "save", "backup"):
            rows_ = [{**seen, "kind": kind, "vm_id": f"old-{i}"} for i in numbers]
            session.execute(insert(Observation), rows_)


def test_what_is_done_all_the_time_costs_the_same_after_a_longer_history(
    master: HttpMaster,
) -> None:
    services = master.services
    services.statistics._monotonic = lambda: 0.0  # when they are read anew is no matter of this
    agent = master.joined()
    train(master, agent)
    with services.db.read() as session:
        pool = pool_of(session.get_one(VmRow, agent.vm))

    def progress() -> None:
        agent.sync(agent.envelope(kind="steps", step=200, count=10, step_s=0.5, load_s=0.0))

    def by_rows() -> None:
        services.directives.job_changed(agent.job)
        progress()

    def figures() -> None:
        with services.db.read() as session:
            pool_figures.of_pools(session, [pool], services.settings, now=master.clock())

    def look() -> None:
        services.supervisor._on_change([agent.job])
        services.supervisor.run_due()

    def follow() -> None:
        master.get(f"{JOBS}/{agent.job}/events?after={10**9}")

    acts = (progress, by_rows, figures, look, follow)
    age(master, agent, rows=MAX_LIVES + 100, first=0)
    before = {act.__name__: work(services.db, act) for act in acts}
    age(master, agent, rows=2 * MAX_LIVES, first=MAX_LIVES + 100)
    after = {act.__name__: work(services.db, act) for act in acts}
    assert min(before.values()) > 0
    assert {name: cost for name, cost in after.items() if cost > 1.1 * before[name] + 1000} == {}
