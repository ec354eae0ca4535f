"""Clouds that take their time: the job goes on meanwhile, and nothing is leaked or done twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.master_harness import Later, MasterHarness
from spothop.wire import SaveKind
from spothop_master.clouds.base import Ambiguous, CloudError, LaunchSpec, NoCapacity, Vm
from spothop_master.loops import snapshot
from spothop_master.store import leases

pytestmark = pytest.mark.databases


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    made = MasterHarness(tmp_path)
    yield made
    made.db.close()


def go_on(harness: MasterHarness, seconds: int = 1) -> None:
    for _ in range(seconds):
        harness.clock.advance(1)
        harness.look_at_what_is_due()


def all_over(harness: MasterHarness) -> bool:
    return not harness.cloud.alive() and {vm.state for vm in harness.vms()} == {"terminated"}


# --- one launch is slow ---------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("wanted", ["cancelled", "paused"])
def test_a_stop_does_not_wait_for_it(harness: MasterHarness, wanted: str, late: bool) -> None:
    seen: list[tuple[str, str]] = []

    def stop() -> None:
        harness.want(wanted)
        go_on(harness)
        seen.append((harness.job().state, harness.vms()[0].state))

    harness.submit()
    harness.during_launch(stop, late=late)
    harness.look()
    assert seen == [(wanted, "terminating")]
    go_on(harness, 6)
    assert all_over(harness)
    assert len(harness.vms()) == 1
    assert harness.job().state == wanted


def test_one_that_is_listed_before_it_has_answered_is_adopted(harness: MasterHarness) -> None:
    """And ended, when the job is cancelled then; the answer changes nothing any more."""
    ids: list[str | None] = []

    def cancel() -> None:
        go_on(harness, 2)
        ids.append(harness.vms()[0].cloud_id)
        harness.want("cancelled")
        go_on(harness)

    harness.submit()
    harness.during_launch(cancel, late=True)
    harness.look()
    assert ids == ["i-1"]
    go_on(harness, 6)
    assert all_over(harness)


@pytest.mark.parametrize("listed_first", [False, True])
def test_one_that_is_listed_is_ended_before_its_launch_has_answered(
    harness: MasterHarness, listed_first: bool
) -> None:
    """A call may hang for minutes, and the VM costs money meanwhile."""
    seen: list[int] = []

    def cancel() -> None:
        if listed_first:
            go_on(harness, 2)
        harness.want("cancelled")
        go_on(harness, 8)
        seen.append(len(harness.cloud.alive()))

    harness.submit()
    harness.during_launch(cancel, late=True)
    harness.look()
    assert seen == [0]
    go_on(harness, 6)
    assert all_over(harness)
    assert harness.job().reason == "cancelled by the user"


@pytest.mark.parametrize("answer", [NoCapacity("none left"), Ambiguous("timeout")])
@pytest.mark.parametrize("wanted", ["cancelled", "paused"])
def test_a_refusal_after_the_end_does_not_say_why_the_job_ended(
    harness: MasterHarness, wanted: str, answer: CloudError
) -> None:
    def refuse(spec: LaunchSpec, token: str) -> Vm:
        harness.want(wanted)
        go_on(harness)
        raise answer

    harness.submit()
    harness.cloud.launch = refuse  # type: ignore[method-assign]
    harness.look()
    go_on(harness, 8)
    assert all_over(harness)
    assert (harness.job().state, harness.job().reason) == (wanted, f"{wanted} by the user")


def test_a_refusal_of_what_is_there_is_believed_the_listing_instead(
    harness: MasterHarness,
) -> None:
    launch = harness.cloud.launch

    def refuse(spec: LaunchSpec, token: str) -> Vm:
        harness.cloud.launch = launch  # type: ignore[method-assign]
        launch(spec, token)
        go_on(harness, 2)
        raise NoCapacity("none left")

    harness.submit()
    harness.cloud.launch = refuse  # type: ignore[method-assign]
    harness.look()
    assert [vm.state for vm in harness.vms()] == ["booting"]
    assert "but it is there" in harness.events("cloud")[-1].text
    go_on(harness, 5)
    assert len(harness.cloud.launches) == 1


def test_it_is_not_given_up_while_it_is_under_way(harness: MasterHarness) -> None:
    """However long that takes: its lease is renewed."""
    harness.submit()
    seen: list[str] = []

    def wait() -> None:
        go_on(harness, 3 * int(leases.TTL.total_seconds()))
        seen.append(harness.vms()[0].state)

    harness.during_launch(wait)
    harness.look()
    assert seen == ["requested"]
    assert [vm.state for vm in harness.vms()] == ["booting"]
    assert len(harness.cloud.launches) == 1


def test_the_vm_of_a_launch_that_was_given_up_is_not_taken_for_its_row(
    harness: MasterHarness,
) -> None:
    """The loop hung for longer than the lease; then the listing without it counted."""

    def hang() -> None:
        harness.clock.advance(leases.TTL.total_seconds())
        harness.supervisor._effects._held.clear()  # nobody renews it
        go_on(harness, 8)

    harness.submit()
    harness.during_launch(hang)
    harness.look()
    first, second = harness.vms()
    assert (first.reason, first.cloud_id, second.state) == ("launch_failed", None, "booting")
    for _ in range(8):
        go_on(harness)
        harness.sweep.run_once()
    assert {machine.token for machine in harness.cloud.alive()} == {second.token}


def test_an_old_vm_saves_and_ends_while_the_launch_of_the_new_one_is_slow(
    harness: MasterHarness,
) -> None:
    old = harness.training()
    harness.cloud.preempt(old.machine.id, 5)
    old.notice()
    seen: list[tuple[str, str]] = []

    def lose_the_old_one() -> None:
        old.save(SaveKind.EMERGENCY)
        go_on(harness, 8)
        seen.append((harness.attempt(1).state, harness.vm(old.vm).state))

    harness.during_launch(lose_the_old_one)
    harness.look_at_what_is_due()
    assert seen == [("ended", "terminated")]
    go_on(harness, 3)
    new = harness.join(2)
    go_on(harness)
    new.prepare()
    go_on(harness)
    new.obey()
    assert (new.phase, new.step) == ("training", 10)


def test_success_does_not_wait_for_the_launch_of_a_replacement(harness: MasterHarness) -> None:
    old = harness.training()
    harness.cloud.preempt(old.machine.id)
    old.notice()
    seen: list[str] = []

    def succeed() -> None:
        old.exit(0, done=True)
        go_on(harness)
        seen.append(harness.job().state)

    harness.during_launch(succeed)
    harness.look_at_what_is_due()
    assert seen == ["succeeded"]
    go_on(harness, 6)
    assert all_over(harness)


# --- calls that wait for their turn ---------------------------------------------------------------


def waiting(harness: MasterHarness) -> Later:
    harness.calls = later = Later()
    harness.restart()
    harness.submit()
    harness.look_at_what_is_due()
    return later


def test_the_launches_of_one_job_are_side_by_side(
    harness: MasterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = snapshot.requirements_of
    monkeypatch.setattr(snapshot, "requirements_of", lambda spec: replace(one(spec), nodes=3))
    later = waiting(harness)
    assert len(later.given) == 3
    for call in reversed(later.given):
        call()
    assert [vm.state for vm in harness.vms()] == ["booting"] * 3


def test_a_launch_that_nobody_wants_any_more_is_not_made(harness: MasterHarness) -> None:
    later = waiting(harness)
    harness.want("cancelled")
    go_on(harness)
    assert harness.job().state == "cancelled"
    later.given.pop()()
    (vm,) = harness.vms()
    assert (vm.state, vm.refusal) == ("terminated", None)
    assert harness.job().reason == "cancelled by the user"
    assert harness.cloud.launches == []


def test_a_termination_under_way_is_asked_for_once(harness: MasterHarness) -> None:
    agent = harness.training()
    harness.calls = later = Later()
    harness.restart()
    agent.exit(0)
    go_on(harness, 20)
    assert len(later.given) == 1
    later.given.pop()()
    go_on(harness, 3)
    assert all_over(harness)


@pytest.mark.parametrize("wait_s", [1, 30])
def test_a_master_that_is_killed_before_a_call_makes_it_later(
    harness: MasterHarness, wait_s: int
) -> None:
    later = waiting(harness)
    later.given.clear()
    harness.clock.advance(max(wait_s, harness.dead_master_s()))
    harness.restart()
    go_on(harness, 3)
    assert [vm.state for vm in harness.vms()] == ["requested"]
    (call,) = later.given
    call()
    assert [vm.state for vm in harness.vms()] == ["booting"]
    assert len(harness.cloud.launches) == 1


def test_where_a_listing_shows_vms_at_once_it_launches_anew(harness: MasterHarness) -> None:
    harness.cloud.settle_s = 0
    later = waiting(harness)
    later.given.clear()
    harness.clock.advance(harness.dead_master_s())
    harness.restart()
    go_on(harness, 3)
    assert harness.vms()[0].reason == "launch_failed"
    assert len(harness.vms()) == 2
