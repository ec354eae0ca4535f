"""Runs the VMs of an emulator: each that EC2 says runs is a process tree of this machine.

A thread looks ten times a second: a VM that runs now is started with the user data of its launch;
one that is noticed has the notice in its metadata service; one that ends is killed with everything
in it, and its disk wiped. What its guest does reaches the emulator: a shutdown, and the console.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from fakes.aws.fleet import Life, moment
from fakes.aws.server import Emulator

PROGRAM = Path(__file__).with_name("vm.py")
TESTS = Path(__file__).parents[2]
EVERY_S = 0.1
ROLE = "spothop-vm"


class Hosts:
    """Needs root and namespaces. `reach`: addresses of this machine that VMs reach."""

    def __init__(
        self,
        aws: Emulator,
        folder: Path,
        *,
        reach: Sequence[tuple[str, int]],
        marks: Mapping[str, str],
    ) -> None:
        """`marks` are variables by which the tests find processes that were left behind."""
        self._aws = aws
        self._folder = folder
        self._reach = list(reach)
        self._marks = dict(marks)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._over: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hosts", daemon=True)
        self.failed: list[BaseException] = []

    def __enter__(self) -> Hosts:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        for vm_id in list(self._running):
            self._end(vm_id)
        assert self.failed == []

    def told(self) -> str:
        """What the VMs said, for a test that failed."""
        logs = sorted(self._folder.glob("*/disk/*.log")) + sorted(self._folder.glob("*/host.log"))
        return "\n".join(f"--- {log}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)

    def _watch(self) -> None:
        while not self._stop.wait(EVERY_S):
            try:
                for life in self._aws.fleet.lives():
                    self._look(life)
            except BaseException as error:
                self.failed.append(error)
                raise

    def _look(self, life: Life) -> None:
        if life.id in self._over:
            return
        if life.state in ("shutting-down", "terminated"):
            self._over.add(life.id)
            self._end(life.id)
        elif life.state == "running" and life.id not in self._running:
            self._start(life)
        if life.id not in self._running:
            return
        folder = self._folder / life.id
        if life.noticed_at is not None and life.noticed_at <= self._aws.clock():
            _write(folder / "notice.json", json.dumps({"deadline": life.interrupted_at}))
        if life.rebalance_at is not None:
            since = f"{moment(life.rebalance_at):%Y-%m-%dT%H:%M:%SZ}"
            _write(folder / "rebalance.json", json.dumps({"noticeTime": since}))
        with suppress(FileNotFoundError):
            life.console = (folder / "disk" / "boot.log").read_text(errors="replace")
        if (folder / "disk" / "off").exists():
            self._aws.fleet.shut_down_from_inside(life.id)

    def _start(self, life: Life) -> None:
        folder = self._folder / life.id
        for name in ("disk", "bin"):
            (folder / name).mkdir(parents=True)
        (folder / "user-data").write_bytes(base64.b64decode(life.params["UserData"]))
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        for name in ("python3", "python", f"python{version}"):  # of an image with this Python
            (folder / "bin" / name).symlink_to(os.path.realpath(sys.executable))
        for name in ("shutdown", "poweroff"):
            program = folder / "bin" / name
            program.write_text("#!/bin/sh\ntouch /var/lib/spothop/off\n")
            program.chmod(0o755)
        told = {
            "id": life.id,
            "region": life.region,
            "zone": life.instance.placement.zone,
            "type": life.instance.instance_type,
            "spot": life.request is not None,
            "reach": self._reach,
            "role": ROLE,
            "credentials": self._credentials(life.id),
            "marks": self._marks,
        }
        _write(folder / "vm.json", json.dumps(told))
        with (folder / "host.log").open("wb") as log:
            self._running[life.id] = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._marks, "PYTHONPATH": str(TESTS)},  # noqa: TID251  handed on
            )

    def _credentials(self, vm_id: str) -> dict[str, str]:
        """What the profile of this VM gives it."""
        given: Any = self._aws.assume_role(ROLE, session=vm_id)
        return {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "LastUpdated": "2026-01-01T00:00:00Z",
            "AccessKeyId": given["AccessKeyId"],
            "SecretAccessKey": given["SecretAccessKey"],
            "Token": given["SessionToken"],
            "Expiration": given["Expiration"].strftime("%Y-%m-%dT%H:%M:%SZ"),
        }

    def _end(self, vm_id: str) -> None:
        """Process 1 of the VM dies with the process that is killed here, and all else with it."""
        process = self._running.pop(vm_id, None)
        if process is not None:
            process.kill()
            process.wait()
        shutil.rmtree(self._folder / vm_id / "disk", ignore_errors=True)


def _write(path: Path, content: str) -> None:
    aside = path.with_suffix(".new")
    aside.write_text(content)
    aside.rename(path)
