"""Azure: instance metadata and Scheduled Events.

Source: "Azure Metadata Service: Scheduled Events for Linux VMs" and "Azure Instance Metadata
Service". Not imitated: the first call, which takes up to two minutes on Azure.
"""

from __future__ import annotations

import json
from collections import deque
from email.utils import formatdate
from typing import Any

from spothop_master.clouds.local.metadata import Machine, Request, Response, document

EVENTS = "/metadata/scheduledevents"
INSTANCE = "/metadata/instance"
EVENT_VERSIONS = ("2020-07-01", "2019-08-01", "2019-04-01", "2019-01-01")
INSTANCE_VERSIONS = ("2021-12-13", "2021-05-01", "2021-02-01", "2020-09-01")

CALLS_PER_S = 5
"""More than that is answered with 429 (the service's documented limit per VM)."""


class Azure:
    """Remembers which event was started, the document's incarnation and the latest calls."""

    def __init__(self) -> None:
        self._calls: deque[float] = deque(maxlen=CALLS_PER_S)
        self._started: str | None = None
        self._shown: tuple[str | None, str] = (None, "")
        self._incarnation = 1

    def respond(self, request: Request, machine: Machine, *, now: float, waited: bool) -> Response:
        refusal = self._refuse(request, now)
        if refusal is not None:
            return refusal
        if request.path == INSTANCE and request.method == "GET":
            return document(200, {"compute": _compute(machine), "network": {"interface": []}})
        if request.path != EVENTS:
            return _error(404, "Resource not found")
        if request.method == "GET":
            return document(200, self._events(machine, now))
        if request.method == "POST":
            return self._start(request, machine, now)
        return _error(405, "Method not allowed")

    def _refuse(self, request: Request, now: float) -> Response | None:
        if request.headers.get("metadata", "").lower() != "true":
            return _error(400, "Bad request. Required metadata header not specified")
        if "x-forwarded-for" in request.headers:
            return _error(400, "Bad request. X-Forwarded-For is not allowed")
        versions = EVENT_VERSIONS if request.path == EVENTS else INSTANCE_VERSIONS
        if request.query.get("api-version") not in versions:
            known = ", ".join(versions)
            return _error(400, f"Bad request. api-version is missing or invalid; known: {known}")
        if len(self._calls) == CALLS_PER_S and now - self._calls[0] < 1.0:
            return _error(429, "Too many requests")
        self._calls.append(now)
        return None

    def _status(self, machine: Machine, now: float) -> str:
        event = machine.announcement
        if event is None:
            return ""
        begun = self._started == event.event or now >= event.deadline
        return "Started" if begun else "Scheduled"

    def _events(self, machine: Machine, now: float) -> dict[str, Any]:
        event, status = machine.announcement, self._status(machine, now)
        shown = (event.event if event else None, status)
        if shown != self._shown:
            self._shown = shown
            self._incarnation += 1
        events = []
        if event is not None:
            not_before = "" if status == "Started" else formatdate(int(event.deadline), usegmt=True)
            events.append(
                {
                    "EventId": event.event,
                    "EventStatus": status,
                    "EventType": "Preempt",
                    "ResourceType": "VirtualMachine",
                    "Resources": [machine.name],
                    "NotBefore": not_before,
                    "Description": "The Azure Spot Virtual Machine is being deleted.",
                    "EventSource": "Platform",
                    "DurationInSeconds": -1,
                }
            )
        return {"DocumentIncarnation": self._incarnation, "Events": events}

    def _start(self, request: Request, machine: Machine, now: float) -> Response:
        asked = _start_requests(request.body)
        if not asked:
            return _error(400, 'Bad request. Expected {"StartRequests": [{"EventId": ...}]}')
        event = machine.announcement
        if event is None or any(item != event.event for item in asked):
            return _error(400, f"Bad request. No such event: {', '.join(asked)}")
        if self._status(machine, now) == "Started":
            return _error(400, f"Bad request. Event {event.event} has started")
        self._started = event.event
        return Response(200, acknowledged=event.event)


def _start_requests(body: bytes) -> list[str] | None:
    """The event ids of a well-formed body; None for any other."""
    try:
        items = json.loads(body)["StartRequests"]
        ids = [item["EventId"] for item in items]
    except (ValueError, KeyError, TypeError):
        return None
    return ids if all(isinstance(item, str) for item in ids) else None


def _compute(machine: Machine) -> dict[str, str]:
    """Every value is a string, as the service documents it."""
    spot = {"priority": "Spot", "evictionPolicy": "Delete"}
    return {
        "name": machine.name,
        "vmId": machine.id,
        "location": machine.region,
        "zone": machine.zone,
        "vmSize": machine.vm,
        "osType": "Linux",
        "provider": "Microsoft.Compute",
    } | (spot if machine.spot else {"priority": "Regular", "evictionPolicy": ""})


def _error(status: int, message: str) -> Response:
    return document(status, {"error": message})
