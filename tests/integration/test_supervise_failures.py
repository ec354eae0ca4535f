"""Failures through the supervise loop: what is tried again, and what ends the job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from fakes.master_harness import Later, MasterHarness
from fakes.scripted_agent import ScriptedAgent
from spothop.wire import PreparationFailedReport, SaveKind
from spothop_master.core.actions import Action
from spothop_master.core.facts import Snapshot
from spothop_master.loops.supervise import TOGETHER

pytestmark = pytest.mark.databases


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    harness = MasterHarness(tmp_path)
    yield harness
    harness.db.close()


def again(harness: MasterHarness, agent: ScriptedAgent) -> None:
    """The next attempt on the same VM trains, after the back-off."""
    for _ in range(9):
        harness.tick()
        agent.obey()
    agent.prepare()
    harness.tick()
    agent.obey()
    agent.train(1)
    harness.look()


def test_a_hang_is_started_again_on_the_same_vm_with_a_budget_of_its_own(
    harness: MasterHarness,
) -> None:
    agent = harness.training()
    for number in (1, 2, 3):
        agent.exit(None, signal=9, stopped=True, hang=True, message="hang: no step for 10 min")
        again(harness, agent)
        assert (agent.attempt, harness.attempt(number).reason) == (number + 1, "hang")
        assert agent.assignment.hangs == number
    agent.exit(None, signal=9, stopped=True, hang=True, message="hang: no step for 10 min")
    harness.look()
    assert harness.job().state == "failed"
    assert (
        harness.job().reason == "hang: no step for 10 min (4 hangs in a row; `retries.hang` is 3)"
    )
    assert harness.job().user_failures == 0
    assert len(harness.vms()) == 1


def test_a_new_checkpoint_gives_a_job_that_hangs_its_budget_back(harness: MasterHarness) -> None:
    harness.training()
    for number in range(1, 6):
        agent = harness.agents[harness.machine().id]
        agent.save(SaveKind.PERIODIC)
        harness.tick()
        agent.exit(None, signal=9, stopped=True, hang=True, message="hang")
        again(harness, agent)
        assert agent.attempt == number + 1
    assert harness.job().state == "running"


def test_a_job_that_has_trained_is_tried_on_though_it_fails_the_same_way(
    harness: MasterHarness,
) -> None:
    """Where it loads its data from may be away for a while."""
    agent = harness.training()
    agent.exit(1, message="killed by a bug of the moment")
    for number in (2, 3):
        for _ in range(9):
            harness.tick()
            agent.obey()
        agent.prepare()
        assert agent.attempt == number
        agent.exit(1, message="ConnectionError: no route to the data")
        harness.look()
    assert harness.job().state == "queued"


def test_a_broken_setup_is_the_users(harness: MasterHarness) -> None:
    harness.submit(retries={"user": 0})
    harness.look()
    harness.settle(3)
    agent = harness.join()
    agent.report(PreparationFailedReport(phase="setup", message="pip: no such package", user=True))
    harness.look()
    assert harness.job().state == "failed"
    assert "no such package" in harness.job().reason


# --- faults of the master itself ------------------------------------------------------------------


def test_jobs_that_cannot_be_written_keep_no_other_one_waiting(
    harness: MasterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though there are as many as are written in one pass, and they came first."""
    for number in range(TOGETHER + 5):
        harness.submit(f"bad-{number}")
    harness.clock.advance(1)
    harness.submit("good")
    write = harness.supervisor._write

    def fail(session: Any, facts: Snapshot, actions: Sequence[Action], plan: Any) -> None:
        if facts.job.id != "good":
            raise RuntimeError("a bug")
        write(session, facts, actions, plan)

    monkeypatch.setattr(harness.supervisor, "_write", fail)
    for _ in range(2):
        harness.supervisor.run_due()
    assert harness.job("good").state == "allocating"


def test_a_launch_for_which_there_is_no_thread_is_asked_for_anew(harness: MasterHarness) -> None:
    """Its lease is not renewed for ever."""

    class Full(Later):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            raise RuntimeError("can't start new thread")

    calls, harness.calls = harness.calls, Full()
    harness.restart()
    harness.submit()
    harness.look()
    harness.supervisor._effects.executor_of = lambda cloud: calls
    harness.supervisor._effects._executors.clear()
    harness.settle(10)
    assert [vm.state for vm in harness.vms()][-1] == "booting"
    assert len(harness.cloud.alive()) == 1
