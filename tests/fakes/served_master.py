"""A whole master behind a real socket, in a thread of the test; the test turns its cloud."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from fakes.fake_cloud import FakeClock, FakeCloud
from fakes.master_harness import Inline
from spothop_master import program, serving
from spothop_master.app import create_app
from spothop_master.clock import SteadyClock
from spothop_master.services import Services
from spothop_master.settings import MasterSettings
from support.database import url_of, write_migrated
from support.waiting import until


class RealClock(FakeClock):
    """For agents that are real."""

    def __init__(self) -> None:
        self._steady = SteadyClock()

    @property  # type: ignore[override]
    def now(self):  # type: ignore[no-untyped-def]
        return self._steady()


@dataclass(frozen=True, kw_only=True)
class ServedMaster:
    settings: MasterSettings
    services: Services
    cloud: FakeCloud
    url: str
    ca: str
    context: ssl.SSLContext


@contextmanager
def served_master(home: Path, **more: object) -> Iterator[ServedMaster]:
    """With TLS of its own, and no loops: the test calls them."""
    home.mkdir(exist_ok=True)
    write_migrated(home / "master.db")
    with program.listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        own = {"home": home, "owner": "o", "tls": "auto", "port": port, "storage_roots": [home]}
        own["database_url"] = url_of(home / "master.db")
        settings = MasterSettings.model_validate({**own, **more})
        clock = RealClock()
        cloud = FakeCloud(clock=clock, allocation_s=0.0)
        ca, context = serving.authority(settings, clock()), serving.context(settings, clock())
        assert context is not None
        clouds = {"fake": cloud}
        app = create_app(settings, clouds, clock=clock, executor=Inline(), loops=False, ca=ca)
        server = program.make_server(app, context)
        server.capture_signals = nullcontext  # type: ignore[method-assign]  # the main thread's
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            until(lambda: server.started, what="the master serves")
            yield ServedMaster(
                settings=settings,
                services=app.state.services,
                cloud=cloud,
                url=settings.public_url,
                ca=ca,
                context=context,
            )
        finally:
            server.should_exit = True
            thread.join()
