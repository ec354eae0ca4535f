"""A strict master for one VM, for tests of the agent: real HTTP, the wire's models, no database.

It refuses what the real one refuses (a used token, a wrong session, a gap in the sequence) and
keeps everything that it was told. `away` makes it drop connections, as a dead master does.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar
from urllib.parse import parse_qs, urlsplit

import httpx
from pydantic import ValidationError

from spothop.wire import (
    AnyDirective,
    AnyReport,
    Assignment,
    Envelope,
    Heartbeat,
    JoinReply,
    JoinRequest,
    LogReply,
    SyncReply,
    SyncRequest,
)
from support.waiting import WITHIN_S

T = TypeVar("T", bound=AnyReport)

JOIN_TOKEN = "join-token"
SESSION = "session-token"
VM = "vm-1"


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """An agent that is killed breaks its connections: not worth a traceback."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Stream(httpx.AsyncByteStream):
    """A body that is read as it comes."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body


class MasterScript:
    """What the master knows and answers, without a server: `transport` is the way to it."""

    def __init__(self, assignment: Assignment, bundle: bytes, *, sync_every_s: float = 0.2) -> None:
        self.assignment = assignment
        self.bundle = bundle
        self.sync_every_s = sync_every_s
        self.away = False
        self.over = False
        self.forgets = False
        """It knows no session any more."""
        self.joins = 0
        self.directives: list[AnyDirective] = []
        self.envelopes: list[Envelope] = []
        self.heartbeat = Heartbeat()
        self.logs: dict[int, bytearray] = {}
        self.refused: list[str] = []
        """What a correct agent never does."""
        self._changed = threading.Condition()

    @property
    def transport(self) -> httpx.MockTransport:
        """The same answers inside the process, for an agent with a virtual clock."""
        return httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if self.away:
            raise httpx.ConnectError("the master is away", request=request)
        path, query = request.url.path, request.url.query.decode()
        if request.method == "GET":
            known = path.rpartition("/")[2] == bundle_hash(self.bundle)
            if not known:
                return httpx.Response(404, text=_problem("no_such_bundle", path))
            return httpx.Response(200, stream=_Stream(self.bundle))
        authorization = request.headers.get("Authorization")
        if self.forgets:
            return httpx.Response(401, text=_problem("no_session", "this session is unknown"))
        status, body = self.post(path, query, request.content, authorization)
        return httpx.Response(status, text=body)

    # --- what tests ask -------------------------------------------------------------------------

    def reports(self, kind: type[T], attempt: int | None = None) -> list[T]:
        return [
            e.report
            for e in self.envelopes
            if isinstance(e.report, kind) and attempt in (None, e.attempt)
        ]

    def wait(self, condition: Callable[[], object], within_s: float = WITHIN_S) -> None:
        """Block until `condition` holds; it is looked at after everything that arrives, and in
        between, for what happens without the master."""
        deadline = time.monotonic() + within_s
        held = condition()
        while not held and time.monotonic() < deadline:
            with self._changed:
                self._changed.wait(0.05)
            held = condition()
        if not held:
            kinds = [e.report.kind for e in self.envelopes]
            raise AssertionError(
                f"not within {within_s} s; told so far: {kinds}; log: {self.log()}"
            )

    def wait_for(self, kind: type[T], within_s: float = WITHIN_S) -> T:
        self.wait(lambda: self.reports(kind), within_s)
        return self.reports(kind)[0]

    def log(self, attempt: int = 1) -> str:
        return self.logs.get(attempt, bytearray()).decode()

    # --- what the agent asks --------------------------------------------------------------------

    def post(
        self, path: str, query: str, body: bytes, authorization: str | None
    ) -> tuple[int, str]:
        try:
            if path == "/agent/v1/join":
                return self.join(JoinRequest.model_validate_json(body))
            if authorization != f"Bearer {SESSION}":
                return 401, _problem("no_session", "this session is unknown")
            if path == "/agent/v1/sync":
                return self.sync(SyncRequest.model_validate_json(body))
            if path == "/agent/v1/logs":
                asked = parse_qs(query)
                return self.append_log(int(asked["attempt"][0]), int(asked["offset"][0]), body)
        except ValidationError as error:
            self.refused.append(str(error))
            return 422, _problem("bad_request", str(error))
        return 404, _problem("no_such_path", path)

    def join(self, request: JoinRequest) -> tuple[int, str]:
        if request.token != JOIN_TOKEN or self.joins:
            return 401, _problem("bad_token", "this token is unknown or used")
        self.joins += 1
        reply = JoinReply(
            vm=VM, session=SESSION, sync_every_s=self.sync_every_s, assignment=self.assignment
        )
        return 200, reply.model_dump_json()

    def sync(self, request: SyncRequest) -> tuple[int, str]:
        if self.over:
            return 410, _problem("vm_is_over", "this VM is over")
        with self._changed:
            for envelope in request.reports:
                last = self.envelopes[-1].seq if self.envelopes else 0
                if envelope.seq > last + 1:
                    self.refused.append(f"gap: {envelope.seq} after {last}")
                elif envelope.seq == last + 1:
                    self.envelopes.append(envelope)
            self.heartbeat = request.heartbeat
            self._changed.notify_all()
            reply = SyncReply(
                ack_seq=self.envelopes[-1].seq if self.envelopes else 0,
                directives=self.directives,
                next_delay_s=self.sync_every_s,
            )
        return 200, reply.model_dump_json()

    def append_log(self, attempt: int, offset: int, data: bytes) -> tuple[int, str]:
        with self._changed:
            log = self.logs.setdefault(attempt, bytearray())
            if offset <= len(log):
                log += data[len(log) - offset :]
            self._changed.notify_all()
            return 200, LogReply(next_offset=len(log)).model_dump_json()


class FakeMaster(MasterScript):
    """Serve with `with FakeMaster(assignment, bundle) as master`."""

    def __init__(self, assignment: Assignment, bundle: bytes, *, sync_every_s: float = 0.2) -> None:
        super().__init__(assignment, bundle, sync_every_s=sync_every_s)
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FakeMaster:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def bundle_hash(bundle: bytes) -> str:
    return hashlib.sha256(bundle).hexdigest()


def _problem(error: str, message: str) -> str:
    return json.dumps({"error": error, "message": message, "hint": ""})


def _handler(master: FakeMaster) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(size)
            if master.away or len(body) < size:  # the agent was killed in the middle
                self.close_connection = True
                return
            path = urlsplit(self.path)
            authorization = self.headers.get("Authorization")
            self._answer(*master.post(path.path, path.query, body, authorization))

        def do_GET(self) -> None:
            if master.away:
                self.close_connection = True
                return
            name = self.path.rpartition("/")[2]
            if name != bundle_hash(master.bundle):
                self._answer(404, _problem("no_such_bundle", name))
                return
            self._send(200, "application/gzip", master.bundle)

        def _answer(self, status: int, body: str) -> None:
            self._send(status, "application/json", body.encode())

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Tests read reports, not access logs."""

    return Handler
