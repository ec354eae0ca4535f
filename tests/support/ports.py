"""Ports for servers of the tests that are told where to listen."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
_random = random.SystemRandom()  # Hypothesis seeds the other one, in all processes alike


def free_port() -> int:
    """Nobody listens there now. Until our server does, nobody gets it by chance: Linux gives the
    ports above to connections that go out, of which the tests beside have many."""
    below = int(_OUTGOING.read_text().split()[0])
    while True:
        port = _random.randrange(_LOWEST, below) if below > 2 * _LOWEST else 0
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
