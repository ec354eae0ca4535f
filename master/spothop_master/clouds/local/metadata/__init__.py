"""The metadata endpoints of the three clouds, as strict as the real ones. Standard library only.

A dialect is sans-IO: `respond(request, machine, now=..., waited=...)` gives a `Response`, or `Hold`
for a long poll; http.py does the serving. One module per dialect.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Announcement:
    """A preemption that the cloud announces. Unix times in seconds."""

    event: str
    deadline: float
    """The promised kill; the real one may come earlier."""


@dataclass(frozen=True)
class Machine:
    """What a VM may know of itself."""

    id: str
    name: str
    region: str
    zone: str
    vm: str
    spot: bool
    announcement: Announcement | None = None


@dataclass(frozen=True)
class Request:
    """One request; header names in lower case."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class Response:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    acknowledged: str | None = None
    """The event that the VM lets the cloud go on with."""


@dataclass(frozen=True)
class Hold:
    """Ask again with `waited=True` after a change, at the latest after this time (None: no end)."""

    timeout_s: float | None


class Dialect(Protocol):
    """One cloud's endpoint; keeps what that endpoint itself remembers, such as tokens."""

    def respond(
        self, request: Request, machine: Machine, *, now: float, waited: bool
    ) -> Response | Hold:
        """Answer one request; `now` is Unix time in seconds."""


def text(status: int, body: str = "", **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status, body.encode(), {"content-type": "text/plain"} | named)


def document(status: int, value: Any, *, acknowledged: str | None = None) -> Response:
    headers = {"content-type": "application/json; charset=utf-8"}
    return Response(status, json.dumps(value).encode(), headers, acknowledged)


def dialect(name: str, *, token: str) -> Dialect:
    """The dialect of this name (aws, azure or gcp); `token` seeds AWS's session tokens."""
    # Only the one that this VM speaks is imported.
    if name == "aws":
        from spothop_master.clouds.local.metadata.aws import Aws

        return Aws(seed=token)
    if name == "azure":
        from spothop_master.clouds.local.metadata.azure import Azure

        return Azure()
    if name == "gcp":
        from spothop_master.clouds.local.metadata.gcp import Gcp

        return Gcp()
    raise ValueError(f"metadata dialect {name!r} is not one of aws, azure, gcp")
