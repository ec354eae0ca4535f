"""What the backup worker commits on top of what: never an older state over a newer one, and never
nothing because one save is refused."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from fakes.backup_room import Room, drained
from fakes.virtual_time import play
from spothop.checkpoints import Entry, Outline, UnknownCommits
from spothop.storage.errors import StorageBadUrl, StorageError, StorageUnavailable
from spothop.wire import CommittedReport, MessageReport, SaveKind
from spothop_agent.notice_states import NoticeState
from spothop_agent.refusals import FINAL_AFTER_S, REMIND_EVERY_S


@pytest.mark.parametrize("began", [1.0, 0.0])
def test_a_late_save_of_an_older_step_is_not_committed_over_a_newer_one(
    tmp_path: Path, began: float
) -> None:
    """It ran in the background while a newer one was handed over; began 0: only its step is known.
    A restore takes the newest entry of the chain, so it would lose the steps between."""

    async def scenario() -> None:
        room = Room(tmp_path)
        backups = room.worker()
        room.put(500, number=1, began=5.0)
        await drained(room, backups)
        room.put(400, number=2, began=began)
        again = room.worker()  # the agent was started again meanwhile
        await drained(room, again)
        assert room.store.steps == [500]
        assert not list(room.context.paths.outbox.iterdir())
        assert room.context.state.given_up == 0
        (message,) = room.told(MessageReport)
        assert "the save of step 400 is not backed up: step 500 is" in message.text

    play(scenario)


def test_a_script_that_went_back_may_save_lower_steps(tmp_path: Path) -> None:
    async def scenario() -> None:
        room = Room(tmp_path)
        room.put(500, number=1, began=5.0)
        room.put(400, number=2, began=6.0)
        await drained(room, room.worker())
        assert room.store.steps == [500, 400]

    play(scenario)


def test_an_emergency_of_an_older_step_does_not_drop_a_newer_save(tmp_path: Path) -> None:
    """The emergency save ran in the background; the periodic one after it was handed over first."""

    async def scenario() -> None:
        room = Room(tmp_path)
        room.notice(left_s=0.1, request="r")
        room.put(500, number=1, began=5.0)
        room.put(400, SaveKind.EMERGENCY, number=2, began=4.0)
        await drained(room, room.worker())
        assert room.store.steps[-1] == 500
        assert room.notice_state is NoticeState.COMMITTED
        assert room.covered == ["covered"]

    play(scenario)


def test_an_overtaken_answer_still_closes_the_notice(tmp_path: Path) -> None:
    async def scenario() -> None:
        room = Room(tmp_path)
        backups = room.worker()
        room.put(500, number=1, began=5.0)
        room.notice(request="r")
        work = asyncio.create_task(backups.run())
        await backups.drain()
        room.put(400, SaveKind.EMERGENCY, number=2, began=4.0)
        await backups.drain()
        assert room.store.steps == [500]
        assert room.notice_state is NoticeState.COMMITTED
        assert room.covered == ["covered"]
        work.cancel()
        await room.context.link.close()

    play(scenario)


def test_an_agent_started_again_finishes_its_commit_before_anything_older(tmp_path: Path) -> None:
    """It died between the commit of an emergency save and the end of what that had overtaken."""

    async def scenario() -> None:
        room = Room(tmp_path, backup_s=0.1)
        room.put(10)
        name = room.put(20, SaveKind.EMERGENCY)
        room.store.there[name] = Entry(n=2, attempt=1, id=name, step=20)
        room.notice(left_s=30.0, request="r")
        await drained(room, room.worker())
        assert room.store.steps == []  # and not 10 on top of it
        assert not list(room.context.paths.outbox.iterdir())

    play(scenario)


@pytest.mark.parametrize("error", [StorageBadUrl("key too long"), StorageUnavailable("400 Odd")])
def test_a_save_that_the_store_never_takes_does_not_hold_up_newer_ones(
    tmp_path: Path, error: StorageError
) -> None:
    async def scenario() -> None:
        room = Room(tmp_path, retry_s=0.1)
        room.store.fail[10] = [error] * 100_000
        room.put(10)
        backups = room.worker()
        backups.look()
        work = asyncio.create_task(backups.run())
        await asyncio.sleep(5.0)
        since = room.context.now()
        room.put(20)
        backups.look()
        await backups.drain()
        assert room.context.now() - since < 120.0
        assert room.store.steps == [20]
        assert room.context.state.given_up == 0
        work.cancel()
        await room.context.link.close()

    play(scenario)


def test_a_store_that_refuses_all_is_asked_in_order_and_with_pauses(tmp_path: Path) -> None:
    async def scenario() -> None:
        room = Room(tmp_path)
        for step in (10, 20):
            room.store.fail[step] = [StorageBadUrl("no such bucket")] * 3
            room.put(step)
        since = room.context.now()
        await drained(room, room.worker())
        assert room.store.uploads == [10, 20, 10, 20, 10, 20, 10, 20]
        assert room.store.steps == [10, 20]
        assert room.context.now() - since > 60.0

    play(scenario)


def test_a_committed_save_is_not_given_up_for_a_full_disk_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        room = Room(tmp_path)
        room.put(10)
        backups = room.worker()
        backups.look()

        def full(*args: object, **kwargs: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(room.context.spool, "add", full)
            with pytest.raises(OSError, match="No space"):
                await backups.run()
        assert room.context.state.given_up == 0
        assert list(room.context.paths.outbox.iterdir())  # for the next agent to find it committed
        await room.context.link.close()

    play(scenario)


@pytest.mark.parametrize("payload", ["waits", "was given up"])
def test_an_older_save_is_not_committed_over_one_whose_commit_seemed_to_fail(
    tmp_path: Path, payload: str
) -> None:
    """The chain has step 20, and its author was told that it had not."""

    async def scenario() -> None:
        room = Room(tmp_path)
        newer = room.put(20, number=1, began=5.0)
        if payload == "was given up":
            shutil.rmtree(room.context.paths.outbox / newer)
        else:
            room.store.fail[20] = [StorageUnavailable("no answer")] * 4
        room.put(10, number=2, began=1.0)
        there = Entry(n=2, attempt=1, id=newer, step=20)
        room.store.fails["commit"] = [UnknownCommits([Outline.of(there)])]
        await drained(room, room.worker())
        assert room.store.steps == []
        assert not list(room.context.paths.outbox.iterdir())
        assert room.context.state.committed_n == 2
        assert room.context.state.given_up == 0
        told = [report.step for report in room.told(CommittedReport)]
        assert told == ([20] if payload == "waits" else [])

    play(scenario)


def test_an_error_of_no_known_class_holds_up_that_save_only(tmp_path: Path) -> None:
    """An agent that ended for it would be started again and meet the same save, for ever."""

    async def scenario() -> None:
        room = Room(tmp_path)
        room.store.fail[10] = [KeyError("odd")] * 4  # type: ignore[list-item]
        room.put(10, began=1.0)
        room.put(20, began=2.0)
        room.put(5, number=30, began=3.0)  # the script went back
        backups = room.worker()
        backups.look()
        work = asyncio.create_task(backups.run())
        await asyncio.sleep(500.0)
        assert room.store.steps == [20, 5]
        assert room.store.uploads[0] == 10
        assert room.context.state.given_up == 0
        first, *_ = room.told(MessageReport)
        assert first.text.startswith(
            "a save cannot be backed up: unexpected KeyError: 'odd'; it is"
        )
        work.cancel()
        await room.context.link.close()

    play(scenario)


def test_an_error_of_no_known_class_is_final_long_after_the_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        room = Room(tmp_path)
        room.store.fail[10] = [KeyError("odd")] * 100_000  # type: ignore[list-item]
        room.put(10)
        began = room.context.now()
        await drained(room, room.worker())
        assert room.context.state.given_up == 1
        assert room.context.now() - began < 2 * FINAL_AFTER_S
        assert len(room.store.uploads) < 30
        *_, last = room.told(MessageReport)
        assert last.text == (
            "the save of step 10 could not be backed up: unexpected KeyError: 'odd'"
        )

    play(scenario)


def test_a_save_that_is_refused_while_others_pass_is_told_at_a_slow_pace(tmp_path: Path) -> None:
    """Each commit of another one is no reason to tell it again."""

    async def scenario() -> None:
        room = Room(tmp_path)
        room.store.fail[1] = [StorageBadUrl("key too long")] * 100_000
        room.put(1, began=900.0)
        backups = room.worker()
        work = asyncio.create_task(backups.run())
        since = room.context.now()
        for number in range(2, 42):
            # of lower steps, so that none overtakes it
            room.put(0, number=number, began=899.0)
            backups.look()
            await asyncio.sleep(30.0)
        told = [r for r in room.told(MessageReport) if "key too long" in r.text]
        assert 1 <= len(told) <= (room.context.now() - since) / REMIND_EVERY_S + 1
        work.cancel()
        await room.context.link.close()

    play(scenario)


def test_a_pruning_that_fails_oddly_is_told_and_ends_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        room = Room(tmp_path)

        def odd() -> None:
            raise KeyError("odd")

        room.store.prune = odd  # type: ignore[method-assign]
        for step in (10, 20):
            room.put(step)
        await drained(room, room.worker())
        assert room.store.steps == [10, 20]
        (message,) = room.told(MessageReport)
        assert message.text == ("old checkpoints could not be deleted: unexpected KeyError: 'odd'")

    play(scenario)
