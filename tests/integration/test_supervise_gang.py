"""Attempts of two VMs through the whole master: what jobs of one VM go through, node by node.

The job file accepts one node only; here the loop is told that every job needs two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.master_harness import MasterHarness
from fakes.scripted_agent import ScriptedAgent
from spothop.wire import NoticeReport, SaveKind, StopDirective, Wanted
from spothop_master.clouds.base import NoCapacity
from spothop_master.loops import snapshot

pytestmark = pytest.mark.databases


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MasterHarness]:
    one = snapshot.requirements_of
    monkeypatch.setattr(snapshot, "requirements_of", lambda spec: replace(one(spec), nodes=2))
    harness = MasterHarness(tmp_path)
    yield harness
    harness.db.close()


def prepared(harness: MasterHarness, attempt: int) -> list[ScriptedAgent]:
    agents = [harness.join(attempt, node=node) for node in (0, 1)]
    harness.tick()
    for agent in agents:
        agent.prepare()
    harness.tick()
    return agents


def training(harness: MasterHarness) -> list[ScriptedAgent]:
    harness.submit()
    harness.look()
    harness.settle(3)
    agents = prepared(harness, 1)
    for agent in agents:
        agent.train(10)
    harness.look()
    return agents


def test_both_nodes_get_a_vm_in_one_pool_and_the_job_waits_for_both(
    harness: MasterHarness,
) -> None:
    harness.submit()
    harness.look()
    harness.settle(3)
    assert [place.node for place in harness.attempt().places] == [0, 1]
    assert len({(vm.id, vm.zone) for vm in harness.vms()}) == 2
    assert len({vm.zone for vm in harness.vms()}) == 1
    harness.join(node=0)
    harness.tick()
    assert harness.job().state == "allocating"
    harness.join(node=1)
    harness.tick()
    assert harness.job().state == "preparing"


def test_an_attempt_runs_when_both_nodes_train(harness: MasterHarness) -> None:
    harness.submit()
    harness.look()
    harness.settle(3)
    first, second = prepared(harness, 1)
    first.train(10)
    assert (harness.attempt().state, harness.job().state) == ("preparing", "preparing")
    second.train(10)
    assert (harness.attempt().state, harness.job().state) == ("running", "running")
    assert {vm.state for vm in harness.vms()} == {"running"}


def test_a_node_whose_launch_is_refused_gets_another_vm_and_the_other_keeps_its_own(
    harness: MasterHarness,
) -> None:
    harness.cloud.script.extend([None, NoCapacity("one was left")])
    harness.submit()
    harness.look()
    harness.settle(3)
    attempt = harness.attempt()
    assert attempt.number == 1
    assert [harness.vm(place.vm_id).zone for place in attempt.places] == ["a", "b"]
    assert len(harness.cloud.launches) == 3


def test_a_notice_to_one_node_replaces_both_and_the_old_ones_are_released(
    harness: MasterHarness,
) -> None:
    first, second = training(harness)
    second.notice(30.0)
    harness.look()
    assert [a.state for a in harness.attempts()] == ["draining", "preparing"]
    harness.settle(3)
    new = prepared(harness, 2)
    assert not harness.attempt(2).may_fence, "node 0 may still commit"
    first.save(SaveKind.EMERGENCY)
    harness.tick()
    assert harness.attempt(2).may_fence
    for agent in new:
        agent.obey()
        agent.train(5)
    harness.settle(5)
    old, now = harness.attempts()
    assert (old.state, old.reason, now.state) == ("ended", "preempted", "running")
    assert {harness.vm(place.vm_id).state for place in old.places} == {"terminated"}
    assert (old.places[0].notice_at, old.notice_at) == (None, old.places[1].notice_at)
    kept = harness.observations("emergency")
    assert (second.vm, 1.0) in [(o.vm_id, o.value) for o in kept]


def test_no_fence_before_the_deadline_of_the_last_node(harness: MasterHarness) -> None:
    first, second = training(harness)
    first.report(NoticeReport(event="e", deadline_in_s=4.0))
    second.report(NoticeReport(event="e", deadline_in_s=12.0))
    allowed_after: list[int] = []
    new: list[ScriptedAgent] = []
    for passed in range(1, 20):
        harness.tick()
        for agent in (first, second, *new):
            agent.report()
        if passed == 3:
            new = [harness.join(2, node=node) for node in (0, 1)]
            for agent in new:
                agent.prepare()
        if harness.attempt(2).may_fence:
            allowed_after.append(passed)
    assert allowed_after[0] == 12 + harness.settings.fence_margin_s


def test_the_end_of_one_vm_ends_the_attempt(harness: MasterHarness) -> None:
    first, second = training(harness)
    harness.cloud.preempt(second.machine.id, 0)
    harness.settle(20)
    assert (harness.attempt(1).state, harness.attempt(1).reason) == ("ended", "preempted")
    assert harness.vm(first.vm).reason == "released"
    assert [place.node for place in harness.attempt(2).places] == [0, 1]


def test_a_job_succeeds_when_both_nodes_have(harness: MasterHarness) -> None:
    first, second = training(harness)
    first.exit(0, done=True)
    harness.tick()
    assert (harness.attempt().state, harness.job().state) == ("running", "running")
    assert [place.reason for place in harness.attempt().places] == ["succeeded", None]
    second.exit(0, done=True)
    harness.settle(5)
    assert harness.job().state == "succeeded"
    assert {vm.state for vm in harness.vms()} == {"terminated"}


def test_the_failure_of_one_node_is_the_attempts(harness: MasterHarness) -> None:
    first, second = training(harness)
    second.exit(None, signal=9)
    ended = harness.attempt(1)
    assert (ended.state, ended.reason) == ("ended", "user_failure")
    assert [(p.exit_signal, p.living) for p in ended.places] == [(None, False), (9, False)]
    harness.settle(4)
    again = harness.attempt(2)
    assert [place.vm_id for place in again.places] == [first.vm, second.vm]
    assert harness.job().user_failures == 1


def test_a_stop_reaches_both_nodes_and_waits_for_both(harness: MasterHarness) -> None:
    first, second = training(harness)
    harness.want(Wanted.PAUSED)
    harness.tick()
    for agent in (first, second):
        assert any(isinstance(told, StopDirective) for told in agent.report())
    first.exit(0, stopped=True)
    harness.tick()
    assert harness.attempt().state == "running"
    second.exit(0, stopped=True)
    harness.tick()
    assert (harness.attempt().reason, harness.job().state) == ("paused", "paused")
