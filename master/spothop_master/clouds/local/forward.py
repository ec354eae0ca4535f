"""Carries TCP connections of a VM out of its network namespace to one address of this machine."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress


async def forward(listener: socket.socket, host: str, port: int) -> asyncio.AbstractServer:
    """Serve the listener: each connection is continued to `host:port`, both ways."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(host, port)
        except OSError:  # nobody there: the VM sees its connection closed
            writer.close()
            return
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        writer.close()
        far_writer.close()

    return await asyncio.start_server(carry, sock=listener)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end; then close that half only, as the sender did."""
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with suppress(OSError, RuntimeError):
        writer.write_eof()
