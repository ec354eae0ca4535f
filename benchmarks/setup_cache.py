"""A job's second start with an environment of 1 GB: unpacked, beside running `setup:` again.

`setup:` makes a venv and installs wheels that lie on the same disk, so nothing is downloaded: pip
with a warm cache. Each wheel has a library of 75 MB, half of which does not shrink,
and 1,500 modules. The peer of the unpacking is `tar` with gzip at the level that we
use, one archive for each core, side by side. The S3 server is a fake one, in a process of its own.
Runs alternate, because the machine drifts; each run of `setup:` has five of the others. Figures are
medians, and ratios those of medians. `cpu_s` is of all processes but the S3 server: it says more
than the time where other work is on the machine.

Targets: a fifth of the time of `setup:`, from file:// and from S3; at least 0.8 of tar's rate.
Run: python benchmarks/setup_cache.py [--wheels 12] [--runs 3] [--directory DIR]
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from common import progress, publish

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from fakes.s3_server import S3Server
from spothop.storage import ObjectStore, open_store
from spothop.wire import StorageSpec
from spothop_agent.environment.manifest import Manifest
from spothop_agent.environment.shelf import Shelf
from spothop_agent.environment.tree import snapshot

FASTER, OF_TAR = 5.0, 0.8
MODULES, MODULE_LINES = 1500, 100
LIBRARY = 75_000_000
REPEATS = 5
KEY = "0" * 64
ENV = ".venv"


def wheel(folder: Path, number: int) -> None:
    """As pip takes it: modules, a library, and the list of both."""
    rng = random.Random(number)
    name = f"bench{number}"
    library = b"".join(
        rng.randbytes(250_000) + bytes([i % 256]) * 250_000 for i in range(LIBRARY // 500_000)
    )
    files = {f"{name}/library.so": library, f"{name}/__init__.py": b""}
    for module in range(MODULES):
        lines = (f"def f{i}(x): return x + {rng.randrange(10**6)}" for i in range(MODULE_LINES))
        files[f"{name}/part{module % 30}/m{module}.py"] = "\n".join(lines).encode()
    info = f"{name}-1.0.dist-info"
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = [f"{path},sha256={_digest(data)},{len(data)}" for path, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]).encode()
    target = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        for path, data in files.items():
            packed.writestr(path, data)


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def run_setup(work: Path, wheels: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", ENV], cwd=work, check=True)
    options = ["--no-index", "--find-links", str(wheels), "--disable-pip-version-check", "-q"]
    names = [path.name.partition("-")[0] for path in sorted(wheels.iterdir())]
    subprocess.run([f"{ENV}/bin/pip", "install", *options, *names], cwd=work, check=True)


def keep(store: ObjectStore, work: Path) -> Manifest:
    shelf = Shelf(store, "jobs/bench")
    keeping = shelf.begin(work, snapshot(work, [ENV], most_bytes=10**12), 1)
    keeping.send(lambda: None)
    manifest = keeping.manifest(KEY, [ENV], setup_s=0.0, made=0.0)
    assert shelf.publish(manifest)
    return manifest


def unpack(store: ObjectStore, work: Path) -> None:
    shelf = Shelf(store, "jobs/bench")
    found = shelf.find([KEY])
    assert found is not None
    shelf.unpack(found, work, still_wanted=lambda: None).place()


def tar_up(work: Path, archives: Path) -> None:
    """One archive for each core, of about the same size."""
    count = os.cpu_count() or 1
    folders = [path for path in (work / ENV).rglob("*") if path.is_dir() and not path.is_symlink()]
    listed = "\n".join(str(path.relative_to(work)) for path in [work / ENV, *folders])
    (archives.parent / "folders").write_text(listed)
    files = [path for path in (work / ENV).rglob("*") if path.is_symlink() or path.is_file()]
    files.sort(key=lambda path: -path.lstat().st_size)
    for number in range(count):
        names = "\0".join(str(path.relative_to(work)) for path in files[number::count])
        command = ["tar", "-I", "gzip -1", "-cf", str(archives / f"{number}.tgz")]
        options = ["-C", str(work), "--null", "--no-recursion", "-T", "-"]
        subprocess.run([*command, *options], input=names.encode(), check=True)


def untar(work: Path, archives: Path) -> None:
    for folder in (archives.parent / "folders").read_text().splitlines():
        os.makedirs(work / folder, exist_ok=True)  # two tars that make the same one may fail
    running = [
        subprocess.Popen(["tar", "-xzf", str(archive), "-C", str(work)])
        for archive in archives.iterdir()
    ]
    assert [process.wait() for process in running] == [0] * len(running)


def _serve(address: Any) -> None:
    with S3Server() as s3:
        address.send(s3.spec("s3://bucket/runs").model_dump())
        address.recv()


@contextlib.contextmanager
def s3_store() -> Iterator[ObjectStore]:
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(there,))
    server.start()
    try:
        yield open_store(StorageSpec.model_validate(here.recv()))
        here.send("over")
    finally:
        server.join(10)
        server.kill()


def timed(took: dict[str, list[float]], name: str, work: Path, action: Callable[[], None]) -> None:
    """Into an empty folder; what is written stays in memory, as on a VM that begins to train."""
    shutil.rmtree(work / ENV, ignore_errors=True)
    before, began = os.times(), time.perf_counter()
    action()
    took.setdefault(name, []).append(time.perf_counter() - began)
    after = os.times()
    took.setdefault(f"{name}_cpu", []).append(sum(after[:4]) - sum(before[:4]))


def measure(folder: Path, s3: ObjectStore, *, wheels: int, runs: int) -> dict[str, list[float]]:
    work, packed, archives = (folder / name for name in ("work", "wheels", "archives"))
    for each in (work, packed, archives):
        each.mkdir()
    for number in range(wheels):
        progress(f"wheel {number + 1} of {wheels}")
        wheel(packed, number)
    local = open_store(StorageSpec(url=(folder / "storage").as_uri()))
    run_setup(work, packed)
    took: dict[str, list[float]] = {"pack": []}
    for store in (local, s3):
        began = time.perf_counter()
        manifest = keep(store, work)
        took["pack"].append(time.perf_counter() - began)
    took["bytes"], took["stored"] = [float(manifest.size)], [float(manifest.stored)]
    took["files"] = [float(manifest.files)]
    tar_up(work, archives)
    for number in range(runs):
        progress(f"run {number + 1} of {runs}")
        timed(took, "setup", work, lambda: run_setup(work, packed))
        for _ in range(REPEATS):
            timed(took, "file", work, lambda: unpack(local, work))
            timed(took, "s3", work, lambda: unpack(s3, work))
            timed(took, "tar", work, lambda: untar(work, archives))
    return took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheels", type=int, default=12)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as folder, s3_store() as s3:
        took = measure(Path(folder), s3, wheels=options.wheels, runs=options.runs)

    def ratio(slow: str, fast: str) -> float:
        return statistics.median(took[slow]) / statistics.median(took[fast])

    rows = [
        {
            "what": what,
            "s": statistics.median(took[name]),
            "cpu_s": statistics.median(took[f"{name}_cpu"]),
            "times_setup": ratio("setup", name),
            "of_tar": ratio("tar", name),
        }
        for what, name in (
            ("setup: venv and pip, warm cache", "setup"),
            ("unpacked from file://", "file"),
            ("unpacked from S3 on loopback", "s3"),
            ("tar + gzip, one a core", "tar"),
        )
    ]
    size = {name: took.pop(name)[0] for name in ("bytes", "stored", "files")}
    title = f"second start, {size['bytes'] / 1e9:.2f} GB in {size['files']:.0f} files"
    publish(
        "setup_cache", title, rows, targets={"faster": FASTER, "of_tar": OF_TAR}, **size, took=took
    )
    met = min(ratio("setup", "file"), ratio("setup", "s3")) >= FASTER
    return 0 if met and ratio("tar", "file") >= OF_TAR else 1


if __name__ == "__main__":
    sys.exit(main())
