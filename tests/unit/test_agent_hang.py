"""When a training process hangs, and what becomes of it. Times are seconds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fakes.attempt_harness import AttemptHarness
from fakes.virtual_time import play, until
from spothop.wire import ExitedReport, MessageReport
from spothop_agent.hang import AT_LEAST_S, FIRST_S, GAP_S, STEPS, Hang
from spothop_agent.state import NoticeSeen

LOOK_S = 1.0


def judged(hang: Hang, begin: float, end: float) -> float | None:
    """When it hangs, looked at every second; None: not until `end`."""
    now = begin
    while now <= end:
        if hang.judge(now) is not None:
            return now - begin
        now += LOOK_S
    return None


def test_before_the_first_step_nothing_is_judged() -> None:
    hang = Hang(after_s=None, heard_at=0.0)
    hang.heard(5.0, "hello")
    hang.heard(9.0, "metrics")
    assert judged(hang, 10.0, 20_000.0) is None


def test_after_the_first_step_ten_minutes_of_silence_are_a_hang() -> None:
    hang = Hang(after_s=None, heard_at=0.0)
    hang.heard(99.0, "phase")
    hang.heard(100.0, "steps")
    assert judged(hang, 100.0, 2000.0) == AT_LEAST_S
    assert "no step, phase or save for 10 min" in (hang.judge(100.0 + AT_LEAST_S) or "")


def test_a_first_step_may_compile_and_slow_steps_are_steps() -> None:
    """A step may be an epoch: nobody knows before the first one is over."""
    hang = Hang(after_s=None, heard_at=0.0)
    hang.heard(100.0, "phase")
    assert judged(hang, 100.0, 9000.0) == FIRST_S
    hang.heard(1000.0, "steps")
    assert judged(hang, 1000.0, 30_000.0) == STEPS * 900.0


def test_each_hang_in_a_row_doubles_the_patience_with_the_next_attempt() -> None:
    """A long evaluation must not end its job: it looks the same each time."""
    for hangs, times in ((0, 1), (1, 2), (2, 4), (3, 8), (30, 8)):
        hang = Hang(after_s=None, heard_at=0.0, hangs=hangs)
        hang.heard(0.0, "phase")
        assert hang.limit_s == FIRST_S
        hang.heard(1.0, "steps")
        assert hang.limit_s == times * AT_LEAST_S
    assert Hang(after_s=30.0, heard_at=0.0, hangs=3).limit_s == 30.0, "as the job file says"


def test_what_a_step_takes_is_known_to_an_agent_that_heard_no_other_one() -> None:
    hang = Hang(after_s=None, heard_at=0.0, began=True, step_s=900.0)
    hang.heard(20.0, "steps")
    assert judged(hang, 20.0, 30_000.0) == STEPS * 900.0


def test_slow_steps_and_evaluations_have_more_patience() -> None:
    hang = Hang(after_s=None, heard_at=0.0)
    for now in (100.0, 101.0, 161.0, 162.0):
        hang.heard(now, "steps")
    assert hang.longest_s == 60.0
    assert judged(hang, 162.0, 9000.0) == STEPS * 60.0


@pytest.mark.parametrize("kind", ["steps", "saving", "backup", "metrics", "missed"])
def test_every_sign_of_life_begins_the_silence_anew(kind: str) -> None:
    hang = Hang(after_s=None, heard_at=0.0, began=True, stepped=True)
    hang.heard(10.0, kind)
    assert judged(hang, 10.0, 9000.0) == AT_LEAST_S


def test_what_the_job_file_says_holds_from_the_start_of_the_process_on() -> None:
    assert judged(Hang(after_s=30.0, heard_at=0.0), 0.0, 99.0) == 30.0
    hang = Hang(after_s=30.0, heard_at=0.0)
    hang.heard(0.0, "steps")
    hang.heard(29.0, "steps")
    assert judged(hang, 29.0, 99.0) == 30.0, "whatever the longest silence was"
    assert judged(Hang(after_s=0, heard_at=0.0, began=True, stepped=True), 0.0, 9000.0) is None


def test_after_done_it_only_has_to_end() -> None:
    hang = Hang(after_s=5.0, heard_at=0.0, began=True, stepped=True)
    hang.heard(1.0, "done")
    assert judged(hang, 1.0, 99.0) == 5.0, "as its job file says"
    hang = Hang(after_s=None, heard_at=0.0, began=True, stepped=True, step_s=1000.0)
    hang.heard(1.0, "done")
    assert judged(hang, 1.0, 9000.0) == FIRST_S
    assert judged(Hang(after_s=0, heard_at=0.0, done=True), 0.0, 9000.0) is None


def test_a_vm_that_was_frozen_has_kept_no_silence() -> None:
    hang = Hang(after_s=60.0, heard_at=0.0, began=True, stepped=True)
    assert hang.judge(10.0) is None
    frozen_s = 3600.0
    assert frozen_s > GAP_S
    assert hang.judge(10.0 + frozen_s) is None
    assert judged(hang, 11.0 + frozen_s, 9000.0) == 49.0


def test_a_process_that_hangs_is_ended_and_the_master_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training()
        await asyncio.sleep(AT_LEAST_S - 5)
        assert run.process.signals == []
        await until(lambda: run.process.signals)
        await run.over(None)
        (exited,) = run.reports(ExitedReport)
        assert (exited.hang, exited.stopped) == (True, True)
        assert exited.message.startswith("no step, phase or save for 10 min")
        assert any(
            r.text == f"the script hangs: {exited.message}" for r in run.reports(MessageReport)
        )

    play(scenario)


def test_an_agent_that_is_started_again_takes_up_the_watch(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path, hang_after_s=AT_LEAST_S).training()
        await run.die()
        again = run.again()
        again.start()
        await until(lambda: again.process.signals)
        await again.over(None)
        (exited,) = again.reports(ExitedReport)
        assert exited.hang

    play(scenario)


def test_after_a_notice_nobody_judges(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path, hang_after_s=30.0).training()
        now = run.context.now()
        notice = NoticeSeen(event="e", seen=now, deadline=now + 120.0, announced=True)
        run.context.state_file.set(notice=notice)
        await asyncio.sleep(60.0)
        assert run.process.signals == []
        await run.over()

    play(scenario)
