"""The demo's own spothop: one master and one local cloud in a folder of their own, cleaned up."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import yaml

from spothop.sdk.client import Client

MARKER = "DEMO_RUN_OF_SPOTHOP"
"""Every process below inherits this variable and can be found. (SPOTHOP_* stops at the agent.)"""

ZONES = [
    # zone letter, USD an hour, dialect
    ("a", 0.21, "aws"),
    ("b", 0.22, "azure"),
    ("c", 0.23, "gcp"),
]

START_S = 300.0
"""The master is given so long to answer, while its process lives."""

END_S = 60.0
"""The master is given so long to end its VMs, and itself, in order."""

JUST_STARTED_S = 0.05
KILL_S = 5.0
"""A process that is still there so long after SIGKILL hangs in the kernel; we give up."""


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


def local_cloud(directory: Path, grace_s: Mapping[str, float]) -> dict[str, object]:
    """Three zones, one per metadata dialect, with its grace period in seconds. Prices are those of
    a small GPU VM, USD an hour."""
    return {
        "directory": str(directory),
        "environment": [MARKER],
        "pools": [
            {
                "region": "local-1",
                "zone": f"local-1{letter}",
                "vm": "small",
                "dialect": dialect,
                "price": price,
                "on_demand_price": 0.62,
                "grace_s": grace_s[dialect],
                "allocation_s": [0.2, 0.5],
                "boot_s": [0.2, 0.4],
            }
            for letter, price, dialect in ZONES
        ],
    }


class Machine:
    """A running master; leaving the context ends it, its VMs and everything below them."""

    def __init__(self, home: Path, *, grace_s: Mapping[str, float]) -> None:
        self.home = home
        self.grace_s = grace_s
        self.port = free_port()
        self.run_id = f"{os.getpid()}-{time.monotonic_ns()}"
        self._master: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def token_file(self) -> Path:
        return self.home / "master" / "admin.token"

    def __enter__(self) -> Machine:
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)
        cloud = self.home / "local-cloud.yaml"
        cloud.write_text(
            yaml.safe_dump(local_cloud(self.home / "cloud", self.grace_s)), encoding="utf-8"
        )
        with (self.home / "master.log").open("wb") as log:
            self._master = subprocess.Popen(
                [
                    *(sys.executable, "-m", "spothop_master", "--port", str(self.port)),
                    *("--home", str(self.home / "master"), "--local-cloud", str(cloud)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the demo alone; it ends the rest in order
                env=self._environment(),
            )
        return self

    def _environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SPOTHOP_")}
        return inherited | {MARKER: self.run_id, "SPOTHOP_MASTER_SYNC_EVERY_S": "1"}

    def client(self, *, deadline_s: float = START_S) -> Client:
        """A client of the master, once it answers."""
        until = time.monotonic() + deadline_s
        while time.monotonic() < until:
            if self._master is None or self._master.poll() is not None:
                break
            if self.token_file.exists() and listening(self.port):
                return Client(self.url, self.token_file.read_text(encoding="utf-8").strip())
            time.sleep(0.05)
        log = (self.home / "master.log").read_text(encoding="utf-8", errors="replace")
        raise DemoError(f"the master did not start; the end of its log:\n{log[-2000:]}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> int:
        """End everything; returns how many processes had to be killed by force."""
        if self._master is not None:
            self._master.terminate()
            try:
                self._master.wait(END_S)
            except subprocess.TimeoutExpired:
                self._master.kill()
                self._master.wait()
            self._master = None
        return self._kill_rest()

    def _kill_rest(self) -> int:
        """Kill what still carries our marker; a clean run leaves nothing."""
        killed: set[int] = set()
        until = time.monotonic() + KILL_S
        while left := self.processes() or self._processes_soon():  # one may start another
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed.update(left)
            if time.monotonic() > until:
                break
            time.sleep(0.02)
        return len(killed)

    def _processes_soon(self) -> list[int]:
        """One that a program was just started in shows no environment for some milliseconds."""
        time.sleep(JUST_STARTED_S)
        return self.processes()

    def processes(self) -> list[int]:
        """Process ids that carry this run's marker, the demo itself excluded."""
        marker = f"{MARKER}={self.run_id}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if marker in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except (PermissionError, FileNotFoundError, ProcessLookupError):
                continue
        return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0
