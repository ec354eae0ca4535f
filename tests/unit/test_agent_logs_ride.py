"""A log rides in the syncs of its attempt; by itself it goes only where that is worth a call."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from fakes.virtual_time import START_S, LoopClock, play
from spothop.wire import (
    LOGS_RIDE,
    RIDE_BYTES,
    LogChunk,
    LogState,
    SyncReply,
    SyncRequest,
)
from spothop_agent.logs import FOLLOW_S, LogShipper
from spothop_agent.master_link import MasterLink
from spothop_agent.spool import Spool


class MasterLog:
    """What the master keeps, and when it was sent by itself."""

    def __init__(self) -> None:
        self.data = b""
        self.calls: list[float] = []

    async def take(self, offset: int, chunk: bytes) -> int:
        self.calls.append(asyncio.get_running_loop().time() - START_S)
        return self.add(offset, chunk)

    def add(self, offset: int, chunk: bytes) -> int:
        if offset <= len(self.data):
            self.data += chunk[len(self.data) - offset :]
        return len(self.data)


def shipper(log: Path, master: MasterLog) -> LogShipper:
    return LogShipper(log, master.take, random.Random(1), limit=1 << 30)


def sync(shipper: LogShipper, master: MasterLog, *, follow: bool = False) -> int:
    """One, and how many bytes rode in it."""
    rides = shipper.ride()
    shipper.landed(master.add(*rides) if rides else None, follow=follow)
    return len(rides[1]) if rides else 0


def test_a_log_rides_once_the_master_has_said_that_it_may(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"one\n")
    master = MasterLog()
    ships = shipper(tmp_path / "log", master)
    assert ships.ride() is None  # an older master would refuse the whole sync
    assert [sync(ships, master) for _ in range(4)] == [0, 0, 4, 0]  # asks where to go on, sends
    with (tmp_path / "log").open("ab") as file:
        file.write(b"two\n")
    sync(ships, master)
    assert master.data == b"one\ntwo\n"


def test_a_lost_answer_repeats_the_chunk_and_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"one\n")
    master = MasterLog()
    ships = shipper(tmp_path / "log", master)
    sync(ships, master)
    sync(ships, master)
    lost = ships.ride()
    assert lost is not None
    master.add(*lost)
    with (tmp_path / "log").open("ab") as file:
        file.write(b"two\n")
    sync(ships, master)
    assert master.data == b"one\ntwo\n"


def test_a_chunk_that_could_not_be_kept_comes_again(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"one\n")
    master = MasterLog()
    ships = shipper(tmp_path / "log", master)
    sync(ships, master)
    sync(ships, master)
    first = ships.ride()
    ships.landed(None, follow=False)
    assert ships.ride() == first


def test_a_log_that_is_not_there_yet_costs_no_sync(tmp_path: Path) -> None:
    ships = shipper(tmp_path / "log", MasterLog())
    ships.landed(None, follow=False)
    assert ships.ride() == (0, b"")
    ships.landed(0, follow=False)
    assert ships.ride() == (0, b"")


def calls(tmp_path: Path, during_s: float, *told: bool, grows: bytes = b"line\n") -> list[float]:
    """When the log went by itself, while a line came every second. `told`: what each sync's answer
    says of followers, one every five seconds; none from a master that takes no log in a sync."""
    log, master = tmp_path / "log", MasterLog()
    log.write_bytes(b"")

    async def scenario() -> None:
        ships = shipper(log, master)
        task = asyncio.create_task(ships.run())
        for second in range(int(during_s)):
            if told and second % 5 == 0:
                sync(ships, master, follow=told[min(second // 5, len(told) - 1)])
            with log.open("ab") as file:
                file.write(grows)
            await asyncio.sleep(1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    play(scenario)
    return master.calls


def test_nobody_reads_along_so_no_call_is_made(tmp_path: Path) -> None:
    assert calls(tmp_path, 30, False) == []


def test_somebody_reads_along_so_it_goes_every_two_seconds(tmp_path: Path) -> None:
    found = calls(tmp_path, 31, False, True, True, False)
    assert 4 <= len(found) <= 6
    assert 5 <= found[0] <= found[-1] <= 15 + FOLLOW_S
    assert all(after - before >= FOLLOW_S for before, after in pairwise(found))


def test_more_than_rides_in_a_sync_goes_by_itself(tmp_path: Path) -> None:
    found = calls(tmp_path, 10, False, grows=b"x" * RIDE_BYTES)
    assert found


def test_a_master_that_takes_none_in_a_sync_gets_it_as_before(tmp_path: Path) -> None:
    assert len(calls(tmp_path, 10)) >= 10


def test_the_rest_of_an_attempt_that_is_over_goes_by_itself(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"one\n")
    master = MasterLog()
    ships = shipper(tmp_path / "log", master)
    sync(ships, master)
    ships.alight()
    assert ships.ride() is None
    asyncio.run(ships.flush(5.0))
    assert master.data == b"one\n"


def test_an_older_peer_hears_nothing_of_logs() -> None:
    assert "log" not in SyncRequest(vm="v", attempt=1).model_dump_json()


@pytest.mark.parametrize("data", ["%%%", "YQ", "é"])
def test_what_is_no_base64_is_refused(data: str) -> None:
    with pytest.raises(ValueError, match=r"log\.data"):
        LogChunk(attempt=1, offset=0, data=data).content()


def link(answer: Callable[[SyncRequest, httpx.Request], SyncReply]) -> MasterLink:
    def respond(request: httpx.Request) -> httpx.Response:
        message = SyncRequest.model_validate_json(request.content)
        return httpx.Response(200, text=answer(message, request).model_dump_json())

    transport = httpx.MockTransport(respond)
    clock = LoopClock()
    return MasterLink("http://master", clock=clock, rng=random.Random(1), transport=transport)


def test_the_agent_hears_what_the_master_has_of_the_log(tmp_path: Path) -> None:
    state = LogState(attempt=1, next_offset=7, follow=True)

    async def scenario() -> None:
        def answer(message: SyncRequest, request: httpx.Request) -> SyncReply:
            assert LOGS_RIDE in request.headers
            return SyncReply(ack_seq=0, next_delay_s=1.0, log=state)

        master, heard = link(answer), list[LogState | None]()
        master.on_log = heard.append
        spool = Spool(tmp_path, LoopClock().boottime)
        await master.sync(spool, SyncRequest(vm="v", attempt=1), lambda directives: None)
        assert heard == [state]
        await master.close()

    play(scenario)


def test_a_notice_is_not_held_up_by_a_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        seen: list[LogChunk | None] = []

        def answer(message: SyncRequest, request: httpx.Request) -> SyncReply:
            seen.append(message.log)
            if len(seen) == 3:
                master.over.set()
            return SyncReply(ack_seq=0, next_delay_s=5.0)

        master = link(answer)
        chunk = LogChunk.of(1, 0, b"line\n")
        asyncio.get_running_loop().call_later(2.0, master.wake)
        await master.run(
            Spool(tmp_path, LoopClock().boottime),
            lambda: SyncRequest(vm="v", attempt=1, log=chunk),
            lambda directives: None,
        )
        assert seen == [chunk, None, chunk]
        await master.close()

    play(scenario)


def test_a_master_that_was_set_back_to_an_older_release_is_synced_with(tmp_path: Path) -> None:
    """It refuses a sync with a log, which the one before it had asked for."""

    async def scenario() -> None:
        seen: list[bool] = []

        def respond(request: httpx.Request) -> httpx.Response:
            message = SyncRequest.model_validate_json(request.content)
            seen.append(message.log is not None)
            if message.log is not None:
                return httpx.Response(422, json={"error": "invalid_request", "message": "log"})
            if len(seen) == 4:
                master.over.set()
            return httpx.Response(200, text='{"ack_seq":0,"next_delay_s":1.0}')

        transport = httpx.MockTransport(respond)
        clock, rng = LoopClock(), random.Random(1)
        master = MasterLink("http://master", clock=clock, rng=rng, transport=transport)
        rides = True

        def on_log(state: LogState | None) -> None:
            nonlocal rides
            rides = state is not None

        master.on_log = on_log
        chunk = LogChunk.of(1, 0, b"line\n")
        await master.run(
            Spool(tmp_path, LoopClock().boottime),
            lambda: SyncRequest(vm="v", attempt=1, log=chunk if rides else None),
            lambda directives: None,
        )
        assert seen == [True, False, False, False]
        await master.close()

    play(scenario)
