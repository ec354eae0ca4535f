"""What one VM may send: buckets that fill, and the names of a job's metrics."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.master_harness import MasterHarness
from spothop.wire import Envelope, ExitedReport, MetricsReport, PreparedReport, StepsReport
from spothop_master.agents import limits
from spothop_master.agents.limits import BURST_S, Buckets, MetricNames
from spothop_master.agents.reading import FaultyEnvelope
from spothop_master.store import metrics
from spothop_master.store.schema import Metric
from support.examples import examples

pytestmark = pytest.mark.databases

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)
RATE = 10.0


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


@examples(100)
@given(asks=st.lists(st.tuples(st.floats(0, 100), st.integers(1, 100)), max_size=40))
def test_no_vm_gets_more_than_its_rate_and_one_burst(asks: list[tuple[float, int]]) -> None:
    buckets, now, taken = Buckets(RATE), 0.0, 0
    for pause, units in asks:
        now += pause
        wait_s = buckets.take("vm", units, now=at(now))
        taken += 0 if wait_s else units
        if wait_s:
            assert buckets.take("vm", units, now=at(now + wait_s + 1e-3)) == 0.0
            now, taken = now + wait_s + 1e-3, taken + units
        assert taken <= RATE * (now + BURST_S) + 1


def test_one_vm_uses_up_its_own_bucket_only() -> None:
    buckets = Buckets(RATE)
    assert buckets.take("flood", 300, now=T0) == 0.0
    assert buckets.take("flood", 1, now=T0) == pytest.approx(0.1)
    assert buckets.take("other", 300, now=T0) == 0.0
    assert buckets.take("flood", 1, now=at(-5)) > 0.0  # a clock that was set back gives nothing
    assert buckets.take("flood", 1, now=at(1)) == 0.0


def test_what_is_owed_is_taken_and_the_rest_waits_the_longer() -> None:
    buckets = Buckets(RATE)
    assert buckets.take("vm", 300, now=T0) == 0.0
    assert buckets.take("vm", 50, now=T0, owed=True) == 0.0
    assert buckets.take("vm", 10, now=T0) == pytest.approx(6.0)


def test_buckets_of_vms_that_are_gone_are_forgotten() -> None:
    buckets = Buckets(RATE)
    for number in range(100):
        buckets.take(f"vm-{number}", 1, now=at(number * 3600))
    assert len(buckets._levels) == 1


def test_of_too_much_what_a_jobs_fate_depends_on_stays() -> None:
    said = [
        Envelope(seq=1, age_s=1, attempt=1, report=MetricsReport(step=1, values={"a": 1, "b": 2})),
        Envelope(
            seq=2, age_s=1, attempt=1, report=StepsReport(step=1, count=1, step_s=1, load_s=0)
        ),
        Envelope(seq=3, age_s=1, attempt=1, report=ExitedReport(code=0)),
    ]
    assert limits.units(said) == 5
    assert limits.waits(said[:2])
    assert not limits.waits([*said, Envelope(seq=4, age_s=0, attempt=1, report=PreparedReport())])
    kept = limits.thinned(said)
    assert [isinstance(envelope, FaultyEnvelope) for envelope in kept] == [True, True, False]
    assert [envelope.seq for envelope in kept] == [1, 2, 3]


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    harness = MasterHarness(tmp_path)
    yield harness
    harness.db.close()


def test_the_names_that_came_first_stay_also_after_a_restart(harness: MasterHarness) -> None:
    harness.training()
    some = [f"m{number:04d}" for number in range(metrics.MAX_NAMES - 2)]
    with harness.db.begin() as session:
        for step in (1, 2):
            session.add_all(
                Metric(job_id="job-1", attempt=1, step=step, name=name, value=1.0, at=T0)
                for name in some
            )
    with harness.db.read() as session:
        known = MetricNames()  # of a master that was started again
        assert "loss" not in some
        before = set(metrics.names(session, ["job-1"])["job-1"])
        assert set(some) <= before
        room = metrics.MAX_NAMES - len(before)
        new = [f"new{number}" for number in range(room + 3)]
        assert known.surplus(session, "job-1", [*some[:5], *new]) == new[room:]
        assert known.surplus(session, "job-1", new) == new[room:]
        assert known.surplus(session, "job-1", some) == []
        assert metrics.names(session, ["job-2"]) == {"job-2": []}
    assert [known.tell("job-1"), known.tell("job-1"), known.tell("job-2")] == [True, False, True]
