"""What the backup worker waits for, how long, and what goes on meanwhile."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path

import pytest

from fakes.backup_room import Room, drained
from fakes.virtual_time import Takes, play, until
from spothop.storage.errors import StorageUnavailable
from spothop.wire import MessageReport, SaveKind
from spothop_agent import draining, outbox, transfer
from spothop_agent.threads import STORAGE, Threads

HANG_S = 1000.0


def texts(room: Room) -> list[str]:
    return [report.text for report in room.told(MessageReport)]


def put_tree(room: Room, step: int, kind: SaveKind = SaveKind.PERIODIC) -> Path:
    """A save that is a directory."""
    name = room.put(step, kind)
    folder = room.context.paths.outbox / name
    meta = (folder / "meta.json").read_text()
    (folder / "meta.json").write_text(meta.replace('"is_dir": false', '"is_dir": true'))
    (folder / "payload" / "c").unlink()
    (folder / "payload" / "c").mkdir()
    (folder / "payload" / "c" / "file").write_text("12345")
    return folder


# --- the end of the job ---------------------------------------------------------------------------


def test_the_end_does_not_wait_for_ever_for_a_store_that_may_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draining, "DRAIN_S", 1500.0)

    async def scenario() -> None:
        room = Room(tmp_path, retry_s=20.0)
        room.store.fail[10] = [StorageUnavailable("no route") for _ in range(1000)]
        room.store.fail[20] = [StorageUnavailable("no route") for _ in range(1000)]
        room.put(10)
        room.put(20)
        began = room.context.now()
        await drained(room, room.worker())
        assert 1500.0 <= room.context.now() - began < 1600.0
        assert room.store.steps == []
        assert room.context.state.given_up == 2
        waiting = [text for text in texts(room) if "wait for the storage: no route" in text]
        assert [text.split()[-2] for text in waiting] == ["24", "14", "4"]  # minutes left
        given_up = [text for text in texts(room) if "given up: nothing went through" in text]
        assert len(given_up) == 2

    play(scenario)


def test_the_end_waits_as_long_as_something_goes_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draining, "DRAIN_S", 500.0)

    async def scenario() -> None:
        room = Room(tmp_path)
        for step in (10, 20, 30, 40):
            room.store.takes[step] = 400.0
            room.put(step)
        await drained(room, room.worker())
        assert room.store.steps == [10, 20, 30, 40]
        assert room.context.state.given_up == 0

    play(scenario)


def test_an_upload_that_only_repeats_itself_is_no_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draining, "DRAIN_S", 500.0)

    async def scenario() -> None:
        room = Room(tmp_path, retry_s=20.0)
        room.store.fails["commit"] = [StorageUnavailable("no commit") for _ in range(1000)]
        room.put(10)
        began = room.context.now()
        await drained(room, room.worker())
        assert room.context.now() - began < 600.0
        assert room.context.state.given_up == 1
        assert room.store.uploads == [10]  # the commit is retried alone

    play(scenario)


# --- after a notice -------------------------------------------------------------------------------


def test_a_hanging_commit_is_given_up_in_time_and_does_not_write_later(tmp_path: Path) -> None:
    async def scenario() -> None:
        room = Room(tmp_path)
        room.store.commit_takes[10] = HANG_S
        room.put(10)
        backups = room.worker()
        backups.look()
        work = asyncio.create_task(backups.run())
        await asyncio.sleep(1.0)  # it hangs already when the notice comes
        room.notice(left_s=30.0)
        since = room.context.now()
        await until(lambda: room.store.steps)
        assert room.context.now() - since <= 30.0 / transfer.SHARE + 1.0
        await asyncio.sleep(2 * HANG_S)
        assert room.store.steps == [10]
        work.cancel()
        await room.context.link.close()

    play(scenario)


def test_each_wait_for_a_hanging_commit_is_longer_than_the_one_before(tmp_path: Path) -> None:
    """A store that is slow, and does not hang, is asked for the last time with time enough."""

    async def scenario() -> None:
        room = Room(tmp_path)
        slow_s, asked = 12.0, []
        commit = room.store.commit

        def slowly(*arguments: object) -> object:
            asked.append(room.context.now())
            raise Takes(slow_s, lambda: commit(*arguments))  # type: ignore[arg-type]

        room.store.commit = slowly  # type: ignore[method-assign,assignment]
        room.notice(left_s=1.0)
        room.put(10)
        await drained(room, room.worker())
        assert room.store.steps == [10]
        gaps = [asked[i + 1] - asked[i] for i in range(len(asked) - 1)]
        assert len(gaps) == 3
        assert gaps == sorted(gaps)

    play(scenario)


# --- trees ----------------------------------------------------------------------------------------


def test_a_tree_is_measured_in_its_turn(tmp_path: Path) -> None:
    async def scenario() -> None:
        room = Room(tmp_path)
        room.put(10)
        put_tree(room, 20)
        room.put(30)
        backups = room.worker()
        assert not backups.look()
        assert backups.waiting == 1  # what is behind it waits for it
        await drained(room, backups)
        assert room.store.steps == [10, 20, 30]
        assert not list(room.context.paths.outbox.iterdir())

    play(scenario)


def test_what_an_earlier_agent_was_deleting_goes(tmp_path: Path) -> None:
    async def scenario() -> None:
        room = Room(tmp_path)
        name = room.put(10)
        folder = room.context.paths.outbox
        (folder / name).rename(folder / f".gone-{name}")
        await drained(room, room.worker())
        await asyncio.sleep(0)
        assert not list(folder.iterdir())

    play(scenario)


TICKS = 50
GUARD_S = 30.0
"""Real seconds: only a failing test waits for so long."""


def test_the_loop_goes_on_while_a_tree_is_deleted_and_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the two blocks until the loop has turned many times: in the loop it never would."""
    ticked = threading.Event()
    seen: list[bool] = []

    def blocking(tree: Path, *, ignore_errors: bool) -> None:
        seen.append(ticked.wait(GUARD_S))

    measure = outbox.read

    def measuring(folder: Path, name: str) -> object:
        seen.append(ticked.wait(GUARD_S))
        return measure(folder, name)

    monkeypatch.setattr(shutil, "rmtree", blocking)
    monkeypatch.setattr(outbox, "read", measuring)

    async def scenario() -> None:
        room = Room(tmp_path)
        name = room.put(1)
        folder = room.context.paths.outbox
        (folder / name).rename(folder / f".gone-{name}")
        put_tree(room, 20)
        backups = room.worker()
        assert not backups.look()
        for _ in range(TICKS):
            await asyncio.sleep(0)
        ticked.set()
        while not backups.look() or len(seen) < 2:  # noqa: ASYNC110  real threads end it
            await asyncio.sleep(0.001)
        assert backups.waiting == 1
        await room.context.link.close()

    asyncio.run(scenario())
    assert seen == [True, True]


def test_hung_uploads_stop_neither_the_disk_nor_the_default_threads(tmp_path: Path) -> None:
    """So many as there are threads for the store; what writes the state, and what resolves the
    master's name, has others."""
    release = threading.Event()

    async def scenario() -> None:
        threads = Threads()
        began = threading.Semaphore(0)

        def hang() -> None:
            began.release()
            release.wait(GUARD_S)

        hung = [asyncio.create_task(threads.storage(hang)) for _ in range(2 * STORAGE)]
        await asyncio.sleep(0)
        assert await threads.disk(lambda: all(began.acquire(timeout=GUARD_S) for _ in range(9)))
        room = Room(tmp_path)
        await threads.disk(room.context.state_file.set, given_up=3)
        assert room.context.state.given_up == 3
        assert await asyncio.to_thread(release.is_set) is False
        release.set()
        await asyncio.gather(*hung)
        await room.context.link.close()

    asyncio.run(scenario())
