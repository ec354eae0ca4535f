"""What lies between agents and master: it forwards each call, and loses, delays, doubles, repeats
or spoils the next ones by order."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BEFORE = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding"})
"""Headers of one connection only."""
ANSWER_S = 30.0


class Line:
    """Listens on a port of its own; `strike` says what becomes of the next calls."""

    def __init__(self, port: int, to_port: int) -> None:
        self._orders: list[tuple[str, float]] = []
        self._lock = threading.Lock()
        self.to_port = to_port
        self._server = _Http(("127.0.0.1", port), _Handler)
        self._server.line = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def strike(self, kind: str, times: int, held_s: float) -> None:
        """The next `times` syncs, whoever sends them; see `schedule.LINE`."""
        with self._lock:
            self._orders += [(kind, held_s)] * times

    def next_order(self) -> tuple[str, float]:
        with self._lock:
            return self._orders.pop(0) if self._orders else ("", 0.0)

    def forward(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Raises OSError and HTTPException."""
        connection = http.client.HTTPConnection("127.0.0.1", self.to_port, timeout=ANSWER_S)
        try:
            connection.request(method, path, body=body, headers=dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()


Answer = tuple[int, list[tuple[str, str]], bytes]


def poisoned(body: bytes) -> bytes:
    """The same call, but the steps that it tells are impossible."""
    with suppress(ValueError):
        found: Any = json.loads(body)
        for report in found.get("reports", []):
            if report.get("kind") == "steps":
                report |= {"step": 2**63, "count": -1}
        return json.dumps(found).encode()
    return body


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    line: Line

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http

    def log_message(self, format: str, *args: object) -> None: ...

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        is_sync = self.path.endswith("/sync")
        kind, held_s = self.server.line.next_order() if is_sync else ("", 0.0)
        if kind == "lost":
            self.close_connection = True
            return
        if kind == "busy":
            self._answer((503, [("Retry-After", "0")], b"busy"))
            return
        if kind == "delayed":
            time.sleep(held_s)
        if kind == "poison":
            body = poisoned(body)
        try:
            answer = self._forward(body)
            if kind == "doubled":
                answer = self._forward(body)
        except (OSError, http.client.HTTPException):
            self.close_connection = True
            return
        if kind == "repeated":
            threading.Timer(held_s, self._again, [body]).start()
        if kind == "unanswered":
            self.close_connection = True
        elif kind == "garbled":
            self._answer((200, [("Content-Type", "text/html")], b"<html>welcome to our wifi"))
        else:
            self._answer(answer)

    def _forward(self, body: bytes) -> Answer:
        headers = {k: v for k, v in self.headers.items() if k.lower() not in BEFORE}
        return self.server.line.forward(self.command, self.path, headers, body)

    def _again(self, body: bytes) -> None:
        """An old message that comes once more, when newer ones are through."""
        with suppress(OSError, http.client.HTTPException):
            self._forward(body)

    def _answer(self, answer: Answer) -> None:
        status, headers, body = answer
        with suppress(OSError):
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in BEFORE:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_HEAD = _serve
