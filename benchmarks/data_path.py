"""Checkpoints to and from S3 on loopback, beside bare obstore: processor, memory, throughput.

    python benchmarks/data_path.py [--mb 500] [--runs 3] [--full] [--table NAME]

Targets: an upload takes at most 1.5 CPU-seconds per GB beyond the bare put of the same file, and
has at least 0.85 of its rate (both send it in parts); a restore takes at most 1.2 times the bare
get; both stay under 120 MB of memory (a fresh process each, getrusage and VmHWM); with 20 and 100
ms before each answer the upload reaches 0.85 of the best fixed setting of part size and number of
parts at once that keeps to the same memory.

The peers: `obstore.put(store, key, path)`, and `obstore.get(...).stream()` into a file, synced. The
first table is taken against moto's S3 server (extra `bench`), the second against the fault server
of the tests, because moto cannot delay. All runs alternate, because machines drift. Three settings
stand for the sweep; `--full` takes the whole of it, and 5 runs. Prints two tables, writes
`benchmarks/results/data_path.json` and `data_path_delay.json`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import obstore
import obstore.store

from common import publish
from spothop.checkpoints import Entry, FileRecord, restore, upload
from spothop.storage import RemoteStore
from spothop.storage.remote import BUDGET
from spothop.storage.window import Window
from spothop.wire import SaveKind

MB, MIB = 1_000_000, 1 << 20
CPU_TARGET, FETCH_TARGET, MEMORY_TARGET_MB, ADAPT_TARGET = 1.5, 1.2, 120, 0.85
RATE_TARGET = 0.85
DELAYS_S = (0.02, 0.1)
SHORT_SWEEP = ((4, 12), (8, 4), (8, 6))
FULL_SWEEP = tuple(
    (part, count)
    for part in (4, 8, 16)
    for count in (2, 3, 4, 6, 8, 12)
    if part * count * MIB <= BUDGET
)
"""Part size in MiB, and parts at once."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=500, help="size of the file in MB (10^6 bytes)")
    parser.add_argument("--runs", type=int)
    parser.add_argument("--directory", type=Path, help="where the file lies and is restored to")
    parser.add_argument("--full", action="store_true", help="5 runs, and the whole sweep")
    parser.add_argument("--table", choices=["obstore", "delay"], help="only this one")
    parser.add_argument("--child", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(*options.child)
    size, runs = options.mb * MB, options.runs or (5 if options.full else 3)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="spothop-bench-") as folder:
        source = Path(folder) / "ckpt.pt"
        block = os.urandom(8 * MB)
        with source.open("wb") as file:
            for start in range(0, size, len(block)):
                file.write(block[: size - start])
        missed = options.table != "delay" and beside_obstore(source, runs)
        if options.table != "obstore":
            missed |= with_delay(source, runs, FULL_SWEEP if options.full else SHORT_SWEEP)
    return 1 if missed else 0


# --- beside bare obstore --------------------------------------------------------------------------


def beside_obstore(source: Path, runs: int) -> bool:
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    kinds = ("put", "upload", "get", "restore")
    seen: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    with server("moto") as endpoint:
        for _ in range(runs):
            for kind in kinds:
                seen[kind].append(measure(kind, endpoint, source, digest))
    gb = source.stat().st_size / 1e9
    beyond = middle(
        u["cpu_s"] - p["cpu_s"] for u, p in zip(seen["upload"], seen["put"], strict=True)
    )
    rate = middle(
        p["wall_s"] / u["wall_s"] for u, p in zip(seen["upload"], seen["put"], strict=True)
    )
    ratio = middle(
        r["wall_s"] / g["wall_s"] for r, g in zip(seen["restore"], seen["get"], strict=True)
    )
    cpu_ratio = middle(
        r["cpu_s"] / g["cpu_s"] for r, g in zip(seen["restore"], seen["get"], strict=True)
    )
    rows = [
        {
            "what": kind,
            "cpu_s_per_gb": middle(one["cpu_s"] for one in seen[kind]) / gb,
            "wall_s": middle(one["wall_s"] for one in seen[kind]),
            "peak_rss_mb": max(one["peak_rss_mb"] for one in seen[kind]),
        }
        for kind in kinds
    ]
    publish(
        "data_path",
        f"{gb * 1000:.0f} MB against moto's S3 on loopback, median of {runs} in turns",
        rows,
        file_mb=gb * 1000,
        runs=runs,
        upload_cpu_s_per_gb_beyond_put=beyond / gb,
        target_upload_cpu_s_per_gb=CPU_TARGET,
        upload_rate_of_put=rate,
        target_upload_rate=RATE_TARGET,
        restore_wall_ratio_to_get=ratio,
        restore_cpu_ratio_to_get=cpu_ratio,
        target_restore_ratio=FETCH_TARGET,
        target_peak_rss_mb=MEMORY_TARGET_MB,
        load=os.getloadavg()[0],
    )
    peak = max(row["peak_rss_mb"] for row in rows if row["what"] in ("upload", "restore"))
    print(
        f"  upload: {rate:.2f} of the put's rate (target {RATE_TARGET}), {beyond / gb:.2f} CPU-s/GB"
        f" beyond it (target {CPU_TARGET}); restore:"
        f" {ratio:.2f} times the get's time, {cpu_ratio:.2f} times its CPU (target {FETCH_TARGET});"
        f" peak {peak:.0f} MB (target {MEMORY_TARGET_MB}); load {os.getloadavg()[0]:.1f}"
    )
    slow = rate < RATE_TARGET or ratio > FETCH_TARGET
    return slow or beyond / gb > CPU_TARGET or peak >= MEMORY_TARGET_MB


# --- with a delay before each answer --------------------------------------------------------------


def with_delay(source: Path, runs: int, sweep: tuple[tuple[int, int], ...]) -> bool:
    mb = source.stat().st_size / MB
    rows: list[dict[str, Any]] = []
    for delay_s in DELAYS_S:
        seen: dict[tuple[int, int], list[float]] = {setting: [] for setting in ((0, 0), *sweep)}
        with server("fake", str(delay_s)) as endpoint:
            for _ in range(runs):
                for part, count in seen:
                    found = measure("sized", endpoint, source, "", str(part), str(count))
                    seen[part, count].append(mb / found["wall_s"])
        rates = {setting: statistics.median(found) for setting, found in seen.items()}
        best = max(sweep, key=lambda setting: rates[setting])
        for (part, count), rate in rates.items():
            rows.append(
                {
                    "delay_ms": delay_s * 1000,
                    "parts": f"{part} MiB x {count}" if part else "adaptive",
                    "mb_per_s": rate,
                    "of_best_fixed": rate / rates[best],
                }
            )
    publish(
        "data_path_delay",
        f"upload of {mb:.0f} MB, delay before each answer, median of {runs} in turns",
        rows,
        file_mb=mb,
        runs=runs,
        budget_mib=BUDGET / MIB,
        target_of_best_fixed=ADAPT_TARGET,
        load=os.getloadavg()[0],
    )
    worst = min(row["of_best_fixed"] for row in rows if row["parts"] == "adaptive")
    print(f"  adaptive: {worst:.2f} of the best fixed setting at worst (target {ADAPT_TARGET})")
    return worst < ADAPT_TARGET


def middle(values: Iterator[float]) -> float:
    return statistics.median(list(values))


# --- in processes of their own --------------------------------------------------------------------


@contextmanager
def server(*arguments: str) -> Iterator[str]:
    """Its endpoint; it ends with the block."""
    command = [sys.executable, str(Path(__file__).resolve()), "--child", "serve", *arguments]
    running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert running.stdin is not None
    assert running.stdout is not None
    try:
        endpoint = running.stdout.readline().strip()
        if not endpoint:
            raise SystemExit("the S3 server did not start; hint: pip install 'spothop[bench]'")
        yield endpoint
    finally:
        running.stdin.close()
        running.wait()


def measure(kind: str, endpoint: str, source: Path, *more: str) -> dict[str, float]:
    command = [sys.executable, str(Path(__file__).resolve()), "--child", kind, endpoint]
    answer = subprocess.run(
        [*command, str(source), *more], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, float] = json.loads(answer.stdout)
    return found


def child(kind: str, *arguments: str) -> int:
    if kind == "serve":
        serve(*arguments)
        return 0
    endpoint, source, digest, *setting = arguments
    store = obstore.store.S3Store(
        "bench",
        endpoint=endpoint,
        region="us-east-1",
        access_key_id="key",
        secret_access_key="secret",
        client_options={"allow_http": True, "timeout": "120s"},
    )
    ours, file = RemoteStore(store, "s3://bench"), Path(source)
    began, used = time.perf_counter(), cpu_s()
    match kind:
        case "put":
            obstore.put(store, "bare", file)
        case "upload":
            send(ours, file)
        case "sized":
            part, count = (int(number) for number in setting)
            if part:
                window = lambda: Window(1 << 40, at_once=count, most=count)  # noqa: E731
                ours = RemoteStore(store, "s3://bench", part=part * MIB, window=window)
            send(ours, file)
        case "get":
            with file.with_name("get").open("wb") as out:
                for block in obstore.get(store, "bare").stream():
                    out.write(block)
                out.flush()
                os.fsync(out.fileno())
        case _:
            size = file.stat().st_size
            key = f"jobs/bench/data/1-1-periodic/x/{file.name}"
            record = FileRecord(file.name, size, digest, key, part=ours.part_size(size))
            entry = Entry(n=1, attempt=1, id="i", step=1, files=(record,), root="restored")
            restore(ours, [entry], file.parent)
    print(
        json.dumps(
            {
                "wall_s": time.perf_counter() - began,
                "cpu_s": cpu_s() - used,
                "peak_rss_mb": peak_rss_mb(),
            }
        )
    )
    return 0


def send(store: RemoteStore, file: Path) -> None:
    upload(store, "bench", 1, 1, SaveKind.PERIODIC, file, upload_id="x")


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_rss_mb() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / MB


def serve(kind: str, delay_s: str = "0") -> None:
    """Until standard input ends."""
    if kind == "moto":
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line per request otherwise
        moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        moto.start()
        host, port = moto.get_host_and_port()
        httpx.put(f"http://{host}:{port}/bench", timeout=30)
        print(f"http://{host}:{port}", flush=True)
        sys.stdin.read()
        os._exit(0)
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    from fakes.s3_server import S3Server

    with S3Server() as fake:
        fake.delay_s = float(delay_s)
        print(fake.endpoint, flush=True)
        sys.stdin.read()
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
