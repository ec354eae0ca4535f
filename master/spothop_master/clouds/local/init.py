"""The first process of a VM: starts the agent, restarts it when it dies, reaps every orphan.

Forked from the supervisor, so it costs no second interpreter. It obeys one-byte orders on a socket
pair, and reports with one byte; the end of the stream means that the supervisor is dead, and then
everything below ends too.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from spothop_master.clouds.local.processes import descendants, kill_until_gone, reap

START = b"S"
"""Order: the VM has booted, start the agent."""
STOP = b"T"
"""Order: SIGTERM to the agent, and no restart."""
QUIET = b"Q"
"""Report: after STOP, the agent has ended."""

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
HEALTHY_AFTER_S = 10.0
"""An agent that lived this long is restarted without pause, as if it were the first time."""

_RELEASED = 0
"""The agent's exit code when it has nothing more to do; any other one is a failure."""
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AgentCommand:
    """How the agent is started; its output goes where ours goes: to the VM's console."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    directory: Path


def pause_before_restart(failures: int) -> float:
    """Seconds to wait after this many failures in a row (1 is the first)."""
    return min(FIRST_PAUSE_S * 2.0 ** min(failures - 1, 16), LONGEST_PAUSE_S)


class Init:
    """The loop of process 1; `run` returns when the supervisor is dead and nothing is left."""

    def __init__(self, command: AgentCommand, orders: socket.socket) -> None:
        self._command = command
        self._orders = orders
        self._agent: int | None = None
        self._started_at = 0.0
        self._due: float | None = None
        self._failures = 0
        self._stopping = False

    def run(self) -> None:
        wake = _wake_on_children()
        sources: list[int] = [self._orders.fileno(), wake]
        while True:
            self._collect()
            if self._due is not None and time.monotonic() >= self._due:
                self._start()
            ready, _, _ = select.select(sources, [], [], self._patience())
            if wake in ready:
                os.read(wake, 4096)
            if self._orders.fileno() in ready and not self._obey():
                kill_until_gone(partial(_everything_below, os.getpid()), within_s=60.0)
                return

    def _patience(self) -> float | None:
        return None if self._due is None else max(self._due - time.monotonic(), 0.0)

    def _obey(self) -> bool:
        """Read orders; False when the supervisor is gone."""
        orders = self._orders.recv(16)
        if START in orders:
            self._due = time.monotonic()
        if STOP in orders:
            self._stopping, self._due = True, None
            if self._agent is None:
                self._orders.send(QUIET)
            else:
                os.kill(self._agent, signal.SIGTERM)
        return bool(orders)

    def _start(self) -> None:
        self._due = None
        self._started_at = time.monotonic()
        try:
            self._agent = os.posix_spawnp(
                self._command.argv[0],
                list(self._command.argv),
                dict(self._command.environment),
                file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
                setsid=True,
                setsigdef=_IGNORED,
            )
        except OSError as error:
            _log.error("the agent cannot be started: %s", error)
            self._plan_restart()
        else:
            _log.info("agent started, process %d", self._agent)

    def _collect(self) -> None:
        for pid, status in reap():
            if pid == self._agent:
                self._agent = None
                self._agent_ended(os.waitstatus_to_exitcode(status))

    def _agent_ended(self, code: int) -> None:
        if self._stopping:
            self._orders.send(QUIET)
        elif code == _RELEASED:
            _log.info("agent ended with code 0: it is released")
        else:
            _log.warning("agent ended with code %d", code)
            self._plan_restart()

    def _plan_restart(self) -> None:
        now = time.monotonic()
        if now - self._started_at >= HEALTHY_AFTER_S:
            self._failures = 0
        self._failures += 1
        self._due = now + pause_before_restart(self._failures)


def _everything_below(pid: int) -> list[int]:
    reap()
    return descendants(pid)


def _wake_on_children() -> int:
    """A descriptor that becomes readable when a child ends."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    wake, waker = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # the default would not write to the pipe
    return wake
