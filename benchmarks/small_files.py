"""Restore of 10,000 small files: ours, beside the sequence that it replaced, in the same run.

The old sequence asked for each file's size, then fetched it, four files at once, and synced each.
The store is a server of its own process on loopback that waits a little before each answer, as a
bucket does (Amazon names 100 to 200 ms for small objects); both speak to it through obstore. Runs
alternate, because the machine drifts; the old way gets a tenth of the files, and rates are
compared. CPU time is that of this process.

Target: at least 5 times the old rate (median of the ratios of neighbours).
Run: python benchmarks/small_files.py [--files 10000] [--runs 3] [--delay-ms 10] [--directory DIR]
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import publish
from small_object_server import serve
from spothop.checkpoints import Entry, FileRecord, restore
from spothop.storage import ObjectStore, open_store
from spothop.wire import StorageSpec

TARGET = 5.0
SIZE = 4096
FOLDERS = 100
OLD_AT_ONCE, OLD_SHARE = 4, 10


def entry_of(count: int) -> Entry:
    """All objects of the server have the same content."""
    sha256 = hashlib.sha256(b"x" * SIZE).hexdigest()
    files = tuple(
        FileRecord(f"{i % FOLDERS}/{i}", SIZE, sha256, f"jobs/b/data/1-1-periodic/a/{i}")
        for i in range(count)
    )
    return Entry(n=2, attempt=1, id="a", step=1, files=files, root="out", is_dir=True)


def ours(store: ObjectStore, entry: Entry, target: Path) -> None:
    found = restore(store, [entry], target)
    assert found.entry is entry, found.rejected


def old(store: ObjectStore, entry: Entry, target: Path) -> None:
    """As it was: two requests and one fsync a file."""
    for record in entry.files:
        (target / record.path).parent.mkdir(parents=True, exist_ok=True)

    def fetch(record: FileRecord) -> None:
        assert store.size(record.key) == record.size
        found = store.fetch(
            record.key, target / record.path, size=record.size, on_bytes=lambda count: None
        )
        assert found.sha256 == record.sha256

    with ThreadPoolExecutor(OLD_AT_ONCE) as pool:
        list(pool.map(fetch, entry.files))
    for name, _, _ in os.walk(target):
        descriptor = os.open(name, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def rates(
    work: Callable[[ObjectStore, Entry, Path], None], store: ObjectStore, count: int, folder: Path
) -> tuple[float, float]:
    """Files a second, and milliseconds of CPU a file."""
    with tempfile.TemporaryDirectory(dir=folder) as target:
        entry = entry_of(count)
        cpu, began = time.process_time(), time.perf_counter()
        work(store, entry, Path(target))
        took = time.perf_counter() - began
        return count / took, (time.process_time() - cpu) / count * 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--delay-ms", type=float, default=10.0, help="of each answer")
    parser.add_argument("--directory", type=Path, help="a folder on the disk to measure")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ready, told = context.Pipe(duplex=False)
    server = context.Process(
        target=serve, args=(told, b"x" * SIZE, options.delay_ms / 1000), daemon=True
    )
    server.start()
    endpoint = f"http://127.0.0.1:{ready.recv()}"
    store = open_store(
        StorageSpec(
            url="s3://bucket",
            options={"endpoint": endpoint, "allow_http": "true", "skip_signature": "true"},
        )
    )
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="spothop-bench-") as name:
        rates(ours, store, 100, Path(name))  # the first one pays for connections
        for run in range(1, options.runs + 1):
            before = rates(old, store, options.files // OLD_SHARE, Path(name))
            now = rates(ours, store, options.files, Path(name))
            rows.append(
                {
                    "run": run,
                    "old files/s": before[0],
                    "files/s": now[0],
                    "ratio": now[0] / before[0],
                    "old CPU ms/file": before[1],
                    "CPU ms/file": now[1],
                }
            )
    server.kill()
    ratio = statistics.median(row["ratio"] for row in rows)
    publish(
        "small_files",
        f"{options.files:,} files of {SIZE} bytes, {options.delay_ms:g} ms an answer",
        rows,
        files=options.files,
        delay_ms=options.delay_ms,
        ratio=ratio,
        target={"ratio_at_least": TARGET, "met": ratio >= TARGET},
    )
    print(f"  median ratio {ratio:.1f}, target at least {TARGET:g}")
    return 0 if ratio >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
