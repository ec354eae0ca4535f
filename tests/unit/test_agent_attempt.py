"""The phases of one attempt over a scripted store and process, in virtual time."""

from __future__ import annotations

import asyncio
import errno
import signal
from pathlib import Path
from typing import Any

import pytest

from fakes.attempt_harness import OK, AttemptHarness
from fakes.scripted_process import PID
from fakes.virtual_time import play, until
from spothop.checkpoints import Fenced
from spothop.storage.errors import (
    SourceChanged,
    SourceUnreadable,
    StorageDenied,
    StorageUnavailable,
)
from spothop.wire import (
    CommittedReport,
    ExitedReport,
    FencedInReport,
    FencedReport,
    Heartbeat,
    Insurance,
    MessageReport,
    PhaseReport,
    PlacedStorage,
    PreparationFailedReport,
    RestoredReport,
    SaveKind,
    SaveRequestedReport,
    StartedReport,
    StorageSpec,
)
from spothop_agent.checkpoint_store import Restore
from spothop_agent.prepare import DENIED_S
from spothop_agent.process import Exit
from spothop_agent.reporting import OUTPUTS_S
from spothop_agent.state import Phase, State

KILLED = Exit(code=None, signal=signal.SIGKILL)


def test_from_the_assignment_to_success(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = AttemptHarness(tmp_path, run="python train.py", env={"LR": "0.1"})
        run.store.found = Restore(path="c", step=5, n=3, rejected=("entry 4 is damaged",))
        await run.training(step=10)
        run.process.hand_over(10)
        await until(lambda: run.reports(CommittedReport))
        assert run.attempt.heartbeat() == Heartbeat(step=10, pending_saves=0, trainer_alive=True)
        run.context.paths.done.touch()
        (run.context.paths.outputs / "result.txt").write_text("10")
        await run.over()

        assert run.store.calls == ["fence", "restore", "commit", "upload_outputs"]
        assert run.reports(FencedInReport) == [FencedInReport(n=1)]
        assert run.reports(RestoredReport) == [
            RestoredReport(step=5, n=3, rejected=["entry 4 is damaged"])
        ]
        assert run.reports(StartedReport) == [StartedReport(pid=PID)]
        assert run.reports(ExitedReport) == [ExitedReport(code=0, done=True, step=10)]
        kinds = run.kinds()
        order = ["prepared", "fenced_in", "restored", "started", "committed", "exited"]
        assert [kinds.index(kind) for kind in order] == sorted(kinds.index(kind) for kind in order)
        assert run.state.phase is Phase.EXITED
        ((command, env),) = run.process.starts
        assert command == "python train.py"
        assert (env["LR"], env["SPOTHOP_ATTEMPT"]) == ("0.1", "1")
        assert "outputs: 1 files uploaded" in run.log()
        # Sent before the exit was reported, because the master closes the attempt then.
        assert run.master.log().endswith("outputs: 1 files uploaded\n")
        assert not run.attempt.heartbeat().trainer_alive

    play(scenario)


def test_waits_for_the_word_before_it_fences(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = AttemptHarness(tmp_path, fence_now=False)
        run.start()
        await asyncio.sleep(60.0)
        assert run.state.phase is Phase.PREPARED
        assert run.store.calls == []
        run.attempt.allow_fence()
        run.attempt.allow_fence()  # directives are repeated
        await until(lambda: run.state.phase is Phase.STARTED)
        assert run.on_disk().may_fence
        (waited,) = [r for r in run.reports(PhaseReport) if r.phase == "waiting"]
        assert waited.duration_s == pytest.approx(60.0, abs=1.0)
        await run.over()

    play(scenario)


def test_a_stop_ends_the_preparation(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = AttemptHarness(tmp_path, fence_now=False)
        running = run.start()
        await until(lambda: run.state.phase is Phase.PREPARED)
        run.attempt.stop("cancelled", save=True)
        run.attempt.stop("paused", save=False)  # the first reason stays
        await running
        assert run.store.calls == []
        assert run.process.starts == []
        (exited,) = run.reports(ExitedReport)
        assert exited == ExitedReport(
            stopped=True, message="ended before the training process started: cancelled"
        )
        assert run.state.phase is Phase.EXITED
        assert run.attempt.covered.is_set()
        await run.context.link.close()

    play(scenario)


def test_a_stop_of_before_the_restart_prepares_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = AttemptHarness(tmp_path, state={"stop": "cancelled"})
        await run.start()
        assert run.store.calls == []
        assert [r.message for r in run.reports(ExitedReport)] == [
            "ended before the training process started: cancelled"
        ]
        await run.context.link.close()

    play(scenario)


def test_several_stores_are_measured_and_one_that_fails_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        stores = [PlacedStorage(storage=StorageSpec(url=f"s3://{name}/x")) for name in "ab"]
        run = AttemptHarness(tmp_path, stores=stores)
        run.store.told = ["this VM cannot save to s3://b/x"]
        await run.training(step=10)
        await until(lambda: "measure" in run.store.calls)
        run.process.hand_over(10)
        await until(lambda: run.store.steps == [10])
        (message,) = run.reports(MessageReport)
        assert (message.level, message.text) == ("warning", "this VM cannot save to s3://b/x")
        await run.over()
        assert run.store.calls.count("measure") == 1

    play(scenario)


@pytest.mark.parametrize("call", ["fence", "restore", "fetch_data"])
def test_a_job_that_has_had_its_storage_is_denied_for_a_while_before_it_fails(
    tmp_path: Path, call: str
) -> None:
    """A role or a policy reaches all parts of a cloud only after a while."""

    async def scenario() -> None:
        more: dict[str, Any] = {"resumes": True, "data": {"x": "file:///data"}}
        run = AttemptHarness(tmp_path, **more)
        run.store.fails[call] = [StorageDenied("AccessDenied")] * 4
        await run.training()
        (message,) = run.reports(MessageReport)
        assert message.level == "warning"
        assert "AccessDenied; trying on for 2 min" in message.text
        await run.over()

    play(scenario)


def test_a_job_that_stays_denied_fails_as_the_users_fault(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = AttemptHarness(tmp_path, resumes=True)
        run.store.fails["fence"] = [StorageDenied("AccessDenied")] * 1000
        began = run.context.now()
        await run.start()
        assert DENIED_S <= run.context.now() - began < 2 * DENIED_S
        (failed,) = run.reports(PreparationFailedReport)
        assert (failed.phase, failed.user, failed.message) == ("fence", True, "AccessDenied")
        await run.context.link.close()

    play(scenario)


def test_a_failed_preparation_ends_the_attempt_and_not_the_agent(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = AttemptHarness(tmp_path)
        run.store.fails["restore"] = [StorageDenied("no right to read")]
        await run.start()
        (failed,) = run.reports(PreparationFailedReport)
        assert (failed.phase, failed.user) == ("restore", True)
        assert failed.message == "no right to read"
        assert run.reports(ExitedReport) == []
        assert run.state.phase is Phase.EXITED
        assert run.process.starts == []
        assert "restore failed: no right to read" in run.master.log()
        await run.context.link.close()

    play(scenario)


def test_a_store_that_is_away_is_waited_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = AttemptHarness(tmp_path)
        run.store.fails["fence"] = [StorageUnavailable("no route") for _ in range(20)]
        await run.training()
        assert run.store.calls.count("fence") == 21
        await run.over()

    play(scenario)


def test_a_newer_attempt_in_the_chain_ends_this_one_before_it_begins(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = AttemptHarness(tmp_path)
        run.store.fenced_by = 2
        await run.start()
        assert run.reports(FencedReport) == [FencedReport(by=2)]
        assert run.state.fenced_by == 2
        assert run.state.phase is Phase.EXITED
        assert run.process.starts == []
        await run.context.link.close()

    play(scenario)


def test_a_number_that_was_used_twice_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = AttemptHarness(tmp_path)
        run.store.fails["fence"] = [Fenced("job-1", 1, 1, vm="vm-a")]
        await run.start()
        assert run.reports(FencedReport) == [FencedReport(by=1)]
        [told] = run.reports(MessageReport)
        assert "VM 'vm-a', which runs the same attempt" in told.text
        assert run.process.starts == []
        await run.context.link.close()

    play(scenario)


def test_a_newer_attempt_in_the_chain_ends_the_process(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training()
        run.store.fenced_by = 2
        run.process.hand_over(1)
        await until(lambda: run.reports(FencedReport))
        (stop,) = [m for m in run.process.heard() if m["t"] == "stop"]
        assert stop["reason"] == "a newer attempt has taken over"
        await run.over()
        assert "upload_outputs" not in run.store.calls  # the newer attempt has its own
        (exited,) = run.reports(ExitedReport)
        assert exited.stopped

    play(scenario)


@pytest.mark.parametrize(
    ("number", "user"), [(errno.E2BIG, True), (errno.EAGAIN, False)], ids=["E2BIG", "EAGAIN"]
)
def test_a_process_that_cannot_be_started(tmp_path: Path, number: int, user: bool) -> None:
    async def scenario() -> None:
        run = AttemptHarness(tmp_path)
        run.process.fails_to_start = OSError(number, "no")
        await run.start()
        (failed,) = run.reports(PreparationFailedReport)
        assert (failed.phase, failed.user) == ("start", user)
        assert run.state.phase is Phase.EXITED
        await run.context.link.close()

    play(scenario)


# --- a restart, and the end -----------------------------------------------------------------------


def test_an_agent_that_is_started_again_takes_up_the_process(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = await AttemptHarness(tmp_path).training(step=10)
        first.process.hand_over(10)
        await until(lambda: first.store.steps == [10])
        await first.die()
        first.process.steps(12, count=2)  # nobody reads it yet
        first.process.hand_over(12)
        run = first.again()
        run.start()
        await until(lambda: run.store.steps == [12])
        assert run.attempt.heartbeat() == Heartbeat(step=12, pending_saves=0, trainer_alive=True)
        assert len(run.process.starts) == 1
        assert run.store.calls == ["commit"]  # neither fenced nor restored again
        await run.over()
        assert len(run.reports(StartedReport)) == 1
        assert run.reports(ExitedReport) == [ExitedReport(code=0, step=12)]

    play(scenario)


def test_an_attempt_that_is_over_stays_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = AttemptHarness(tmp_path, state={"phase": Phase.EXITED})
        await run.start()
        assert run.kinds() == []
        assert run.attempt.covered.is_set()
        run.attempt.stop("cancelled", save=True)
        assert run.state.stop is None
        await run.context.link.close()

    play(scenario)


@pytest.mark.parametrize(
    ("ended", "kills", "stop", "blamed"),
    [
        (KILLED, 1, None, True),
        (Exit(code=137, signal=None), 1, None, True),
        (KILLED, 0, None, False),
        (KILLED, None, None, False),
        (Exit(code=1, signal=None), 1, None, False),
        (KILLED, 1, "cancelled", False),
    ],
)
def test_out_of_memory_is_told_only_where_the_kernel_says_so(
    tmp_path: Path, ended: Exit, kills: int | None, stop: str | None, blamed: bool
) -> None:
    async def scenario() -> State:
        run = await AttemptHarness(tmp_path).training()
        run.process.killed_by_kernel = kills
        if stop is not None:
            run.attempt.stop(stop, save=False)
        await run.over(ended)
        (exited,) = run.reports(ExitedReport)
        assert exited.out_of_memory is blamed
        return run.state

    assert play(scenario).oom_kills == 0


def test_every_accepted_backup_is_worked_off_before_the_exit_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=30)
        run.store.takes[10] = 40.0
        run.store.fail[20] = [SourceChanged("it was written meanwhile")]
        for step in (10, 20, 30):
            run.process.hand_over(step)
        await run.over()
        assert run.store.steps == [10, 30]
        kinds = run.kinds()
        assert kinds.index("exited") > max(i for i, k in enumerate(kinds) if k == "committed")
        (exited,) = run.reports(ExitedReport)
        assert exited.uncommitted == 1

    play(scenario)


def test_what_the_process_said_last_is_heard(tmp_path: Path) -> None:
    """Also what it wrote in the moment of its end."""

    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=98)

        def exit_now() -> Exit:
            run.process.steps(99)
            return OK

        run.process.exit = exit_now  # type: ignore[method-assign]
        await run.over()
        (exited,) = run.reports(ExitedReport)
        assert exited.step == 99

    play(scenario)


def test_outputs_that_are_lost_are_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training()
        run.store.fails["upload_outputs"] = [StorageDenied("no right to write")] * 1000
        began = run.context.now()
        await run.over()
        assert OUTPUTS_S <= run.context.now() - began < 2 * OUTPUTS_S
        (exited,) = run.reports(ExitedReport)
        assert exited.outputs_lost == "no right to write"
        waits, lost = run.reports(MessageReport)
        assert waits.text == "outputs are not uploaded yet: no right to write; trying on for 5 min"
        assert (lost.level, lost.text) == (
            "error",
            "outputs could not be uploaded: no right to write",
        )

    play(scenario)


@pytest.mark.parametrize(
    "error",
    [
        StorageDenied("no right to write"),
        SourceUnreadable("an input error"),
        OSError(errno.EMFILE, "Too many open files"),
        KeyError("odd"),
    ],
)
def test_outputs_are_tried_again_whatever_is_wrong_at_first(
    tmp_path: Path, error: Exception
) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training()
        run.store.fails["upload_outputs"] = [error] * 3
        await run.over()
        (exited,) = run.reports(ExitedReport)
        assert exited.outputs_lost == ""
        (message,) = run.reports(MessageReport)
        assert message.level == "warning"
        assert message.text.startswith("outputs are not uploaded yet: ")

    play(scenario)


def test_outputs_that_are_left_out_are_told_once_each(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training()
        run.store.skipped = ["link a", "link a", "link b"]
        await run.over()
        assert [(m.level, m.text) for m in run.reports(MessageReport)] == [
            ("warning", "outputs: left out: link a"),
            ("warning", "outputs: left out: link b"),
        ]

    play(scenario)


def test_a_wrapper_that_was_killed_is_named_in_the_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training()
        await run.over(Exit(code=None, signal=None, message="nobody saw it"))
        assert "the process ended: nobody saw it" in run.log()
        (exited,) = run.reports(ExitedReport)
        assert exited.message == "nobody saw it"

    play(scenario)


def test_insurance_is_asked_for_at_the_directives_step(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=39)
        run.attempt.insure(Insurance(at_step=40, tau_s=10.0, reason="tau 10 s"))
        await asyncio.sleep(2.0)
        assert run.process.heard() == []
        run.process.steps(40)
        await until(lambda: run.reports(SaveRequestedReport))
        (asked,) = run.reports(SaveRequestedReport)
        assert (asked.save, asked.reason) == (SaveKind.INSURANCE, "tau 10 s")
        (save,) = run.process.heard()
        assert (save["t"], save["request"], save["at_step"]) == ("save", asked.request, None)
        await asyncio.sleep(60.0)
        assert run.process.heard() == []  # one at a time
        await run.over()

    play(scenario)


def test_a_part_that_fails_ends_the_agent(tmp_path: Path) -> None:
    """And not the process: the agent that is started again goes on."""

    async def scenario() -> None:
        run = AttemptHarness(tmp_path)
        running = run.start()
        await until(lambda: run.state.phase is Phase.STARTED)
        run.context.chaos.at("after_report", lambda: 1 // 0)
        run.process.hand_over(1)
        with pytest.raises(ZeroDivisionError):
            await running
        assert run.process.signals == []
        assert run.state.phase is Phase.STARTED
        await run.context.link.close()

    play(scenario)
