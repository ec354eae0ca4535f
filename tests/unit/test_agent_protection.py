"""Whether anything protects the work of a process, and how that is told. Times are seconds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fakes.attempt_harness import AttemptHarness
from fakes.virtual_time import play, until
from spothop.storage.errors import SourceChanged, StorageDenied, StorageUnavailable
from spothop.wire import Insurance, ProtectionReport, Unprotected
from spothop_agent.hang import AT_LEAST_S
from spothop_agent.protection import PATIENCE, STORAGE_S, Protection

AFTER_S = 300.0


def made(**facts: object) -> Protection:
    return Protection(after_s=AFTER_S, started_at=0.0, **facts)  # type: ignore[arg-type]


def cause(
    of: Protection,
    now: float,
    *,
    failing_since: float | None = None,
    step_s: float = 1.0,
    save_s: float = 2.0,
) -> Unprotected | None:
    found = of.judge(
        now, failing_since=failing_since, trouble="denied", step_s=step_s, save_s=save_s
    )
    return found.cause if found is not None else None


def test_a_script_without_a_call_is_told_after_a_while_and_no_more_with_the_first() -> None:
    protection = made()
    assert cause(protection, AFTER_S - 1) is None
    assert cause(protection, AFTER_S) is Unprotected.NO_CALLS
    protection.heard_of("hello", AFTER_S + 1)
    assert cause(protection, AFTER_S + 1) is None


@pytest.mark.parametrize("kind", ["steps", "metrics", "backup"])
def test_a_script_that_trains_and_never_checks(kind: str) -> None:
    protection = made()
    protection.heard_of("hello", 1.0)
    assert cause(protection, 9000.0) is None, "it may load its data for hours"
    protection.heard_of(kind, 9000.0)
    assert cause(protection, 9000.0 + AFTER_S - 1) is None
    assert cause(protection, 9000.0 + AFTER_S) is Unprotected.NO_CHECK
    protection.heard_of("trains", 9999.0)
    assert cause(protection, 9999.0) is None


def test_a_slow_step_is_no_step_without_a_check() -> None:
    """It is called after a step, perhaps not after each; the first one may compile for long."""
    protection = made()
    protection.heard_of("hello", 1.0)
    protection.heard_of("phase", 2.0)
    assert cause(protection, 9000.0) is None, "its first step is not over"
    protection.heard_of("steps", 9000.0)
    assert cause(protection, 9000.0 + AFTER_S, step_s=AFTER_S) is None
    assert cause(protection, 9000.0 + PATIENCE * AFTER_S, step_s=AFTER_S) is Unprotected.NO_CHECK


def test_a_save_that_was_due_and_did_not_come() -> None:
    protection = made(heard=True, trains_since=0.0, checked=True)
    protection.asks(False, 5.0)
    protection.asks(True, 10.0)
    protection.asks(True, 200.0)  # asked again
    assert cause(protection, 10.0 + AFTER_S - 1) is None
    assert cause(protection, 10.0 + AFTER_S) is Unprotected.NO_SAVE
    assert cause(protection, 10.0 + AFTER_S, step_s=AFTER_S) is None, "a step takes so long"
    assert cause(protection, 10.0 + PATIENCE * (AFTER_S + 2.0), step_s=AFTER_S) is not None
    protection.asks(False, 400.0)
    assert cause(protection, 9000.0) is None


def test_a_storage_that_takes_nothing_comes_first() -> None:
    protection = made()
    assert cause(protection, AFTER_S, failing_since=AFTER_S - 1) is Unprotected.NO_CALLS
    assert cause(protection, AFTER_S, failing_since=AFTER_S - STORAGE_S) is Unprotected.STORAGE


def test_a_script_that_is_started_again_begins_anew() -> None:
    protection = made(heard=True, trains_since=0.0, checked=True, asked_at=0.0)
    protection.restarted(1000.0)
    assert cause(protection, 1000.0) is None
    assert cause(protection, 1000.0 + AFTER_S) is Unprotected.NO_CALLS


# --- told to the master ---------------------------------------------------------------------------


def told(run: AttemptHarness) -> list[Unprotected | None]:
    return [report.cause for report in run.reports(ProtectionReport)]


async def steps(run: AttemptHarness, first: int, count: int) -> None:
    """A step every 10 s."""
    for step in range(first, first + count):
        run.process.steps(step, step_s=10.0)
        await asyncio.sleep(10.0)


def test_each_change_is_told_once_both_ways(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=None)
        await until(lambda: told(run))
        run.process.say("hello", v=1)
        await until(lambda: len(told(run)) == 2)
        await steps(run, 1, 40)
        await until(lambda: len(told(run)) == 3)
        run.process.say("trains")
        await until(lambda: len(told(run)) == 4)
        await steps(run, 41, 9)
        assert told(run) == [Unprotected.NO_CALLS, None, Unprotected.NO_CHECK, None]
        first = run.reports(ProtectionReport)[0]
        assert first.reason == "the script has made no spothop call for 5 min and more"
        await run.over()

    play(scenario)


def test_an_agent_that_is_started_again_tells_nothing_twice_and_what_was_mended(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training()
        await steps(run, 2, 40)
        assert told(run) == [Unprotected.NO_CHECK]
        await run.die()
        again = run.again()
        again.start()
        await steps(again, 42, 40)
        assert told(again) == [Unprotected.NO_CHECK]
        again.process.say("trains")
        await until(lambda: len(told(again)) == 2)
        await again.die()
        third = again.again()
        third.start()
        await steps(third, 90, 20)
        assert told(third) == [Unprotected.NO_CHECK, None], "that it checks is on the disk"
        await third.over()

    play(scenario)


def test_a_storage_that_refuses_saves_is_told_until_one_is_committed(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training()
        run.process.say("trains")
        run.store.fails["commit"] = [StorageDenied("no right to write") for _ in range(9)]
        run.process.hand_over(1)
        await until(lambda: told(run))
        (report,) = run.reports(ProtectionReport)
        assert report.cause is Unprotected.STORAGE
        assert "no right to write" in report.reason
        await until(lambda: len(told(run)) == 2)
        assert told(run)[1] is None
        await run.over()

    play(scenario)


def test_a_save_that_is_given_up_leaves_no_trouble_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training()
        run.process.say("trains")
        run.store.fail[1] = [*(StorageUnavailable("away") for _ in range(9)), SourceChanged("x")]
        run.process.hand_over(1)
        await until(lambda: run.attempt.heartbeat().pending_saves)
        await until(lambda: not run.attempt.heartbeat().pending_saves)
        await until(lambda: len(told(run)) == 2)
        assert told(run) == [Unprotected.STORAGE, None]
        await run.over()

    play(scenario)


def test_a_save_that_was_asked_for_and_never_came_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training()
        run.process.say("trains")
        run.attempt.insure(Insurance(at_step=2, tau_s=60.0, reason="due"))
        await steps(run, 2, 40)
        assert told(run) == [Unprotected.NO_SAVE]
        run.process.hand_over(42)
        await until(lambda: len(told(run)) == 2)
        await run.over()

    play(scenario)


def test_while_a_process_is_ended_nothing_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training()
        run.process.dies_of = set()
        run.attempt.stop("cancelled", save=False)
        await asyncio.sleep(AT_LEAST_S)
        assert told(run) == []
        await run.over()

    play(scenario)
