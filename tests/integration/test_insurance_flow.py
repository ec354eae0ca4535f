"""A job's policy through master and agent: directives, events, and what other jobs measured."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from fakes.master_harness import MasterHarness
from fakes.scripted_agent import ScriptedAgent
from spothop.wire import AnyDirective, Insurance, InsuranceDirective, SaveKind
from spothop_master.store.schema import Observation

pytestmark = pytest.mark.databases


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    harness = MasterHarness(tmp_path)
    yield harness
    harness.db.close()


def training(harness: MasterHarness, job_id: str = "job-1", **checkpoint: object) -> ScriptedAgent:
    harness.submit(job_id, checkpoint=checkpoint)
    harness.look()
    harness.settle(3)
    agent = harness.join(job_id=job_id)
    harness.tick()
    agent.prepare()
    harness.tick()
    return agent


def insured(told: list[AnyDirective]) -> Insurance | None:
    return next((d.insurance for d in told if isinstance(d, InsuranceDirective)), None)


def texts(harness: MasterHarness, job_id: str = "job-1") -> list[str]:
    return [e.text for e in harness.events("insurance") if e.job_id == job_id]


def lived(harness: MasterHarness, seconds: float, *, times: int = 1, **more: object) -> None:
    """Lives of another job's VMs in zone `a`, one after the other."""
    with harness.db.begin() as session:
        for i in range(times):
            session.add(
                Observation(
                    kind="life", cloud="fake", region="r", zone="a", vm_type="gpu", spot=True,
                    value=seconds, vm_id=f"other-{seconds}-{i}",
                    **{"at": harness.clock() - timedelta(seconds=i * seconds), **more},
                )
            )  # fmt: skip


def test_notice_aware_is_the_default_and_reaches_agent_and_events(harness: MasterHarness) -> None:
    agent = training(harness)
    assert agent.assignment.policy.policy == "notice-aware"
    told = insured(agent.train(10))
    assert told is not None
    (text,) = texts(harness)
    assert text.startswith(f"next insurance save at step {told.at_step}: tau ")
    assert "MTTP" in text
    assert "1/lambda" in text
    assert harness.job().insurance == told.model_dump(mode="json")


def test_saves_are_spread_between_those_that_the_script_has_made(harness: MasterHarness) -> None:
    agent = training(harness)
    tau_s = 0.0
    for _ in range(2):  # at 20 and 40
        agent.train(20)
        told = insured(agent.save(SaveKind.PERIODIC))
        assert told is not None
        tau_s = told.tau_s
    assert tau_s > 20 * 0.5, "the interval is longer"
    late = round(tau_s / 0.5 / 4)
    assert told.at_step == 60 + late, "only if the script has not saved at 60"


def test_static_saves_every_n_steps_from_what_was_saved(harness: MasterHarness) -> None:
    agent = training(harness, policy="static", static_every=25)
    assert agent.assignment.policy.policy == "static:25"
    told = insured(agent.train(10))
    assert told is not None
    assert (told.at_step, told.tau_s) == (25, 12.5)
    agent.train(20)
    told = insured(agent.save(SaveKind.INSURANCE))
    assert told is not None
    assert told.at_step == 55
    assert texts(harness) == ["next insurance save at step 25: tau 12 s from stall 1.0 s, "
                            "MTTP 3 h (no preemption seen yet), every 25 steps"]  # fmt: skip


def test_none_never_insures_and_says_so_once(harness: MasterHarness) -> None:
    agent = training(harness, policy="none")
    for _ in range(3):
        assert insured(agent.train(10)) is None
    assert texts(harness) == ["no insurance saves: the policy is none: only the user's own saves"]
    assert harness.job().insurance is None


def test_thesis_is_off_while_an_emergency_save_fits_and_on_when_it_does_not(
    harness: MasterHarness,
) -> None:
    harness.cloud.grace_s = 3.0
    agent = training(harness, policy="thesis")
    assert agent.assignment.policy.margin_s == 0
    told = insured(agent.train(10))  # 0.5 + defaults 1 + 2 >= 3
    assert told is not None
    assert told.tau_s == pytest.approx((2 * 1 * (10_800 + 4)) ** 0.5)
    assert insured(agent.save()) is None  # measured: 0.5 + 0.2 + 0.4 < 3
    on, off = texts(harness)
    assert on.startswith("next insurance save")
    assert "restart 4.0 s" in on
    assert off.startswith("no insurance saves: off, because an emergency save fits")


def test_a_life_of_another_job_changes_a_running_jobs_directive_at_its_next_sync(
    harness: MasterHarness,
) -> None:
    """And so does what is measured by the master's own loop, of another job's VM."""
    first = training(harness)
    before = insured(first.train(10))
    assert before is not None
    second = training(harness, "job-2")
    second.train(10)
    assert harness.vm(first.vm).zone == "a"
    harness.cloud.preempt(second.machine.id, 0)
    harness.settle(2)
    (life,) = harness.observations("life")
    assert (life.vm_id, life.censored) == (second.vm, False)
    after = insured(first.obey())  # a heartbeat: no report of its own
    assert after is not None
    assert after.tau_s < 0.9 * before.tau_s
    assert "(1 preemption in the region, faded to 1.0)" in after.reason


def test_an_event_only_when_tau_changes_materially_also_by_a_slow_drift(
    harness: MasterHarness,
) -> None:
    agent = training(harness)
    for _ in range(5):
        agent.train(10)
    assert len(texts(harness)) == 1
    drifted = []
    for n in range(1, 9):
        lived(harness, 3000.0 + n, at=harness.clock() - timedelta(hours=n))
        told = insured(agent.train(10))
        assert told is not None
        drifted.append(told.tau_s)
    assert drifted == sorted(drifted, reverse=True)
    told_of = [e.data["tau_s"] for e in harness.events("insurance")]
    assert 2 <= len(told_of) <= 4
    assert all(b < 0.75 * a for a, b in pairwise(told_of))


def test_a_pool_where_vms_die_fast_is_insured_more_often(harness: MasterHarness) -> None:
    lived(harness, 60.0, times=30)
    agent = training(harness)
    told = insured(agent.train(10))
    assert told is not None
    assert told.tau_s < 100  # by the stated default of 3 h alone: 260 s
    assert "(30 preemptions in the region, faded to " in told.reason


def test_from_30_lives_on_the_vms_age_counts(harness: MasterHarness) -> None:
    """Young VMs die more here, and one that has passed that age is insured less often."""
    ended = harness.clock()
    for n in range(30):
        lived(harness, 10.0 + 10 * n, at=ended - timedelta(minutes=5 * n))
    for n in range(10):
        lived(harness, 40_000.0 + n, at=ended - timedelta(minutes=5 * n + 200))
    agent = training(harness)
    young = insured(agent.train(10))
    assert young is not None
    assert "times the mean at the VM's age of" in young.reason
    harness.clock.advance(7_200)
    agent.save()
    old = insured(agent.train(10))
    assert old is not None
    assert "at the VM's age of 2 h" in old.reason
    assert old.tau_s > 1.3 * young.tau_s  # though a save has turned out to be quick


def test_ends_that_nothing_announces_count_whatever_the_notices(harness: MasterHarness) -> None:
    agent = training(harness)
    before = insured(agent.train(10))
    lived(harness, 900.0, times=12, evidence="silence", censored=True)
    after = insured(agent.train(10))
    assert before is not None
    assert after is not None
    assert after.tau_s < before.tau_s
    assert "a failure each" in after.reason


def test_thesis_insures_until_a_save_was_measured(harness: MasterHarness) -> None:
    """The rule cannot tell before that an emergency save fits; the agent does the same."""
    agent = training(harness, policy="thesis")
    told = insured(agent.train(10))
    assert told is not None
    assert "no save was measured yet" in told.reason
    assert insured(agent.save()) is None  # measured: 0.5 + 0.2 + 0.4 < 4


def test_every_outcome_of_a_preemption_is_recorded_with_its_evidence(
    harness: MasterHarness,
) -> None:
    agent = training(harness)
    agent.train(10)
    agent.notice()
    agent.save(SaveKind.EMERGENCY)
    harness.settle(3)
    new = harness.join(2)
    new.prepare()
    harness.tick()
    new.obey()
    new.train(5)
    harness.settle(3)
    (emergency,) = harness.observations("emergency")
    assert (emergency.value, emergency.censored, emergency.evidence) == (1.0, False, "notice")
    (life,) = harness.observations("life")
    assert (life.censored, life.evidence) == (False, "notice")
    assert {o.vm_id for o in harness.observations("allocation")} == {agent.vm, new.vm}
    harness.cloud.preempt(new.machine.id, 0)
    harness.clock.advance(timedelta(seconds=1).total_seconds())
    harness.settle(3)
    lost = harness.observations("emergency")[1]
    assert (lost.value, lost.censored, lost.evidence) == (0.0, False, "no_notice")
