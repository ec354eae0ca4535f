"""From the notice to the acknowledgement over a scripted store and process, in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fakes.announcing_cloud import Cloud, a_notice, released, saves
from fakes.attempt_harness import OK, AttemptHarness
from fakes.virtual_time import START_S, play, until
from spothop.storage.errors import StorageDenied
from spothop.wire import (
    AcknowledgedReport,
    AtRiskReport,
    CommittedReport,
    ExitedReport,
    NoticeReport,
    PolicyParams,
    SaveKind,
    SaveRequestedReport,
)
from spothop_agent.notice_states import NoticeState
from spothop_agent.state import Phase
from spothop_agent.watch import AT_RISK, Notice

E = SaveKind.EMERGENCY


def test_request_save_commit_acknowledgement(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=10)
        cloud = Cloud(run)
        await cloud.announce(a_notice())
        assert run.context.retrier.hurry.is_set()
        assert run.on_disk().notice == run.state.notice
        assert run.notice_state is NoticeState.REQUESTED
        (report,) = run.reports(NoticeReport)
        assert (report.event, report.fits) == ("event-1", True)
        assert report.deadline_in_s == pytest.approx(30.0, abs=1.0)
        (asked,) = saves(run)
        assert (asked["kind"], asked["deadline"]) == ("emergency", START_S + 30.0)

        run.store.takes[12] = 3.0
        run.process.hand_over(12, E, request=asked["request"])
        await until(lambda: run.notice_state is NoticeState.ANSWERED)
        assert run.on_disk().notice == run.state.notice
        await asyncio.sleep(2.0)
        assert cloud.told == []  # never before the commit
        await until(lambda: cloud.told)
        assert cloud.told == [("event-1", NoticeState.COMMITTED, [12])]
        assert "committed" in cloud.synced[0]  # the master heard first: the VM may be gone at once
        await until(lambda: run.notice_state is NoticeState.ACKNOWLEDGED)
        assert run.reports(AcknowledgedReport) == [AcknowledgedReport(event="event-1")]
        (committed,) = run.reports(CommittedReport)
        assert committed.since_notice_s == pytest.approx(3.0, abs=0.5)
        await run.over()
        await cloud.close()

    play(scenario)


async def saved_and_trains_on(run: AttemptHarness, cloud: Cloud, step: int) -> None:
    """The emergency save of `step` is committed, and the process trains."""
    await cloud.announce(released())
    (asked,) = saves(run)
    run.process.hand_over(step, E, request=asked["request"])
    await until(lambda: run.reports(CommittedReport))


def test_the_vm_trains_on_after_the_save_and_is_given_up_when_its_process_is_over(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=10)
        cloud = Cloud(run)
        await saved_and_trains_on(run, cloud, 12)
        await asyncio.sleep(10.0)
        assert cloud.told == []
        # The replacement is ready: the master stops it, with a last save.
        run.process.steps(40, count=28)
        run.attempt.stop("preempted", save=True)
        await until(lambda: run.process.heard())
        assert run.reports(SaveRequestedReport)[-1].save is E
        run.process.hand_over(41, E)
        await asyncio.sleep(1.0)
        assert cloud.told == []
        await run.over()
        await until(lambda: cloud.told)
        assert cloud.told == [("event-1", NoticeState.COMMITTED, [12, 41])]
        await cloud.close()

    play(scenario)


def test_shortly_before_the_deadline_it_saves_once_more_and_is_given_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=10)
        cloud = Cloud(run)
        await saved_and_trains_on(run, cloud, 12)
        run.process.steps(200, count=188)
        await until(lambda: run.context.now() > START_S + 20.0)
        assert saves(run) == []
        await until(lambda: len(run.reports(SaveRequestedReport)) == 2)
        (again,) = saves(run)
        assert again["kind"] == "emergency"
        run.process.hand_over(201, E, request=again["request"])
        await until(lambda: cloud.told)
        assert cloud.told == [("event-1", NoticeState.COMMITTED, [12, 201])]
        assert START_S + 25.0 <= run.context.now() < START_S + 28.0  # no more can be saved
        await run.over()
        await cloud.close()

    play(scenario)


def test_a_vm_is_not_given_up_while_its_last_save_is_on_its_way(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=10)
        cloud = Cloud(run)
        await saved_and_trains_on(run, cloud, 12)
        run.store.takes[20] = 60.0
        run.process.hand_over(20)
        await until(lambda: run.context.now() > START_S + 40.0)
        assert cloud.told == []
        await until(lambda: cloud.told)
        await run.over()
        await cloud.close()

    play(scenario)


def test_as_soon_as_all_is_saved_where_the_job_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        params = PolicyParams(grace_s=30.0, release_before_s=3600.0)
        run = await AttemptHarness(tmp_path, policy=params).training(step=10)
        cloud = Cloud(run)
        await saved_and_trains_on(run, cloud, 12)
        began = run.context.now()
        await until(lambda: cloud.told)
        assert run.context.now() - began < 1.0
        await run.over()
        await cloud.close()

    play(scenario)


def test_an_agent_that_is_started_again_gives_the_vm_up_no_sooner(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=10)
        cloud = Cloud(run)
        await saved_and_trains_on(run, cloud, 12)
        await cloud.close()
        await run.die()
        again = run.again()
        again.start()
        cloud = Cloud(again)
        await cloud.announce(released())
        await asyncio.sleep(5.0)
        assert cloud.told == []
        await again.over()
        await until(lambda: cloud.told)
        await cloud.close()

    play(scenario)


def test_an_agent_that_is_started_again_knows_what_a_save_takes(tmp_path: Path) -> None:
    """Else it asks for the last one two seconds before the deadline, however long a save takes."""

    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=10)
        run.store.takes[11] = 7.0
        run.process.hand_over(11)
        await until(lambda: run.reports(CommittedReport))
        assert run.on_disk().backup_s == pytest.approx(7.0, abs=0.5)
        await run.die()
        again = run.again()
        assert again.attempt._saves.backup_s == run.on_disk().backup_s
        assert again.attempt._saves.save_s == pytest.approx(0.1)
        again.start()
        await again.over()

    play(scenario)


def test_the_vm_is_not_given_up_for_an_older_notice_while_a_newer_one_is_answered(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=10)
        cloud = Cloud(run)
        await saved_and_trains_on(run, cloud, 12)
        await cloud.announce(released("event-2"))
        await asyncio.sleep(5.0)
        assert cloud.told == []
        run.process.hand_over(20, E, request=saves(run)[-1]["request"])
        await asyncio.sleep(5.0)
        assert cloud.told == []
        await run.over()
        await until(lambda: len(cloud.told) == 2)
        await cloud.close()

    play(scenario)


def test_a_cloud_that_takes_no_acknowledgement(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training()
        cloud = Cloud(run, takes=False)
        await cloud.announce(a_notice())
        run.process.hand_over(2, E)
        await until(lambda: run.notice_state is NoticeState.UNACKNOWLEDGED)
        assert run.reports(AcknowledgedReport) == []
        await run.over()
        await cloud.close()

    play(scenario)


def test_without_an_announced_deadline_the_promised_grace_counts(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = AttemptHarness(tmp_path, policy=PolicyParams(policy="thesis-always", grace_s=25.0))
        await run.training()
        cloud = Cloud(run)
        now = run.context.now()
        await cloud.announce(a_notice(deadline=None))
        notice = run.state.notice
        assert notice is not None
        assert (notice.announced, notice.deadline) == (False, pytest.approx(now + 25.0, abs=0.1))
        (report,) = run.reports(NoticeReport)
        assert report.deadline_in_s is None
        await run.over()
        await cloud.close()

    play(scenario)


def test_a_save_in_the_background_answers_no_request(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=10)
        cloud = Cloud(run)
        await cloud.announce(a_notice())
        run.process.hand_over(9)
        await until(lambda: run.store.steps == [9])
        await asyncio.sleep(1.0)
        assert run.notice_state is NoticeState.REQUESTED
        assert cloud.told == []
        await run.over()  # the process ends without an answer
        await until(lambda: cloud.told)
        assert cloud.told == [("event-1", NoticeState.NOTHING_LEFT, [9])]
        await cloud.close()

    play(scenario)


def test_a_notice_before_the_start_ends_the_preparation(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = AttemptHarness(tmp_path, fence_now=False)
        running = run.start()
        await until(lambda: run.state.phase is Phase.PREPARED)
        cloud = Cloud(run)
        await cloud.announce(a_notice())
        await running
        await until(lambda: cloud.told)
        assert cloud.told[0][1] is NoticeState.NOTHING_LEFT
        (report,) = run.reports(NoticeReport)
        assert not report.fits
        assert "has not started" in report.reason
        (exited,) = run.reports(ExitedReport)
        assert "notice event-1 before the training process started" in exited.message
        await cloud.close()
        await run.context.link.close()

    play(scenario)


def test_a_notice_after_the_end_has_nothing_to_save(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training()
        await run.over()
        cloud = Cloud(run)
        await cloud.announce(a_notice())
        await until(lambda: run.notice_state is NoticeState.ACKNOWLEDGED)
        (report,) = run.reports(NoticeReport)
        assert (report.fits, report.reason) == (True, "there is nothing to save")
        assert saves(run) == []
        await cloud.close()

    play(scenario)


def test_a_notice_while_the_rest_is_backed_up_waits_for_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training()
        run.store.takes[1] = 20.0
        run.process.hand_over(1)
        await asyncio.sleep(1.0)
        ending = asyncio.create_task(run.over())
        await asyncio.sleep(1.0)
        cloud = Cloud(run)
        await cloud.announce(a_notice())
        (report,) = run.reports(NoticeReport)
        assert report.reason == "the training process is over: only its accepted backups are left"
        assert (saves(run), cloud.told) == ([], [])
        await ending
        await until(lambda: cloud.told)
        assert cloud.told == [("event-1", NoticeState.NOTHING_LEFT, [1])]
        await cloud.close()

    play(scenario)


def test_an_emergency_save_that_is_refused_covers_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training()
        run.store.fail[2] = [StorageDenied("quota")] * 1_000
        cloud = Cloud(run)
        await cloud.announce(a_notice())
        run.process.hand_over(2, E)
        await asyncio.sleep(5.0)
        assert run.state.given_up == 0
        assert run.notice_state is NoticeState.ANSWERED
        assert cloud.told == []
        await run.over()
        await until(lambda: run.state.given_up)
        await until(lambda: cloud.told)
        assert cloud.told[0][1] is NoticeState.NOTHING_LEFT
        await cloud.close()

    play(scenario)


def test_where_the_policy_asks_for_none_any_later_backup_answers(tmp_path: Path) -> None:
    async def scenario() -> None:
        params = PolicyParams(policy="thesis", grace_s=30.0, save_s=20.0, backup_s=20.0)
        run = await AttemptHarness(tmp_path, policy=params).training()
        cloud = Cloud(run)
        await cloud.announce(a_notice())
        assert run.notice_state is NoticeState.UNREQUESTED
        assert saves(run) == []
        (report,) = run.reports(NoticeReport)
        assert not report.fits
        run.process.hand_over(3)
        await until(lambda: cloud.told)
        assert cloud.told == [("event-1", NoticeState.COMMITTED, [3])]
        await run.over()
        await cloud.close()

    play(scenario)


def test_a_second_event_takes_the_first_ones_place(tmp_path: Path) -> None:
    """Both are acknowledged, because both wait for the VM; the state is that of the newer one."""

    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training()
        cloud = Cloud(run)
        await cloud.announce(a_notice("event-1"))
        (asked,) = saves(run)
        await cloud.announce(a_notice("event-2"))
        assert saves(run) == []  # one is being asked for already
        run.process.hand_over(2, E, request=asked["request"])
        await until(lambda: len(cloud.told) == 2)
        assert {event for event, *_ in cloud.told} == {"event-1", "event-2"}
        await until(lambda: run.notice_state is NoticeState.ACKNOWLEDGED)
        assert run.state.notice is not None
        assert run.state.notice.event == "event-2"
        await run.over()
        await cloud.close()

    play(scenario)


def test_a_later_notice_waits_for_a_save_of_its_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training()
        cloud = Cloud(run)
        for number, event in enumerate(("event-1", "event-2"), 1):
            await cloud.announce(a_notice(event))
            (asked,) = saves(run)
            await asyncio.sleep(5.0)
            assert len(cloud.told) == number - 1
            run.process.hand_over(number, E, request=asked["request"])
            await until(lambda: run.notice_state is NoticeState.ACKNOWLEDGED)
        assert [(event, steps) for event, _, steps in cloud.told] == [
            ("event-1", [1]),
            ("event-2", [1, 2]),
        ]
        await run.over()
        await cloud.close()

    play(scenario)


def test_an_acknowledgement_that_fails_is_no_silence(tmp_path: Path) -> None:
    """It fails the agent, as any task does: the next one goes on with the same notice."""

    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training()
        cloud = Cloud(run)

        async def unheard_of() -> None:
            raise RuntimeError("of a kind that nobody expects")

        cloud.notices._final_sync = unheard_of
        await cloud.announce(a_notice())
        (asked,) = saves(run)
        run.process.hand_over(2, E, request=asked["request"])
        await until(lambda: cloud._task.done())
        with pytest.raises(RuntimeError, match="nobody expects"):
            cloud._task.result()
        assert run.notice_state is NoticeState.COMMITTED
        await run.over()

    play(scenario)


# --- the agent dies in between --------------------------------------------------------------------


def test_a_recommendation_to_leave_is_told_and_nothing_is_saved_for_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=10)
        cloud = Cloud(run)
        text = "AWS recommends to rebalance"
        await cloud.announce(
            Notice(event="rebalance@1", kind=AT_RISK, deadline_monotonic=None, detail=text)
        )
        assert run.reports(AtRiskReport) == [AtRiskReport(event=text)]
        assert run.reports(NoticeReport) == []
        assert saves(run) == []
        assert run.notice_state is None
        await cloud.announce(a_notice())
        assert run.notice_state is NoticeState.REQUESTED
        run.process.end(OK)
        await run.over()
        await cloud.close()

    play(scenario)


def test_a_recommendation_to_leave_is_told_at_once_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted agent sees the same one again; another one is another report."""

    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training(step=10)
        urgent: list[str] = []
        monkeypatch.setattr(run.context.link, "wake", lambda: urgent.append(run.kinds()[-1]))
        cloud = Cloud(run)
        for event in ("rebalance@1", "rebalance@1", "rebalance@2"):
            await cloud.announce(
                Notice(event=event, kind=AT_RISK, deadline_monotonic=None, detail=event)
            )
        assert [report.event for report in run.reports(AtRiskReport)] == [
            "rebalance@1",
            "rebalance@2",
        ]
        assert "at_risk" in urgent
        run.process.end(OK)
        await run.over()
        await cloud.close()

    play(scenario)
