"""Clocks that step, and syncs that come late, twice or out of order: nothing changes by them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.fake_cloud import FakeClock
from fakes.world import World
from spothop.wire import (
    AnyReport,
    CommittedReport,
    Envelope,
    ExitedReport,
    FencedInReport,
    MessageReport,
    MetricsReport,
    NoticeReport,
    PhaseReport,
    PreparedReport,
    RestoredReport,
    SaveKind,
    SaveRequestedReport,
    StartedReport,
    StepsReport,
)
from spothop_master.clock import SteadyClock
from spothop_master.store import agents
from spothop_master.store.schema import Checkpoint, Event, Metric, Observation

HOUR = 3600.0


class SteppingClock(FakeClock):
    """The master's own clock over a wall clock that somebody sets; `now` is the true time."""

    def __init__(self) -> None:
        super().__init__()
        self.step_s = 0.0
        self._steady = SteadyClock(wall=self._wall, monotonic=lambda: self.now.timestamp())

    def _wall(self) -> datetime:
        return self.now + timedelta(seconds=self.step_s)

    def __call__(self) -> datetime:
        return self._steady()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr("fakes.world.FakeClock", SteppingClock)
    world = World(tmp_path)
    yield world
    world.db.close()


def step(world: World, seconds: float) -> None:
    assert isinstance(world.clock, SteppingClock)
    world.clock.step_s += seconds


STEPS = [HOUR, -HOUR, 30 * 24 * HOUR, -30 * 24 * HOUR]


@pytest.mark.parametrize("seconds", STEPS)
def test_a_step_of_the_clock_ends_no_vm(world: World, seconds: float) -> None:
    agent = world.training()
    step(world, seconds)
    for _ in range(30):
        world.tick()
        agent.train(1)
    assert [attempt.state for attempt in world.attempts()] == ["running"]
    assert [vm.suspect_at for vm in world.vms()] == [None]


@pytest.mark.parametrize("seconds", STEPS)
def test_after_a_step_silence_is_still_found(world: World, seconds: float) -> None:
    world.training()
    step(world, seconds)
    world.settle(25)  # silent_after_s is 20
    assert world.vms()[0].reason == "agent_lost"
    assert len(world.attempts()) == 2


@pytest.mark.parametrize("seconds", STEPS)
def test_a_step_between_notice_and_fence_neither_hurries_nor_delays_it(
    world: World, seconds: float
) -> None:
    agent = world.training()
    agent.notice(deadline_in_s=30)
    world.settle(5)
    step(world, seconds)
    new = world.join()
    world.tick()
    new.prepare()
    world.tick()
    assert not world.attempt().may_fence  # the old one may still save: 30 s are not over
    world.settle(30)
    assert world.attempt().may_fence


@pytest.mark.parametrize("seconds", STEPS)
def test_a_step_does_not_change_a_back_off(world: World, seconds: float) -> None:
    agent = world.training()
    agent.exit(1)
    world.look()
    step(world, seconds)
    world.settle(5)
    assert len(world.attempts()) == 2


# --- syncs ----------------------------------------------------------------------------------------

LIFE: list[AnyReport] = [
    PhaseReport(phase="join", duration_s=0.1),
    PhaseReport(phase="bundle", duration_s=0.2),
    PreparedReport(),
    FencedInReport(n=1),
    RestoredReport(step=0),
    StartedReport(pid=7),
    StepsReport(step=10, count=10, step_s=0.5, load_s=0.0),
    MetricsReport(step=10, values={"loss": 2.0}),
    CommittedReport(n=2, step=10, save=SaveKind.PERIODIC, bytes=1, delta_s=0.1, beta_s=0.2),
    MessageReport(text="hello"),
    StepsReport(step=20, count=10, step_s=0.5, load_s=0.0),
    SaveRequestedReport(request="r", save=SaveKind.EMERGENCY, reason="notice"),
    NoticeReport(event="e", deadline_in_s=30),
    CommittedReport(
        n=3, step=21, save=SaveKind.EMERGENCY, bytes=1, delta_s=0.1, beta_s=0.2, since_notice_s=0.4
    ),
    MetricsReport(step=21, values={"loss": 1.0}),
    ExitedReport(code=0, step=21),
]
"""All that one VM reports, from the join to an exit after a notice."""


def facts(world: World) -> dict[str, object]:
    """What the master holds to be true; no times, no ids of rows."""
    attempts = [
        (a.number, a.state, a.reason, a.last_step, a.step_at_notice, a.notice_fits, a.exit_code)
        for a in world.attempts()
    ]
    return {
        "job": (world.job().state, world.job().user_failures, world.job().insurance),
        "attempts": attempts,
        "vms": [(vm.state, vm.reason, vm.acked_seq) for vm in world.vms()],
        "checkpoints": [(c.n, c.step, c.kind) for c in world.rows(Checkpoint)],
        "metrics": [(m.step, m.name, m.value) for m in world.rows(Metric)],
        "observations": sorted((o.kind, o.value, o.n) for o in world.rows(Observation)),
        "events": [(e.kind, e.attempt) for e in world.rows(Event)],
    }


def joined(folder: str) -> World:
    world = World(Path(folder))
    world.submit()
    world.look()
    world.settle(3)
    world.join()
    return world


def deliver(world: World, first: int, count: int) -> int:
    """One sync with reports `first`.. (from 1); what the master confirms."""
    batch = [
        Envelope(seq=seq, age_s=0.0, attempt=1, report=LIFE[seq - 1])
        for seq in range(first, min(first + count, len(LIFE) + 1))
    ]
    with world.db.begin() as session:
        return agents.apply(session, world.attempt(1).vm_id, batch, now=world.clock())


batches = st.tuples(st.integers(1, len(LIFE)), st.integers(1, len(LIFE)))


@cache
def of_one_pass() -> dict[str, object]:
    """What is true when every report arrives once and in order."""
    with tempfile.TemporaryDirectory() as folder:
        world = joined(folder)
        assert deliver(world, 1, len(LIFE)) == len(LIFE)
        found = facts(world)
        world.db.close()
    return found


@settings(max_examples=30, deadline=None)
@given(disorder=st.lists(batches, max_size=12))
def test_syncs_in_any_order_and_number_leave_what_one_pass_leaves(
    disorder: list[tuple[int, int]],
) -> None:
    """Old requests that arrive late, doubled, or with what the master has not seen in between."""
    with tempfile.TemporaryDirectory() as folder:
        world = joined(folder)
        acked = 0
        for first, count in disorder:
            before, acked = acked, deliver(world, first, count)
            assert acked >= before
            assert acked == before or first <= before + 1  # never over a gap
        deliver(world, acked + 1, len(LIFE))  # the agent sends what is not confirmed
        deliver(world, 1, len(LIFE))  # and the network everything once more
        found = facts(world)
        world.db.close()
    assert found == of_one_pass()


def test_the_syncs_of_an_attempt_that_was_replaced_change_nothing_twice(tmp_path: Path) -> None:
    world = joined(str(tmp_path))
    try:
        deliver(world, 1, 13)  # to the notice
        world.settle(3)
        new = world.join()
        world.settle(1)
        new.prepare()
        world.settle(60)  # the old one's deadline passes
        new.start()
        new.train(5)
        world.look()
        before = facts(world)
        deliver(world, 14, 3)  # the old one's last words arrive at last
        deliver(world, 1, 16)
        after = facts(world)
        assert after["attempts"] == before["attempts"]
        assert after["job"] == before["job"]
        assert after["metrics"] == before["metrics"]
        assert (3, 21, "emergency") in world_checkpoints(world)  # the chain has it, so we say so
    finally:
        world.db.close()


def world_checkpoints(world: World) -> list[tuple[int, int, str]]:
    return [(c.n, c.step, c.kind) for c in world.rows(Checkpoint)]
