"""Azure: polls Scheduled Events for Preempt and Terminate events of this VM.

Source: "Azure Metadata Service: Scheduled Events for Linux VMs". The first call switches the
service on and may block for two minutes; events of a whole availability set are shown to all its
VMs; `NotBefore` is empty once an event has started; StartRequests lets the platform go on early.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx

from spothop_agent.watch.endpoint import ANSWER_S, Endpoint, Notice, json_object, parse_time

EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
INSTANCE = "/metadata/instance?api-version=2021-02-01"
HEADERS = {"Metadata": "true"}

FIRST_ANSWER_S = 130.0
"""The service may take two minutes to switch on."""
KINDS = {"Preempt": "preempt", "Terminate": "terminate"}
ACKNOWLEDGE_TRIES = 3


async def notices(endpoint: Endpoint, vm_name: str | None) -> AsyncIterator[Notice]:
    """Poll once a second; other VMs' events and other event types are left alone."""
    # In its own task: the VM's name is found while the service switches on.
    first = asyncio.create_task(_events(endpoint, FIRST_ANSWER_S))
    try:
        name = vm_name or await _own_name(endpoint)
        answer = await first
    finally:
        first.cancel()
    seen: set[str] = set()
    answered = answer is not None
    while True:
        name = name or await _own_name(endpoint)
        events = _own_events(endpoint, answer, name) if name else None
        for event in events or ():
            if event["EventId"] in seen:
                continue
            seen.add(event["EventId"])
            notice = _read(endpoint, event, answer)
            if notice is not None:
                yield notice
        await endpoint.pause(ok=events is not None)
        answer = await _events(endpoint, ANSWER_S if answered else FIRST_ANSWER_S)
        answered = answered or answer is not None


async def _events(endpoint: Endpoint, timeout_s: float) -> httpx.Response | None:
    return await endpoint.ask("GET", EVENTS, headers=HEADERS, timeout_s=timeout_s)


async def _own_name(endpoint: Endpoint) -> str | None:
    answer = await endpoint.ask("GET", INSTANCE, headers=HEADERS)
    if answer is None:
        return None
    compute = (json_object(answer) or {}).get("compute")
    name = compute.get("name") if isinstance(compute, dict) else None
    if answer.status_code == 200 and isinstance(name, str) and name:
        return name
    endpoint.unusable(f"{INSTANCE}: status {answer.status_code} without compute.name")
    return None


def _own_events(
    endpoint: Endpoint, answer: httpx.Response | None, name: str
) -> list[dict[str, Any]] | None:
    """The events that name this VM; None when the answer is not usable."""
    if answer is None:
        return None
    events = (json_object(answer) or {}).get("Events")
    if answer.status_code != 200 or not isinstance(events, list):
        endpoint.unusable(
            f"{EVENTS}: status {answer.status_code} without Events: {answer.text[:200]!r}"
        )
        return None
    return list(_naming(events, name))


def _naming(events: list[Any], name: str) -> Iterator[dict[str, Any]]:
    for event in events:
        if not isinstance(event, dict) or not isinstance(event.get("EventId"), str):
            continue
        resources = event.get("Resources")
        # Azure's resource names are case-insensitive.
        if isinstance(resources, list) and name.lower() in [str(r).lower() for r in resources]:
            yield event


def _read(
    endpoint: Endpoint, event: dict[str, Any], answer: httpx.Response | None
) -> Notice | None:
    assert answer is not None
    event_id, type_ = event["EventId"], str(event.get("EventType"))
    not_before = event.get("NotBefore")
    detail = f"{type_} ({event.get('EventStatus')}), not before {not_before or 'now'}"
    kind = KINDS.get(type_)
    if kind is None:
        endpoint.inform(f"Azure plans for this VM: {detail}")
        return None
    return Notice(
        event=event_id,
        kind=kind,
        deadline_monotonic=endpoint.deadline(parse_time(not_before), answer),
        detail=detail,
        release=lambda: _start(endpoint, event_id),
    )


async def _start(endpoint: Endpoint, event_id: str) -> bool:
    """Let the event begin; True when Azure took it."""
    body = {"StartRequests": [{"EventId": event_id}]}
    for attempt in range(ACKNOWLEDGE_TRIES):
        if attempt:
            await endpoint.pause(ok=False)
        answer = await endpoint.ask("POST", EVENTS, headers=HEADERS, json=body)
        if answer is None:
            continue
        if answer.status_code == 200:
            return True
        endpoint.unusable(
            f"{EVENTS}: event {event_id} not acknowledged, status {answer.status_code}"
        )
        if answer.status_code == 400:  # over, or never there: asking again changes nothing
            return False
    return False
