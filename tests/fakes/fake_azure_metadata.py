"""Azure's Scheduled Events for one VM, settable: `announce` a preemption, see it acknowledged.

Azure's, because it is the dialect that knows an acknowledgement. Source: "Azure Metadata Service:
Scheduled Events for Linux VMs".
"""

from __future__ import annotations

import json
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

NAME = "vm-1"


class FakeAzureMetadata:
    def __init__(self) -> None:
        self.events: list[dict[str, object]] = []
        self.acknowledged: list[str] = []
        self.compute: dict[str, str] = {}
        """Of the VM, beside its name."""
        self.tokens: dict[str, str] = {}
        """Of its one identity, by what they are for."""
        self.acknowledged_event = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def announce(self, event: str, in_s: float) -> None:
        """The kill comes `in_s` seconds from now (Azure names whole seconds)."""
        self.events.append(
            {
                "EventId": event,
                "EventType": "Preempt",
                "ResourceType": "VirtualMachine",
                "Resources": [NAME],
                "EventStatus": "Scheduled",
                "NotBefore": formatdate(time.time() + in_s, usegmt=True),
            }
        )

    def __enter__(self) -> FakeAzureMetadata:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _handler(metadata: FakeAzureMetadata) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/metadata/scheduledevents"):
                self._answer(200, {"DocumentIncarnation": 1, "Events": metadata.events})
            elif self.path.startswith("/metadata/instance/compute?"):
                self._answer(200, {"name": NAME, **metadata.compute})
            elif self.path.startswith("/metadata/instance"):
                self._answer(200, {"compute": {"name": NAME, **metadata.compute}})
            elif self.path.startswith("/metadata/identity/oauth2/token?"):
                wanted = parse_qs(urlsplit(self.path).query)["resource"][0]
                token = metadata.tokens.get(wanted)
                self._answer(200 if token else 400, {"access_token": token})
            else:
                self._answer(404, {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            metadata.acknowledged += [request["EventId"] for request in body["StartRequests"]]
            metadata.acknowledged_event.set()
            self._answer(200, {})

        def _answer(self, status: int, content: object) -> None:
            body = json.dumps(content).encode()
            if self.headers.get("Metadata") != "true":
                status = 400
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Tests read events, not access logs."""

    return Handler
