"""`python -m load.followers PLAN`: people who follow jobs, by bare HTTP/1.1 over kept connections.

Each of them follows one job in one of three ways: `news` as `spothop submit` does, `logs` as
`spothop logs -f` does, `page` as a browser with the page of the job. `turns` is how clients did it
before there were news: job, events and log asked for one after the other, every second.
Prints as JSON how many answers they had, of how many bytes.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from load.fleet import Member

WAIT_S = 20.0
PAGE_PAUSE_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What this process does; moments on the machine's monotonic clock."""

    port: int
    way: str
    followers: int
    token: str
    begin_at: float
    end_at: float


@dataclass
class Seen:
    answers: int = 0
    bytes: int = 0
    failed: list[str] = field(default_factory=list)


class Follower:
    def __init__(self, plan: Plan, number: int, seen: Seen) -> None:
        self.plan, self.seen = plan, seen
        self.job = Member(number=number).job
        self.headers = {"Authorization": f"Bearer {plan.token}"}
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self) -> None:
        ways: dict[str, Callable[[], Awaitable[None]]] = {
            "news": self.news,
            "logs": self.logs,
            "page": self.page,
            "turns": self.turns,
        }
        await asyncio.sleep(max(0.0, self.plan.begin_at - time.monotonic()))
        work = asyncio.ensure_future(ways[self.plan.way]())
        _, pending = await asyncio.wait(
            {work}, timeout=max(0.0, self.plan.end_at - time.monotonic())
        )
        if not pending:
            work.result()  # nobody ends before the time, but by an error
        work.cancel()

    async def news(self) -> None:
        after, offset, seen = 0, 0, ""
        while True:
            asked = {"after": after, "attempt": 1, "offset": offset, "seen": seen, "wait_s": WAIT_S}
            _, body = await self.get(f"/api/v1/jobs/{self.job}/news", **asked)
            found = json.loads(body)
            after = max([after, *(event["id"] for event in found["events"])])
            offset, seen = found["log"]["next_offset"], found["seen"]

    async def logs(self) -> None:
        offset = 0
        while True:
            asked = {"attempt": 1, "offset": offset, "wait_s": WAIT_S}
            headers, _ = await self.get(f"/api/v1/jobs/{self.job}/logs", **asked)
            offset = int(headers["x-next-offset"])

    async def page(self) -> None:
        await self.log_in()
        while True:
            _, html = await self.get(f"/jobs/{self.job}")
            found = re.search(rb'data-seen="([^"]*)"', html)
            seen = found[1].decode() if found else ""
            if not found:
                await asyncio.sleep(3.0)  # as the page did before it could wait
                continue
            now_seen = seen
            while now_seen == seen:
                _, body = await self.get(f"/live/{self.job}", seen=seen)
                now_seen = json.loads(body)["seen"]
            await asyncio.sleep(PAGE_PAUSE_S)

    async def turns(self) -> None:
        after, offset = 0, 0
        while True:
            await self.get(f"/api/v1/jobs/{self.job}")
            _, body = await self.get(f"/api/v1/jobs/{self.job}/events", after=after)
            after = max([after, *(event["id"] for event in json.loads(body))])
            asked = {"attempt": 1, "offset": offset, "wait_s": 1.0}
            headers, _ = await self.get(f"/api/v1/jobs/{self.job}/logs", **asked)
            offset = int(headers["x-next-offset"])

    async def log_in(self) -> None:
        form = urlencode({"token": self.plan.token}).encode()
        headers, _ = await self.exchange("POST", "/login", form)
        self.headers = {"Cookie": headers["set-cookie"].partition(";")[0]}

    async def get(self, path: str, **asked: Any) -> tuple[dict[str, str], bytes]:
        path = f"{path}?{urlencode(asked)}" if asked else path
        return await self.exchange("GET", path, b"")

    async def exchange(self, method: str, path: str, body: bytes) -> tuple[dict[str, str], bytes]:
        """Raises RuntimeError for an answer that is no success."""
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.plan.port, limit=1 << 20)
        reader, writer = self.streams
        lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
        lines.append("Content-Type: application/x-www-form-urlencoded")
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        head, *found = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        headers = {}
        for line in filter(None, found):
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        content = await reader.readexactly(int(headers.get("content-length", "0")))
        self.seen.answers += 1
        self.seen.bytes += len(content)
        if head.split()[1] not in ("200", "303"):
            raise RuntimeError(f"{path}: {head}: {content[:200]!r}")
        return headers, content


async def run(plan: Plan) -> Seen:
    seen = Seen()
    followers = [Follower(plan, number, seen) for number in range(plan.followers)]
    ends = await asyncio.gather(*(each.run() for each in followers), return_exceptions=True)
    seen.failed += [repr(end) for end in ends if isinstance(end, BaseException)]
    return seen


if __name__ == "__main__":
    found = asyncio.run(run(Plan(**json.loads(sys.argv[1]))))
    json.dump(vars(found), sys.stdout)
