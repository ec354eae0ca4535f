"""Money, sizes and numbers as people read them, in a terminal and on a page alike. Pure."""

from __future__ import annotations

import math

from spothop.durations import NOTHING


def money(usd: float) -> str:
    """`$12.34`; below ten cents two significant digits, so that small jobs show a cost."""
    if usd == 0 or abs(usd) >= 0.1:
        return f"${usd:,.2f}"
    return f"${usd:.2g}" if abs(usd) >= 1e-4 else "<$0.0001"


def saved(cost: float, on_demand: float) -> str:
    """`63% less` than on demand, or `5% more`; empty where there is nothing to compare."""
    if on_demand <= 0:
        return ""
    share = 1 - cost / on_demand
    return f"{share:.0%} less" if share >= 0 else f"{-share:.0%} more"


def size(count: float) -> str:
    """Bytes in decimal units, as storage is sold; three significant digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.3g} TB"


def number(value: float | None) -> str:
    """Whole and large numbers with thousands separated; others with four significant digits."""
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1e4:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 1e-3 else f"{value:.3g}"
