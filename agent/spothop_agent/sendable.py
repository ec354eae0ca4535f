"""What can go to the master and into its database. Pure.

Messages of foreign processes are JSON, and JSON can hold what nobody takes further: `1e999` is read
as infinity, which JSON cannot say again; numbers have any length, columns 64 bits; half of a
surrogate pair is text that has no UTF-8. One such value in a report would have every sync refused,
or not even written, for ever.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MAX_INTEGER = 2**63 - 1


def fault_of(value: Any) -> str:
    """Why `value`, or something in it, cannot be sent; empty when it can."""
    if isinstance(value, str):
        return "" if value.isascii() or _has_utf8(value) else "text that is not UTF-8"
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"the number {value}"
    if isinstance(value, int):
        return "" if abs(value) <= MAX_INTEGER else "a number of more than 64 bits"
    if isinstance(value, Mapping):
        return next(filter(None, map(fault_of, (*value.keys(), *value.values()))), "")
    if isinstance(value, (list, tuple)):
        return next(filter(None, map(fault_of, value)), "")
    return ""


def _has_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
