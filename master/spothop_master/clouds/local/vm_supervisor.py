"""One local VM's own process: ``python -m spothop_master.clouds.local.vm_supervisor <vm folder>``.

Detached from the master, which it outlives. It owns the VM's folder, delays, metadata endpoint and
kill timer, and at the end kills every process of the VM, wipes its disk and writes the final state.
The driver starts it with the VM's lock held on descriptor 3.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path

from spothop_master.clouds.local import metadata, namespaces, view, vm_processes
from spothop_master.clouds.local.disk import (
    LOCK_FD,
    VmFolder,
    VmSpec,
    read_json,
    timestamp,
    write_json,
)
from spothop_master.clouds.local.forward import forward
from spothop_master.clouds.local.init import AgentCommand
from spothop_master.clouds.local.metadata.http import MetadataService
from spothop_master.clouds.local.processes import descendants, kill_until_gone

METADATA = ("169.254.169.254", 80)
GRACEFUL_S = 0.8
"""From SIGTERM to the agent until SIGKILL to all, when the end was asked for."""
_KILL_S = 5.0
_KILL_TRIES = 10
"""After that, about a minute, what still lives is in uninterruptible sleep, and is given up."""
_WIPE_TRIES = 20

_log = logging.getLogger(__name__)


class VmSupervisor:
    """The life of one VM, from the request to the final state."""

    def __init__(
        self,
        folder: VmFolder,
        spec: VmSpec,
        processes: vm_processes.VmProcesses,
        listeners: Sequence[tuple[socket.socket, vm_processes.Address | None]],
    ) -> None:
        self._folder = folder
        self._spec = spec
        self._processes = processes
        self._listeners = listeners
        self._preemptions_seen = 0
        self._announced = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self._cause: asyncio.Future[tuple[str, str]] = loop.create_future()
        self._quiet = asyncio.Event()
        self._service = MetadataService(
            metadata.dialect(self._spec.dialect, token=self._spec.token),
            _machine(self._spec),
            acknowledged=lambda event: self._end("preempted", f"the VM acknowledged {event}"),
        )
        servers = [await self._serve(*listener) for listener in self._listeners]
        self._listen_for_orders()
        boot = asyncio.create_task(self._boot())
        boot.add_done_callback(self._booted)
        cause, detail = await self._cause
        boot.cancel()
        await self._finish(cause, detail)
        for server in servers:
            server.close()

    async def _serve(
        self, listener: socket.socket, target: vm_processes.Address | None
    ) -> asyncio.AbstractServer:
        if target is None:
            return await self._service.listen(listener)
        return await forward(listener, *target)

    def _listen_for_orders(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._end, "terminated", "SIGTERM")
        loop.add_signal_handler(signal.SIGINT, self._end, "terminated", "SIGINT")
        bell = os.open(self._folder.doorbell, os.O_RDWR | os.O_NONBLOCK)
        loop.add_reader(bell, self._answer_doorbell, bell)
        loop.add_reader(self._processes.orders, self._hear_init)
        self._read_control()  # what was asked for before the bell had a listener

    def _hear_init(self) -> None:
        vm_processes.serve_orders(self._processes, quiet=self._quiet.set, dead=self._processes_died)

    def _processes_died(self) -> None:
        asyncio.get_running_loop().remove_reader(self._processes.orders)
        self._quiet.set()
        self._end("failed", "the VM's first process died")

    def _answer_doorbell(self, bell: int) -> None:
        with suppress(BlockingIOError):
            os.read(bell, 4096)
        self._read_control()

    def _read_control(self) -> None:
        if not self._folder.control.exists():
            return
        control = read_json(self._folder.control)
        for notice_s in control["preemptions"][self._preemptions_seen :]:
            self._preemptions_seen += 1
            self._preempt(notice_s, announced_s=notice_s)
        if control["terminate"]:
            self._end("terminated", "asked for")

    async def _boot(self) -> None:
        requested = datetime.fromisoformat(self._spec.requested_at).timestamp()
        passed_s = max(time.time() - requested, 0.0)
        await asyncio.sleep(max(self._spec.allocation_s - passed_s, 0.0))
        if self._spec.fails:
            self._fail()
            return
        self._folder.write_state("running", running_at=timestamp(time.time()))
        if self._spec.script is not None:
            after_s = self._spec.script["after_s"] or 0.0
            asyncio.get_running_loop().call_later(
                after_s, self._preempt, self._spec.script["notice_s"]
            )
        await asyncio.sleep(self._spec.boot_s)
        self._processes.start_agent()

    def _fail(self) -> None:
        """The launch was accepted; now there is no capacity after all."""
        error = f"{self._spec.pool['zone']}: no capacity, after the launch was accepted"
        self._folder.write_state("pending", error=error)
        if self._spec.fails == "ends":
            self._end("failed", error)

    def _booted(self, boot: asyncio.Task[None]) -> None:
        if not boot.cancelled() and (error := boot.exception()) is not None:
            self._end("failed", f"it could not boot: {error}")

    def _preempt(self, notice_s: float | None, *, announced_s: float | None = None) -> None:
        """Announce the kill for `announced_s`, by default the promised time, and kill after
        `notice_s`, at most that. Only a script may kill earlier than was announced."""
        if self._cause.done():
            return
        grace_s = self._spec.grace_s
        notice_s = grace_s if notice_s is None else min(notice_s, grace_s)
        announced_s = grace_s if announced_s is None else min(announced_s, grace_s)
        if notice_s <= 0:
            self._end("preempted", "without notice")
            return
        if not self._announced:
            self._announced = True
            now = time.time()
            deadline = now + announced_s
            self._service.announce(metadata.Announcement(f"preempt-{self._spec.id}", deadline))
            state = read_json(self._folder.state)["state"]
            self._folder.write_state(
                state, notice_at=timestamp(now), announced_deadline=timestamp(deadline)
            )
        asyncio.get_running_loop().call_later(
            notice_s, self._end, "preempted", f"{notice_s:g} s after the notice"
        )

    def _end(self, cause: str, detail: str) -> None:
        """The first cause counts."""
        if not self._cause.done():
            self._cause.set_result((cause, detail))

    async def _finish(self, cause: str, detail: str) -> None:
        self._folder.write_state("stopping")
        if cause == "terminated":
            self._processes.stop_agent()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._quiet.wait(), GRACEFUL_S)
        for _ in range(_KILL_TRIES):
            if not (left := self._processes.kill(within_s=_KILL_S)):
                break
            _log.error("processes that SIGKILL does not end: %s", left)
            await asyncio.sleep(1.0)
        else:
            detail += f"; these processes do not end although they were killed: {left}"
        detail += await self._wipe()
        ended_at = timestamp(time.time())
        self._folder.write_state("terminated", cause=cause, detail=detail, ended_at=ended_at)
        _log.info("ended: %s, %s", cause, detail)

    async def _wipe(self) -> str:
        """Empty the disk; what to add to the final state when that failed."""
        for _ in range(_WIPE_TRIES):
            try:
                self._folder.wipe()
            except OSError as error:
                trouble = f"; disk not wiped: {error}"
                await asyncio.sleep(0.1)
            else:
                return ""
        return trouble


def _machine(spec: VmSpec) -> metadata.Machine:
    pool = spec.pool
    return metadata.Machine(
        id=spec.id,
        name=spec.user_data["vm"],
        region=pool["region"],
        zone=pool["zone"],
        vm=pool["vm"],
        spot=pool["spot"],
    )


def wants_namespaces(spec: VmSpec, master: vm_processes.Address | None) -> bool:
    """Raises VmProcessesFailed when isolation is insisted on and this machine gives none."""
    if spec.isolation == "processes":
        return False
    if spec.isolation == "users":
        return True  # the driver has tried it out
    possible = master is not None and namespaces.available()
    if spec.isolation == "namespaces" and not possible:
        raise vm_processes.VmProcessesFailed(
            "isolation: namespaces needs root with CAP_SYS_ADMIN and a master's URL with an IPv4 "
            f"address or localhost (it is {spec.user_data['master']}); hint: isolation: auto"
        )
    return possible


def _make_supervisor(folder: VmFolder, spec: VmSpec) -> VmSupervisor:
    master = vm_processes.master_address(spec.user_data["master"])
    namespaced = wants_namespaces(spec, master)
    folder.disk.mkdir(mode=0o700)
    seen = _view(folder, spec) if spec.isolation == "users" else None
    reach = "the metadata endpoint, the master and `forward` only" if namespaced else "everything"
    _log.info("namespaces: %s; the VM's network reaches %s", namespaced, reach)
    targets: list[vm_processes.Address | None] = [None]
    listen = [METADATA if namespaced else ("127.0.0.1", 0)]
    if namespaced and master is not None:
        carried = {master} | {("127.0.0.1", port) for port in spec.forward}
        targets += sorted(carried)
        listen += sorted(carried)
    config = folder.disk / "agent.json"
    environment = dict(os.environ)  # noqa: TID251  passed on to the agent, nothing is read
    command = AgentCommand(
        argv=[*spec.command, "--config", str(config)],
        environment=environment | (_own_places(seen, folder.disk) if seen is not None else {}),
        directory=folder.disk,
    )
    processes, listeners = vm_processes.start(
        command, namespaced=namespaced, listen=listen, view=seen
    )
    host, port = METADATA if namespaced else listeners[0].getsockname()
    own = {
        "metadata": f"http://{host}" if port == 80 else f"http://{host}:{port}",
        "directory": str(folder.disk / "agent"),
    }
    write_json(config, spec.user_data | own)
    if seen is not None:
        os.chown(config, seen.uid, seen.uid)
    return VmSupervisor(folder, spec, processes, list(zip(listeners, targets, strict=True)))


def _view(folder: VmFolder, spec: VmSpec) -> view.View:
    """What the VM sees, with all that is its own given to it. Raises OSError."""
    temporary = folder.disk / "tmp"
    for path in (temporary, folder.disk / "home"):
        path.mkdir(mode=0o700)
    writes = [folder.disk, *map(Path, spec.writes)]
    for path in writes:
        view.give(path, spec.uid)
    temporary.chmod(0o1777)
    view.compile_agent()
    return view.View(
        uid=spec.uid,
        hidden=[Path(path) for path in spec.hidden],
        needed=view.interpreter(),
        reads=[Path(path) for path in spec.reads],
        writes=writes,
        temporary=temporary,
    )


def _own_places(seen: view.View, disk: Path) -> dict[str, str]:
    """In place of those of the master's user."""
    name = {"USER": "spothop", "LOGNAME": "spothop"}
    return name | {"HOME": str(disk / "home"), "TMPDIR": str(seen.temporary)}


def main(path: str) -> int:
    """Supervise the VM of this folder to its end; the exit code."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(process)d %(name)s: %(message)s", force=True
    )
    os.set_inheritable(LOCK_FD, False)
    folder = VmFolder(Path(path))
    try:
        namespaces.adopt_orphans()
        asyncio.run(_make_supervisor(folder, folder.read_spec()).run())
    except Exception as error:  # whatever it is, no process and no disk stay behind
        _log.exception("the supervisor failed")
        kill_until_gone(partial(descendants, os.getpid()), within_s=_KILL_S)
        detail = str(error)
        try:
            folder.wipe()
        except OSError as trouble:
            detail += f"; disk not wiped: {trouble}"
        ended_at = timestamp(time.time())
        folder.write_state("terminated", cause="failed", detail=detail, ended_at=ended_at)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
