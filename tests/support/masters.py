"""Several real masters on one PostgreSQL, with something in front that finds one that lives."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from spothop.sdk.client import Client
from support import database
from support.machine import Machine
from support.ports import free_port
from support.waiting import until
from support.warm_master import WarmMaster


class Front:
    """Forwards each connection to the next master in turn that accepts it."""

    def __init__(self, port: int, masters: list[int]) -> None:
        self._port = port
        self._turns = itertools.cycle(masters)
        self._count = len(masters)
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="front")
        self._thread.start()
        self._ready.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        serving = asyncio.start_server(self._forward, "127.0.0.1", self._port)
        server = self._loop.run_until_complete(serving)
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(self._count):
            with contextlib.suppress(OSError):
                there = await asyncio.open_connection("127.0.0.1", next(self._turns))
                await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))
                return
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.close()


class Masters(Machine):
    """`count` masters; users and VMs reach them through one address."""

    def __init__(self, folder: Path, *, count: int = 2, **options: Any) -> None:
        database.use(database.POSTGRESQL)
        super().__init__(folder, **options)
        self.ports = [free_port() for _ in range(count)]
        self.masters: list[WarmMaster | None] = [None] * count
        self._front = Front(self.port, self.ports)
        self._environment = {
            "SPOTHOP_MASTER_DATABASE_URL": database.url_of(self.home / "master.db"),
            "SPOTHOP_MASTER_PUBLIC_URL": self.url,
            "SPOTHOP_MASTER_KEY_FILE": str(folder / "master.key"),
            "SPOTHOP_MASTER_FILES": str(folder / "files"),
            "SPOTHOP_MASTER_STORAGE_URL": f"file://{folder}/storage",
        } | self._environment

    @property
    def token(self) -> str:
        [path] = self.folder.glob("master-*/admin.token")
        return path.read_text(encoding="utf-8").strip()

    def start(self) -> None:
        for number in range(len(self.ports)):
            self.start_one(number)
            self.answers(number)
        self._client = Client(self.url, self.token)

    def start_one(self, number: int) -> None:
        """Again or for the first time."""
        home = self.folder / f"master-{number}"
        home.mkdir(mode=0o700, exist_ok=True)
        url = f"http://127.0.0.1:{self.ports[number]}"
        self.masters[number] = WarmMaster(
            [
                *("--port", str(self.ports[number]), "--home", str(home)),
                *("--local-cloud", str(self.cloud_file)),
            ],
            env={**self.environment(), "SPOTHOP_MASTER_BESIDE_URL": url},
            log=self.master_log,
        )

    def answers(self, number: int) -> None:
        """Wait until it does."""
        master = self.masters[number]
        assert master is not None

        def ready() -> bool:
            assert master.poll() is None, f"the master ended:\n{self._master_tail()}"
            return self.ready(number) is not None

        until(ready, what="the master is ready", details=self._master_tail)

    def ready(self, number: int) -> Mapping[str, Any] | None:
        """What `/readyz` says; None while it does not answer with 200."""
        url = f"http://127.0.0.1:{self.ports[number]}/readyz"
        try:
            answer = httpx.get(url, timeout=10, trust_env=False)
        except httpx.TransportError:
            return None
        return dict(answer.json()) if answer.is_success else None

    def supervisor(self) -> int | None:
        """Which master runs the supervise loop, as one that lives says."""
        alive = [number for number, master in enumerate(self.masters) if master is not None]
        return self.loop_of("supervise", seen_by=alive[0]) if alive else None

    def loop_of(self, loop: str, *, seen_by: int) -> int | None:
        """Which master runs it, as this one says; None: nobody, or this one does not answer."""
        said = self.ready(seen_by)
        if said is None or said["loops"][loop] is None:
            return None
        return self.ports.index(int(said["loops"][loop]["master"].rpartition(":")[2]))

    def of(self, number: int) -> Client:
        """Users of one master, past what is in front."""
        return Client(f"http://127.0.0.1:{self.ports[number]}", self.token)

    def kill_one(self, number: int) -> None:
        master = self.masters[number]
        assert master is not None
        master.kill()
        master.wait()
        self.masters[number] = None

    def until_supervised(self, by: Callable[[int], bool]) -> float:
        """Seconds until a master for which this holds runs the supervise loop."""
        began = time.monotonic()
        until(
            lambda: (found := self.supervisor()) is not None and by(found),
            what="another master supervises",
            details=self._master_tail,
        )
        return time.monotonic() - began

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        for master in self.masters:
            if master is not None:
                master.send_signal(15)
        for number, master in enumerate(self.masters):
            if master is not None:
                master.wait(60)
                self.masters[number] = None

    def close(self) -> list[str]:
        left = super().close()
        self._front.close()
        return left
