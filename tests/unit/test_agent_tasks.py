"""Tasks that fail are seen by whoever runs them."""

from __future__ import annotations

import asyncio

import pytest

from fakes.virtual_time import play
from spothop_agent.tasks import Background, Errands, cancel_all


async def fails(after_s: float) -> None:
    await asyncio.sleep(after_s)
    raise RuntimeError(f"after {after_s:g} s")


def test_the_first_failure_is_told_whenever_it_is_asked_for() -> None:
    async def scenario() -> None:
        background = Background()
        background.start(asyncio.sleep(0.5))
        background.start(fails(2.0))
        background.start(fails(1.0))
        with pytest.raises(RuntimeError, match="after 1 s"):
            await background.failure()
        await asyncio.sleep(5.0)
        with pytest.raises(RuntimeError, match="after 1 s"):
            await background.failure()

    play(scenario)


def test_what_is_cancelled_or_done_has_not_failed() -> None:
    async def scenario() -> None:
        background = Background()
        background.start(asyncio.sleep(0.5))
        background.start(asyncio.sleep(1000.0)).cancel()
        background.start(fails(100.0))
        await asyncio.sleep(1.0)
        await background.cancel()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(background.failure(), 1000.0)

    play(scenario)


def test_a_cancellation_that_a_library_loses_is_repeated() -> None:
    async def scenario() -> None:
        async def waits_for_ever() -> None:
            try:
                await asyncio.sleep(1000.0)
            except asyncio.CancelledError:  # lost, as wait_for does when the result comes too
                await asyncio.sleep(1000.0)

        task = asyncio.create_task(waits_for_ever())
        await asyncio.sleep(0.1)
        await asyncio.wait_for(cancel_all([task]), 10.0)
        assert task.cancelled()

    play(scenario)


def test_an_errand_that_fails_is_told_once_and_ends_nothing() -> None:
    async def scenario() -> None:
        told: list[str] = []
        errands = Errands(told.append)
        for after_s in (1.0, 2.0):
            errands.start("the old ones stay", fails(after_s))
        assert errands
        await asyncio.sleep(3.0)
        assert not errands
        assert told == ["the old ones stay: unexpected RuntimeError: after 1 s"]
        errands.start("another", fails(1.0))
        await errands.cancel()
        assert len(told) == 1

    play(scenario)
