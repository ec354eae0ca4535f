"""The agent's watcher against the local cloud's endpoints: both sides of one vendor's contract."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from email.utils import formatdate

import httpx
import pytest

from spothop.wire import Dialect
from spothop_agent.watch import Notice, acknowledge, watch
from spothop_master.clouds.local.metadata import Announcement, Hold, Machine, Request, dialect

START = 1_500_000_000.0
NOTICE_AT = START + 7.5
DEADLINE = NOTICE_AT + 25.0


class MasterHarness:
    """One VM's endpoint on a virtual clock; a preemption is announced at NOTICE_AT."""

    def __init__(self, name: Dialect) -> None:
        self.now = START
        self.dialect = dialect(name.value, token="t")
        self.machine = Machine("lvm-1", "vm-1", "local-1", "local-1a", "small", True)
        self.acknowledged: list[str] = []

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= NOTICE_AT:
            announced = Announcement("preempt-1", DEADLINE)
            self.machine = replace(self.machine, announcement=announced)

    def handle(self, request: httpx.Request) -> httpx.Response:
        asked = Request(
            method=request.method,
            path=request.url.path,
            query=dict(request.url.params),
            headers=dict(request.headers),
            body=request.content,
        )
        answer = self.dialect.respond(asked, self.machine, now=self.now, waited=False)
        if isinstance(answer, Hold):
            left = max(NOTICE_AT - self.now, 0.0)
            self.advance(left if answer.timeout_s is None else min(left, answer.timeout_s))
            answer = self.dialect.respond(asked, self.machine, now=self.now, waited=True)
            assert not isinstance(answer, Hold)
        if answer.acknowledged is not None:
            self.acknowledged.append(answer.acknowledged)
        headers = {**answer.headers, "date": formatdate(self.now, usegmt=True)}
        return httpx.Response(answer.status, headers=headers, content=answer.body)


def first_notice(
    harness: MasterHarness, name: Dialect, then: Callable[[Notice], Awaitable[None]]
) -> Notice:
    async def scenario() -> Notice:
        async with httpx.AsyncClient(transport=httpx.MockTransport(harness.handle)) as client:
            notices = watch(
                name,
                "http://metadata",
                vm_name=None,
                client=client,
                clock=lambda: harness.now,
                sleep=harness.sleep,
                wall=lambda: harness.now,
                rng=random.Random(1),
            )
            async for notice in notices:
                await then(notice)
                return notice
        raise AssertionError("the watcher ended without a notice")

    return asyncio.run(scenario())


@pytest.mark.parametrize("name", list(Dialect))
def test_the_watcher_sees_the_notice_in_time_and_may_acknowledge_where_one_can(
    name: Dialect,
) -> None:
    harness = MasterHarness(name)
    told: list[bool] = []

    async def then(notice: Notice) -> None:
        told.append(await acknowledge(notice))

    notice = first_notice(harness, name, then)
    assert NOTICE_AT <= harness.now < NOTICE_AT + 1.5
    if name is Dialect.GCP:
        assert notice.deadline_monotonic is None
    else:
        assert notice.deadline_monotonic is not None
        assert DEADLINE - 1.0 <= notice.deadline_monotonic <= DEADLINE
    assert told == [name is Dialect.AZURE]
    assert harness.acknowledged == (["preempt-1"] if name is Dialect.AZURE else [])
