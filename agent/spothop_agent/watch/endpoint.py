"""What the three dialects share: the notice, asking with a deadline, pausing, and reading times."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from spothop.backoff import delay_s

POLL_S = 1.0
"""All three vendors allow one request a second and VM."""
BACKOFF_CAP_S = 4.0
"""Small, because Azure's notice may come 10 s before the kill."""
ANSWER_S = 2.0
"""Deadline of a plain request to a link-local address."""

_log = logging.getLogger(__name__)


AT_RISK = "at risk"
"""Of a notice that announces no end: the cloud recommends to leave this VM."""


@dataclass(frozen=True, kw_only=True)
class Notice:
    """Advance warning that the cloud takes this VM, or may do so soon."""

    event: str
    """The cloud's own id of the event, or its text."""
    kind: str
    """preempt | terminate | stop | hibernate, or `AT_RISK`"""
    deadline_monotonic: float | None
    """CLOCK_MONOTONIC seconds of the announced end; None when the cloud names none."""
    detail: str
    release: Callable[[], Awaitable[bool]] | None = field(default=None, repr=False, compare=False)
    """Tells the cloud that it may go on; None where there is no such call."""


@dataclass(kw_only=True)
class Endpoint:
    """One metadata endpoint, and the clocks and the client to ask it with."""

    base_url: str
    client: httpx.AsyncClient
    clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    wall: Callable[[], float]
    rng: random.Random
    grace_s: float
    inform: Callable[[str], None]
    _failures: int = 0
    _trouble: str = ""

    async def ask(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        json: Any = None,
        timeout_s: float = ANSWER_S,
    ) -> httpx.Response | None:
        """The answer, whatever its status; None when none came within `timeout_s`."""
        try:
            # httpx limits each read, not the whole answer: a drip-fed one would never end.
            return await asyncio.wait_for(
                self.client.request(
                    method, self.base_url + path, headers=headers, json=json, timeout=timeout_s
                ),
                timeout_s + 1.0,
            )
        except (httpx.HTTPError, asyncio.TimeoutError) as error:
            self.unusable(f"{path}: no answer ({type(error).__name__}: {error})")
            return None

    def unusable(self, trouble: str) -> None:
        """Log an unusable answer, once as long as it stays the same."""
        if trouble != self._trouble:
            _log.warning("metadata endpoint: %s; asking again", trouble)
        self._trouble = trouble

    def usable(self) -> None:
        """The endpoint answered as it should: the next trouble is a new one."""
        self._failures, self._trouble = 0, ""

    async def pause(self, *, ok: bool) -> None:
        """Wait for the next poll; after failures longer, with jitter (I9)."""
        if ok:
            self.usable()
            await self.sleep(POLL_S)
            return
        self._failures += 1
        pause_s = delay_s(
            self._failures, base_s=2 * POLL_S, max_s=BACKOFF_CAP_S, jitter=self.rng.random()
        )
        await self.sleep(pause_s)

    def deadline(self, moment: datetime | None, answer: httpx.Response) -> float | None:
        """The cloud's absolute time as CLOCK_MONOTONIC, between now and the grace period's end.

        The endpoint's `Date` names the cloud's present second (RFC 9110, 6.6.1), so that a VM whose
        clock is off still counts right; this VM's own clock only places us within that second.
        """
        if moment is None:
            return None
        now = self.wall()
        date = parse_time(answer.headers.get("date", ""))
        if date is not None:
            now = min(max(now, date.timestamp()), date.timestamp() + 1.0)
        return self.clock() + min(max(moment.timestamp() - now, 0.0), self.grace_s)


def parse_time(text: object) -> datetime | None:
    """ISO 8601 (AWS) or RFC 9110 (Azure, `Date`) as aware UTC; None when it is no time."""
    if not isinstance(text, str) or not text:
        return None
    for parse in (_iso, parsedate_to_datetime):
        try:
            moment = parse(text)
        except (ValueError, OverflowError):
            continue
        return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    return None


def _iso(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))  # 3.10 does not know Z


def json_object(answer: httpx.Response) -> dict[str, Any] | None:
    """The answer's JSON object; None when it is anything else."""
    try:
        body = answer.json()
    except ValueError:
        return None
    return body if isinstance(body, dict) else None
