"""How an attempt ends its process, over a scripted store and process, in virtual time."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from fakes.attempt_harness import AttemptHarness
from fakes.scripted_process import PID
from fakes.virtual_time import play, until
from spothop.wire import (
    ExitedReport,
    MessageReport,
    PolicyParams,
    SaveKind,
)
from spothop_agent.state import Phase
from spothop_agent.stopping import STOP_S, STOP_SAVES, STOP_STEPS, TERMINATE_S


@pytest.mark.parametrize("save", [True, False])
def test_a_stop_asks_first(tmp_path: Path, save: bool) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=7)
        run.attempt.stop("paused", save=save)
        await asyncio.sleep(1.0)
        messages = run.process.heard()
        assert [m["t"] for m in messages] == (["save", "stop"] if save else ["stop"])
        assert messages[-1] == {"t": "stop", "reason": "paused", "pid": PID}
        if save:
            run.process.hand_over(8, SaveKind.INSURANCE, request=messages[0]["request"])
        await run.over()
        assert run.process.signals == []
        assert run.store.steps == [8] * save
        (exited,) = run.reports(ExitedReport)
        assert (exited.stopped, exited.message, exited.code) == (True, "paused", 0)

    play(scenario)


def test_a_stop_that_is_not_heard_becomes_sigterm_and_then_sigkill(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=10)
        run.process.dies_of = {signal.SIGKILL}
        asked = run.context.now()
        run.attempt.stop("cancelled", save=False)
        await until(lambda: run.process.ended is not None)
        patience_s = STOP_S + STOP_STEPS * 0.1  # steps take 0.1 s
        (term, kill) = [(at - asked, number) for at, number in run.process.signals]
        assert term == (pytest.approx(patience_s, abs=0.05), signal.SIGTERM)
        assert kill == (pytest.approx(patience_s + TERMINATE_S, abs=0.05), signal.SIGKILL)
        await run.over()

    play(scenario)


@pytest.mark.parametrize(("wait_s", "most_s"), [(90.0, 90.0), (1e9, 600.0)])
def test_a_script_that_checks_rarely_is_given_what_it_says(
    tmp_path: Path, wait_s: float, most_s: float
) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=10)
        run.process.dies_of = {signal.SIGTERM}
        run.attempt.stop("paused", save=True)
        await asyncio.sleep(1.0)
        heard = run.context.now()
        run.process.say("stopping", wait_s=wait_s)
        await until(lambda: run.process.ended is not None)
        ((at, _),) = run.process.signals
        assert at - heard == pytest.approx(most_s + STOP_S, abs=2.0)
        await run.over()
        (told,) = [m for m in run.reports(MessageReport) if "without one" in m.text]
        assert told.level == "warning"

    play(scenario)


def test_who_asks_again_without_a_save_ends_the_wait_for_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=10)
        run.process.dies_of = {signal.SIGTERM}
        run.attempt.stop("cancelled", save=True)
        await asyncio.sleep(1.0)
        run.process.say("stopping", wait_s=500.0)
        await asyncio.sleep(30.0)
        asked = run.context.now()
        run.attempt.stop("cancelled", save=False)
        run.attempt.stop("cancelled", save=False)
        await until(lambda: run.process.ended is not None)
        ((at, _),) = run.process.signals
        assert at - asked == pytest.approx(STOP_S, abs=2.0)
        await run.over()

    play(scenario)


def test_a_script_that_hangs_after_done_is_ended_and_has_succeeded(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path, hang_after_s=120.0).training(step=10)
        run.process.dies_of = {signal.SIGTERM}
        run.context.paths.done.touch()
        run.process.say("done", step=10)
        await asyncio.sleep(110.0)
        assert run.process.signals == []
        await until(lambda: run.process.ended is not None)
        await run.over()
        (exited,) = run.reports(ExitedReport)
        assert (exited.done, exited.hang) == (True, True)
        assert "after done(): it is ended now" in exited.message

    play(scenario)


def test_a_stop_that_ends_with_a_save_gives_it_its_time(tmp_path: Path) -> None:
    """Cut short it would be work lost, and the wait for it as well."""

    async def scenario() -> None:
        save_s = 60.0
        policy = PolicyParams(grace_s=120.0, save_s=save_s)
        run = await AttemptHarness(tmp_path, policy=policy).training(step=10)
        asked = run.context.now()
        run.attempt.stop("preempted", save=True)
        await until(lambda: run.process.ended is not None)
        ((at, number),) = run.process.signals
        assert number is signal.SIGTERM
        patience_s = STOP_S + STOP_STEPS * 0.1 + STOP_SAVES * save_s
        assert at - asked == pytest.approx(patience_s, abs=0.05)
        await run.over()

    play(scenario)


def test_a_process_that_not_even_sigkill_ends_is_given_up_and_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=10)
        run.process.dies_of = set()
        run.attempt.stop("cancelled", save=False)
        await until(lambda: run.state.phase is Phase.EXITED)
        (exited,) = run.reports(ExitedReport)
        assert (exited.stopped, exited.code, exited.signal) == (True, None, None)
        told = [report.text for report in run.reports(MessageReport)]
        assert any(str(run.process.pid) in text and "do not end" in text for text in told)
        await run.over()

    play(scenario)


def test_a_stop_that_fails_is_no_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=10)

        def unheard_of(number: signal.Signals) -> None:
            raise RuntimeError("of a kind that nobody expects")

        monkeypatch.setattr(run.process, "signal", unheard_of)
        run.attempt.stop("cancelled", save=False)
        with pytest.raises(RuntimeError, match="nobody expects"):
            await run.over(None)
        await run.context.link.close()

    play(scenario)


def test_who_never_said_hello_gets_sigterm_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=None)
        asked = run.context.now()
        run.attempt.stop("cancelled", save=True)
        await until(lambda: run.process.ended is not None)
        assert [(at - asked, number) for at, number in run.process.signals] == [
            (pytest.approx(0.0, abs=0.05), signal.SIGTERM)
        ]
        await run.over()
        assert run.reports(ExitedReport) == [
            ExitedReport(signal=15, stopped=True, message="cancelled")
        ]

    play(scenario)


def test_patience_may_be_given(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training()
        asked = run.context.now()
        run.attempt.stop("the VM is over", save=False, patience_s=2.0)
        await run.attempt.wait_ended(1.0)
        assert run.process.ended is None  # waits no longer than this
        await run.attempt.wait_ended(10.0)
        assert [at - asked for at, _ in run.process.signals] == [pytest.approx(2.0, abs=0.05)]
        await run.over()

    play(scenario)


def test_an_agent_that_is_started_again_goes_on_stopping(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = await AttemptHarness(tmp_path).training(step=4)
        first.attempt.stop("paused", save=False)
        await first.die()
        first.process.heard()
        run = first.again()
        run.start()
        await asyncio.sleep(1.0)
        assert [m["t"] for m in run.process.heard()] == ["stop"]
        await run.over()
        (exited,) = run.reports(ExitedReport)
        assert (exited.stopped, exited.message) == (True, "paused")

    play(scenario)
