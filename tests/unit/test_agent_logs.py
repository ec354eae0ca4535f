"""A log with a limit: its beginning goes, its offsets stay, and the master is told of the gap."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.virtual_time import play
from spothop.eventlog import AGENT_LINE
from spothop_agent import wrapper
from spothop_agent.logs import GAPS, Gaps, LogShipper, append_line
from spothop_agent.master_link import MasterAway
from support.disks import FullDisk
from support.examples import examples

LIMIT = 64 * 1024


class MasterLog:
    """What the master keeps: it refuses a chunk that would leave a gap."""

    def __init__(self) -> None:
        self.data = b""

    async def take(self, offset: int, chunk: bytes) -> int:
        if offset <= len(self.data):
            self.data += chunk[len(self.data) - offset :]
        return len(self.data)

    def text(self) -> str:
        return self.data.decode()


def shipper(log: Path, master: MasterLog) -> LogShipper:
    return LogShipper(log, master.take, random.Random(1), limit=LIMIT)


def lines(first: int, count: int) -> bytes:
    return b"".join(b"line %09d\n" % number for number in range(first, first + count))


def on_disk(path: Path) -> int:
    return path.stat().st_blocks * 512


def written(path: Path, data: bytes, *, piece: int = 4096) -> None:
    log = wrapper.Log(path, LIMIT)
    for start in range(0, len(data), piece):
        log.write(data[start : start + piece])


def test_a_log_takes_no_more_room_than_its_limit_and_keeps_the_newest(tmp_path: Path) -> None:
    data = lines(0, 100_000)
    written(tmp_path / "log", data)
    assert (tmp_path / "log").stat().st_size == len(data)  # offsets are what they were
    assert on_disk(tmp_path / "log") <= LIMIT + 4096
    assert (tmp_path / "log").read_bytes()[-LIMIT // 4 :] == data[-LIMIT // 4 :]


def test_what_was_lost_is_one_line_at_the_master(tmp_path: Path) -> None:
    async def scenario() -> None:
        log, master = tmp_path / "log", MasterLog()
        first = shipper(log, master)
        written(log, lines(0, 10))
        await first.flush(5.0)
        written(log, lines(10, 100_000))
        await first.flush(5.0)
        head, _, rest = master.text().replace("\n\n", "\n").partition("spothop: ")
        assert head == lines(0, 10).decode()
        lost, *numbers = rest.splitlines()
        bytes_lost = int(lost.split()[0])
        assert numbers[-1] == "line 000100009"
        assert bytes_lost + len(lines(0, len(numbers))) == len(lines(10, 100_000))  # whole lines
        # An agent that is started again goes on behind it.
        written(log, lines(100_010, 3))
        await shipper(log, master).flush(5.0)
        assert master.text().count("spothop:") == 1
        assert master.text().endswith(lines(100_009, 4).decode())

    play(scenario)


def test_a_master_that_has_lost_what_is_gone_here_gets_the_rest(tmp_path: Path) -> None:
    async def scenario() -> None:
        log, master = tmp_path / "log", MasterLog()
        ship = shipper(log, master)
        written(log, lines(0, 1000))
        await ship.flush(5.0)
        written(log, lines(1000, 100_000))
        await ship.flush(5.0)
        master.data = master.data[:100]
        written(log, lines(101_000, 2))
        await ship.flush(5.0)
        assert master.data.startswith(lines(0, 6))
        assert master.text().endswith(lines(101_000, 2).decode())
        assert master.text().count("spothop:") == 1

    play(scenario)


def test_what_setup_prints_is_limited_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        log, master = tmp_path / "log", MasterLog()
        log.write_bytes(lines(0, 100_000))  # not by way of the wrapper
        running = asyncio.create_task(shipper(log, master).run())
        await asyncio.sleep(60.0)
        running.cancel()
        assert on_disk(log) <= LIMIT
        assert master.text().endswith("line 000099999\n")

    play(scenario)


@examples(50)
@given(st.lists(st.tuples(st.integers(1, 500), st.integers(1, 5000)), max_size=2 * GAPS))
def test_addresses_lead_back(gaps: list[tuple[int, int]]) -> None:
    """Whatever was lost, what follows a gap is sent from behind it, and ends where our log ends."""
    found, at, ours = Gaps(Path("/nonexistent/log.gaps")), 0, 0
    for shipped, lost in gaps:
        at, ours = at + shipped, ours + shipped
        assert found.place(at) == (b"", ours)
        found.add(at, ours + lost, lost=lost)
        line, behind = found.place(at)
        assert (behind, str(lost) in line.decode()) == (ours + lost, True)
        assert found.place(at + 1) == (line[1:], ours + lost)
        at, ours = at + len(line), ours + lost
        assert found.end(ours + 7) == at + 7


def test_a_disk_without_room_costs_output_and_not_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch, tmp_path)
    log = wrapper.Log(tmp_path / "log", LIMIT)
    log.write(b"before\n")
    disk.full = True
    log.write(b"lost\n" * 3)
    disk.full = False
    log.write(b"after\n")
    head, told, rest = (tmp_path / "log").read_text().partition("\nspothop: 15 bytes")
    assert (head, bool(told), rest.splitlines()[-1]) == ("before\n", True, "after")


def test_a_file_system_that_knows_no_holes_keeps_the_first_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wrapper, "_punch", lambda descriptor, start, end: False)
    written(tmp_path / "log", lines(0, 100_000))
    assert on_disk(tmp_path / "log") <= LIMIT + 2 * 4096
    assert os.path.getsize(tmp_path / "log") <= LIMIT + 2 * 4096


class BusyMaster(MasterLog):
    """Takes one chunk in three seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.ready_at = 0.0

    async def take(self, offset: int, chunk: bytes) -> int:
        now = asyncio.get_running_loop().time()
        if now < self.ready_at:
            later = MasterAway("too much log")
            later.retry_after_s = self.ready_at - now
            raise later
        self.ready_at = now + 3.0
        return await super().take(offset, chunk)


@pytest.mark.parametrize(("within_s", "complete"), [(60.0, True), (2.0, False)])
def test_the_end_of_a_log_waits_for_its_turn(
    tmp_path: Path, within_s: float, complete: bool
) -> None:
    """The last lines of a flood are the ones that people look for."""

    async def scenario() -> None:
        master = BusyMaster()
        data = lines(0, 50_000)
        (tmp_path / "log").write_bytes(data)
        await LogShipper(tmp_path / "log", master.take, random.Random(1), limit=1 << 30).flush(
            within_s
        )
        assert (master.data == data) is complete

    play(scenario)


def test_lines_of_the_agent_come_between_whole_lines(tmp_path: Path) -> None:
    """A print without a buffer comes in pieces; what has no end, as a prompt, is written too."""
    path = tmp_path / "log"
    output, printed = os.pipe()
    wake, woken = os.pipe()
    os.set_blocking(output, False)
    try:
        pump = wrapper.Pump(output, wake, wrapper.Log(path, LIMIT))
        os.write(printed, b"one\nstarted at")
        pump.turn(0)
        append_line(path, "done at step 40")
        os.write(printed, b" 0 20\r 40%")
        pump.turn(0)
        assert path.read_bytes().decode() == f"one\n{AGENT_LINE}done at step 40\nstarted at 0 20\r"
        pump.turn(0)  # nothing came
        assert path.read_bytes().endswith(b"\r 40%")
        os.write(printed, b"x" * (wrapper.READ - 1))  # 64 KiB of a pipe
        pump.turn(0)
        os.write(printed, b"yy")
        pump.turn(0)
        assert path.read_text().endswith("xyy")
        os.write(printed, b"the end")
        pump.drain()
        assert path.read_text().endswith("yythe end")
    finally:
        for each in (output, printed, wake, woken):
            os.close(each)
