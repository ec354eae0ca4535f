"""Long polls: ask again until there is an answer, the wait is over, or the master ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from starlette.concurrency import run_in_threadpool

from spothop_master.services import Services

LONGEST_S = 30.0
"""Below the idle limits of the usual reverse proxies (60 s)."""
PAUSE_S = 0.25

T = TypeVar("T")


async def poll(
    services: Services, ask: Callable[[], T], *, enough: Callable[[T], bool], wait_s: float
) -> T:
    """The newest answer of `ask` (run in a thread) once it is `enough` or `wait_s` are over."""
    loop = asyncio.get_running_loop()
    until = loop.time() + min(wait_s, LONGEST_S)
    while True:
        answer = await run_in_threadpool(ask)
        left = until - loop.time()
        if enough(answer) or left <= 0 or services.stopping.is_set():
            return answer
        await asyncio.sleep(min(PAUSE_S, left))
