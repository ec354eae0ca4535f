"""Two masters on one database: a lease keeps each call to a cloud with one of them at a time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from fakes.master_harness import OWNER, Inline, Later, MasterHarness
from spothop_master.agents.directive_cache import DirectiveCache
from spothop_master.agents.heartbeats import Heartbeats
from spothop_master.agents.sessions import Sessions
from spothop_master.clouds.watcher import CloudWatcher
from spothop_master.loops.supervise import Supervisor
from spothop_master.store import leases


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    harness = MasterHarness(tmp_path)
    harness.db.single_master = False  # as on PostgreSQL
    yield harness
    harness.db.close()


def second_master(harness: MasterHarness) -> Supervisor:
    clouds, rng = {"fake": harness.cloud}, random.Random(2)
    return Supervisor(
        harness.db,
        clouds,
        harness.settings,
        watcher=CloudWatcher(clouds, OWNER, executor=Inline(), clock=harness.clock, rng=rng),
        heartbeats=Heartbeats(harness.clock()),
        directives=DirectiveCache(),
        sessions=Sessions(harness.db),
        clock=harness.clock,
        executor=Inline(),
        rng=rng,
    )


def hang(harness: MasterHarness) -> Later:
    """The first master's launch hangs after its intent was committed."""
    harness.submit()
    harness.calls = later = Later()
    harness.restart()
    harness.look()
    assert len(later.given) == 1
    return later


def test_a_launch_under_way_is_left_alone(harness: MasterHarness) -> None:
    later = hang(harness)
    other = second_master(harness)
    for _ in range(20):
        harness.clock.advance(1)
        harness.supervisor.renew_leases()  # which it does whatever else it does
        other.run_once()
    assert [vm.state for vm in harness.vms()] == ["requested"]
    later.given.pop()()
    assert [vm.state for vm in harness.vms()] == ["booting"]
    other.run_once()
    assert len(harness.cloud.launches) == 1


def test_a_result_that_comes_after_the_lease_is_dropped_and_its_vm_swept(
    harness: MasterHarness,
) -> None:
    harness.cloud.settle_s = 0  # or the other master would ask for the same
    other = second_master(harness)
    seen: list[tuple[str | None, str]] = []

    def outlive_the_lease() -> None:
        harness.clock.advance(leases.TTL.total_seconds())
        for _ in range(12):
            harness.clock.advance(1)
            other.run_once()
        lost, taken = harness.vms()
        seen.append((lost.reason, taken.state))

    harness.submit()
    harness.during_launch(outlive_the_lease)
    harness.supervisor.run_once()
    assert seen == [("launch_failed", "booting")]
    taken = harness.vms()[1]
    assert len(harness.cloud.alive()) == 2
    for _ in range(10):
        harness.clock.advance(1)
        harness.sweep.run_once()
    (alive,) = harness.cloud.alive()
    assert alive.token == taken.token
    assert harness.vms()[0].cloud_id is None


def test_a_launch_that_outlives_its_lease_is_asked_for_again_and_makes_one_vm(
    harness: MasterHarness,
) -> None:
    other = second_master(harness)

    def outlive_the_lease() -> None:
        harness.clock.advance(leases.TTL.total_seconds())
        for _ in range(3):
            harness.clock.advance(1)
            other.run_once()

    harness.submit()
    harness.during_launch(outlive_the_lease)
    harness.supervisor.run_once()
    assert [vm.state for vm in harness.vms()] == ["booting"]
    assert len(harness.cloud.machines) == 1


def test_another_master_cancels_while_the_launch_is_under_way(harness: MasterHarness) -> None:
    later = hang(harness)
    harness.want("cancelled")
    other = second_master(harness)
    other.run_once()
    assert harness.job().state == "cancelled"
    assert [vm.state for vm in harness.vms()] == ["terminating"]
    later.given.pop()()
    for _ in range(4):
        harness.clock.advance(1)
        other.run_once()
    assert [vm.state for vm in harness.vms()] == ["terminated"]
    assert harness.cloud.alive() == []


def test_what_another_master_did_in_between_is_not_done_twice(harness: MasterHarness) -> None:
    """After the look without a lock, and before the decision under it."""
    harness.submit()
    other = second_master(harness)
    other.run_once()  # asks for offers
    harness.chaos.at("before_plan", other.run_once)
    harness.look()
    assert len(harness.cloud.launches) == 1
    assert [attempt.number for attempt in harness.attempts()] == [1]


def test_two_masters_ask_for_one_termination_once(harness: MasterHarness) -> None:
    """Each of them knows only by its own memory when it last asked."""
    agent = harness.training()
    other = second_master(harness)
    harness.calls = later = Later()
    harness.restart()
    agent.exit(0)
    harness.look()
    other.run_once()
    assert len(later.given) == 1
    assert len(harness.cloud.alive()) == 1, "the other one waits for the call under way"


def test_results_lock_the_job_before_its_vm(
    harness: MasterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As decisions do: in another order two transactions would wait for each other."""
    later = hang(harness)
    order: list[str] = []
    lock = leases.lock_all

    def locking(session: Session, job_ids: Sequence[str]) -> None:
        order.extend(job_ids)
        lock(session, job_ids)

    def writing(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE vms") and "its VM" not in order:
            order.append("its VM")

    monkeypatch.setattr(leases, "lock_all", locking)
    sa.event.listen(harness.db.engine, "before_cursor_execute", writing)
    later.given.pop()()
    assert order[:2] == ["job-1", "its VM"], "the log of events locks it once more"
