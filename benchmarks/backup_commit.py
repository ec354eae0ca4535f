"""From `backup()` to the commit on `file://`, beside a plain copy + fsync of the same file.

    python benchmarks/backup_commit.py [--mb 500] [--runs 7] [--directory DIR]

Both are timed alternately in one run, because disks drift; the target is at most 1.6 times the copy
(median of the ratios of neighbours). Peak memory is that of a fresh process that uploads the file
once, less that of one that only imports the same modules. Prints a table and writes
`benchmarks/results/backup_commit.json`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from spothop.checkpoints import Chain, upload
from spothop.storage import open_store
from spothop.wire import SaveKind, StorageSpec

RESULTS = Path(__file__).parent / "results" / "backup_commit.json"
TARGET = 1.6
MEMORY_TARGET_MB = 150
MB = 1_000_000

_CHILD = """
import sys
from pathlib import Path
from spothop.checkpoints import upload
from spothop.storage import open_store
from spothop.wire import SaveKind, StorageSpec
if sys.argv[1]:
    store = open_store(StorageSpec(url=sys.argv[2]))
    upload(store, "memory", 1, 1, SaveKind.PERIODIC, Path(sys.argv[1]))
print(next(l.split()[1] for l in open("/proc/self/status") if l.startswith("VmHWM")))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=500, help="size of the file in MB (10^6 bytes)")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--directory", type=Path, help="a folder on the disk to measure")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="spothop-bench-") as folder:
        result = measure(Path(folder), size=options.mb * MB, runs=options.runs)
    report(result)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    missed = result["median_ratio"] > TARGET or result["peak_rss_mb"] > MEMORY_TARGET_MB
    return 1 if missed else 0


def measure(folder: Path, *, size: int, runs: int) -> dict[str, Any]:
    source = folder / "ckpt.pt"
    write_random(source, size)
    store = open_store(StorageSpec(url=(folder / "store").as_uri()))
    chain = Chain(store, "bench")
    chain.fence(1)
    copies, backups, hashes = [], [], []
    copy_and_sync(source, folder / "copy")  # the first one pays for cold caches
    for step in range(1, runs + 1):
        copies.append(copy_and_sync(source, folder / "copy"))
        backups.append(back_up(chain, source, step))
        hashes.append(hash_only(source))
    ratios = [backup / copy for backup, copy in zip(backups, copies, strict=True)]
    idle = peak_rss_mb("", "")
    return {
        "file_mb": size / MB,
        "runs": runs,
        "copy_fsync_s": copies,
        "backup_commit_s": backups,
        "sha256_alone_s": hashes,
        "median_copy_fsync_s": statistics.median(copies),
        "median_backup_commit_s": statistics.median(backups),
        "median_sha256_alone_s": statistics.median(hashes),
        "median_ratio": statistics.median(ratios),
        "target_ratio": TARGET,
        "peak_rss_mb": peak_rss_mb(str(source), (folder / "memory").as_uri()),
        "idle_rss_mb": idle,
        "target_rss_mb": MEMORY_TARGET_MB,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
    }


def write_random(path: Path, size: int) -> None:
    block = os.urandom(8 * MB)
    with path.open("wb") as file:
        for start in range(0, size, len(block)):
            file.write(block[: size - start])
        os.fsync(file.fileno())


def copy_and_sync(source: Path, target: Path) -> float:
    began = time.perf_counter()
    shutil.copyfile(source, target)
    handle = os.open(target, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
    took = time.perf_counter() - began
    target.unlink()
    return took


def back_up(chain: Chain, source: Path, step: int) -> float:
    """Upload and commit; the data is deleted afterwards, as it is after the copy."""
    began = time.perf_counter()
    files = upload(chain.store, chain.job, 1, step, SaveKind.PERIODIC, source)
    chain.commit(
        1, step=step, kind=SaveKind.PERIODIC, files=files, root=source.name, is_dir=False, meta={}
    )
    took = time.perf_counter() - began
    chain.store.delete([record.key for record in files])
    return took


def hash_only(source: Path) -> float:
    """The floor on one core: SHA-256 of the same bytes, read from the page cache."""
    began = time.perf_counter()
    digest = hashlib.sha256()
    with source.open("rb", buffering=0) as file:
        while block := file.read(1 << 21):
            digest.update(block)
    return time.perf_counter() - began


def peak_rss_mb(source: str, url: str) -> float:
    answer = subprocess.run(
        [sys.executable, "-c", _CHILD, source, url], check=True, capture_output=True, text=True
    )
    return int(answer.stdout) * 1024 / MB


def report(result: dict[str, Any]) -> None:
    rows = [
        ("copy + fsync", "median_copy_fsync_s", "s"),
        ("SHA-256 alone", "median_sha256_alone_s", "s"),
        ("backup + commit", "median_backup_commit_s", "s"),
        ("ratio to the copy", "median_ratio", f"(target at most {TARGET})"),
        ("peak memory of the process", "peak_rss_mb", f"MB (target under {MEMORY_TARGET_MB})"),
        ("of that, imports", "idle_rss_mb", "MB"),
    ]
    print(f"{result['file_mb']} MB on file://, median of {result['runs']}")
    for label, key, unit in rows:
        print(f"  {label:<28}{result[key]:>9.3f} {unit}")


if __name__ == "__main__":
    sys.exit(main())
