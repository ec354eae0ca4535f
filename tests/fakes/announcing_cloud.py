"""A cloud that announces the end of a VM, as the agent of a scripted attempt sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from fakes.attempt_harness import AttemptHarness
from fakes.virtual_time import START_S
from spothop_agent.notice_states import NoticeState
from spothop_agent.notices import Notices
from spothop_agent.watch import Notice


def a_notice(event: str = "event-1", *, deadline: float | None = START_S + 30.0) -> Notice:
    return Notice(event=event, kind="preempt", deadline_monotonic=deadline, detail="Preempt")


class Cloud:
    """The endpoint and its acknowledgement; notes in which state of the notice it was told."""

    def __init__(self, run: AttemptHarness, *, takes: bool = True) -> None:
        self._run = run
        self._takes = takes
        self.announced: asyncio.Queue[Notice] = asyncio.Queue()
        self.told: list[tuple[str, NoticeState | None, list[int]]] = []
        self.synced: list[list[str]] = []
        self.notices = Notices(
            self._source(), self._acknowledge, self._final_sync, (run.context, run.attempt)
        )
        self._task = asyncio.create_task(self.notices.run())

    async def _source(self) -> AsyncIterator[Notice]:
        while True:
            yield await self.announced.get()

    async def _acknowledge(self, notice: Notice) -> bool:
        self.told.append((notice.event, self._run.notice_state, list(self._run.store.steps)))
        return self._takes

    async def _final_sync(self) -> None:
        self.synced.append(self._run.kinds())

    async def announce(self, notice: Notice) -> None:
        """Returns when the agent has seen it."""
        self.announced.put_nowait(notice)
        await asyncio.sleep(0.05)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def saves(run: AttemptHarness) -> list[dict[str, Any]]:
    return [message for message in run.process.heard() if message["t"] == "save"]


def released(event: str = "event-1") -> Notice:
    """Of a cloud that takes the VM as soon as it is told that it may."""

    async def release() -> bool:
        raise AssertionError("`Cloud` stands for it")

    return replace(a_notice(event), release=release)
