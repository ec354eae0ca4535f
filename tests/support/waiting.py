"""Waiting for a condition: how long is for what hangs, never for what is slow."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

WITHIN_S = 120.0
"""A condition that does not hold by then never will. A test that passes waits for no such thing, so
it may be long: under load everything takes ten times as long."""

POLL_S = 0.05


class Waited(AssertionError):
    """A condition did not come true in time."""


def until(
    condition: Callable[[], T | None],
    within_s: float = WITHIN_S,
    *,
    what: str,
    details: Callable[[], str] = lambda: "",
    poll_s: float = POLL_S,
) -> T:
    """The first true value of the condition. Raises `Waited` at the deadline."""
    end = time.monotonic() + within_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Waited(f"not within {within_s:g} s: {what}\n{details()}")
        time.sleep(poll_s)
