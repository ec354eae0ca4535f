"""Which jobs are due: told changes, moments, silence and its end, listings, offers, the rescan."""

from __future__ import annotations

from datetime import timedelta

from spothop_master.agents.heartbeats import Heartbeats
from spothop_master.core.due import Due, Quiet
from spothop_master.loops.agenda import RESCAN_S, Agenda
from support.core_facts import NOW


def after(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def agenda() -> Agenda:
    return Agenda(Heartbeats(NOW), lambda: 0.5)


def quiet(until_s: float | None = 15, *, suspect: bool = False) -> Due:
    until = None if until_s is None else NOW + after(until_s)
    return Due(quiet={"vm": Quiet(since=NOW, until=until, suspect=suspect)})


def first_due_s(found: Agenda, *, from_s: int = 0, limit_s: int = 200) -> int | None:
    """The first second at which a job is due."""
    return next((s for s in range(from_s, limit_s) if found.due(NOW + after(s))), None)


def test_a_change_is_due_once() -> None:
    found = agenda()
    found.changed(["b", "a", "b"])
    assert found.due(NOW) == ["b", "a"]
    assert found.due(NOW) == []


def test_a_change_during_a_look_is_kept() -> None:
    found = agenda()
    found.changed(["a"])
    assert found.due(NOW) == ["a"]
    found.changed(["a"])  # while it is looked at
    found.plan("a", Due(), now=NOW)
    assert found.due(NOW) == ["a"]


def test_a_moment_comes() -> None:
    found = agenda()
    found.plan("a", Due(at=NOW + after(7)), now=NOW)
    assert first_due_s(found) == 7


def test_the_newest_plan_counts() -> None:
    found = agenda()
    found.plan("a", Due(at=NOW + after(3)), now=NOW)
    found.plan("a", Due(at=NOW + after(9)), now=NOW)
    assert first_due_s(found) == 9


def test_every_job_is_looked_at_again_in_the_end() -> None:
    found = agenda()
    found.plan("a", Due(), now=NOW)
    assert first_due_s(found, limit_s=400) == RESCAN_S
    found.plan("b", Due(at=NOW + after(1000)), now=NOW)
    assert found.due(NOW + after(RESCAN_S)) == ["b"]


def test_a_clock_that_is_set_back_makes_all_due() -> None:
    found = agenda()
    found.plan("a", Due(), now=NOW)
    assert found.due(NOW) == []
    assert found.due(NOW - after(3600)) == ["a"]
    assert found.due(NOW - after(3599)) == []


def test_one_that_is_over_is_never_due_again() -> None:
    found = agenda()
    found.plan("a", Due(at=NOW + after(3), listing=True, offers=True), now=NOW)
    found.plan("a", None, now=NOW)
    assert not found
    assert not found.listed()
    assert not found.offered()
    assert first_due_s(found) is None


def test_silence_is_due_at_its_limit() -> None:
    found = agenda()
    found.plan("a", quiet(15), now=NOW)
    assert first_due_s(found) == 15


def test_a_vm_that_reports_costs_no_look() -> None:
    found = agenda()
    found.plan("a", quiet(15), now=NOW)
    for second in range(0, 31, 5):
        found.heartbeats.heard("vm", NOW + after(second))
        assert found.due(NOW + after(second)) == []
    assert first_due_s(found, from_s=30) == 45, "15 s after it was last heard"


def test_an_older_heartbeat_than_the_facts_know_changes_nothing() -> None:
    """Another master heard it since."""
    found = agenda()
    found.heartbeats.heard("vm", NOW - after(60))
    found.plan("a", quiet(15), now=NOW)
    assert first_due_s(found) == 15


def test_a_suspect_is_due_when_it_is_heard() -> None:
    found = agenda()
    found.plan("a", quiet(None, suspect=True), now=NOW)
    assert found.due(NOW + after(20)) == []
    found.heartbeats.heard("vm", NOW + after(21))
    assert found.due(NOW + after(21)) == ["a"]


def test_listings_and_offers_reach_those_that_wait_for_them() -> None:
    found = agenda()
    found.plan("a", Due(listing=True), now=NOW)
    found.plan("b", Due(offers=True), now=NOW)
    assert found.listed()
    assert found.due(NOW) == ["a"]
    assert found.offered()
    assert found.due(NOW) == ["b"]


def test_only_unknown_jobs_are_new() -> None:
    found = agenda()
    found.plan("a", Due(), now=NOW)
    found.know(["a", "b"])
    assert found.due(NOW) == ["b"]


def test_jobs_in_a_hurry_are_taken_by_themselves_and_once() -> None:
    agenda = Agenda(Heartbeats(NOW), lambda: 0.5)
    assert not agenda
    agenda.changed(["a", "b"])
    agenda.hurry(["b", "c"])
    assert agenda.take_hurried() == ["b", "c"]
    assert agenda.take_hurried() == []
    assert agenda.due(NOW) == ["a"]
    agenda.hurry(["d"])
    assert agenda
