"""Runs several tasks of which one ends the group, and any may fail it."""

from __future__ import annotations

import asyncio
from typing import Any


async def first_end(ends: set[asyncio.Task[Any]], others: set[asyncio.Task[Any]]) -> None:
    """Return when one of `ends` is done; raise what any task fails with before.

    Of `others`, those that end by themselves are not missed. Nothing is cancelled here.
    """
    waiting = ends | others
    while not any(task.done() for task in ends):
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def cancel_all(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel and wait; what they raise now is ignored."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
