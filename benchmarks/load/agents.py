"""`python -m load.agents PLAN`: many agents in one process, by bare HTTP/1.1 over kept connections.

A real agent is a process of its own; here only its calls count, and httpx would cost more than
the master does. Prints what it saw as JSON: a latency in ms per sync, failures, when notices went.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from load.fleet import STEP_S, Member
from spothop.wire import LOGS_RIDE, LogChunk

PROTOCOL_LINE = "HTTP/1.1 "
COMMIT_EVERY = 12
"""Syncs between two commits of a job: one a minute."""
LINE = b"step 1000  loss 2.0312  lr 2.4e-04  tokens/s 29,120\n"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What this process does; moments on the machine's monotonic clock."""

    port: int
    first: int
    count: int
    every_s: float
    begin_at: float
    end_at: float
    trains: bool
    logs: bool
    notices: int
    """So many of its agents, the first ones, have a notice."""
    notice_at: float


@dataclass
class Seen:
    latencies_ms: list[float] = field(default_factory=list)
    began: list[float] = field(default_factory=list)
    """When each of these was asked, on the machine's monotonic clock."""
    late: int = 0
    """Answers that came after the next sync was due."""
    failed: list[str] = field(default_factory=list)
    noticed: dict[str, float] = field(default_factory=dict)
    """Job -> when its notice was sent."""


class Agent:
    def __init__(self, member: Member, plan: Plan, seen: Seen) -> None:
        self.member, self.plan, self.seen = member, plan, seen
        self.rng = random.Random(member.number)
        self.seq, self.step, self.syncs, self.chain_n, self.log_size = 0, 1000, 0, 2, 0
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self, notice_at: float | None) -> None:
        plan = self.plan
        next_at = plan.begin_at + self.rng.random() * plan.every_s
        while next_at < plan.end_at:
            if notice_at is not None and notice_at < next_at:
                await self._at(notice_at)
                self.seen.noticed[self.member.job] = time.monotonic()
                await self._sync([{"kind": "notice", "event": "e-1", "deadline_in_s": 120.0}])
                notice_at = None
            await self._at(next_at)
            began = time.monotonic()
            await self._sync(self._reports() if plan.trains else [])
            took_s = time.monotonic() - began
            self.seen.latencies_ms.append(took_s * 1000)
            self.seen.began.append(began)
            self.seen.late += took_s > plan.every_s
            next_at = max(next_at + plan.every_s, time.monotonic())

    async def _at(self, moment: float) -> None:
        await asyncio.sleep(max(0.0, moment - time.monotonic()))

    def _reports(self) -> list[dict[str, Any]]:
        count = max(1, int(self.plan.every_s / STEP_S))
        self.step += count
        self.syncs += 1
        found: list[dict[str, Any]] = [
            {"kind": "steps", "step": self.step, "count": count, "step_s": STEP_S, "load_s": 0.01},
            {"kind": "metrics", "step": self.step, "values": {"loss": 2.0, "lr": 1e-4, "mfu": 0.4}},
        ]
        if (self.syncs + self.member.number) % COMMIT_EVERY == 0:
            self.chain_n += 1
            found.append(
                {"kind": "committed", "n": self.chain_n, "step": self.step, "save": "insurance"}
                | {"bytes": 500_000_000, "delta_s": 0.4, "beta_s": 6.0}
            )
        return found

    async def _sync(self, reports: list[dict[str, Any]]) -> None:
        envelopes = []
        for report in reports:
            self.seq += 1
            envelopes.append({"seq": self.seq, "age_s": 0.1, "attempt": 1, "report": report})
        body: dict[str, Any] = {"vm": self.member.vm, "attempt": 1, "reports": envelopes}
        if self.plan.logs:
            body["log"] = LogChunk.of(1, self.log_size, LINE * 10).model_dump()
        answer = await self._post("/agent/v1/sync", json.dumps(body).encode())
        if answer is None:
            return
        if self.plan.logs:
            self.log_size = answer["log"]["next_offset"]
        if answer["ack_seq"] != self.seq:
            self.seen.failed.append(f"acknowledged {answer['ack_seq']}, sent {self.seq}")

    async def _post(self, path: str, body: bytes) -> dict[str, Any] | None:
        try:
            return await self._exchange(path, body)
        except (OSError, EOFError, asyncio.IncompleteReadError, ValueError) as error:
            self.seen.failed.append(f"{type(error).__name__}: {error}")
            self.streams = None
            return None

    async def _exchange(self, path: str, body: bytes) -> dict[str, Any] | None:
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.plan.port)
        reader, writer = self.streams
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer "
            f"{self.member.session}\r\n{LOGS_RIDE}: 1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode()
        status = int(answer[len(PROTOCOL_LINE) :][:3])
        headers = dict(line.lower().split(": ", 1) for line in answer.splitlines()[1:] if line)
        content = await reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            writer.close()
            self.streams = None
        if status != 200:
            self.seen.failed.append(f"{status}: {content[:200].decode(errors='replace')}")
            return None
        found: dict[str, Any] = json.loads(content)
        return found


async def run(plan: Plan) -> Seen:
    seen = Seen()
    numbers = range(plan.first, plan.first + plan.count)
    agents = [Agent(Member(number=number), plan, seen) for number in numbers]
    gap_s = 1.0 / max(1, plan.notices)  # all within one second
    times = [plan.notice_at + i * gap_s if i < plan.notices else None for i in range(plan.count)]
    runs = asyncio.gather(*(agent.run(at) for agent, at in zip(agents, times, strict=True)))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, runs.cancel)
    with suppress(asyncio.CancelledError):  # whoever began it has seen enough
        await runs
    return seen


if __name__ == "__main__":
    found = asyncio.run(run(Plan(**json.loads(sys.argv[1]))))
    json.dump(vars(found), sys.stdout)
