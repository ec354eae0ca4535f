"""Clocks that step, and syncs that come late, twice or out of order: nothing changes by them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.fake_cloud import FakeClock
from fakes.master_harness import MasterHarness
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
from spothop_master.agents import protocol
from spothop_master.clock import SteadyClock
from spothop_master.store.schema import Checkpoint, Event, Metric, Observation
from support.examples import examples

pytestmark = pytest.mark.databases

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
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MasterHarness]:
    monkeypatch.setattr("fakes.master_harness.FakeClock", SteppingClock)
    harness = MasterHarness(tmp_path)
    yield harness
    harness.db.close()


def step(harness: MasterHarness, seconds: float) -> None:
    assert isinstance(harness.clock, SteppingClock)
    harness.clock.step_s += seconds


STEPS = [
    *(30 * 24 * HOUR, -30 * 24 * HOUR),
    *(pytest.param(step, marks=pytest.mark.thorough) for step in (HOUR, -HOUR)),
]
"""All of them are longer than anything that the master waits for."""


@pytest.mark.parametrize("seconds", STEPS)
def test_a_step_of_the_clock_ends_no_vm(harness: MasterHarness, seconds: float) -> None:
    agent = harness.training()
    step(harness, seconds)
    for _ in range(30):
        harness.tick()
        agent.train(1)
    assert [attempt.state for attempt in harness.attempts()] == ["running"]
    assert [vm.suspect_at for vm in harness.vms()] == [None]


@pytest.mark.parametrize("seconds", STEPS)
def test_after_a_step_silence_is_still_found(harness: MasterHarness, seconds: float) -> None:
    harness.training()
    step(harness, seconds)
    harness.settle(25)  # silent_after_s is 20
    assert harness.vms()[0].reason == "agent_lost"
    assert len(harness.attempts()) == 2


@pytest.mark.parametrize("seconds", STEPS)
def test_a_step_between_notice_and_fence_neither_hurries_nor_delays_it(
    harness: MasterHarness, seconds: float
) -> None:
    agent = harness.training()
    agent.notice(deadline_in_s=30)
    harness.settle(5)
    step(harness, seconds)
    new = harness.join()
    harness.tick()
    new.prepare()
    harness.tick()
    assert not harness.attempt().may_fence  # the old one may still save: 30 s are not over
    harness.settle(30)
    assert harness.attempt().may_fence


@pytest.mark.parametrize("seconds", STEPS)
def test_a_step_does_not_change_a_back_off(harness: MasterHarness, seconds: float) -> None:
    agent = harness.training()
    agent.exit(1)
    harness.look()
    step(harness, seconds)
    harness.settle(5)
    assert len(harness.attempts()) == 2


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


def facts(harness: MasterHarness) -> dict[str, object]:
    """What the master holds to be true; no times, no ids of rows."""
    attempts = [
        (
            a.number,
            a.state,
            a.reason,
            a.last_step,
            a.step_at_notice,
            a.notice_fits,
            a.leader.exit_code,
        )
        for a in harness.attempts()
    ]
    return {
        "job": (harness.job().state, harness.job().user_failures, harness.job().insurance),
        "attempts": attempts,
        "vms": [(vm.state, vm.reason, vm.acked_seq) for vm in harness.vms()],
        "checkpoints": [(c.n, c.step, c.kind) for c in harness.rows(Checkpoint)],
        "metrics": [(m.step, m.name, m.value) for m in harness.rows(Metric)],
        "observations": sorted((o.kind, o.value, o.n) for o in harness.rows(Observation)),
        "events": [(e.kind, e.attempt) for e in harness.rows(Event)],
    }


def joined(folder: str) -> MasterHarness:
    harness = MasterHarness(Path(folder))
    harness.submit()
    harness.look()
    harness.settle(3)
    harness.join()
    return harness


def deliver(harness: MasterHarness, first: int, count: int) -> int:
    """One sync with reports `first`.. (from 1); what the master confirms."""
    batch = [
        Envelope(seq=seq, age_s=0.0, attempt=1, report=LIFE[seq - 1])
        for seq in range(first, min(first + count, len(LIFE) + 1))
    ]
    with harness.db.begin() as session:
        return protocol.apply(session, harness.attempt(1).leader.vm_id, batch, now=harness.clock())


batches = st.tuples(st.integers(1, len(LIFE)), st.integers(1, len(LIFE)))


@cache
def of_one_pass() -> dict[str, object]:
    """What is true when every report arrives once and in order."""
    with tempfile.TemporaryDirectory() as folder:
        harness = joined(folder)
        assert deliver(harness, 1, len(LIFE)) == len(LIFE)
        found = facts(harness)
        harness.db.close()
    return found


@examples(30)
@given(disorder=st.lists(batches, max_size=12))
def test_syncs_in_any_order_and_number_leave_what_one_pass_leaves(
    disorder: list[tuple[int, int]],
) -> None:
    """Old requests that arrive late, doubled, or with what the master has not seen in between."""
    with tempfile.TemporaryDirectory() as folder:
        harness = joined(folder)
        acked = 0
        for first, count in disorder:
            before, acked = acked, deliver(harness, first, count)
            assert acked >= before
            assert acked == before or first <= before + 1  # never over a gap
        deliver(harness, acked + 1, len(LIFE))  # the agent sends what is not confirmed
        deliver(harness, 1, len(LIFE))  # and the network everything once more
        found = facts(harness)
        harness.db.close()
    assert found == of_one_pass()


def test_the_syncs_of_an_attempt_that_was_replaced_change_nothing_twice(tmp_path: Path) -> None:
    harness = joined(str(tmp_path))
    try:
        deliver(harness, 1, 13)  # to the notice
        harness.settle(3)
        new = harness.join()
        harness.settle(1)
        new.prepare()
        harness.settle(60)  # the old one's deadline passes
        new.start()
        new.train(5)
        harness.look()
        before = facts(harness)
        deliver(harness, 14, 3)  # the old one's last words arrive at last
        deliver(harness, 1, 16)
        after = facts(harness)
        assert after["attempts"] == before["attempts"]
        assert after["job"] == before["job"]
        assert after["metrics"] == before["metrics"]
        assert (3, 21, "emergency") in checkpoints_of(harness)  # the chain has it, so we say so
    finally:
        harness.db.close()


def checkpoints_of(harness: MasterHarness) -> list[tuple[int, int, str]]:
    return [(c.n, c.step, c.kind) for c in harness.rows(Checkpoint)]
