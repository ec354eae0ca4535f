"""Two thousand jobs that wait, beside a hundred that train.

A real master; nothing can be had of its cloud but what trains already. Jobs are submitted over
HTTP by one client, listed in pages, and cancelled, while the agents of `master_load.py` sync.

    python benchmarks/queued_jobs.py --jobs 2000 --agents 100 --json

Targets: a page of 50 under 50 ms at the 99th percentile, all cancelled within 30 s, no sync missed
and their 99th percentile under 250 ms throughout.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import httpx

import master_load
from common import progress, publish, quantile
from load.fleet import FULL

PAGES = 200
BUNDLE = b"no job of this comes to run"
PATIENCE_S = 600.0

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one run showed."""

    jobs: int
    agents: int
    submits_per_s: float
    page_p50_ms: float
    page_p99_ms: float
    """The first page and those behind it, while the jobs wait."""
    cancel_s: float
    """From the question until no job waits any more."""
    requests: int
    """To cancel them."""
    sync_p99_ms: dict[str, float]
    """Of the agents alone, beside the submits, the wait, and the cancelling."""
    missed: int
    """Syncs, in all of it."""
    core: dict[str, float]
    """The master's share of one, in each part."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """A part of the run."""

    name: str
    began: float
    ended: float
    core: float
    """The master's share of one, in it."""


class Watch:
    """What the agents see and what the master takes, part by part."""

    def __init__(self, case: master_load.Case, port: int, pid: int) -> None:
        self.pid, self.every_s, self.spans = pid, case.every_s, list[Span]()
        plans = master_load.plans(case, [port], time.monotonic() + 0.5)
        self.agents = [master_load.agents_of(plan) for plan in plans]
        time.sleep(0.5 + case.every_s)

    def during(self, name: str, work: Callable[[], T]) -> T:
        """What it finds; the part lasts as long as it does, and at least a turn of all agents."""
        progress(name)
        cpu_s, began = master_load.processor_s(self.pid), time.monotonic()
        found = work()
        took_s = time.monotonic() - began
        core = (master_load.processor_s(self.pid) - cpu_s) / took_s
        time.sleep(max(0.0, self.every_s - took_s))
        self.spans.append(Span(name=name, began=began, ended=time.monotonic(), core=core))
        return found

    def end(self) -> tuple[dict[str, float], int]:
        """99th percentile of the syncs in each part (ms), and all that were missed."""
        for agent in self.agents:
            agent.terminate()
        seen = [json.loads(agent.communicate()[0]) for agent in self.agents]
        for text in sorted({text for one in seen for text in one["failed"]})[:3]:
            print(f"  {text}", file=sys.stderr)
        syncs = [
            pair for one in seen for pair in zip(one["began"], one["latencies_ms"], strict=True)
        ]
        p99 = {
            span.name: quantile([ms for at, ms in syncs if span.began <= at < span.ended], 0.99)
            for span in self.spans
        }
        return p99, sum(one["late"] + len(one["failed"]) for one in seen)


def run(options: argparse.Namespace) -> Found:
    case = master_load.Case(agents=options.agents, training=True, seconds=3 * PATIENCE_S)
    with tempfile.TemporaryDirectory() as folder:
        home, port = Path(folder), master_load.free_port()
        master_load.fill(home, port, case)
        (home / FULL).touch()
        with master_load.master(home, port, case) as pid:
            token = (home / "admin.token").read_text(encoding="utf-8").strip()
            time.sleep(master_load.SETTLE_S)
            with httpx.Client(
                base_url=f"http://127.0.0.1:{port}/api/v1",
                headers={"Authorization": f"Bearer {token}"},
                timeout=60,
            ) as client:
                return _measure(options, case, client, port, pid)


def _measure(
    options: argparse.Namespace, case: master_load.Case, client: httpx.Client, port: int, pid: int
) -> Found:
    watch = Watch(case, port, pid)

    def rest() -> None:
        time.sleep(options.seconds)

    watch.during("alone", rest)
    rate = watch.during("submitting", lambda: _submit(client, options.jobs))
    watch.during("waiting", rest)
    pages = watch.during("paging", lambda: _pages(client))
    cancel_s, requests = watch.during("cancelling", lambda: _cancel(client))
    p99, missed = watch.end()
    return Found(
        jobs=options.jobs,
        agents=options.agents,
        submits_per_s=rate,
        page_p50_ms=quantile(pages, 0.5),
        page_p99_ms=quantile(pages, 0.99),
        cancel_s=cancel_s,
        requests=requests,
        sync_p99_ms=p99,
        missed=missed,
        core={span.name: span.core for span in watch.spans},
    )


def _submit(client: httpx.Client, count: int) -> float:
    """Jobs a second."""
    sha256 = hashlib.sha256(BUNDLE).hexdigest()
    client.put(f"/bundles/{sha256}", content=BUNDLE).raise_for_status()
    began = time.monotonic()
    for number in range(count):
        spec = {"name": f"waits-{number:04d}", "run": "python train.py"}
        body = {"spec": spec, "bundle": sha256, "token": uuid.uuid4().hex}
        client.post("/jobs", json=body).raise_for_status()
    return count / (time.monotonic() - began)


def _pages(client: httpx.Client) -> list[float]:
    """Milliseconds of each, from page to page."""
    took_ms, cursor = [], None
    for _ in range(PAGES):
        began = time.monotonic()
        answer = client.get("/jobs", params={"cursor": cursor} if cursor else {})
        took_ms.append((time.monotonic() - began) * 1000)
        cursor = answer.raise_for_status().json()["next"]
    return took_ms


def _cancel(client: httpx.Client) -> tuple[float, int]:
    """Seconds until none of them lives, and requests to say so."""
    began, requests, left = time.monotonic(), 0, 1
    while left:
        reply = client.post("/cancellations", json={"name": "waits"}).raise_for_status().json()
        requests, left = requests + 1, reply["left"]
    while True:
        counts = client.get("/jobs", params={"name": "waits", "limit": 1}).json()["counts"]
        if set(counts) == {"cancelled"}:
            return time.monotonic() - began, requests
        if time.monotonic() - began > PATIENCE_S:
            raise SystemExit(f"not cancelled: {counts}")
        time.sleep(0.2)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0, help="of the parts without work")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser.parse_args(arguments)


def missed_targets(found: Found) -> list[str]:
    limits = [
        ("page_p99_ms", found.page_p99_ms, 50.0),
        ("cancel_s", found.cancel_s, 30.0),
        ("missed", found.missed, 0),
        *((f"sync_p99_ms {name}", value, 250.0) for name, value in found.sync_p99_ms.items()),
    ]
    return [f"{name} {value:.4g} (limit {limit})" for name, value, limit in limits if value > limit]


def main() -> int:
    options = parse()
    found = run(options)
    missed = missed_targets(found)
    if options.json:
        print(json.dumps(asdict(found)))
    else:
        row = asdict(found)
        for what in ("sync_p99_ms", "core"):
            row |= {f"{what} {name}": value for name, value in row.pop(what).items()}
        rows = [{"what": name, "value": value} for name, value in row.items()]
        publish("queued_jobs", "jobs that wait beside VMs that train", rows, missed=missed)
        print("  targets met" if not missed else f"  targets MISSED: {'; '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
