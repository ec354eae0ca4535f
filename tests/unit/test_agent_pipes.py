"""The agent's ends of the named pipes: real pipes, nothing blocks, and what is torn is skipped."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.virtual_time import play, until
from spothop.training.pipes import LineDecoder, encode, open_fifo
from spothop_agent.paths import AttemptPaths
from spothop_agent.pipes import READ, WAITING, Pipes

Message = dict[str, Any]


class Line:
    """Both ends: the agent's `Pipes`, and what a training process does with the files."""

    def __init__(self, root: Path) -> None:
        self.paths = AttemptPaths(root)
        self.paths.make()
        self.messages: list[Message] = []
        self._held: dict[int, int] = {}
        self.pipes = Pipes(self.paths, self.messages.append)

    def write(self, data: bytes) -> None:
        descriptor = open_fifo(self.paths.up)
        os.write(descriptor, data)
        os.close(descriptor)

    def process(self, pid: int) -> int:
        """Its end, open from its first call on."""
        if pid not in self._held:
            self._held[pid] = open_fifo(self.paths.down(pid))
        return self._held[pid]

    def end(self, pid: int) -> None:
        os.close(self._held.pop(pid))

    def heard(self, pid: int) -> list[Message]:
        descriptor = self.process(pid)
        decoder, found = LineDecoder(), []
        try:
            while True:
                found += decoder.feed(os.read(descriptor, 65536))
        except BlockingIOError:
            return found

    def fill(self, pid: int) -> None:
        """As a process does that keeps its end open and does not read."""
        descriptor = self.process(pid)
        try:
            while True:
                os.write(descriptor, encode({"t": "noise"}))
        except BlockingIOError:
            return

    def close(self) -> None:
        self.pipes.close()
        for descriptor in self._held.values():
            os.close(descriptor)


def on_a_line(root: Path, scenario: Callable[[Line], None]) -> None:
    async def run() -> None:
        line = Line(root)
        try:
            scenario(line)
        finally:
            line.close()

    play(run)


def test_messages_arrive_by_themselves_and_torn_lines_are_skipped(tmp_path: Path) -> None:
    async def scenario() -> None:
        line = Line(tmp_path)
        line.write(encode({"t": "a"}) + b'{"t": tor\n[1]\n' + b'{"t"')
        await until(lambda: line.messages)
        assert line.messages == [{"t": "a"}]
        line.write(b': "b"}\n')
        await until(lambda: len(line.messages) == 2)
        assert line.messages[1] == {"t": "b"}
        line.close()

    play(scenario)


def test_a_read_takes_one_buffer_and_a_drain_all(tmp_path: Path) -> None:
    def scenario(line: Line) -> None:
        size = len(encode({"t": "x", "fill": "-" * 1000}))
        count = READ // size  # what a pipe holds
        for _ in range(count):
            line.write(encode({"t": "x", "fill": "-" * 1000}))
        line.pipes.drain()
        assert len(line.messages) == count
        line.pipes.drain()
        line.pipes.read()  # nothing is there: neither waits
        assert len(line.messages) == count

    on_a_line(tmp_path, scenario)


def test_each_process_gets_its_own(tmp_path: Path) -> None:
    """Also several that have no rank, or the same one."""

    def scenario(line: Line) -> None:
        for pid in (100, 101):
            line.process(pid)
        line.pipes.send([100, 101], {"t": "stop", "reason": "r"})
        for pid in (100, 101):
            assert line.heard(pid) == [{"t": "stop", "reason": "r", "pid": pid}]
            assert line.heard(pid) == []

    on_a_line(tmp_path, scenario)


def test_forty_requests_arrive_at_each_of_four(tmp_path: Path) -> None:
    def scenario(line: Line) -> None:
        pids = [100, 101, 102, 103]
        for pid in pids:
            line.process(pid)
        heard: dict[int, list[int]] = {pid: [] for pid in pids}
        for number in range(40):
            line.pipes.send(pids, {"t": "save", "number": number})
            pid = pids[number % 4]
            heard[pid] += [m["number"] for m in line.heard(pid)]
        for pid in pids:
            heard[pid] += [m["number"] for m in line.heard(pid)]
            assert heard[pid] == [*range(40)]

    on_a_line(tmp_path, scenario)


def test_a_full_pipe_delays_nobody_and_loses_nothing_of_the_newest(tmp_path: Path) -> None:
    def scenario(line: Line) -> None:
        line.fill(1)
        line.process(2)
        for number in range(WAITING + 10):
            line.pipes.send([1, 2], {"t": "save", "number": number})
        assert [m["number"] for m in line.heard(2)] == [*range(WAITING + 10)]
        line.pipes.flush()  # still full
        assert {m["t"] for m in line.heard(1)} == {"noise"}
        line.pipes.flush()
        assert [m["number"] for m in line.heard(1)] == [*range(10, WAITING + 10)]
        line.pipes.flush()
        assert line.heard(1) == []

    on_a_line(tmp_path, scenario)


def test_a_process_that_ends_is_noticed_and_nothing_waits_for_it(tmp_path: Path) -> None:
    def scenario(line: Line) -> None:
        assert not line.pipes.lives(1)  # never there
        line.fill(1)
        line.pipes.send([1], {"t": "save"})
        assert line.pipes.lives(1)
        line.end(1)
        assert not line.pipes.lives(1)
        line.pipes.flush()
        line.pipes.send([1], {"t": "save"})
        line.pipes.forget(1)
        assert not line.paths.down(1).exists()
        assert line.heard(1) == []

    on_a_line(tmp_path, scenario)


def test_an_agent_that_is_started_again_finds_what_nobody_has_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = Line(tmp_path)
        process = open_fifo(first.paths.up)  # the process has its end open all the time
        first.close()
        os.write(process, encode({"t": "late"}))
        second = Line(tmp_path)
        await until(lambda: second.messages)
        assert second.messages == [{"t": "late"}]
        second.close()
        os.close(process)

    play(scenario)


def test_the_pipe_is_made_before_bundle_and_checkpoint_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = AttemptPaths(tmp_path / "attempt")
    paths.make()

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "mkfifo", full)

    async def scenario() -> None:
        Pipes(paths, lambda message: None).close()

    play(scenario)
    paths.make()  # and again


def test_a_file_that_is_no_pipe_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        paths = AttemptPaths(tmp_path)
        paths.make()
        paths.up.unlink()
        paths.up.touch()
        with pytest.raises(OSError, match="not a named pipe"):
            Pipes(paths, lambda message: None)

    play(scenario)
