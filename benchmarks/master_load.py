"""How many VMs one master carries: a real master, and the calls of a thousand agents that train.

The rows of the fleet are written straight into the database and a cloud that rests lists its VMs;
everything else is real: HTTP, reports with steps, metrics, commits and logs, the loops. The master
is held to one core and the agents to the others, so that its processor time is its own.

    python benchmarks/master_load.py --agents 1000 --training --seconds 60 --json
    python benchmarks/master_load.py --agents 5000 --every 15    heartbeats only
    python benchmarks/master_load.py --agents 500 --quiet       nobody calls: the loops alone
    python benchmarks/master_load.py --grow                      cost by the fleet's size
    python benchmarks/master_load.py --training --database postgresql --masters 2

With `postgresql` the server is one of our own that syncs nothing (see tests/support/postgres.py);
agents are spread over the masters, and no process is held to a core: figures of the processor are
those of all masters together, and those of the server beside them.

Targets: no sync missed and the 99th percentile under 250 ms; under 1 ms of processor per heartbeat
and 4 ms per sync with reports, whatever the fleet's size; notice to the request of the replacement
under 1 s with 100 notices in one second; 500 quiet jobs under 5 % of a core; under 500 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

from common import progress, publish, quantile
from load.agents import Plan
from load.fleet import Member, write
from load.serve import settings_of
from spothop_master.store import dialects
from spothop_master.store.db import Database
from spothop_master.store.schema import User

HERE = Path(__file__).resolve().parent
PROCESSES = 2
SETTLE_S = 3.0
"""Before anything is counted: the first look at every job, and the connections."""
TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run."""

    agents: int
    training: bool = False
    quiet: bool = False
    every_s: float = 5.0
    seconds: float = 60.0
    notices: int = 0
    url: str = ""
    masters: int = 1
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return "quiet" if self.quiet else "training" if self.training else "heartbeats"


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a run showed. Milliseconds of the master's processor, and of the agents' waiting."""

    agents: int
    syncs: int
    p50_ms: float
    p99_ms: float
    later_p99_ms: float
    """Of the syncs after the second round: without the rush that follows a start of the master."""
    missed: int
    cpu_ms_per_sync: float
    cpu_share: float
    """Of one core, over the whole run."""
    rss_mb: float
    notice_to_request_s: float | None
    """The slowest of all notices."""
    problems: list[str]
    masters: int = 1
    server_ms_per_sync: float | None = None
    """Of the database's server."""


def run(case: Case, server: int | None = None) -> Found:
    """`server` is the process id of the database's. Raises SystemExit when a master does not
    answer."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        homes = homes_of(Path(folder), case.masters)
        ports = [free_port() for _ in homes]
        progress(f"{case.agents} VMs, {case.kind}: writing their rows")
        fill(homes[0], ports[0], case)
        pids = [
            stack.enter_context(master(home, port, case))
            for home, port in zip(homes, ports, strict=True)
        ]
        progress(f"{case.seconds:.0f} s are measured")
        begin_at = time.monotonic() + 0.5 + SETTLE_S
        planned = plans(case, ports, begin_at)
        agents = [] if case.quiet else [agents_of(plan, case.masters) for plan in planned]
        time.sleep(max(0.0, begin_at - time.monotonic()))
        cpu_s, began = sum(map(processor_s, pids)), time.monotonic()
        server_s = tree_s(server) if server else 0.0
        time.sleep(max(0.0, begin_at + case.seconds - time.monotonic()))
        seen = [json.loads(agent.communicate()[0]) for agent in agents]
        cpu_s, took_s = sum(map(processor_s, pids)) - cpu_s, time.monotonic() - began
        server_s = tree_s(server) - server_s if server else 0.0
        requested = _requests_s(homes, seen, case)
        later_at = begin_at + 2 * case.every_s
        found = _found(case, seen, later_at, cpu_s, took_s, max(map(rss_mb, pids)), requested)
        per_sync = 1000 * server_s / max(1, found.syncs) if server else None
        return replace(found, masters=case.masters, server_ms_per_sync=per_sync)


def homes_of(folder: Path, count: int) -> list[Path]:
    """One for each master; the first has the files that all of them use."""
    if count == 1:
        return [folder]
    homes = [folder / str(number) for number in range(count)]
    for home in homes:
        home.mkdir(mode=0o700)
    return homes


def shared_of(home: Path, case: Case) -> dict[str, Any]:
    """Settings that are the same for all masters."""
    if case.masters == 1:
        return {}
    first = home.parent / "0"
    return {"key_file": str(first / "master.key"), "files": str(first)}


def _found(
    case: Case,
    seen: Sequence[dict[str, Any]],
    later_at: float,
    cpu_s: float,
    took_s: float,
    rss_mb: float,
    requested: float | None,
) -> Found:
    latencies = [value for one in seen for value in one["latencies_ms"]] or [0.0]
    asked = [pair for one in seen for pair in zip(one["began"], one["latencies_ms"], strict=True)]
    failed = [text for one in seen for text in one["failed"]]
    syncs = sum(len(one["latencies_ms"]) for one in seen)
    return Found(
        agents=case.agents,
        syncs=syncs,
        p50_ms=quantile(latencies, 0.5),
        p99_ms=quantile(latencies, 0.99),
        later_p99_ms=quantile([ms for at, ms in asked if at >= later_at] or [0.0], 0.99),
        missed=sum(one["late"] for one in seen) + len(failed),
        cpu_ms_per_sync=1000 * cpu_s / max(1, syncs),
        cpu_share=cpu_s / took_s,
        rss_mb=rss_mb,
        notice_to_request_s=requested,
        problems=sorted({*failed})[:5],
    )


def fill(home: Path, port: int, case: Case) -> None:
    settings = settings_of(home, port, case.url, case.settings)
    members = [Member(number=number) for number in range(case.agents)]
    now = datetime.now(timezone.utc)
    db = Database(settings.database_url)
    db.migrate()
    with db.begin() as session:
        dialects.be_patient(session.connection())  # a slow machine makes the rows for long
        owner = User(name="load", role="user", created_at=now)
        session.add(owner)
        session.flush()
        write(session, members, owner_id=owner.id, now=now)
    db.close()


@contextmanager
def master(home: Path, port: int, case: Case, log: IO[bytes] | None = None) -> Iterator[int]:
    """Its process id, once it answers. `log`: where its errors go."""
    more = {"silent_after_s": 1e6, "suspect_after_syncs": 10**6} if case.quiet else {}
    arguments = [str(home), str(port), str(case.agents), case.url]
    given = {"sync_every_s": case.every_s, **more, **shared_of(home, case), **case.settings}
    arguments.append(json.dumps(given))
    cores = {0} if case.masters == 1 else set()
    process = start("load.serve", arguments, cores=cores, errors=log)
    try:
        until = time.monotonic() + PATIENCE_S
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit("the master did not start")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        process.communicate()


def plans(case: Case, ports: Sequence[int], begin_at: float) -> list[Plan]:
    """Each process of agents speaks with one of the masters."""
    share = -(-case.agents // PROCESSES)
    return [
        Plan(
            port=ports[first // share % len(ports)],
            first=first,
            count=min(share, case.agents - first),
            every_s=case.every_s,
            begin_at=begin_at,
            end_at=begin_at + case.seconds,
            trains=case.training,
            logs=case.training,
            notices=min(case.notices // PROCESSES, share),
            notice_at=begin_at + case.seconds / 2,
        )
        for first in range(0, case.agents, share)
    ]


def agents_of(plan: Plan, masters: int = 1) -> subprocess.Popen[str]:
    cores = others() if masters == 1 else set()
    return start("load.agents", [json.dumps(asdict(plan))], cores=cores)


def others() -> set[int]:
    """The cores that are not the master's."""
    return {*range(1, os.cpu_count() or 1)}


def start(
    module: str, arguments: list[str], *, cores: set[int], errors: IO[bytes] | None = None
) -> subprocess.Popen[str]:
    """On these cores, where the machine has them."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=HERE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )
    if cores:
        os.sched_setaffinity(process.pid, cores)
    return process


def _requests_s(homes: Sequence[Path], seen: Sequence[dict[str, Any]], case: Case) -> float | None:
    """From each notice to the launch of its job's replacement; the slowest."""
    noticed = {job: at for one in seen for job, at in one["noticed"].items()}
    if not noticed:
        return None
    launched: dict[str, float] = {}
    for path in (home / "launches.jsonl" for home in homes):
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            told = json.loads(line)
            for value in told["tags"].values():
                launched.setdefault(value, told["at"])
    waits = [launched.get(job, float("inf")) - at for job, at in noticed.items()]
    return max(waits)


def processor_s(pid: int) -> float:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / TICKS


def tree_s(pid: int) -> float:
    """Of a process and of all below it."""
    below: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(path.read_text("ascii").rpartition(")")[2].split()[1])
            below.setdefault(parent, []).append(int(path.parent.name))
    total, left = 0.0, [pid]
    while left:
        each = left.pop()
        left += below.get(each, [])
        with suppress(OSError):
            total += processor_s(each)
    return total


def rss_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/openapi.json", timeout=5):
            return True
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def missed_targets(case: Case, found: Found) -> list[str]:
    """In words; empty when all are met."""
    limits = [
        ("missed", found.missed, 0),
        ("p99_ms", found.p99_ms, 250),
        ("rss_mb", found.rss_mb, 500),
    ]
    if case.quiet:
        limits.append(("cpu_share", found.cpu_share, 0.05))
    else:
        limits.append(("cpu_ms_per_sync", found.cpu_ms_per_sync, 4 if case.training else 1))
    if found.notice_to_request_s is not None:
        limits.append(("notice_to_request_s", found.notice_to_request_s, 1))
    return [f"{name} {value:.4g} (limit {limit})" for name, value, limit in limits if value > limit]


def grow(options: argparse.Namespace) -> list[Case]:
    """The same rate of calls from ever larger fleets: the cost of one should not change."""
    return [
        Case(agents=count, training=training, every_s=count / 100, seconds=20, url=options.url)
        for training in (False, True)
        for count in (100, 1000, 5000)
    ]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog="example: python benchmarks/master_load.py --agents 1000 --training --seconds 60",
    )
    parser.add_argument("--agents", type=int, default=1000, help="VMs, each with its job")
    parser.add_argument("--training", action="store_true", help="steps, metrics, commits and logs")
    parser.add_argument("--quiet", action="store_true", help="no agent calls: the loops alone")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two syncs of one")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long is measured")
    parser.add_argument("--notices", type=int, default=100, help="in one second, with --training")
    parser.add_argument("--grow", action="store_true", help="100, 1,000 and 5,000 VMs")
    parser.add_argument("--database-url", dest="url", default="", help="an empty database")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--masters", type=int, default=1, help="on one database (PostgreSQL)")
    parser.add_argument("--result", default="master_load", help="name of the file in results/")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser.parse_args(arguments)


def on_postgresql(case: Case) -> Found:
    """On a server of our own."""
    sys.path.insert(0, str(HERE.parent / "tests"))
    from support.postgres import Postgres

    server = Postgres.new()
    try:
        assert server._process is not None
        return run(replace(case, url=server.empty()), server._process.pid)
    finally:
        server.close()


def main() -> int:
    options = parse()
    cases = [
        Case(
            agents=options.agents,
            training=options.training,
            quiet=options.quiet,
            every_s=options.every,
            seconds=options.seconds,
            notices=min(options.notices, options.agents) if options.training else 0,
            url=options.url,
            masters=options.masters,
        )
    ]
    if options.grow:
        cases = grow(options)
    if options.database == "postgresql" and not options.url:
        results = [(case, on_postgresql(case)) for case in cases]
    else:
        results = [(case, run(case)) for case in cases]
    missed = [text for case, found in results for text in missed_targets(case, found)]
    if options.json:
        found = [asdict(one) for _, one in results]
        print(json.dumps(found if options.grow else found[0]))
        return 1 if missed else 0
    rows = [
        {"kind": case.kind}
        | {key: value for key, value in asdict(one).items() if key != "problems"}
        for case, one in results
    ]
    publish(options.result, "one master, its agents, one core", rows, missed=missed)
    for _, one in results:
        for problem in one.problems:
            print(f"  {problem}")
    print("  targets met" if not missed else f"  targets MISSED: {'; '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
