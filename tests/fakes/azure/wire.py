"""Calls as they come over HTTP, and answers as they go."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Answer = tuple[int, Any, dict[str, str]]
"""Status, content and headers."""
KINDS = (
    "virtualMachines",
    "disks",
    "skus",
    "versions",
    "usages",
    "networkInterfaces",
    "publicIPAddresses",
    "virtualNetworks",
    "userAssignedIdentities",
    "permissions",
    "values",
    "prices",
    "consoles",
)
"""Of what there is, by the last word of its type."""


@dataclass(frozen=True)
class Call:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    kind: str
    """Such as virtualMachines."""
    name: str
    rest: str
    """What follows the name."""

    @property
    def what(self) -> str:
        return f"{self.method} {self.kind}{'/' + self.rest if self.rest else ''}"


_PATH = re.compile(rf".*/({'|'.join(KINDS)})(?:/([^/]*))?(?:/([^/]*))?")


def read(method: str, target: str, headers: Mapping[str, str], body: bytes) -> Call:
    parts = urlsplit(target)
    found = _PATH.fullmatch(unquote(parts.path))
    kind, name, rest = (each or "" for each in found.groups()) if found else ("", "", "")
    query = {key: values[0] for key, values in parse_qs(parts.query).items()}
    lower = {key.lower(): value for key, value in headers.items()}
    return Call(method, parts.path, query, lower, body, kind, name, rest)


def handler(serve: Callable[[Call], Answer | None]) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # headers and body in one packet: else each answer waits for the ACK of one
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            call = read(self.command, self.path, dict(self.headers), body)
            answer = serve(call)
            if answer is None:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            status, content, headers = answer
            sent = content if isinstance(content, bytes) else b""
            if content is not None and not isinstance(content, bytes):
                sent = json.dumps(content).encode()
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_PUT = do_POST = do_DELETE = _serve

        def log_message(self, format: str, *args: object) -> None:
            """Not a line for each request."""

    return Handler
