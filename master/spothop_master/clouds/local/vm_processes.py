"""The VM's first process as its supervisor sees it: made, given orders, killed with all below it.

With namespaces, process 1 makes the listening sockets inside the VM's network and hands them out
(SCM_RIGHTS): a socket stays in the network in which it was made, so the supervisor serves it from
outside, and no virtual cable has to be laid.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from urllib.parse import urlsplit

from spothop_master.clouds.local import namespaces
from spothop_master.clouds.local.disk import LOCK_FD
from spothop_master.clouds.local.init import START, STOP, AgentCommand, Init
from spothop_master.clouds.local.processes import descendants, kill_until_gone, reap
from spothop_master.clouds.local.view import View, become, enter

Address = tuple[str, int]

_log = logging.getLogger(__name__)


def master_address(url: str) -> Address | None:
    """Where the master listens; None when the URL does not say it by IPv4 address or localhost."""
    parts = urlsplit(url)
    host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname or ""
    try:
        socket.inet_pton(socket.AF_INET, host)
    except OSError:
        return None
    return host, parts.port or (443 if parts.scheme == "https" else 80)


class VmProcessesFailed(Exception):
    """The first process could not set itself up; its own words are in console.log."""


class VmProcesses:
    """Everything that runs in one VM."""

    def __init__(self, pid: int, orders: socket.socket) -> None:
        self._pid = pid
        self.orders = orders
        """Readable when the first process reports, or has died (end of stream)."""

    def start_agent(self) -> None:
        self._order(START)

    def stop_agent(self) -> None:
        self._order(STOP)

    def _order(self, order: bytes) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # dead: its reader sees that
            self.orders.send(order)

    def kill(self, *, within_s: float) -> list[int]:
        """SIGKILL everything; returns the processes that outlived the deadline (usually none). The
        end of a namespace's process 1 takes all of it along, and is over only then; nobody waits
        longer for that than the deadline: one in uninterruptible sleep would hold it up for ever.
        """
        if self._pid in _below_us():  # first: it would start the agent again
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        return kill_until_gone(_below_us, within_s=within_s)


def _below_us() -> list[int]:
    reap()
    return descendants(os.getpid())


def start(
    command: AgentCommand, *, namespaced: bool, listen: Sequence[Address], view: View | None = None
) -> tuple[VmProcesses, list[socket.socket]]:
    """Fork the first process; returns it and one listening socket per address.

    With a `view`, which needs namespaces, it runs as another user who sees that much. Without
    namespaces, the caller gets sockets of this machine. Raises VmProcessesFailed.
    """
    ours, theirs = socket.socketpair()
    supervisor = os.getpid()
    context = namespaces.children_in_new_pid_namespace() if namespaced else nullcontext()
    with context:
        pid = os.fork()
        if pid == 0:
            ours.close()
            where = listen if namespaced else None
            os._exit(_first_process(command, theirs, where, view, supervisor))
    theirs.close()
    processes = VmProcesses(pid, ours)
    if not namespaced:
        return processes, [socket.create_server(address) for address in listen]
    _, descriptors, _, _ = socket.recv_fds(ours, 16, len(listen))
    if len(descriptors) != len(listen):
        raise VmProcessesFailed("the VM's first process ended before it was set up")
    return processes, [socket.socket(fileno=fd) for fd in descriptors]


def _first_process(
    command: AgentCommand,
    orders: socket.socket,
    listen: Sequence[Address] | None,
    view: View | None,
    supervisor: int,
) -> int:
    """Body of the forked child; its exit code."""
    try:
        os.close(LOCK_FD)  # only the supervisor may hold the lock: it says that it lives
        os.chdir(command.directory)
        if listen is None:
            namespaces.adopt_orphans()
            if os.getppid() != supervisor:
                return 1
        else:
            namespaces.die_with_parent()
            _set_up(orders, listen, view)
            if view is not None:
                os.chdir(command.directory)  # as it is in the view
                become(view.uid)
                namespaces.die_with_parent()  # another user id has cleared it
        Init(command, orders).run()
    except Exception:  # whatever it is, the VM is over, and its log says why
        _log.exception("the VM's first process failed")
        return 1
    return 0


def _set_up(orders: socket.socket, listen: Sequence[Address], view: View | None) -> None:
    namespaces.enter_own_mounts_and_network()
    if view is not None:
        enter(view)
    hosts = {host for host, _ in listen if not host.startswith("127.")}
    for number, host in enumerate(sorted(hosts)):
        namespaces.add_loopback_address(number, host)
    listeners = [socket.create_server(address) for address in listen]
    socket.send_fds(orders, [b"L"], [listener.fileno() for listener in listeners])
    for listener in listeners:
        listener.close()


def serve_orders(
    processes: VmProcesses, *, quiet: Callable[[], None], dead: Callable[[], None]
) -> None:
    """Read the first process's reports once; call it when `processes.orders` is readable."""
    try:
        reports = processes.orders.recv(16)
    except ConnectionResetError:
        reports = b""
    if reports:
        quiet()
    else:
        dead()
