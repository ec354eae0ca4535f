"""GCP: long-polls `instance/preempted`, so that a notice is seen without polling delay.

Source: Compute Engine, "About VM metadata: waiting for updates". Without `last_etag` a flip before
the request is not seen as a change: hence a plain GET first. `maintenance-event` is not read; the
60 minutes it gives belong to GPU host maintenance, not to Spot. The endpoint names no deadline.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx

from spothop_agent.watch.endpoint import ANSWER_S, POLL_S, Endpoint, Notice

PREEMPTED = "/computeMetadata/v1/instance/preempted"
HEADERS = {"Metadata-Flavor": "Google"}

WAIT_S = 60
"""How long the endpoint holds a request while nothing changes."""


async def notices(endpoint: Endpoint) -> AsyncIterator[Notice]:
    """Yield one notice when `preempted` turns TRUE."""
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
        preempted, before, etag = value, etag, answer.headers.get("etag")
        # An endpoint that gives no ETag, or answers a long poll at once, must not make us spin.
        if etag is None or (before == etag and endpoint.clock() - asked_at < POLL_S):
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
