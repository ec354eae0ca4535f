"""Moments as the pages show them; other figures are in `spothop.durations` and `.figures`. Pure."""

from __future__ import annotations

from datetime import datetime

from spothop.durations import NOTHING, duration


def between(start: datetime | None, end: datetime | None) -> str:
    """How long it took; `-` while one of the two is not known."""
    return NOTHING if start is None or end is None else duration((end - start).total_seconds())


def moment(at: datetime | None) -> str:
    return NOTHING if at is None else at.strftime("%Y-%m-%d %H:%M:%S UTC")


def clock(at: datetime | None) -> str:
    return NOTHING if at is None else at.strftime("%H:%M:%S")
