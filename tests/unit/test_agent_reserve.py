"""A full disk: what is reserved, what is released, and what lives on in memory meanwhile."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from fakes.attempt_harness import OK, AttemptHarness
from fakes.virtual_time import START_S, play, until
from spothop.wire import CommittedReport, ExitedReport, MessageReport, NoticeReport, SaveKind
from spothop_agent.notice_states import NoticeState
from spothop_agent.notices import Notices
from spothop_agent.reserve import AGAIN, Reserve, no_room, with_room
from spothop_agent.spool import Spool
from spothop_agent.state import Phase, StateFile
from spothop_agent.watch import Notice
from support.disks import FullDisk

SIZE = 1 << 16


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch, tmp_path)


# --- the reserve ----------------------------------------------------------------------------------


def test_the_reserve_is_really_allocated(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "reserve", SIZE)
    assert reserve.held
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= SIZE
    assert reserve.news() == []
    assert Reserve(tmp_path / "reserve", SIZE).held  # the next agent finds it


def test_the_first_write_that_finds_no_room_releases_it_and_the_next_ones_do_not(
    tmp_path: Path,
) -> None:
    reserve = Reserve(tmp_path / "reserve", SIZE)
    tries: list[bool] = []

    def write() -> str:
        tries.append(reserve.held)
        if reserve.held:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        return "written"

    assert with_room(write, reserve.release) == "written"
    assert tries == [True, False]
    assert not (tmp_path / "reserve").exists()
    assert len(reserve.news()) == 1
    assert not reserve.release()
    assert reserve.news() == []  # told once


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.EACCES])
def test_another_error_is_no_reason_to_release_it(tmp_path: Path, number: int) -> None:
    reserve = Reserve(tmp_path / "reserve", SIZE)

    def write() -> None:
        raise OSError(number, "not full")

    with pytest.raises(OSError, match="not full"):
        with_room(write, reserve.release)
    assert reserve.held


def test_it_is_taken_again_when_there_is_much_more_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = Reserve(tmp_path / "reserve", SIZE)
    reserve.release()
    free = AGAIN * SIZE
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    reserve.tend()
    assert not reserve.held
    free += 1
    reserve.tend()
    assert reserve.held
    told = reserve.news()
    assert len(told) == 2
    assert "is back" in told[1]


def test_a_disk_that_is_full_at_the_start_is_told_and_leaves_no_rest(
    tmp_path: Path, disk: FullDisk
) -> None:
    disk.full = True
    reserve = Reserve(tmp_path / "reserve", SIZE)
    assert not reserve.held
    assert not (tmp_path / "reserve").exists()
    assert len(reserve.news()) == 1


def test_no_reserve_is_no_reserve(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "reserve", 0)
    assert (reserve.held, reserve.release(), reserve.news()) == (False, False, [])
    reserve.tend()
    assert not reserve.held
    assert not no_room()


# --- state and spool ------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_state_lives_on_in_memory_and_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    async def scenario() -> None:
        run = AttemptHarness(tmp_path)
        disk = FullDisk(monkeypatch, tmp_path, number=number)
        disk.full = True
        run.context.state_file.set(given_up=7)
        assert run.state.given_up == 7
        assert run.on_disk().given_up == 0
        run.context.state_file.flush()
        disk.full = False
        run.context.state_file.flush()
        assert run.on_disk().given_up == 7
        left = [path.name for path in run.context.agent_paths.root.glob(".*")]
        assert left == []  # no half of a file takes room
        await run.context.link.close()

    play(scenario)


def test_state_and_spool_release_the_reserve(tmp_path: Path, disk: FullDisk) -> None:
    async def scenario() -> None:
        run = AttemptHarness(tmp_path)
        await run.context.link.close()

        def make_room() -> bool:
            freed, disk.full = disk.full, False
            return freed

        state = StateFile(run.context.agent_paths.state, make_room)
        state.load()
        disk.full = True
        state.set(given_up=1)
        assert run.on_disk().given_up == 1
        spool = Spool(tmp_path / "spool", lambda: 0.0, make_room)
        disk.full = True
        spool.add(1, MessageReport(text="kept"))
        assert Spool(tmp_path / "spool", lambda: 0.0).unsent == 1
        assert not disk.full

    play(scenario)


def test_the_spool_is_written_when_there_is_room_without_another_report(
    tmp_path: Path, disk: FullDisk
) -> None:
    spool = Spool(tmp_path / "spool", lambda: 0.0)
    disk.full = True
    spool.add(1, MessageReport(text="kept"))
    disk.full = False
    assert Spool(tmp_path / "spool", lambda: 0.0).unsent == 0
    spool.flush()
    assert Spool(tmp_path / "spool", lambda: 0.0).unsent == 1


def a_notice(ends: float) -> Notice:
    return Notice(event="event-1", kind="preempt", deadline_monotonic=ends, detail="Preempt")


# --- a whole attempt ------------------------------------------------------------------------------


def test_a_full_disk_from_the_notice_to_the_exit_loses_no_save_and_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The save was written before the disk was full; all that the agent writes is refused."""

    async def scenario() -> None:
        run = await AttemptHarness(tmp_path).training()
        told: list[str] = []
        source: asyncio.Queue[Notice] = asyncio.Queue()

        async def announced():  # type: ignore[no-untyped-def]
            while True:
                yield await source.get()

        async def acknowledge(notice: Notice) -> bool:
            told.append(notice.event)
            return True

        async def final_sync() -> None: ...

        notices = Notices(announced(), acknowledge, final_sync, (run.context, run.attempt))
        running = asyncio.create_task(notices.run())
        run.store.takes[2] = 3.0
        disk = FullDisk(monkeypatch, run.context.paths.root.parent.parent)
        disk.full = True
        ends = START_S + 30.0
        await source.put(a_notice(ends))
        await until(lambda: run.notice_state is NoticeState.REQUESTED)
        (asked,) = [m for m in run.process.heard() if m["t"] == "save"]
        disk.full = False
        run.process.hand_over(2, SaveKind.EMERGENCY, request=asked["request"])
        disk.full = True
        await until(lambda: run.notice_state is NoticeState.ACKNOWLEDGED)
        assert told == ["event-1"]
        assert run.store.steps == [2]
        await run.over(OK)
        running.cancel()
        assert len(run.reports(NoticeReport)) == len(run.reports(CommittedReport)) == 1
        (exited,) = run.reports(ExitedReport)
        assert (exited.code, exited.uncommitted) == (0, 0)
        assert run.on_disk().phase < Phase.EXITED
        disk.full = False
        run.context.state_file.flush()
        assert run.on_disk().phase is Phase.EXITED

    play(scenario)
