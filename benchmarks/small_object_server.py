"""An S3 of one content for `small_files.py`: every key is there, and every answer takes a while.

Requests of one connection come one after the other, so a few lines of asyncio are enough, and cost
far less CPU than a real server would beside what is measured.
"""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection

HEAD = (
    'HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nETag: "e"\r\n'
    "Last-Modified: Sun, 22 Nov 2026 00:00:00 GMT\r\n\r\n"
)


class _Peer(asyncio.Protocol):
    def __init__(self, content: bytes, delay_s: float) -> None:
        head = HEAD.format(size=len(content)).encode()
        self._answers = {b"GET": head + content, b"HEA": head}
        self._delay_s = delay_s
        self._asked = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._asked += data
        while b"\r\n\r\n" in self._asked:
            request, _, self._asked = self._asked.partition(b"\r\n\r\n")
            loop = asyncio.get_running_loop()
            loop.call_later(self._delay_s, self._transport.write, self._answers[request[:3]])


def serve(told: Connection, content: bytes, delay_s: float) -> None:
    """Serve on loopback until killed; the port goes into `told`."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Peer(content, delay_s), "127.0.0.1", 0)
        told.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())
