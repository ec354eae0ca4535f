"""Figures as people read them. Pure."""

from __future__ import annotations

import math
from datetime import datetime


def money(usd: float) -> str:
    """`$12.34`; four digits below ten cents, where the local cloud and short tests live."""
    return f"${usd:.2f}" if usd >= 0.1 or usd == 0 else f"${usd:.4f}"


def duration(seconds: float | None) -> str:
    """At most two units: `41 ms`, `0.41 s`, `42 s`, `3 min 5 s`, `2 h 10 min`, `4 d 3 h`."""
    if seconds is None:
        return "-"
    if 0 < seconds < 0.1:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else "< 1 ms"
    if seconds < 9.95:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    whole = round(seconds)
    for size, big, small_size, small in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // small_size
            return f"{whole // size} {big}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def between(start: datetime | None, end: datetime | None) -> str:
    return "-" if start is None or end is None else duration((end - start).total_seconds())


def size(count: int) -> str:
    """Decimal units, as storage is sold."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def number(value: float | None) -> str:
    """Whole and large numbers with thousands separated; others with four significant digits."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1e4:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 1e-3 else f"{value:.3g}"


def moment(at: datetime | None) -> str:
    return "-" if at is None else at.strftime("%Y-%m-%d %H:%M:%S UTC")


def clock(at: datetime | None) -> str:
    return "-" if at is None else at.strftime("%H:%M:%S")


def saved(cost: float, on_demand: float) -> str:
    """`63 % less` than on demand; empty where there is nothing to compare."""
    if on_demand <= 0:
        return ""
    share = 1 - cost / on_demand
    return f"{share:.0%} less" if share >= 0 else f"{-share:.0%} more"
