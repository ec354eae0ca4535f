"""AWS: polls IMDSv2 for spot/instance-action, about two minutes ahead of the end.

Source: EC2 user guide, "Spot Instance interruption notices" and "Use IMDSv2". The legacy
`spot/termination-time` is not read: it may hold a past time or no time at all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx

from spothop_agent.watch.endpoint import AT_RISK, Endpoint, Notice, json_object, parse_time

TOKEN = "/latest/api/token"
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"

TOKEN_TTL_S = 21600
REBALANCE_EVERY = 5
"""Polls per look at the rebalance recommendation: nothing is saved for it, so it may lag."""


async def notices(endpoint: Endpoint) -> AsyncIterator[Notice]:
    """Poll once a second; 404 means no action is planned."""
    session = _Session(endpoint)
    rebalance = _Rebalance(endpoint, session)
    seen: set[str] = set()
    polls = 0
    while True:
        answer = await session.get(ACTION)
        notice = _read(endpoint, answer)
        if notice is not None and notice.event not in seen:
            seen.add(notice.event)
            yield notice
        if polls % REBALANCE_EVERY == 0 and answer is not None:
            recommended = await rebalance.look()
            if recommended is not None:
                yield recommended
        polls += 1
        await endpoint.pause(
            ok=notice is not None or (answer is not None and answer.status_code == 404)
        )


class _Session:
    """GETs with an IMDSv2 token, renewed at half its life and on 401."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._token: str | None = None
        self._renew_at = 0.0

    async def get(self, path: str) -> httpx.Response | None:
        answer = await self._get(path)
        if answer is not None and answer.status_code == 401:
            self._token = None
            answer = await self._get(path)
        return answer

    async def _get(self, path: str) -> httpx.Response | None:
        if self._token is None or self._endpoint.clock() >= self._renew_at:
            await self._renew()
        if self._token is None:
            return None
        headers = {"X-aws-ec2-metadata-token": self._token}
        return await self._endpoint.ask("GET", path, headers=headers)

    async def _renew(self) -> None:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)}
        answer = await self._endpoint.ask("PUT", TOKEN, headers=headers)
        if answer is None:
            return  # a token at half its life still works
        token = answer.text.strip()
        if answer.status_code == 200 and token.isascii() and token.isprintable() and token:
            self._token = token
            self._renew_at = self._endpoint.clock() + TOKEN_TTL_S / 2
        else:
            self._endpoint.unusable(f"{TOKEN}: status {answer.status_code}, no token")


class _Rebalance:
    """Tells each rebalance recommendation once: elevated risk, no deadline. Its `noticeTime` is
    when it was emitted."""

    def __init__(self, endpoint: Endpoint, session: _Session) -> None:
        self._endpoint = endpoint
        self._session = session
        self._told: set[str] = set()

    async def look(self) -> Notice | None:
        answer = await self._session.get(REBALANCE)
        if answer is None or answer.status_code != 200:
            return None
        emitted = (json_object(answer) or {}).get("noticeTime")
        if not isinstance(emitted, str) or emitted in self._told:
            return None
        self._told.add(emitted)
        text = f"AWS recommends to rebalance (emitted {emitted})"
        self._endpoint.inform(text)
        return Notice(
            event=f"rebalance@{emitted}", kind=AT_RISK, deadline_monotonic=None, detail=text
        )


def _read(endpoint: Endpoint, answer: httpx.Response | None) -> Notice | None:
    if answer is None or answer.status_code == 404:
        return None
    if answer.status_code != 200:
        endpoint.unusable(f"{ACTION}: status {answer.status_code}")
        return None
    action = (json_object(answer) or {}).get("action")
    if not isinstance(action, str) or not action:
        endpoint.unusable(f"{ACTION}: status 200 without an action: {answer.text[:200]!r}")
        return None
    time = (json_object(answer) or {}).get("time")
    return Notice(
        event=f"{action}@{time}",
        kind=action,
        deadline_monotonic=endpoint.deadline(parse_time(time), answer),
        detail=f"spot/instance-action: {action} at {time}",
    )
