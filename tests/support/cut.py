"""Between VMs and an address of this machine: it can cut one VM off, and let the others through.

Which VM a connection comes from says the kernel: /proc/net/tcp names the socket at its other end,
/proc/<pid>/fd who holds that, and every process of a local VM has the VM's id in its environment.
So the VMs must share this machine's network (`isolation: processes`).
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from spothop_master.clouds.local.disk import MARKER
from support.ports import free_port


class Cut:
    """Forwards each connection to `target` on 127.0.0.1, but for those of VMs that are cut off."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._off: dict[str, bool] = {}
        """VMs that are cut off; True: what they send vanishes, False: they are refused."""
        self._open: defaultdict[str, set[asyncio.StreamWriter]] = defaultdict(set)
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cut")

    def __enter__(self) -> Cut:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def off(self, vm: str, *, silent: bool = False) -> None:
        """From now on nothing of this VM gets through, not on open connections either."""
        self._off[vm] = silent
        if not silent:
            self._loop.call_soon_threadsafe(self._abort, vm)

    def on(self, vm: str) -> None:
        """As before; what hung meanwhile breaks."""
        del self._off[vm]
        self._loop.call_soon_threadsafe(self._abort, vm)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        serving = asyncio.start_server(self._forward, "127.0.0.1", self.port)
        server = self._loop.run_until_complete(serving)
        self._ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    def _abort(self, vm: str) -> None:
        for writer in self._open[vm]:
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        vm = vm_of(writer.get_extra_info("peername")[1], self.port)
        self._open[vm].add(writer)
        try:
            if self._off.get(vm) is False:
                writer.transport.abort()
                return
            with suppress(OSError):
                there, away = await asyncio.open_connection("127.0.0.1", self._target)
                await asyncio.gather(self._copy(vm, reader, away), self._copy(vm, there, writer))
        finally:
            self._open[vm].discard(writer)
            writer.close()

    async def _copy(
        self, vm: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if vm not in self._off:
                    writer.write(data)
                    await writer.drain()
        writer.close()


def vm_of(port: int, other: int) -> str:
    """The id of the VM whose socket on 127.0.0.1 has this port, connected to `other`; "" where it
    is no VM's, or gone."""
    ends = f"0100007F:{port:04X}", f"0100007F:{other:04X}"
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    held = {f"socket:[{line[9]}]" for line in sockets if (line[1], line[2]) == ends}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "environ").read_bytes().split(b"\0")
            vm = next((w for w in words if w.startswith(f"{MARKER}=".encode())), b"")
            if vm and held & {str(fd.readlink()) for fd in (process / "fd").iterdir()}:
                return vm.partition(b"=")[2].decode()
    return ""
