"""The shared part of the watchers: reading times, deadlines, pauses."""

from __future__ import annotations

import asyncio
import random
from datetime import datetime, timezone

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop_agent.watch import metadata_client
from spothop_agent.watch.endpoint import BACKOFF_CAP_S, POLL_S, Endpoint, parse_time

NOON = datetime(2026, 5, 1, 12, 0, 0, tzinfo=timezone.utc)
NOON_DATE = "Fri, 01 May 2026 12:00:00 GMT"


def endpoint(
    *, wall: float = NOON.timestamp(), grace_s: float = 120.0, slept: list[float] | None = None
) -> Endpoint:
    async def sleep(seconds: float) -> None:
        if slept is not None:
            slept.append(seconds)

    return Endpoint(
        base_url="http://metadata",
        client=httpx.AsyncClient(),
        clock=lambda: 1000.0,
        sleep=sleep,
        wall=lambda: wall,
        rng=random.Random(1),
        grace_s=grace_s,
        inform=lambda text: None,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-05-01T12:00:00Z", NOON),
        ("2026-05-01T14:00:00+02:00", NOON),
        ("2026-05-01T12:00:00", NOON),
        (NOON_DATE, NOON),
        ("", None),
        (None, None),
        (12, None),
        ("soon", None),
        ("Fri, 99 May 2026 12:00:00 GMT", None),
    ],
)
def test_times_of_all_clouds_are_read_and_odd_ones_are_none(
    text: object, expected: datetime | None
) -> None:
    assert parse_time(text) == expected


@given(st.text())
def test_no_text_breaks_the_time_parser(text: str) -> None:
    moment = parse_time(text)
    assert moment is None or moment.tzinfo is not None


@pytest.mark.parametrize(
    ("wall_off_s", "expected_s"),
    [(0.0, 30.0), (0.4, 29.6), (-3600.0, 30.0), (3600.0, 29.0)],
    ids=["right", "within the second", "slow", "fast"],
)
def test_the_date_header_corrects_a_clock_that_is_off(wall_off_s: float, expected_s: float) -> None:
    answer = httpx.Response(200, headers={"Date": NOON_DATE})
    here = endpoint(wall=NOON.timestamp() + wall_off_s)
    deadline = here.deadline(NOON.replace(second=30), answer)
    assert deadline == pytest.approx(1000.0 + expected_s)


def test_without_a_date_header_the_wall_clock_counts() -> None:
    here = endpoint(wall=NOON.timestamp() + 10)
    assert here.deadline(NOON.replace(second=30), httpx.Response(200)) == 1020.0


@given(st.integers(-(10**6), 10**6), st.floats(0, 3600))
def test_a_deadline_lies_between_now_and_the_grace_period(off_s: int, grace_s: float) -> None:
    here = endpoint(grace_s=grace_s, wall=NOON.timestamp() + off_s)
    deadline = here.deadline(NOON, httpx.Response(200))
    assert deadline is not None
    assert 1000.0 <= deadline <= 1000.0 + grace_s


def test_no_time_gives_no_deadline() -> None:
    assert endpoint().deadline(None, httpx.Response(200)) is None


def test_pauses_grow_with_jitter_up_to_the_cap_and_fall_back_after_a_good_answer() -> None:
    slept: list[float] = []
    here = endpoint(slept=slept)

    async def scenario() -> None:
        for _ in range(8):
            await here.pause(ok=False)
        await here.pause(ok=True)
        await here.pause(ok=False)

    asyncio.run(scenario())
    assert all(BACKOFF_CAP_S / 2 <= pause <= BACKOFF_CAP_S for pause in slept[1:8])
    assert len(set(slept[1:8])) > 1
    assert slept[8] == POLL_S
    assert slept[9] <= 2 * POLL_S


def test_the_metadata_client_ignores_proxies() -> None:
    client = metadata_client()
    assert client.trust_env is False
    asyncio.run(client.aclose())
