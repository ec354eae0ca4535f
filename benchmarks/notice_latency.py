"""From a notice at the metadata server to `check_save()` being true in the training process.

Per dialect a few VMs side by side: the local cloud's metadata server, a real agent process, and a
real training process that checks every few milliseconds. Each VM gets one notice after the other,
each a new event at a random phase of the agent's poll; the clock is CLOCK_MONOTONIC, the same in
all processes. A stand-in answers for the master, which has no part in this.

Target, for the worst of all notices: the poll period (1 s on AWS and Azure, none with GCP's long
poll) plus 30 ms.
Run: python benchmarks/notice_latency.py [--notices 200] [--vms 12]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import live
from common import publish, quantile
from fakes.agent_vm import AgentVm, assignment, pack
from fakes.fake_master import VM, FakeMaster, bundle_hash
from spothop.wire import Dialect, PolicyParams, StepsReport
from spothop_agent.watch.endpoint import POLL_S
from spothop_master.clouds.local import metadata
from spothop_master.clouds.local.metadata.http import MetadataService

MARGIN_MS = 30.0
PERIOD_MS = {Dialect.AWS: 1000 * POLL_S, Dialect.AZURE: 1000 * POLL_S, Dialect.GCP: 0.0}
GRACE_S = 600.0
SETTLE_S, PHASE_S = 0.3, POLL_S
"""After a save, until the next notice: for commit and acknowledgement, and a random part on top."""
LOST_S = 10.0

TRAIN = """
import json, os, time
import spothop as sp
with open(os.environ["TIMES"], "w") as times:
    while True:
        with sp.step_context():
            time.sleep(0.004)
        if sp.check_save():
            print(time.monotonic(), file=times, flush=True)
            with open("ckpt.json", "w") as file:
                json.dump({}, file)
            sp.backup("ckpt.json")
"""
BUNDLE = pack({"train.py": TRAIN})


@dataclass(kw_only=True)
class TrainingVm:
    """One agent with its training process, and the endpoint that it watches."""

    dialect: Dialect
    service: MetadataService
    times: Path
    rng: random.Random
    started: float
    announced: int = 0

    async def one(self) -> float:
        """Announce a new event; milliseconds until `check_save()` was true."""
        await asyncio.sleep(SETTLE_S / 2)
        if self.dialect is Dialect.GCP and self.announced:  # a flag, not events: lower it first
            self.service.announce(None)
        await asyncio.sleep(SETTLE_S / 2 + self.rng.uniform(0, PHASE_S))
        self.announced += 1
        # the agent tells AWS's events apart by their time alone, which is in whole seconds
        deadline = self.started + GRACE_S + self.announced
        began = time.monotonic()
        self.service.announce(metadata.Announcement(f"event-{self.announced}", deadline))
        return 1000 * (await self._answered() - began)

    async def _answered(self) -> float:
        end = time.monotonic() + LOST_S
        while time.monotonic() < end:
            await asyncio.sleep(0.05)
            moments = self.times.read_text().splitlines()
            if len(moments) == self.announced:
                return float(moments[-1])
        raise RuntimeError(f"{self.dialect.value}: notice {self.announced} was never answered")


async def start(stack: AsyncExitStack, folder: Path, dialect: Dialect, seed: int) -> TrainingVm:
    """A VM that trains."""
    folder.mkdir()  # noqa: ASYNC240  a local disk
    times = folder / "times"
    machine = metadata.Machine(id=VM, name=VM, region="r", zone="z", vm="small", spot=True)
    service = MetadataService(
        metadata.dialect(dialect.value, token="t"), machine, acknowledged=lambda event: None
    )
    listener = socket.create_server(("127.0.0.1", 0))
    server = await service.listen(listener)
    stack.callback(server.close)
    stack.callback(service.announce, None)  # ends the long poll of an agent that is gone
    work = assignment(
        folder / "storage",
        bundle=bundle_hash(BUNDLE),
        env={"TIMES": str(times)},
        policy=PolicyParams(policy="none", grace_s=GRACE_S, release_before_s=3600.0),
    )
    master = stack.enter_context(FakeMaster(work, BUNDLE, sync_every_s=5.0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    vm = stack.enter_context(AgentVm(folder, master, metadata=url, dialect=dialect))
    vm.start()
    await asyncio.to_thread(master.wait_for, StepsReport, 60.0)
    rng = random.Random(seed)
    return TrainingVm(
        dialect=dialect, service=service, times=times, rng=rng, started=float(int(time.time()))
    )


async def measure(folder: Path, dialect: Dialect, *, vms: int, notices: int) -> list[float]:
    """Milliseconds of each notice."""
    async with AsyncExitStack() as stack:
        running = await asyncio.gather(
            *(start(stack, folder / f"{dialect.value}-{n}", dialect, n) for n in range(vms))
        )

        async def series(vm: TrainingVm, count: int) -> list[float]:
            return [await vm.one() for _ in range(count)]

        shares = [notices // vms + (n < notices % vms) for n in range(vms)]
        found = await asyncio.gather(*(series(*each) for each in zip(running, shares, strict=True)))
    await asyncio.sleep(0.2)  # the ended agents' connections close
    return [value for values in found for value in values]


def main() -> int:
    parser = argparse.ArgumentParser(description="From a notice to check_save() being true")
    parser.add_argument("--notices", type=int, default=200, help="notices a dialect")
    parser.add_argument("--vms", type=int, default=12, help="VMs side by side")
    options = parser.parse_args()
    rows, missed = [], []
    with tempfile.TemporaryDirectory() as folder:
        for dialect, period_ms in PERIOD_MS.items():
            found = asyncio.run(
                measure(Path(folder), dialect, vms=options.vms, notices=options.notices)
            )
            limit = period_ms + MARGIN_MS
            late = sum(value > limit for value in found)
            if late:
                missed.append(f"{dialect.value}: {late} of {len(found)} notices")
            rows.append(
                {
                    "dialect": dialect.value,
                    "median ms": quantile(found, 0.5),
                    "p99 ms": quantile(found, 0.99),
                    "worst ms": max(found),
                    "limit ms": limit,
                    "late": late,
                }
            )
    publish(
        "notice_latency",
        f"notice -> check_save() true, {options.notices} notices each",
        rows,
        notices=options.notices,
        vms=options.vms,
        target={"margin_ms": MARGIN_MS, "met": not missed},
    )
    print("  targets met" if not missed else f"  targets MISSED: {'; '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    assert live.ROOT  # its import puts the fakes on the path
    sys.exit(main())
