"""The real application over HTTP without sockets: fake cloud, fake time, no loops of its own."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Coroutine, Mapping
from concurrent.futures import Executor
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx

from fakes.fake_cloud import FakeClock, FakeCloud
from fakes.master_harness import Inline
from spothop.wire import SPEAKS, Problem, speaks
from spothop_master.app import create_app
from spothop_master.clouds.base import Cloud
from spothop_master.security import Role
from spothop_master.services import Services
from spothop_master.settings import MasterSettings
from spothop_master.store import users
from spothop_master.store.dialects import is_sqlite
from support.database import is_there, share_compiled, url_of, write_migrated

T = TypeVar("T")

BUNDLE = b"not really a tar.gz"
BUNDLE_SHA256 = hashlib.sha256(BUNDLE).hexdigest()


class HttpMaster:
    """Requests are made as user admin unless a `token` says otherwise ("" for none). Calls to the
    cloud happen at once, unless an `executor` is given."""

    def __init__(
        self,
        folder: Path,
        *,
        executor: Executor | None = None,
        clock: FakeClock | None = None,
        clouds: Mapping[str, Cloud] | None = None,
        ca: str = "",
        **settings: object,
    ) -> None:
        self.clock = clock or FakeClock()
        self.cloud = FakeCloud(clock=self.clock)
        own = {"home": folder / "home", "owner": "owner-1", "storage_roots": [folder]}
        own |= {"max_bundle_bytes": 1000, **settings}
        home = Path(str(own["home"]))
        home.mkdir(exist_ok=True)
        database = home / "master.db"
        if not is_there(database):
            write_migrated(database)  # the master finds nothing left to migrate
        self.settings = MasterSettings.model_validate({"database_url": url_of(database), **own})
        self.app = create_app(
            self.settings,
            {"fake": self.cloud} if clouds is None else dict(clouds),
            clock=self.clock,
            executor=executor or Inline(),
            loops=False,
            ca=ca,
        )
        self.services: Services = self.app.state.services
        share_compiled(self.services.db)
        self._shared = not is_sqlite(self.services.db.engine)
        if self._shared:  # it decides only where it is elected, by fake time
            self.services.elected._monotonic = self._seconds
            self.services.supervisor._elected = self.services.elected

    def __enter__(self) -> HttpMaster:
        self._loop = asyncio.new_event_loop()
        self._lifespan = self.app.router.lifespan_context(self.app)
        self.run(self._lifespan.__aenter__())
        self._elect()
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app, raise_app_exceptions=False),
            base_url="http://master",
        )
        self.admin = (self.settings.home / "admin.token").read_text().strip()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.run(self.http.aclose())
        self.run(self._lifespan.__aexit__(None, None, None))
        self._loop.close()

    def call(
        self, method: str, path: str, *, token: str | None = None, **more: Any
    ) -> httpx.Response:
        bearer = self.admin if token is None else token
        headers = {**({"Authorization": f"Bearer {bearer}"} if bearer else {})}
        headers.update(more.pop("headers", {}))
        self.http.cookies.clear()  # only those that the test gives
        return self.run(self.http.request(method, path, headers=headers, **more))

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.call("GET", path, **more)

    def post(self, path: str, **more: Any) -> httpx.Response:
        return self.call("POST", path, **more)

    def user(self, name: str, role: Role = Role.USER) -> str:
        """A new user's token."""
        token = f"token-of-{name}"
        now = self.clock()
        with self.services.db.begin() as session:
            user = users.add_user(session, name=name, role=role, now=now)
            users.add_token(session, user_id=user.id, token=token, name="test", now=now)
        return token

    def cookie(self, token: str | None = None) -> dict[str, str]:
        """The header of a browser that logged in."""
        answer = self.post("/login", token="", data={"token": token or self.admin})
        assert answer.status_code == 303, answer.text
        return {"Cookie": answer.headers["set-cookie"].partition(";")[0]}

    def upload(self, bundle: bytes = BUNDLE, *, token: str | None = None) -> str:
        """Its SHA-256."""
        sha256 = hashlib.sha256(bundle).hexdigest()
        self.call(
            "PUT", f"/api/v1/bundles/{sha256}", token=token, content=bundle
        ).raise_for_status()
        return sha256

    def submit(
        self, *, token: str | None = None, bundle: bytes = BUNDLE, **spec: Any
    ) -> dict[str, Any]:
        """The job's view."""
        body = {
            "spec": {"name": "mnist", "run": "python train.py", **spec},
            "bundle": self.upload(bundle, token=token),
            "token": uuid.uuid4().hex,
        }
        answer = self.post("/api/v1/jobs", json=body, token=token)
        assert answer.status_code == 201, answer.text
        view: dict[str, Any] = answer.json()
        return view

    def look(self, seconds: float = 0.0) -> None:
        """Let time pass, then one pass of the supervise loop."""
        self.clock.advance(seconds)
        self._elect()
        self.services.supervisor.run_once()

    def hears_others(self) -> None:
        """From now on it knows what other masters do. It has no thread that looks."""
        if self._shared:
            self.services.others._monotonic = lambda: 0.0
            self.services.others.look()

    def _elect(self) -> None:
        if self._shared:
            self.services.elected.turn()
            if not self.services.elected.holds("supervise"):  # its lease was over
                self.services.elected.turn()

    def _seconds(self) -> float:
        return (self.clock() - FakeClock().now).total_seconds()

    def joined(self, **spec: Any) -> HttpAgent:
        """A job is submitted, its VM runs, its agent has joined."""
        self.submit(**spec)
        for _ in range(4):
            self.look(1.0)
        agent = HttpAgent(self, self.cloud.launches[-1].user_data.token)
        agent.join()
        return agent

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)


class HttpAgent:
    """An agent that says what the test tells it to."""

    def __init__(self, master: HttpMaster, join_token: str) -> None:
        self.master = master
        self.join_token = join_token
        self.session = self.vm = self.job = ""
        self.seq = 0

    def join(self) -> dict[str, Any]:
        body = {"token": self.join_token, "agent_version": "1"}
        headers = {SPEAKS: speaks()}
        answer = self.master.call("POST", "/agent/v1/join", json=body, token="", headers=headers)
        assert answer.status_code == 200, answer.text
        reply: dict[str, Any] = answer.json()
        self.session, self.vm = reply["session"], reply["vm"]
        self.job = reply["assignment"]["job"]
        return reply

    def envelope(self, **report: object) -> dict[str, Any]:
        self.seq += 1
        return {"seq": self.seq, "age_s": 0.0, "attempt": 1, "report": report}

    def sync(self, *envelopes: dict[str, Any], **more: object) -> httpx.Response:
        body = self.body(*envelopes, **more)
        return self.master.post("/agent/v1/sync", json=body, token=self.session)

    def body(self, *envelopes: dict[str, Any], **more: object) -> dict[str, Any]:
        """Of a sync."""
        return {"protocol": 1, "vm": self.vm, "attempt": 1, "reports": list(envelopes), **more}

    def train(self, step: int) -> None:
        """Through preparation to this step."""
        told = self.sync(
            self.envelope(kind="prepared"),
            self.envelope(kind="fenced_in", n=1),
            self.envelope(kind="restored", step=0),
            self.envelope(kind="started", pid=7),
            self.envelope(kind="steps", step=step, count=step, step_s=0.5, load_s=0.0),
            self.envelope(kind="metrics", step=step, values={"loss": 1.25}),
        )
        assert told.json()["ack_seq"] == self.seq, told.text

    def post_log(self, data: bytes, *, offset: int, attempt: int = 1) -> httpx.Response:
        params = {"attempt": attempt, "offset": offset}
        return self.master.post("/agent/v1/logs", params=params, content=data, token=self.session)


def problem(answer: Any, status: int, error: str) -> Problem:
    """Every error says the fact, and nearly every one the way out."""
    assert answer.status_code == status, answer.text
    found = Problem.model_validate(answer.json())
    assert found.error == error, answer.text
    assert found.message
    assert found.hint
    return found
