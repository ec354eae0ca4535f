"""The backup worker over a scripted storage: order, urgency, refusals, and what is told of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fakes.backup_room import Room, drained
from fakes.virtual_time import play, until
from spothop.checkpoints import Entry
from spothop.storage.errors import (
    SourceChanged,
    SourceUnreadable,
    StorageBadUrl,
    StorageDenied,
    StorageError,
    StorageUnavailable,
    StorageUnsupported,
)
from spothop.wire import CommittedReport, FencedReport, MessageReport, SaveKind
from spothop_agent import outbox, refusals
from spothop_agent.backup_queue import RESERVE
from spothop_agent.notice_states import NoticeState
from spothop_agent.outbox import Entry as Accepted
from spothop_agent.resume import Resume
from spothop_agent.state import StateFile

HANG_S = 1000.0


def left(room: Room) -> list[str]:
    return [path.name for path in room.context.paths.outbox.iterdir()]


def test_in_order_and_out_of_the_outbox(tmp_path: Path) -> None:
    async def scenario() -> None:
        room = Room(tmp_path)
        for step in (10, 20, 30):
            room.put(step)
        await drained(room, room.worker())
        assert room.store.steps == [10, 20, 30]
        assert left(room) == []
        assert [(r.n, r.bytes, r.delta_s) for r in room.told(CommittedReport)] == [
            *((2, 4, 0.1), (3, 4, 0.1), (4, 4, 0.1))
        ]
        assert room.covered == []

    play(scenario)


def test_unavailable_storage_is_asked_again_and_told_of_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        room = Room(tmp_path)
        told: list[str] = []
        room.context.retrier.on_failure = told.append
        room.store.fail[10] = [StorageUnavailable("no route") for _ in range(3)]
        room.put(10)
        await drained(room, room.worker())
        assert room.store.steps == [10]
        assert len(told) == 1

    play(scenario)


FINAL = [StorageDenied("no right"), StorageBadUrl("no such bucket"), StorageUnsupported("never")]


@pytest.mark.parametrize("error", FINAL)
def test_while_the_process_trains_no_refusal_gives_a_save_up(
    tmp_path: Path, error: StorageError
) -> None:
    async def scenario() -> None:
        room = Room(tmp_path)
        room.store.fail[10] = [error] * 5
        room.put(10)
        backups = room.worker()
        backups.look()
        work = asyncio.create_task(backups.run())
        await backups._queue.idle.wait()
        assert room.store.steps == [10]
        assert room.context.state.given_up == 0
        (message,) = room.told(MessageReport)  # once, and loudly
        assert message.level == "error"
        assert f"the storage refuses this job's saves: {error}" in message.text
        work.cancel()
        await room.context.link.close()

    play(scenario)


def test_a_store_that_still_refuses_long_after_the_end_has_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "FINAL_AFTER_S", 0.0)

    async def scenario() -> None:
        room = Room(tmp_path)
        room.store.fail[10] = [StorageDenied("no right to write")]
        room.put(10)
        room.put(20)
        await drained(room, room.worker())
        assert room.store.steps == [20]
        assert room.context.state.given_up == 1
        (message,) = room.told(MessageReport)
        assert message.level == "error"
        assert "step 10 could not be backed up: no right to write" in message.text

    play(scenario)


def test_a_payload_that_changed_is_given_up_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        room = Room(tmp_path)
        room.store.fail[10] = [SourceChanged("it was written meanwhile")]
        room.put(10)
        await drained(room, room.worker())
        assert room.context.state.given_up == 1
        assert left(room) == []

    play(scenario)


@pytest.mark.parametrize("error", [SourceUnreadable("an input error"), OSError(5, "EIO")])
def test_a_payload_that_cannot_be_read_now_stays(tmp_path: Path, error: StorageError) -> None:
    async def scenario() -> None:
        room = Room(tmp_path)
        room.store.fail[10] = [error] * 3
        room.put(10)
        await drained(room, room.worker())
        assert room.store.steps == [10]
        assert room.context.state.given_up == 0
        (message,) = room.told(MessageReport)
        assert message.text.startswith(f"a save cannot be read: {error}")

    play(scenario)


def test_a_commit_is_tried_again_without_another_upload(tmp_path: Path) -> None:
    async def scenario() -> None:
        room = Room(tmp_path)
        room.store.fails["commit"] = [StorageUnavailable("503") for _ in range(3)]
        room.put(10)
        await drained(room, room.worker())
        assert room.store.uploads == [10]
        assert room.store.steps == [10]

    play(scenario)


def test_what_was_overtaken_goes_only_when_the_newer_one_is_committed(tmp_path: Path) -> None:
    async def scenario() -> None:
        room = Room(tmp_path)
        room.store.fail[20] = [StorageUnavailable("no route")]
        old = room.put(10)
        room.notice(left_s=0.1, request="r")
        room.put(20, SaveKind.EMERGENCY)
        there: list[bool] = []
        room.context.retrier.on_failure = lambda text: there.append(
            (room.context.paths.outbox / old).exists()
        )
        await drained(room, room.worker())
        assert there == [True]
        assert room.store.steps == [20]
        assert left(room) == []
        assert room.context.state.given_up == 0

    play(scenario)


def test_a_torn_entry_counts_as_given_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        room = Room(tmp_path)
        name = room.put(10)
        (room.context.paths.outbox / name / "meta.json").unlink()
        room.put(20)
        await drained(room, room.worker())
        assert room.store.steps == [20]
        assert room.context.state.given_up == 1

    play(scenario)


@pytest.mark.parametrize("backup_s", [None, 100.0])
def test_an_emergency_does_not_wait_for_an_upload_that_hangs(
    tmp_path: Path, backup_s: float | None
) -> None:
    async def scenario() -> None:
        room = Room(tmp_path, backup_s=backup_s)
        room.store.takes[10] = HANG_S
        backups = room.worker()
        room.put(10)
        backups.look()
        work = asyncio.create_task(backups.run())
        await until(lambda: room.store.uploads)
        since = room.context.now()
        room.notice()
        room.put(20, SaveKind.EMERGENCY)
        backups.look()
        await backups.drain()
        assert room.context.now() - since < 1.0
        await asyncio.sleep(2 * HANG_S)
        work.cancel()
        assert room.store.steps == [20]  # and never 10 behind it
        assert room.covered == ["covered"]
        (committed,) = room.told(CommittedReport)
        assert committed.save is SaveKind.EMERGENCY
        assert committed.since_notice_s == pytest.approx(0.0, abs=0.1)
        assert room.context.state.given_up == 0
        await room.context.link.close()

    play(scenario)


def test_an_emergency_does_not_wait_for_a_commit_that_hangs(tmp_path: Path) -> None:
    async def scenario() -> None:
        room = Room(tmp_path)
        room.store.commit_takes[10] = HANG_S
        room.put(10)
        backups = room.worker()
        backups.look()
        work = asyncio.create_task(backups.run())
        await asyncio.sleep(1.0)
        since = room.context.now()
        room.notice(left_s=1.5)  # enough for both, if the older one did not hang for a second
        room.put(20, SaveKind.EMERGENCY)
        backups.look()
        await backups.drain()
        assert room.context.now() - since < 1.5
        assert room.store.steps == [20]
        await asyncio.sleep(2 * HANG_S)
        assert room.store.steps == [20]  # the one that hung does not come behind it
        assert room.covered == ["covered"]
        work.cancel()
        await room.context.link.close()

    play(scenario)


def test_with_time_enough_the_older_save_goes_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        room = Room(tmp_path, backup_s=0.1)
        room.put(10)
        await asyncio.sleep(1.0)
        room.notice(left_s=30.0)
        room.put(20, SaveKind.EMERGENCY)
        await drained(room, room.worker())
        assert room.store.steps == [10, 20]
        first, second = room.told(CommittedReport)
        assert first.since_notice_s is None  # it was handed over before the notice
        assert second.since_notice_s is not None
        assert room.covered == ["covered"]

    play(scenario)


def test_what_an_agent_before_us_has_committed_is_only_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        room = Room(tmp_path)
        name = room.put(10)
        room.store.there[name] = Entry(n=2, attempt=1, id=name, step=10)
        await drained(room, room.worker())
        assert room.store.uploads == []
        assert [r.n for r in room.told(CommittedReport)] == [2]
        assert left(room) == []

    play(scenario)


def test_a_fenced_attempt_commits_nothing_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        room = Room(tmp_path)
        room.store.fenced_by = 2
        room.put(10)
        room.put(20)
        await drained(room, room.worker())
        assert room.store.uploads == [10]
        assert room.told(FencedReport) == [FencedReport(by=2)]
        assert room.covered == ["fenced"]
        assert room.context.state.fenced_by == 2

    play(scenario)


def test_a_nearly_full_disk_costs_the_oldest_periodic_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        room = Room(tmp_path)
        for step, kind in (
            (10, SaveKind.INSURANCE),
            (20, SaveKind.PERIODIC),
            (30, SaveKind.PERIODIC),
        ):
            room.put(step, kind)
        free = [RESERVE + n for n in (3, 100, 100, 100)]
        usage = type("Usage", (), {"free": property(lambda self: free.pop(0))})()
        monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
        backups = room.worker()
        backups.look()
        await drained(room, backups)
        assert room.store.steps == [10, 30]
        (message,) = room.told(MessageReport)
        assert "periodic save of step 20 was given up" in message.text
        assert room.context.state.given_up == 1

    play(scenario)


def test_a_save_in_the_background_does_not_cover_the_notice(tmp_path: Path) -> None:
    """What is handed over after the notice may hold a step from before it: only the answer to the
    emergency request lets the cloud take the VM."""

    async def scenario() -> None:
        room = Room(tmp_path, backup_s=0.01)
        backups = room.worker()
        room.notice(request="emergency-1")
        room.put(62, SaveKind.INSURANCE)
        backups.look()
        assert room.notice_state is NoticeState.REQUESTED
        work = asyncio.create_task(backups.run())
        await backups.drain()
        assert room.store.steps == [62]
        assert room.covered == []
        room.put(102, SaveKind.EMERGENCY)
        await backups.drain()
        assert room.covered == ["covered"]
        before, answer = room.told(CommittedReport)
        assert before.since_notice_s is None
        assert answer.since_notice_s is not None
        assert room.notice_state is NoticeState.COMMITTED
        work.cancel()
        await room.context.link.close()

    play(scenario)


def test_an_answer_is_on_the_disk_before_it_is_committed(tmp_path: Path) -> None:
    """An agent that dies in between is followed by one that must not ask for another save."""

    async def scenario() -> None:
        room = Room(tmp_path)
        backups = room.worker()
        room.notice(request="emergency-1")
        room.put(20, SaveKind.EMERGENCY)
        backups.look()
        kept = StateFile(room.context.agent_paths.state)
        assert kept.load()
        assert kept.now.notice is not None
        assert kept.now.notice.state is NoticeState.ANSWERED
        await room.context.link.close()

    play(scenario)


def test_a_commit_is_noted_before_its_backup_is_deleted(tmp_path: Path) -> None:
    """Without the entry an agent after us could not know that the notice is covered."""

    async def scenario() -> None:
        room = Room(tmp_path)
        room.notice(request="emergency-1")
        name = room.put(20, SaveKind.EMERGENCY)
        states: list[NoticeState] = []
        keep = Resume.keep

        def watched(resume: Resume, entry: Accepted) -> bool:
            assert entry.id == name
            states.append(room.notice_state)
            return keep(resume, entry)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Resume, "keep", watched)
            await drained(room, room.worker())
        assert states == [NoticeState.COMMITTED]

    play(scenario)


def test_a_backup_that_is_never_readable_is_told_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the job would be a success without it (I8)."""

    async def scenario() -> None:
        room = Room(tmp_path)
        name = room.put(10)
        real = outbox.read
        monkeypatch.setattr(
            outbox, "read", lambda folder, found: None if found == name else real(folder, found)
        )
        room.put(5)
        await drained(room, room.worker())
        assert room.store.steps == [5]
        assert room.context.state.given_up == 1
        (message,) = room.told(MessageReport)
        assert message.level == "error"
        assert f"backup {name} could not be read" in message.text
        assert left(room) == [name]  # whoever comes for the disk finds it

    play(scenario)
