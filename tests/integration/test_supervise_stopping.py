"""Jobs that somebody or a limit stops: fake cloud, scripted agents, fake time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from fakes.master_harness import MasterHarness
from spothop.wire import (
    ReleaseDirective,
    StopDirective,
    Wanted,
)
from spothop_master.store import job_views, jobs
from spothop_master.store.schema import Job

pytestmark = pytest.mark.databases(gate=True)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    harness = MasterHarness(tmp_path)
    yield harness
    harness.db.close()


@pytest.mark.parametrize("wanted", ["cancelled", "paused"])
@pytest.mark.parametrize("moment", ["queued", "allocating", "preparing", "running", "draining"])
def test_stopping_in_every_state(harness: MasterHarness, moment: str, wanted: str) -> None:
    agent = None
    if moment in ("running", "draining"):
        agent = harness.training()
    else:
        harness.submit()
        if moment != "queued":
            harness.look()
        if moment == "preparing":
            harness.settle(3)
            agent = harness.join()
    if moment == "draining" and agent is not None:
        agent.notice()
        harness.look()
    assert harness.job().state == moment
    harness.want(wanted)
    harness.look()
    if agent is not None:
        stop = next(d for d in agent.obey() if isinstance(d, StopDirective))
        assert (stop.reason, stop.save) == (wanted, True)
    harness.settle(8)
    assert harness.job().state == wanted
    assert harness.all_over()


def test_a_stop_that_is_not_obeyed_ends_with_the_vm(harness: MasterHarness) -> None:
    agent = harness.training()
    harness.want("cancelled", at_once=True)
    harness.look()
    for _ in range(int(harness.settings.stop_timeout_s) + 4):
        assert [told.save for told in agent.report() if isinstance(told, StopDirective)] in (
            [False],
            [],
        )
        harness.tick()
    assert harness.job().state == "cancelled"
    assert harness.all_over()
    assert agent.report() == [ReleaseDirective()]


def test_a_paused_job_resumes_from_its_newest_checkpoint(harness: MasterHarness) -> None:
    agent = harness.training()
    agent.save()
    harness.want("paused")
    harness.look()
    agent.obey()
    harness.settle(4)
    harness.want("running")
    harness.settle(4)
    next_one = harness.join()
    next_one.prepare()
    assert next_one.step == 10
    assert (next_one.attempt, harness.attempt(1).reason) == (2, "paused")


def test_a_cancel_saves_the_newest_state_first(harness: MasterHarness) -> None:
    agent = harness.training()
    harness.want("cancelled")
    harness.look()
    agent.obey()
    harness.settle(4)
    assert (harness.job().state, harness.chains["job-1"].newest()) == ("cancelled", 10)
    assert harness.all_over()


def test_a_pause_takes_no_time_from_the_job(harness: MasterHarness) -> None:
    harness.submit(max_duration="1m")
    harness.want("paused")
    harness.look()
    since = harness.clock()
    assert (harness.job().state, harness.job().paused_at) == ("paused", since)
    harness.settle(100)
    harness.want("running")
    harness.look()
    assert (harness.job().paused_at, harness.job().paused_s) == (None, 100.0)
    with harness.db.read() as session:
        detail = job_views.job_detail(
            session, session.get_one(Job, "job-1"), now=harness.clock(), storage_url=""
        )
    assert detail.ends_at == detail.submitted_at + timedelta(seconds=160)
    harness.settle(50)
    agent = harness.join()
    assert agent.assignment.ends_in_s == pytest.approx(10.0)
    harness.settle(11)
    assert harness.job().wanted == "running"
    assert "max_duration" in harness.events("stop")[-1].text
    assert agent.obey() == [StopDirective(attempt=1, reason="cancelled", save=True)]
    harness.settle(4)
    assert harness.job().state == "failed"


def test_a_pause_says_who_and_why(harness: MasterHarness) -> None:
    harness.training()
    with harness.db.begin() as session:
        jobs.want(session, "job-1", Wanted.PAUSED, now=harness.clock(), why="paused by ann: prices")
    harness.look()
    assert "paused by ann: prices" in harness.events("stop")[-1].text


def test_max_duration_fails_the_job(harness: MasterHarness) -> None:
    harness.submit(max_duration="30s")
    harness.settle(31)
    assert harness.job().state == "failed"
    assert "max_duration" in harness.job().reason
    harness.settle(5)
    assert harness.all_over()
