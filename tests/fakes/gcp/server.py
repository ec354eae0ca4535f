"""The fake of Compute Engine over HTTP, for masters in another process, with tokens for the key of
a service account (https://developers.google.com/identity/protocols/oauth2/service-account)."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs

from fakes.gcp.compute import Cut, Gce

MASTER = "spothop-master@my-project.iam.gserviceaccount.com"
JWT_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class GceServer:
    """`gce` on a port of loopback."""

    def __init__(self, gce: Gce) -> None:
        self.gce = gce
        self._server = _Http(("127.0.0.1", 0), _Handler)
        self._server.gce = gce
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    def __enter__(self) -> GceServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def write_key(self, file: Path) -> dict[str, str]:
        """The key of the master's service account; variables by which Google's programs find it."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa

        private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        key = {
            "type": "service_account",
            "project_id": "my-project",
            "private_key_id": "1",
            "private_key": pem.decode(),
            "client_email": MASTER,
            "client_id": "1",
            "token_uri": f"{self.endpoint}/token",
        }
        file.write_text(json.dumps(key))
        return {"GOOGLE_APPLICATION_CREDENTIALS": str(file)}


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    gce: Gce

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http
    wbufsize = -1

    def log_message(self, format: str, *args: object) -> None: ...

    def _serve(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            if self.path == "/token":
                status, body, headers = self._token(content)
            else:
                given = {name.lower(): value for name, value in self.headers.items()}
                status, body, headers = self.server.gce.answer(
                    self.command, self.path, given, content
                )
        except Cut:
            self.close_connection = True
            return
        sent = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Type": "application/json"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def _token(self, content: bytes) -> tuple[int, Any, dict[str, str]]:
        form = parse_qs(content.decode())
        if form.get("grant_type") != [JWT_GRANT] or _issuer(form["assertion"][0]) != MASTER:
            return 400, {"error": "invalid_grant"}, {}
        token = min(self.server.gce.tokens)
        return 200, {"access_token": token, "expires_in": 3600, "token_type": "Bearer"}, {}

    do_GET = do_POST = do_DELETE = _serve


def _issuer(assertion: str) -> str:
    claims = assertion.split(".")[1]
    return str(json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["iss"])
