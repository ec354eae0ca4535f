"""`Heartbeats`: who was heard when."""

from __future__ import annotations

from datetime import timedelta

from fakes.fake_cloud import FakeClock
from spothop_master.agents.heartbeats import Heartbeats


def test_an_unknown_vm_is_silent_since_the_master_began() -> None:
    clock = FakeClock()
    heartbeats = Heartbeats(clock())
    clock.advance(7)
    assert heartbeats.silent_for("vm", clock()) == timedelta(seconds=7)
    assert heartbeats.last_contact("vm") is None


def test_a_vm_is_silent_since_it_was_last_heard() -> None:
    clock = FakeClock()
    heartbeats = Heartbeats(clock())
    clock.advance(7)
    heartbeats.heard("vm", clock())
    clock.advance(1)
    assert heartbeats.silent_for("vm", clock()) == timedelta(seconds=1)
    assert heartbeats.last_contact("vm") == clock() - timedelta(seconds=1)
    assert heartbeats.silent_for("another", clock()) == timedelta(seconds=8)


def test_a_clock_that_was_set_back_makes_nobody_silent() -> None:
    clock = FakeClock()
    heartbeats = Heartbeats(clock())
    heartbeats.heard("vm", clock())
    clock.advance(-3)
    assert heartbeats.silent_for("vm", clock()) == timedelta()


def test_a_vm_that_is_over_is_forgotten() -> None:
    clock = FakeClock()
    heartbeats = Heartbeats(clock())
    heartbeats.heard("vm", clock())
    heartbeats.forget("vm")
    heartbeats.forget("vm")
    assert heartbeats.last_contact("vm") is None


def test_what_is_new_is_taken_once() -> None:
    clock = FakeClock()
    heartbeats = Heartbeats(clock())
    for name in ("a", "b", "gone"):
        heartbeats.heard(name, clock())
    clock.advance(1)
    heartbeats.heard("a", clock())
    heartbeats.forget("gone")
    assert heartbeats.take_new() == {"a": clock(), "b": clock() - timedelta(seconds=1)}
    assert heartbeats.take_new() == {}
    assert heartbeats.last_contact("b") == clock() - timedelta(seconds=1)


def test_the_silent_are_counted_among_all_that_were_heard_or_are_awaited() -> None:
    clock = FakeClock()
    heartbeats, after = Heartbeats(clock()), timedelta(seconds=15)
    for vm in ("a", "b", "c"):
        heartbeats.heard(vm, clock())
    heartbeats.await_word("d")  # of before this master began
    clock.advance(14)
    assert heartbeats.count(clock(), after) == (0, 4)
    clock.advance(1)
    assert heartbeats.count(clock(), after) == (4, 4)
    heartbeats.heard("a", clock())
    heartbeats.expect("b", clock() + timedelta(seconds=10))
    heartbeats.forget("c")
    assert heartbeats.count(clock(), after) == (4, 4)  # of this second
    clock.advance(1)
    assert heartbeats.count(clock(), after) == (1, 3)


def test_what_another_master_heard_counts() -> None:
    clock = FakeClock()
    heartbeats = Heartbeats(clock())
    heartbeats.await_word("vm")
    clock.advance(60)
    heartbeats.heard_elsewhere({"vm": clock() - timedelta(seconds=2)})
    assert heartbeats.silent_for("vm", clock()) == timedelta(seconds=2)
    assert heartbeats.count(clock(), timedelta(seconds=15)) == (0, 1)
    assert heartbeats.take_new() == {}  # it is in the database already
    heartbeats.heard_elsewhere({"vm": clock() - timedelta(seconds=9)})
    assert heartbeats.last_contact("vm") == clock() - timedelta(seconds=2)
    heartbeats.heard("vm", clock())
    assert heartbeats.silent_for("vm", clock()) == timedelta()


def test_nobody_is_silent_while_the_master_did_not_listen() -> None:
    """It was stopped for minutes, or did not reach the database that has what others heard."""
    clock = FakeClock()
    heartbeats = Heartbeats(clock(), pause=timedelta(seconds=10))
    heartbeats.heard("vm", clock())
    heartbeats.exchanged(clock())
    clock.advance(10)
    assert heartbeats.silent_for("vm", clock()) == timedelta(seconds=10)
    clock.advance(290)
    assert heartbeats.silent_for("vm", clock()) == timedelta()
    heartbeats.exchanged(clock())
    clock.advance(3)
    assert heartbeats.silent_for("vm", clock()) == timedelta(seconds=3)
    assert heartbeats.last_contact("vm") == clock() - timedelta(seconds=303)  # as it was


def test_a_master_whose_turn_it_becomes_to_judge_listens_anew() -> None:
    clock = FakeClock()
    heartbeats = Heartbeats(clock())
    heartbeats.heard("vm", clock())
    clock.advance(100)
    heartbeats.listen_anew(clock())
    clock.advance(1)
    assert heartbeats.silent_for("vm", clock()) == timedelta(seconds=1)
