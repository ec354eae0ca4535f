"""Injected preemptions: who may, what is refused, when they strike, and a master that restarts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from fakes.http_master import HttpAgent, HttpMaster
from fakes.master_harness import MasterHarness
from fakes.scripted_agent import ScriptedAgent
from spothop.wire import InjectRequest, JobDetail, Problem
from spothop_master.clouds.base import Unavailable
from spothop_master.core.evidence import EndCause
from spothop_master.core.injection import Plan
from spothop_master.loops.inject import Injector
from spothop_master.security import Role
from spothop_master.store import injections
from spothop_master.store.schema import Injection, Job

pytestmark = pytest.mark.databases

JOBS = "/api/v1/jobs"
PLAN = {"mttp_s": [20], "seed": 7}


@pytest.fixture
def master(tmp_path: Path) -> Iterator[HttpMaster]:
    with HttpMaster(tmp_path) as master:
        yield master


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    harness = MasterHarness(tmp_path)
    yield harness
    harness.db.close()


# --- REST ---------------------------------------------------------------------------------------


def refused(answer: Any, status: int, error: str) -> Problem:
    assert answer.status_code == status, answer.text
    found = Problem.model_validate(answer.json())
    assert found.error == error
    assert found.hint
    return found


def test_it_is_made_shown_and_ended(master: HttpMaster) -> None:
    agent = master.joined()
    made = master.post(f"{JOBS}/{agent.job}/injection", json=PLAN)
    assert made.status_code == 201, made.text
    assert made.json()["mttp_s"] == [20]
    shown = JobDetail.model_validate(master.get(f"{JOBS}/{agent.job}").json()).injection
    assert shown is not None
    assert (shown.seed, shown.done, shown.ended_at) == (7, 0, None)
    ended = master.call("DELETE", f"{JOBS}/{agent.job}/injection")
    assert (ended.status_code, ended.json()["reason"]) == (200, "admin ended it")
    refused(master.call("DELETE", f"{JOBS}/{agent.job}/injection"), 409, "no_injection")
    texts = [e["text"] for e in master.get(f"{JOBS}/{agent.job}/events").json()]
    assert "injecting preemptions: exponential lives, MTTP 20 s, seed 7" in texts
    assert "no more injected preemptions after 0: admin ended it" in texts


def test_one_at_a_time(master: HttpMaster) -> None:
    agent = master.joined()
    master.post(f"{JOBS}/{agent.job}/injection", json=PLAN).raise_for_status()
    found = refused(
        master.post(f"{JOBS}/{agent.job}/injection", json=PLAN), 409, "no_injection_possible"
    )
    assert "--stop" in found.hint


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_jobs_and_vms_of_others_do_not_exist(master: HttpMaster, method: str) -> None:
    agent = master.joined()
    other, viewer = master.user("eve"), master.user("vic", Role.VIEWER)
    for path, error in (
        (f"{JOBS}/{agent.job}/injection", "no_such_job"),
        (f"/api/v1/vms/{agent.vm}/injection", "no_such_vm"),
    ):
        refused(master.call(method, path, token=other, json=PLAN), 404, error)
        refused(master.call(method, path, token=viewer, json=PLAN), 403, "read_only")
        refused(master.call(method, path, token="", json=PLAN), 401, "no_token")


def test_a_name_finds_the_askers_own_job_first(master: HttpMaster) -> None:
    eve = master.user("eve")
    master.submit(name="same")
    mine = master.submit(name="same", token=eve)["id"]
    answer = master.post(f"{JOBS}/same/injection", json=PLAN, token=eve)
    assert answer.json()["job"] == mine


def test_what_is_not_there(master: HttpMaster) -> None:
    refused(master.post(f"{JOBS}/nothing/injection", json=PLAN), 404, "no_such_job")
    refused(master.post("/api/v1/vms/nothing/injection", json=PLAN), 404, "no_such_vm")


def test_on_demand_vms_are_refused(master: HttpMaster) -> None:
    agent = master.joined()
    with master.services.db.begin() as session:
        job = session.get_one(Job, agent.job)
        job.spec = {**job.spec, "resources": {"spot": False}}
    refused(master.post(f"{JOBS}/{agent.job}/injection", json=PLAN), 409, "on_demand")


def test_a_job_that_is_over_is_refused(master: HttpMaster) -> None:
    job = master.submit()["id"]
    master.post(f"{JOBS}/{job}/cancel")
    master.look(1)
    refused(master.post(f"{JOBS}/{job}/injection", json=PLAN), 409, "no_injection_possible")


@pytest.mark.parametrize(
    ("plan", "error"),
    [
        ({}, "bad_injection"),
        ({"mttp_s": [1], "lives_s": [1]}, "bad_injection"),
        ({"mttp_s": [0]}, "invalid_request"),
        ({"mttp_s": [-5]}, "invalid_request"),
        ({"lives_s": [1, 0]}, "invalid_request"),
        ({"mttp_s": [1], "no_notice": 2}, "invalid_request"),
        ({"mttp_s": [1], "seed": -1}, "invalid_request"),
        ({"mttp_s": ["nan"]}, "invalid_request"),
        ({"mttp_s": [1], "every": 3}, "invalid_request"),
    ],
)
def test_nonsense_is_refused(master: HttpMaster, plan: dict[str, Any], error: str) -> None:
    job = master.submit()["id"]
    refused(master.post(f"{JOBS}/{job}/injection", json=plan), 422, error)


def test_of_a_vm_it_takes_that_one_alone(master: HttpMaster) -> None:
    agent = master.joined()
    agent.train(10)
    made = master.post(f"/api/v1/vms/{agent.vm}/injection", json={"lives_s": [1, 1, 1]})
    assert made.json()["vm"] == agent.vm
    injector = injector_of(master)
    master.look(2)
    injector.run_once()
    assert preempted(master, agent)
    injector.run_once()
    found = JobDetail.model_validate(master.get(f"{JOBS}/{agent.job}").json()).injection
    assert found is not None
    assert (found.done, found.reason) == (1, "the VM is over")


def injector_of(master: HttpMaster) -> Injector:
    return Injector(master.services.db, master.services.clouds, master.clock)


def preempted(master: HttpMaster, agent: HttpAgent) -> bool:
    (machine,) = (m for m in master.cloud.machines.values() if m.user_data.vm == agent.vm)
    return machine.cause is EndCause.PREEMPTED


# --- the loop -----------------------------------------------------------------------------------


def inject(harness: MasterHarness, **plan: Any) -> None:
    with harness.db.begin() as session:
        job = session.get_one(Job, "job-1")
        injections.start(session, job, None, InjectRequest(**plan), now=harness.clock())


def injector(harness: MasterHarness) -> Injector:
    return Injector(harness.db, {"fake": harness.cloud}, harness.clock)


def row(harness: MasterHarness) -> Injection:
    return harness.rows(Injection)[-1]


def waits(
    harness: MasterHarness, agent: ScriptedAgent, injector: Injector, limit_s: int = 400
) -> datetime:
    """Until the agent's VM is preempted."""
    for _ in range(limit_s):
        harness.tick()
        agent.report()
        injector.run_once()
        if agent.machine.cause is EndCause.PREEMPTED:
            return harness.clock()
    raise AssertionError("never preempted")


def moves(harness: MasterHarness, old: ScriptedAgent) -> ScriptedAgent:
    """The old VM saves and goes; the next attempt trains."""
    if old.machine.notice_at is not None:
        old.notice(deadline_in_s=30)
        old.save()
    harness.settle(4)
    number = harness.attempt().number
    new = harness.join(number)
    for _ in range(40):
        harness.tick()
        if new.phase == "joined":
            new.prepare()
        new.obey()
        if new.phase == "training":
            break
    new.train(5)
    return new


def test_intervals_follow_the_seed_and_begin_when_a_vm_comes_up(harness: MasterHarness) -> None:
    plan = Plan(mttp_s=[30, 100], seed=3)
    agent = harness.training()
    asked = harness.clock()
    inject(harness, mttp_s=[30, 100], seed=3)
    loop = injector(harness)
    first = plan.interval_s(0) or 0
    assert (waits(harness, agent, loop) - asked).total_seconds() == pytest.approx(first, abs=1)
    assert agent.machine.notice_at is not None
    loop.run_once()
    assert row(harness).done == 1  # not twice, though its notice has not reached us
    second_vm = moves(harness, agent)
    struck = waits(harness, second_vm, injector(harness))  # a master that was started again
    came_up = second_vm.machine.running_at
    second = plan.interval_s(1) or 0
    assert (struck - came_up).total_seconds() == pytest.approx(second, abs=1)
    told = [e.text for e in harness.events("injected")]
    assert [text.split(" of ")[0] for text in told] == [
        "injected preemption 1",
        "injected preemption 2",
    ]
    assert "with its notice" in told[0]


def test_a_vm_that_does_not_train_is_spared_until_it_does(harness: MasterHarness) -> None:
    harness.submit()
    inject(harness, lives_s=[1.0])
    loop = injector(harness)
    harness.look()
    harness.settle(3)
    agent = harness.join()
    for _ in range(5):
        harness.tick()
        agent.report()
        loop.run_once()
    assert agent.machine.cause is None
    agent.prepare()
    agent.train(3)
    loop.run_once()
    assert agent.machine.cause is EndCause.PREEMPTED


def test_without_notice(harness: MasterHarness) -> None:
    agent = harness.training()
    inject(harness, lives_s=[5.0], no_notice=1.0)
    waits(harness, agent, injector(harness))
    assert agent.machine.notice_at is None
    (event,) = harness.events("injected")
    assert "without notice" in event.text


def test_a_trace_is_over_after_its_last_life(harness: MasterHarness) -> None:
    agent = harness.training()
    inject(harness, lives_s=[5.0])
    loop = injector(harness)
    waits(harness, agent, loop)
    loop.run_once()
    assert (row(harness).done, row(harness).reason) == (1, "the trace is over")
    loop.run_once()
    assert row(harness).done == 1


def test_it_ends_with_the_job(harness: MasterHarness) -> None:
    agent = harness.training()
    inject(harness, mttp_s=[1e6])
    agent.exit(0, done=True)
    harness.look()
    injector(harness).run_once()
    assert row(harness).reason == "the job is succeeded"


def test_a_cloud_that_refuses_is_asked_again_later(harness: MasterHarness) -> None:
    agent = harness.training()
    inject(harness, lives_s=[1.0])
    loop = injector(harness)
    real, refusals = harness.cloud.preempt, []

    def refuse(vm_id: str, notice_s: float | None = None) -> None:
        refusals.append(vm_id)
        raise Unavailable("not now")

    harness.cloud.preempt = refuse  # type: ignore[method-assign]
    for _ in range(9):
        harness.tick()
        agent.report()
        loop.run_once()
    assert len(refusals) == 1
    assert "not now" in harness.events("injection")[-1].text
    harness.cloud.preempt = real  # type: ignore[method-assign]
    waits(harness, agent, loop, limit_s=12)
    assert row(harness).done == 1


def test_a_master_killed_after_the_call_makes_it_once_more_and_counts_it_once(
    harness: MasterHarness,
) -> None:
    agent = harness.training()
    inject(harness, lives_s=[1.0, 1000.0])
    harness.tick(2)
    with harness.db.begin() as session:
        (due,) = injections.claim_due(session, now=harness.clock())
        assert injections.claim_due(session, now=harness.clock()) == []  # another master
    harness.cloud.preempt(due.cloud_id)  # ... and here it dies
    harness.clock.advance(injections.CLAIM.total_seconds())
    agent.report()
    injector(harness).run_once()
    assert row(harness).done == 1
    with harness.db.begin() as session:
        injections.happened(session, due, now=harness.clock())  # the late one
    assert row(harness).done == 1


def test_a_pass_without_injections_takes_no_write_lock(harness: MasterHarness) -> None:
    harness.training()
    with harness.db.begin():
        injector(harness).run_once()  # would wait for the lock in vain
