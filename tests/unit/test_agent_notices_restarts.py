"""Notices of an agent that dies in between, over a scripted store and process, in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fakes.announcing_cloud import Cloud, a_notice, saves
from fakes.attempt_harness import OK, AttemptHarness
from fakes.virtual_time import START_S, play, until
from spothop.wire import (
    AcknowledgedReport,
    NoticeReport,
    SaveKind,
    SaveRequestedReport,
)
from spothop_agent.attempt import Attempt
from spothop_agent.notice_states import NoticeState
from spothop_agent.saves import AtNotice
from spothop_agent.state import NoticeSeen, Phase

E = SaveKind.EMERGENCY


def test_an_agent_that_died_before_it_decided_decides_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = await AttemptHarness(tmp_path).training()
        seen = NoticeSeen(
            event="event-1", seen=first.context.now(), deadline=START_S + 30.0, announced=True
        )
        first.context.state_file.set(notice=seen)
        await first.die()
        run = first.again()
        run.start()
        cloud = Cloud(run)
        await cloud.announce(a_notice())
        assert run.notice_state is NoticeState.REQUESTED
        assert len(saves(run)) == len(run.reports(NoticeReport)) == 1
        await run.over()
        await cloud.close()

    play(scenario)


def test_an_agent_that_died_before_the_answer_repeats_the_same_request(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = await AttemptHarness(tmp_path).training()
        cloud = Cloud(first)
        await cloud.announce(a_notice())
        (asked,) = saves(first)
        await first.die()
        await cloud.close()
        run = first.again()
        run.start()
        cloud = Cloud(run)
        await cloud.announce(a_notice())
        (again,) = saves(run)
        assert again == asked
        assert len(run.reports(NoticeReport)) == len(run.reports(SaveRequestedReport)) == 1
        run.process.hand_over(2, E, request=again["request"])
        await until(lambda: run.notice_state is NoticeState.ACKNOWLEDGED)
        await run.over()
        await cloud.close()

    play(scenario)


def test_an_agent_that_died_between_save_and_commit_asks_for_no_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = await AttemptHarness(tmp_path).training()
        cloud = Cloud(first)
        await cloud.announce(a_notice())
        (asked,) = saves(first)
        first.store.takes[2] = 1000.0
        first.process.hand_over(2, E, request=asked["request"])
        await until(lambda: first.notice_state is NoticeState.ANSWERED)
        await first.die()
        await cloud.close()
        run = first.again()
        cloud = Cloud(run)
        # The notice is read before the outbox is looked at: only the state can know of the save.
        cloud.notices.seen(a_notice())
        run.start()
        await until(lambda: cloud.told)
        assert saves(run) == []
        assert run.store.steps == [2]
        await run.over()
        await cloud.close()

    play(scenario)


@pytest.mark.parametrize(
    ("state", "told"), [(NoticeState.COMMITTED, 1), (NoticeState.ACKNOWLEDGED, 0)]
)
def test_what_is_committed_is_only_acknowledged_and_that_once(
    tmp_path: Path, state: NoticeState, told: int
) -> None:
    async def scenario() -> None:
        first = await AttemptHarness(tmp_path).training()
        notice = NoticeSeen(
            event="event-1", seen=1.0, deadline=9.0, announced=True, state=state, request="r"
        )
        first.context.state_file.set(notice=notice)
        await first.die()
        run = first.again()
        run.start()
        cloud = Cloud(run)
        await cloud.announce(a_notice())
        await asyncio.sleep(5.0)
        assert len(cloud.told) == told
        assert saves(run) == []
        assert run.notice_state is NoticeState.ACKNOWLEDGED
        await run.over()
        await cloud.close()

    play(scenario)


def test_another_attempt_answers_after_the_hand_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training()
        cloud = Cloud(run)
        run.process.end(OK)
        await until(lambda: run.state.phase is Phase.EXITED)
        run.context.state_file.set(phase=Phase.RESTORED)  # as a new attempt on this VM is
        run.process.ended = None
        second = Attempt(run.context, run.process, run.rng)
        cloud.notices.hand_over(run.context, second)
        running = asyncio.create_task(second.run())
        await until(lambda: run.state.phase is Phase.STARTED)
        await cloud.announce(a_notice())
        assert run.notice_state is NoticeState.REQUESTED
        assert len(saves(run)) == 1
        run.process.end(OK)
        await running
        await run.over()
        await cloud.close()

    play(scenario)


def test_a_notice_is_on_the_disk_before_the_save_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training()
        ask, found = run.attempt.on_notice, []

        def on_notice(event: str, deadline: float) -> AtNotice:
            found.append(run.on_disk().notice)
            return ask(event, deadline)

        monkeypatch.setattr(run.attempt, "on_notice", on_notice)
        cloud = Cloud(run)
        await cloud.announce(a_notice())
        (notice,) = found
        assert notice is not None
        assert (notice.event, notice.state) == ("event-1", NoticeState.SEEN)
        assert (notice.announced, notice.deadline) == (True, START_S + 30.0)
        await run.over()
        await cloud.close()

    play(scenario)


def test_notice_and_acknowledgement_are_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training()
        urgent: list[str] = []
        monkeypatch.setattr(run.context.link, "wake", lambda: urgent.append(run.kinds()[-1]))
        cloud = Cloud(run)
        await cloud.announce(a_notice())
        assert "notice" in urgent
        run.process.hand_over(2, E)
        await until(lambda: run.notice_state is NoticeState.ACKNOWLEDGED)
        assert "acknowledged" in urgent
        await run.over()
        await cloud.close()

    play(scenario)


@pytest.mark.parametrize("back_to", [NoticeState.SEEN, NoticeState.COMMITTED])
def test_an_agent_that_died_before_it_noted_its_report_tells_it_once(
    tmp_path: Path, back_to: NoticeState
) -> None:
    async def scenario() -> None:
        first = await AttemptHarness(tmp_path).training()
        cloud = Cloud(first)
        await cloud.announce(a_notice())
        first.process.hand_over(2, E)
        await until(lambda: first.notice_state is NoticeState.ACKNOWLEDGED)
        notice = first.state.notice
        assert notice is not None
        first.context.state_file.set(notice=notice.model_copy(update={"state": back_to}))
        await first.die()
        await cloud.close()
        run = first.again()
        run.start()
        cloud = Cloud(run)
        await cloud.announce(a_notice())
        await run.over()
        await until(lambda: cloud.told)
        await until(lambda: run.notice_state is NoticeState.ACKNOWLEDGED)
        assert len(run.reports(NoticeReport)) == 1
        assert run.reports(AcknowledgedReport) == [AcknowledgedReport(event="event-1")]
        await cloud.close()

    play(scenario)
