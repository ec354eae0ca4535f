"""What a crowd at the door costs those inside: idle and slow connections, and very many long polls.

A real master with 50 agents that train. Beside them, one crowd after the other: connections that
send nothing, connections that send a byte a second, and long polls of a user. Each crowd comes back
as soon as it is shut out.

    python benchmarks/front_door.py                  all crowds, 60 s each
    python benchmarks/front_door.py --seconds 300 --crowd idle-10000

Targets: `/healthz` under 1 s, every sync answered, no VM ended, the log under 1 MB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from common import publish
from load.fleet import Member
from master_load import Case, agents_of, fill, free_port, master, plans, rss_mb
from spothop_master.home import ADMIN_TOKEN
from spothop_master.store.db import Database
from spothop_master.store.schema import VmRow

AGENTS = 50
PAUSE_S = 0.5
"""Before a connection that was closed comes again."""

Visit = Callable[[int, str], Awaitable[None]]


async def idle(port: int, _token: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        await reader.read(1)
    finally:
        writer.close()


async def slow(port: int, _token: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for byte in b"POST /agent/v1/join HTTP/1.1\r\nX-Long: " + b"x" * 10_000:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(1.0)
            if reader.at_eof():
                return
    finally:
        writer.close()


async def poll(port: int, token: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    path = f"/api/v1/jobs/{Member(number=0).job}/events?after=1000000&wait_s=20"
    try:
        while True:
            head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
            writer.write(head.encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            if not answer.startswith(b"HTTP/1.1 200"):
                raise EOFError(answer[:40])
            size = next(line for line in answer.lower().splitlines() if b"content-length" in line)
            await reader.readexactly(int(size.split(b":")[1]))
    finally:
        writer.close()


CROWDS: dict[str, tuple[Visit, int]] = {
    "none": (idle, 0),
    "idle-1100": (idle, 1100),
    "idle-10000": (idle, 10_000),
    "slow-200": (slow, 200),
    "polls-1000": (poll, 1000),
}


def crowd(name: str, port: int, token: str) -> None:
    """In a process of its own, until it is killed."""
    visit, many = CROWDS[name]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    async def one() -> None:
        while True:
            with suppress(OSError, EOFError, asyncio.IncompleteReadError):
                await visit(port, token)
            await asyncio.sleep(PAUSE_S)

    async def everyone() -> None:
        await asyncio.gather(*(one() for _ in range(many)))

    asyncio.run(everyone())


def health_s(port: int, seconds: float) -> tuple[float, int]:
    """The slowest answer of `/healthz`, asked twice a second by a connection each, and how many
    gave none."""

    async def ask() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
        finally:
            writer.close()

    async def watch() -> tuple[float, int]:
        worst, failed, until = 0.0, 0, time.monotonic() + seconds
        while (began := time.monotonic()) < until:
            try:
                await asyncio.wait_for(ask(), 30)
                worst = max(worst, time.monotonic() - began)
            except (OSError, EOFError, TimeoutError, asyncio.TimeoutError):
                failed += 1
            await asyncio.sleep(0.5)
        return worst, failed

    return asyncio.run(watch())


def run(name: str, seconds: float) -> dict[str, Any]:
    case = Case(agents=AGENTS, training=True, seconds=seconds)
    with tempfile.TemporaryDirectory() as folder:
        home, port = Path(folder), free_port()
        fill(home, port, case)
        with (home / "master.log").open("wb") as log, master(home, port, case, log) as pid:
            token = (home / ADMIN_TOKEN).read_text(encoding="ascii").strip()
            arguments = [sys.executable, __file__, "--be", name, str(port), token]
            with subprocess.Popen(arguments) as many:
                time.sleep(3.0)
                agents = [agents_of(plan) for plan in plans(case, [port], time.monotonic() + 1.0)]
                slowest_s, failed = health_s(port, seconds)
                seen = [json.loads(agent.communicate()[0]) for agent in agents]
                memory_mb = rss_mb(pid)
                many.kill()
        ended = _ended(home)
        return {
            "crowd": name,
            "healthz_s": slowest_s,
            "healthz_failed": failed,
            "syncs": sum(len(one["latencies_ms"]) for one in seen),
            "slowest_sync_ms": max(max(one["latencies_ms"]) for one in seen),
            "syncs_failed": sum(len(one["failed"]) for one in seen),
            "vms_ended": ended,
            "log_bytes": (home / "master.log").stat().st_size,
            "rss_mb": memory_mb,
        }


def _ended(home: Path) -> int:
    db = Database(f"sqlite:///{home}/master.db")
    with db.read() as session:
        found = session.scalar(
            select(func.count()).select_from(VmRow).where(VmRow.state != "running")
        )
    db.close()
    return found or 0


def missed_targets(row: dict[str, Any]) -> list[str]:
    limits = {
        "healthz_s": 1.0,
        "healthz_failed": 0,
        "syncs_failed": 0,
        "vms_ended": 0,
        "log_bytes": 1_000_000,
    }
    return [
        f"{row['crowd']}: {name} {row[name]:.4g} (limit {limit:g})"
        for name, limit in limits.items()
        if row[name] > limit
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each crowd stays")
    parser.add_argument("--crowd", choices=CROWDS, action="append", help="only this one")
    parser.add_argument("--be", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        crowd(options.be[0], int(options.be[1]), options.be[2])
        return 0
    rows = [run(name, options.seconds) for name in options.crowd or CROWDS]
    missed = [text for row in rows for text in missed_targets(row)]
    publish("front_door", "50 agents that train, and a crowd at the door", rows, missed=missed)
    print("  targets met" if not missed else f"  targets MISSED: {'; '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
