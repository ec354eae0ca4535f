"""The `spothop` program as a user runs it, with what it prints: as a process of its own, or in this
one, which takes a tenth of the time."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path

from spothop import cli
from spothop.cli.session import Session
from spothop.sdk.settings import read_settings
from support.machine import Machine
from support.waiting import WITHIN_S

PROGRAM = Path(sys.executable).with_name("spothop")


def spothop(
    machine: Machine,
    *arguments: str | Path,
    url: str | None = None,
    token: str | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run one command against this machine's master, or against what `url` and `token` say."""
    return subprocess.run(
        [PROGRAM, *map(str, arguments)],
        cwd=cwd,
        env=machine.environment() | _settings(machine, url, token),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
    )


def in_process(
    machine: Machine, *arguments: str | Path, url: str | None = None, token: str | None = None
) -> subprocess.CompletedProcess[str]:
    """The same, without a process: everything but reading the environment and `sys.argv`."""
    given = list(map(str, arguments))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(given, Session(settings=read_settings(_settings(machine, url, token))))
    return subprocess.CompletedProcess(given, code, out.getvalue(), err.getvalue())


def _settings(machine: Machine, url: str | None, token: str | None) -> dict[str, str]:
    return {
        "SPOTHOP_URL": url or machine.url,
        "SPOTHOP_TOKEN": machine.token if token is None else token,
        "SPOTHOP_HOME": str(machine.folder / "home"),
        "COLUMNS": "200",
    }
