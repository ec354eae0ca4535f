"""The way to the master: what each answer means, the log's offsets, pauses, chaos points."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from fakes.virtual_time import START_S, LoopClock, play, until
from spothop.storage.errors import StorageDenied, StorageUnavailable
from spothop.wire import JoinRequest, MessageReport, SyncReply, SyncRequest
from spothop_agent import chaos
from spothop_agent.logs import CHUNK, LogShipper, append_line
from spothop_agent.master_link import (
    BACKOFF_CAP_S,
    SYNC_BYTES,
    UNKNOWN_SESSION_S,
    URGENT_GAP_S,
    MasterAway,
    MasterLink,
    Refused,
    Unknown,
    VmOver,
    backoff_s,
)
from spothop_agent.retry import StorageRetrier
from spothop_agent.spool import BATCH, Spool


class Clock:
    def monotonic(self) -> float:
        return 0.0

    def boottime(self) -> float:
        return 0.0


def link(answer: Callable[[httpx.Request], httpx.Response]) -> MasterLink:
    transport = httpx.MockTransport(answer)
    return MasterLink("http://master/", clock=Clock(), rng=random.Random(1), transport=transport)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, Unknown),
        (403, Refused),
        (404, Refused),
        (410, VmOver),
        (429, MasterAway),
        (500, MasterAway),
        (503, MasterAway),
    ],
)
def test_what_a_status_means(tmp_path: Path, status: int, error: type[Exception]) -> None:
    body = {"error": "e", "message": "the fact", "hint": "the way out"}
    master = link(lambda request: httpx.Response(status, json=body))
    spool = Spool(tmp_path, Clock().boottime)
    spool.add(1, MessageReport(text="kept"))
    with pytest.raises(error, match=f"{status}: the fact the way out"):
        asyncio.run(master.sync(spool, SyncRequest(vm="v", attempt=1), lambda directives: None))
    assert spool.unsent == 1


def test_a_sync_confirms_and_names_the_next_one(tmp_path: Path) -> None:
    spool = Spool(tmp_path, Clock().boottime)
    spool.add(1, MessageReport(text="a"))

    def answer(request: httpx.Request) -> httpx.Response:
        sent = SyncRequest.model_validate_json(request.content)
        assert request.headers["Authorization"] == "Bearer secret"
        reply = SyncReply(ack_seq=sent.reports[-1].seq, next_delay_s=1.5)
        return httpx.Response(200, text=reply.model_dump_json())

    master = link(answer)
    master.use_session("secret")
    request = SyncRequest(vm="v", attempt=1)
    assert asyncio.run(master.sync(spool, request, lambda directives: None)) == 1.5
    assert spool.unsent == 0


def test_a_master_that_takes_nothing_of_a_full_batch_is_not_asked_at_once(tmp_path: Path) -> None:
    """It slows this VM down; what it has taken before makes no difference."""
    acked = 0

    def answer(request: httpx.Request) -> httpx.Response:
        reply = SyncReply(ack_seq=acked, next_delay_s=7)
        return httpx.Response(200, content=reply.model_dump_json())

    async def scenario() -> None:
        nonlocal acked
        master, spool = link(answer), Spool(tmp_path, lambda: 0.0)
        for _ in range(BATCH):
            spool.add(1, MessageReport(text="x"))
        request = SyncRequest(vm="vm", attempt=1)
        assert await master.sync(spool, request, lambda directives: None) == 7
        acked = BATCH
        assert await master.sync(spool, request, lambda directives: None) == 0
        await master.close()

    play(scenario)


@pytest.mark.parametrize("most", [300_000, 60_000])
def test_a_master_that_takes_less_gets_less(tmp_path: Path, most: int) -> None:
    """It would refuse the same batch again and again, and hear nothing of what is behind it."""
    refused = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal refused
        if len(request.content) > most:
            refused += 1
            return httpx.Response(413, json={"error": "body_too_large", "message": "too large"})
        sent = SyncRequest.model_validate_json(request.content).reports
        reply = SyncReply(ack_seq=sent[-1].seq if sent else 0, next_delay_s=1)
        return httpx.Response(200, content=reply.model_dump_json())

    async def scenario() -> None:
        master, spool = link(answer), Spool(tmp_path, lambda: 0.0)
        for _ in range(BATCH):
            spool.add(1, MessageReport(text="x" * 10_000))
        while spool.unsent:
            await master.sync(spool, SyncRequest(vm="vm", attempt=1), lambda directives: None)
        await master.close()

    play(scenario)
    assert 0 < refused < 10


def test_a_batch_is_no_larger_than_a_master_takes(tmp_path: Path) -> None:
    sizes: list[int] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sizes.append(len(request.content))
        seq = SyncRequest.model_validate_json(request.content).reports[-1].seq
        return httpx.Response(200, content=SyncReply(ack_seq=seq, next_delay_s=1).model_dump_json())

    async def scenario() -> None:
        master, spool = link(answer), Spool(tmp_path, lambda: 0.0)
        for _ in range(BATCH):
            spool.add(1, MessageReport(text="\U0001f600" * 10_000))
        while spool.unsent:
            await master.sync(spool, SyncRequest(vm="vm", attempt=1), lambda directives: None)
        await master.close()

    play(scenario)
    assert len(sizes) > 1
    assert max(sizes) <= SYNC_BYTES


def test_a_log_waits_as_long_as_the_master_says(tmp_path: Path) -> None:
    master = link(lambda request: httpx.Response(429, headers={"Retry-After": "25"}))

    async def scenario() -> None:
        with pytest.raises(MasterAway) as caught:
            await master.send_log(1, 0, b"x")
        assert caught.value.retry_after_s == 25
        await master.close()

    play(scenario)


def test_a_used_token_ends_the_join() -> None:
    master = link(lambda request: httpx.Response(401, json={"error": "e", "message": "used"}))
    with pytest.raises(Refused, match="used"):
        asyncio.run(master.join(JoinRequest(token="t", agent_version="1")))


def test_pauses_grow_are_jittered_and_capped() -> None:
    rng = random.Random(2)
    pauses = [backoff_s(failures, rng) for failures in range(1, 30)]
    assert 0.25 <= pauses[0] <= 0.5
    assert max(pauses) <= BACKOFF_CAP_S
    assert len(set(pauses)) == len(pauses)


class LogOfMaster:
    """Keeps what it gets, and may lose its tail."""

    def __init__(self) -> None:
        self.data = b""
        self.sizes: list[int] = []

    async def take(self, offset: int, chunk: bytes) -> int:
        self.sizes.append(len(chunk))
        if offset <= len(self.data):
            self.data += chunk[len(self.data) - offset :]
        return len(self.data)


def test_the_log_arrives_whole_in_bounded_chunks(tmp_path: Path) -> None:
    log = tmp_path / "log"
    content = bytes(range(256)) * 3000
    log.write_bytes(content)
    master = LogOfMaster()
    asyncio.run(LogShipper(log, master.take, random.Random(1), limit=1 << 30).flush(5.0))
    assert master.data == content
    assert max(master.sizes) == CHUNK


def test_the_master_names_where_to_go_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append_line(log, "first")
    master = LogOfMaster()

    async def scenario() -> None:
        shipper = LogShipper(log, master.take, random.Random(1), limit=1 << 30)
        await shipper.flush(1.0)
        append_line(log, "second")
        master.data = master.data[:4]  # it lost the rest
        await shipper.flush(1.0)
        append_line(log, "third")
        await LogShipper(log, master.take, random.Random(1), limit=1 << 30).flush(
            1.0
        )  # an agent that was started again

    asyncio.run(scenario())
    assert master.data == b"spothop agent: first\nspothop agent: second\nspothop agent: third\n"


def test_a_master_that_is_away_does_not_hold_up_the_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append_line(log, "line")

    async def away(offset: int, chunk: bytes) -> int:
        raise MasterAway("gone")

    asyncio.run(LogShipper(log, away, random.Random(1), limit=1 << 30).flush(60.0))


def test_storage_calls_are_repeated_only_where_that_helps() -> None:
    tries = []
    told: list[str] = []

    def flaky(answer: int) -> int:
        tries.append(answer)
        if len(tries) < 3:
            raise StorageUnavailable("no route")
        return answer

    def denied() -> None:
        raise StorageDenied("no such key")

    async def scenario() -> None:
        retrier = StorageRetrier(random.Random(1), first_s=0.001)
        retrier.on_failure = told.append
        assert await retrier.call(flaky, 7) == 7
        with pytest.raises(StorageDenied):
            await retrier.call(denied)

    asyncio.run(scenario())
    assert tries == [7, 7, 7]
    assert told == ["storage: no route; trying again until it works"]


def test_a_notice_ends_a_long_pause() -> None:
    async def scenario() -> int:
        retrier = StorageRetrier(random.Random(1), first_s=3600.0, cap_s=3600.0, hurry_cap_s=0.001)
        tries = []

        def flaky() -> int:
            tries.append(1)
            if len(tries) == 1:
                raise StorageUnavailable("no route")
            return len(tries)

        call = asyncio.create_task(retrier.call(flaky))
        while not tries:  # noqa: ASYNC110  set by a thread
            await asyncio.sleep(0)
        retrier.hurry.set()
        return await asyncio.wait_for(call, 5.0)

    assert asyncio.run(scenario()) == 2


def test_chaos_reads_only_its_own_points(tmp_path: Path) -> None:
    made = chaos.from_text("master:after_launch=kill,agent:after_exit=kill", tmp_path)
    made.reach("before_fence")
    (tmp_path / "chaos.after_exit").touch()  # it has struck before
    made.reach("after_exit")


@pytest.mark.parametrize("text", ["agent:no_such_point=kill", "agent:after_exit=explode"])
def test_chaos_refuses_what_it_does_not_know(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="no chaos"):
        chaos.from_text(text, tmp_path)


def test_a_log_that_cannot_be_sent_is_tried_again_after_growing_pauses(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append_line(log, "line")

    async def scenario() -> None:
        tries: list[float] = []

        async def away(offset: int, chunk: bytes) -> int:
            tries.append(asyncio.get_running_loop().time())
            if len(tries) < 12:
                raise MasterAway("gone")
            return len(log.read_bytes())

        shipping = asyncio.create_task(LogShipper(log, away, random.Random(1), limit=1 << 30).run())
        await until(lambda: len(tries) == 12)
        pauses = [after - before for before, after in pairwise(tries)]
        longest = [min(1.0 * 2**n, 15.0) for n in range(11)]
        assert all(most / 2 <= p <= most for p, most in zip(pauses, longest, strict=True))
        assert len(set(pauses)) == len(pauses)  # many VMs do not come back at one moment
        shipping.cancel()
        await asyncio.gather(shipping, return_exceptions=True)

    play(scenario)


def test_the_pauses_of_storage_calls_grow_and_are_short_in_a_hurry() -> None:
    async def scenario() -> None:
        retrier = StorageRetrier(random.Random(1))
        tries: list[float] = []

        def flaky() -> None:
            tries.append(asyncio.get_running_loop().time())
            if len(tries) == 8:
                retrier.hurry.set()
            if len(tries) < 12:
                raise StorageUnavailable("no route")

        await retrier.call(flaky)
        pauses = [after - before for before, after in pairwise(tries)]
        longest = [1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0, 1.0, 1.0, 1.0, 1.0]
        assert all(most / 2 <= p <= most for p, most in zip(pauses, longest, strict=True))

    play(scenario)


def test_a_master_that_does_not_know_us_for_ten_minutes_has_lost_us(tmp_path: Path) -> None:
    """Not at once: a master that is started again on an older copy may learn of us."""

    async def scenario() -> None:
        def answer(request: httpx.Request) -> httpx.Response:
            return httpx.Response(401, json={"error": "no_session", "message": "unknown"})

        transport = httpx.MockTransport(answer)
        master = MasterLink(
            "http://master", clock=LoopClock(), rng=random.Random(1), transport=transport
        )
        spool = Spool(tmp_path, LoopClock().boottime)
        request = SyncRequest(vm="v", attempt=1)
        asks = asyncio.create_task(master.run(spool, lambda: request, lambda directives: None))
        await master.lost.wait()
        lasted_s = asyncio.get_running_loop().time() - START_S
        assert not master.over.is_set(), "it saves first"
        asks.cancel()
        assert UNKNOWN_SESSION_S < lasted_s < UNKNOWN_SESSION_S + 2 * BACKOFF_CAP_S
        await master.close()

    play(scenario)


def test_something_urgent_ends_a_pause_but_not_faster_than_the_gap(tmp_path: Path) -> None:
    async def scenario() -> None:
        synced: list[float] = []

        def answer(request: httpx.Request) -> httpx.Response:
            synced.append(asyncio.get_running_loop().time() - START_S)
            if len(synced) == 4:
                return httpx.Response(410, json={"error": "vm_is_over", "message": "over"})
            return httpx.Response(200, json={"ack_seq": 0, "directives": [], "next_delay_s": 30.0})

        transport = httpx.MockTransport(answer)
        master = MasterLink(
            "http://master", clock=LoopClock(), rng=random.Random(1), transport=transport
        )
        spool = Spool(tmp_path, LoopClock().boottime)
        loop = asyncio.get_running_loop()
        loop.call_later(10.0, master.wake)
        loop.call_later(10.05, master.wake)
        await master.run(spool, lambda: SyncRequest(vm="v", attempt=1), lambda directives: None)
        assert synced == [pytest.approx(at) for at in (0.0, 10.0, 10.0 + URGENT_GAP_S, 40.1)]
        assert master.over.is_set()
        await master.close()

    play(scenario)
