"""What comes at an awkward moment is not left for the slow scan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from fakes.master_harness import MasterHarness
from fakes.scripted_agent import ScriptedAgent
from spothop_master.clouds.base import Unavailable
from spothop_master.core.evidence import EndCause
from spothop_master.core.facts import Snapshot
from spothop_master.loops import supervise
from spothop_master.loops.agenda import RESCAN_S

pytestmark = pytest.mark.databases


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    made = MasterHarness(tmp_path)
    yield made
    made.db.close()


def test_offers_that_come_while_a_job_is_looked_at(
    harness: MasterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were told before the job said that it waits for them."""
    harness.cloud.away = Unavailable("503")
    harness.supervisor.run_due()
    harness.submit()
    read = supervise.snapshots_of

    def and_then_the_cloud_answers(*args: Any, **options: Any) -> dict[str, Snapshot]:
        facts = read(*args, **options)
        if harness.cloud.away:
            harness.cloud.away = None
            harness.clock.advance(60)  # past the back-off of the watcher
            harness.watcher.ask_offers()
        return facts

    monkeypatch.setattr(supervise, "snapshots_of", and_then_the_cloud_answers)
    harness.supervisor.run_due()
    assert harness.watcher.offers(), "they came"
    harness.look_at_what_is_due()
    assert len(harness.vms()) == 1


def test_a_listing_that_comes_while_the_database_is_away(
    harness: MasterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.training()
    harness.look_at_what_is_due()
    harness.cloud.kill(harness.machine().id, EndCause.PREEMPTED)
    harness.clock.advance(1)
    read = harness.db.read

    @contextmanager
    def away() -> Iterator[Session]:
        raise OSError("the database is away")
        yield

    monkeypatch.setattr(harness.db, "read", away)
    with pytest.raises(OSError, match="away"):
        harness.supervisor.run_due()
    monkeypatch.setattr(harness.db, "read", read)
    harness.look_at_what_is_due()
    assert [a.state for a in harness.attempts()] == ["ended", "preparing"]


def test_a_clock_that_is_set_back(harness: MasterHarness) -> None:
    """All moments that were waited for lie an hour ahead."""
    harness.training()
    harness.look_at_what_is_due()
    harness.clock.advance(-3_600)
    harness.look_at_what_is_due()
    listing = harness.watcher.listing("fake")
    assert listing is not None
    assert listing.began_at == harness.clock()
    with harness.db.begin() as session:  # another master, of which nobody tells
        session.connection().exec_driver_sql("UPDATE jobs SET wanted = 'cancelled'")
    harness.clock.advance(RESCAN_S * 1.25)
    harness.look_at_what_is_due()
    assert harness.attempt().stop_wanted == "cancelled"


def test_many_that_fall_silent_together_are_kept_until_they_are_heard(
    harness: MasterHarness,
) -> None:
    """A master whom nobody reached ended its whole fleet, and launched it anew."""
    agents: list[ScriptedAgent] = []
    for n in range(5):
        agents.append(harness.training(f"job-{n}"))
        for agent in agents:
            agent.report()
    harness.clock.advance(70)
    for _ in range(30):
        harness.look_at_what_is_due()
        harness.clock.advance(10)
    assert [vm.state for vm in harness.vms()] == ["running"] * 5
    assert all(vm.suspect_at is not None for vm in harness.vms())
    assert harness.attention["silent VMs"] == (
        "5 of 5 VMs fell silent together: none is ended for that"
    )
    for agent in agents[1:]:
        agent.report()
    for _ in range(4):
        harness.look_at_what_is_due()
        harness.clock.advance(5)
    assert [vm.reason for vm in harness.vms() if vm.reason] == ["agent_lost"]
    assert harness.attention == {}
