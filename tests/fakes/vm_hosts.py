"""Runs the VMs of an emulated cloud: each that it says runs is a process tree of this machine.

A thread looks ten times a second, at what its subclass says there is. A VM is what `vm_program` and
the cloud's own program make of a folder: `disk` (wiped at its end), `bin` (programs that its image
has), `user-data`, and `vm.json`, which says what it is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from typing_extensions import Self

TESTS = Path(__file__).parents[1]
EVERY_S = 0.1


class VmHosts:
    """Needs root and namespaces."""

    program: Path
    """Runs one VM, given its folder."""

    def __init__(
        self, folder: Path, *, reach: Sequence[tuple[str, int]], marks: Mapping[str, str]
    ) -> None:
        """`reach`: addresses of this machine that VMs reach; `marks` are variables by which the
        tests find processes that were left behind."""
        self._folder = folder
        self._reach = list(reach)
        self._marks = dict(marks)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._over: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hosts", daemon=True)
        self.failed: list[BaseException] = []

    def __enter__(self) -> Self:
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
        for name in list(self._running):
            self._end(name)
        assert self.failed == []

    def told(self) -> str:
        """What the VMs said, for a test that failed."""
        logs = sorted(self._folder.glob("*/disk/*.log")) + sorted(self._folder.glob("*/host.log"))
        return "\n".join(f"--- {log}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)

    # --- of each cloud --------------------------------------------------------------------------

    def lives(self) -> Iterable[Any]:
        """Every VM ever made."""
        raise NotImplementedError

    def name(self, life: Any) -> str:
        """Of its folder."""
        raise NotImplementedError

    def runs(self, life: Any) -> bool | None:
        """None: it is over."""
        raise NotImplementedError

    def described(self, life: Any) -> tuple[bytes, dict[str, Any]]:
        """Its user data, and what its program has to know."""
        raise NotImplementedError

    def look(self, life: Any, folder: Path) -> None:
        """At one that runs: what the cloud tells its guest, and what its guest did."""
        raise NotImplementedError

    # --- what all have in common ----------------------------------------------------------------

    def _watch(self) -> None:
        while not self._stop.wait(EVERY_S):
            try:
                for life in self.lives():
                    self._look(life)
            except BaseException as error:
                self.failed.append(error)
                raise

    def _look(self, life: Any) -> None:
        name = self.name(life)
        if name in self._over:
            return
        runs = self.runs(life)
        if runs is None:
            self._over.add(name)
            self._end(name)
        elif runs and name not in self._running:
            self._start(name, *self.described(life))
        if name in self._running:
            self.look(life, self._folder / name)

    def _start(self, name: str, user_data: bytes, told: dict[str, Any]) -> None:
        folder = self._folder / name
        for part in ("disk", "bin"):
            (folder / part).mkdir(parents=True)
        (folder / "user-data").write_bytes(user_data)
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        for python in ("python3", "python", f"python{version}"):  # of an image with this Python
            (folder / "bin" / python).symlink_to(os.path.realpath(sys.executable))
        for command in ("shutdown", "poweroff"):
            program = folder / "bin" / command
            program.write_text("#!/bin/sh\ntouch /var/lib/spothop/off\n")
            program.chmod(0o755)
        put(folder / "vm.json", json.dumps({**told, "reach": self._reach, "marks": self._marks}))
        with (folder / "host.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, str(self.program), str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._marks, "PYTHONPATH": str(TESTS)},  # noqa: TID251  handed on
            )

    def _end(self, name: str) -> None:
        """Process 1 of the VM dies with the process that is killed here, and all else with it."""
        process = self._running.pop(name, None)
        if process is not None:
            process.kill()
            process.wait()
        shutil.rmtree(self._folder / name / "disk", ignore_errors=True)


def put(path: Path, content: str) -> None:
    aside = path.with_suffix(".new")
    aside.write_text(content)
    aside.rename(path)
