"""Masters that start in a moment: each is a copy, by fork(2), of a process that has imported all.

Importing the master is most of the CPU time of its start, and the end-to-end tests start forty. The
real start, `python -m spothop_master`, has tests beside (test_master_process and the demo). /proc
shows for such a master the environment of the process that it is a copy of.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
_PROGRAM = "from support import warm_master; warm_master.serve()"

_lock = threading.Lock()
_server: list[subprocess.Popen[str]] = []


class WarmMaster:
    """What `subprocess.Popen` is for a child of our own."""

    def __init__(self, arguments: Sequence[str], *, env: Mapping[str, str], log: Path) -> None:
        """Starts it in a session of its own; what it writes is appended to the log."""
        order = {"arguments": list(arguments), "env": dict(env), "log": str(log)}
        self.pid = int(_ask(order))
        self.returncode: int | None = None
        self._fd = os.pidfd_open(self.pid)  # we are not its parent

    def poll(self) -> int | None:
        self._over(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises `subprocess.TimeoutExpired`."""
        self._over(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("spothop_master", timeout or 0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._fd, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _over(self, within_s: float | None) -> None:
        if self.returncode is None and select.select([self._fd], [], [], within_s)[0]:
            self.returncode = int(_ask({"reap": self.pid}))
            os.close(self._fd)


def close() -> None:
    """End the process that makes the copies; what it has started goes on."""
    while _server:
        with _server.pop() as server:
            assert server.stdin is not None
            server.stdin.close()


def _ask(order: Mapping[str, Any]) -> str:
    with _lock:
        if not _server:
            path = {"PYTHONPATH": str(TESTS)}
            _server.append(
                subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, **path},  # noqa: TID251  with the marker of the tests
                    start_new_session=True,  # Ctrl-C reaches the tests alone
                )
            )
        stdin, stdout = _server[0].stdin, _server[0].stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(order) + "\n")
        stdin.flush()
        return stdout.readline()


def serve() -> None:
    """Import the master, then make copies that run it; until our input ends. See `_ask`."""
    gc.disable()
    import typer

    from spothop_master import program
    from spothop_master.clouds.local import driver  # noqa: F401  every master of the tests has it

    gc.freeze()  # what `spothop_master.__main__` does
    gc.enable()
    for line in sys.stdin:
        order = json.loads(line)
        if "reap" in order:
            answer = os.waitstatus_to_exitcode(os.waitpid(order["reap"], 0)[1])
        elif (answer := os.fork()) == 0:
            _become(order)
            typer.run(program.serve)  # raises SystemExit
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


def _become(order: Mapping[str, Any]) -> None:
    """What a new process would have."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for ours, its in ((null, 0), (log, 1), (log, 2)):
        os.dup2(ours, its)
    os.close(null)
    os.close(log)
    os.environ.clear()  # noqa: TID251  the environment is to be the one that was given
    os.environ.update(order["env"])  # noqa: TID251
    sys.argv = ["spothop_master", *order["arguments"]]
