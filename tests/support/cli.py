"""The `spothop` program as a user runs it: a process of its own, with what it prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.machine import Machine

PROGRAM = Path(sys.executable).with_name("spothop")


def spothop(
    machine: Machine,
    *arguments: str | Path,
    url: str | None = None,
    token: str | None = None,
    cwd: Path | None = None,
    timeout_s: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run one command against this machine's master, or against what `url` and `token` say."""
    environment = machine.environment() | {
        "SPOTHOP_URL": url or machine.url,
        "SPOTHOP_TOKEN": machine.token if token is None else token,
        "SPOTHOP_HOME": str(machine.folder / "home"),
        "COLUMNS": "200",
    }
    return subprocess.run(
        [PROGRAM, *map(str, arguments)],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
