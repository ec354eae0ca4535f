"""An HTTPS server on the loopback, with a certificate of an authority of its own."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

from spothop_master import tls

Answer = Callable[[str, str], bytes]
"""Method and path -> the body, with status 200."""


class TlsServer:
    def __init__(self, folder: Path, answer: Answer, names: tuple[str, ...] = ("127.0.0.1",)):
        self.certificates = tls.ensure(folder, names, now=datetime.now(timezone.utc))
        handler = type("Handler", (_Handler,), {"answer": staticmethod(answer)})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificates.chain)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"https://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> TlsServer:
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


class _Handler(BaseHTTPRequestHandler):
    answer: Answer

    def _respond(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = self.answer(self.command, self.path)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _respond

    def log_message(self, format: str, *args: object) -> None:
        pass
