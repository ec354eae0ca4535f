"""Agents talk to one master, and another one judges who is silent."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from fakes.master_harness import MasterHarness
from spothop_master.agents.heartbeats import Heartbeats
from spothop_master.loops.contacts import Contacts

pytestmark = pytest.mark.databases


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    harness = MasterHarness(tmp_path)
    harness.db.single_master = False
    yield harness
    harness.db.close()


def test_a_vm_that_talks_to_another_master_lives(harness: MasterHarness) -> None:
    """For longer than silence is borne, and with the judge up for all that time."""
    agent = harness.training()
    vm = agent.vm
    elsewhere = Heartbeats(harness.clock())
    there = Contacts(harness.db, elsewhere, harness.clock)
    here = Contacts(harness.db, harness.heartbeats, harness.clock)
    for _ in range(60):
        elsewhere.heard(vm, harness.clock())
        there.run_once()
        here.run_once()
        harness.tick()
    assert [row.state for row in harness.vms()] == ["running"]
    assert harness.events("suspect") == []
    for _ in range(30):  # and when nobody hears it, it is ended
        there.run_once()
        here.run_once()
        harness.tick()
    assert harness.vms()[0].reason == "agent_lost"


def test_a_master_that_did_not_reach_the_database_ends_nothing(harness: MasterHarness) -> None:
    """Nor does it at the moment at which it reaches it again, before it has read of the others."""
    harness.training()
    here = Contacts(harness.db, harness.heartbeats, harness.clock)
    here.run_once()
    harness.clock.advance(300)
    harness.look()
    assert [row.state for row in harness.vms()] == ["running"]
    here.run_once()
    harness.tick()
    assert [row.state for row in harness.vms()] == ["running"]


def test_vms_that_ended_elsewhere_are_not_taken_for_silent_ones(harness: MasterHarness) -> None:
    """By a master that did not see their ends, and is the judge after that."""
    agent = harness.training()
    standby = Heartbeats(harness.clock())
    there = Contacts(harness.db, standby, harness.clock)
    standby.heard(agent.vm, harness.clock())
    there.run_once()
    assert standby.known() == {agent.vm}
    harness.want("cancelled")
    harness.settle(60)
    assert [row.state for row in harness.vms()] == ["terminated"]
    there.run_once()
    assert standby.known() == set()
    assert standby.count(harness.clock(), timedelta(seconds=15)) == (0, 0)
