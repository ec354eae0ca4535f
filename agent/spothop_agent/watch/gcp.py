"""GCP: long-polls `instance/preempted`, so that a notice is seen without polling delay.

Source: Compute Engine, "About VM metadata: waiting for updates". Without `last_etag` a flip before
the request is not seen as a change: hence a plain GET first. The endpoint names no time at all, so
this VM's clock does not matter.

Beside it, once a minute, `maintenance-event`: a VM with GPUs is told an hour ahead that its host is
to be maintained, and that it will be stopped for that ("Handle GPU host maintenance events"). No
end is named there, and there is time for a replacement: a recommendation to leave. A VM that is
moved to another host (MIGRATE) trains on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx

from spothop_agent.watch.endpoint import ANSWER_S, AT_RISK, POLL_S, Endpoint, Notice

PREEMPTED = "/computeMetadata/v1/instance/preempted"
MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"
HEADERS = {"Metadata-Flavor": "Google"}

WAIT_S = 60
"""How long the endpoint holds a request while nothing changes."""
MAINTENANCE_EVERY_S = 60.0
NOTHING, STOPS = "NONE", "TERMINATE"
"""What `maintenance-event` says when nothing is planned; how it begins when the VM is stopped."""


async def notices(endpoint: Endpoint) -> AsyncIterator[Notice]:
    """Yield one notice when `preempted` turns TRUE, and one for each maintenance that stops us."""
    maintenance = _Maintenance(endpoint)
    etag: str | None = None
    count, preempted = 0, False
    while True:
        asked_at = endpoint.clock()
        answer = await _ask(endpoint, etag)
        value = _read(endpoint, answer)
        if value is None or answer is None:
            etag = None
            await endpoint.pause(ok=False)
            continue
        endpoint.usable()
        if value and not preempted:
            count += 1
            yield Notice(
                event=f"preempted-{count}",
                kind="preempt",
                deadline_monotonic=None,
                detail="instance/preempted is TRUE",
            )
        news, before = value != preempted, etag
        preempted, etag = value, answer.headers.get("etag")
        if not preempted and (recommended := await maintenance.look()) is not None:
            yield recommended
        # An endpoint that gives no ETag, or answers a long poll at once and without news, whatever
        # its ETag, must not make us spin.
        at_once = endpoint.clock() - asked_at < POLL_S
        if etag is None or (before is not None and not news and at_once):
            await endpoint.pause(ok=True)


async def _ask(endpoint: Endpoint, etag: str | None) -> httpx.Response | None:
    if etag is None:
        return await endpoint.ask("GET", PREEMPTED, headers=HEADERS)
    query = httpx.QueryParams(wait_for_change="true", timeout_sec=str(WAIT_S), last_etag=etag)
    return await endpoint.ask(
        "GET", f"{PREEMPTED}?{query}", headers=HEADERS, timeout_s=WAIT_S + 5 * ANSWER_S
    )


def _read(endpoint: Endpoint, answer: httpx.Response | None) -> bool | None:
    """TRUE or FALSE; None when the answer is not usable."""
    if answer is None:
        return None
    text = answer.text.strip().upper()
    if answer.status_code == 200 and text in ("TRUE", "FALSE"):
        return text == "TRUE"
    endpoint.unusable(f"{PREEMPTED}: status {answer.status_code}: {answer.text[:200]!r}")
    return None


class _Maintenance:
    """Tells each planned maintenance of the host once."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._value = NOTHING
        self._count = 0
        self._look_at: float | None = None

    async def look(self) -> Notice | None:
        """Rarely, whoever asks how often."""
        now = self._endpoint.clock()
        if self._look_at is not None and now < self._look_at:
            return None
        self._look_at = now + MAINTENANCE_EVERY_S
        answer = await self._endpoint.ask("GET", MAINTENANCE, headers=HEADERS)
        value = answer.text.strip().upper() if answer and answer.status_code == 200 else ""
        # What is no word of theirs, such as a page of a portal, says nothing.
        if not value.replace("_", "").isalnum() or value == self._value:
            return None
        self._value = value
        if value == NOTHING:
            return None
        text = f"GCP plans maintenance of this VM's host: {value}"
        self._endpoint.inform(text)
        if not value.startswith(STOPS):
            return None
        self._count += 1
        event = f"maintenance-{self._count}"
        return Notice(event=event, kind=AT_RISK, deadline_monotonic=None, detail=text)
