"""Durations: as people read them, and as a job file and the command line write them. Pure."""

from __future__ import annotations

import re
from datetime import timedelta

MAX_DURATION = timedelta(days=3650)

NOTHING = "-"
"""What stands where there is no figure."""

_LARGE = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))
_UNIT_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_WRITTEN = r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d{1,6})?)s)?"
PATTERN = re.compile(_WRITTEN, re.ASCII)
"""What `parse_duration` reads; it also matches the empty text, which is no duration."""


class NotADuration(ValueError):
    """A text that is no duration, or one that is out of range."""

    def __init__(self, fact: str) -> None:
        self.fact = fact
        self.hint = "write a number with its unit: 30s, 5m, 2h, 1d or 1h30m"
        super().__init__(f"{fact}; {self.hint}")


def duration(seconds: float | None) -> str:
    """For people, at most two units: `41 ms`, `0.41 s`, `42 s`, `3 min 5 s`, `2 h 10 min`,
    `4 d 3 h`; `-` for None."""
    if seconds is None:
        return NOTHING
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds == 0:
        return "0 s"
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else "< 1 ms"
    if seconds < 9.95:
        return f"{seconds:.2f} s" if seconds < 0.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    for size, big, small_size, small in _LARGE:
        if whole >= size:
            rest = whole % size // small_size
            return f"{whole // size} {big}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def parse_duration(text: object) -> timedelta:
    """`30s`, `5m`, `2h`, `1d` or a sum such as `1h30m`; raises NotADuration for all else, for zero,
    for a bare number, and for more than ten years."""
    match = PATTERN.fullmatch(text) if isinstance(text, str) else None
    if match is None or not text:
        raise NotADuration("is not a duration")
    try:
        seconds = sum(
            float(n) * _UNIT_S[unit] for n, unit in zip(match.groups(), "dhms", strict=True) if n
        )
        found = timedelta(seconds=seconds)
    except OverflowError:
        found = MAX_DURATION + timedelta(days=1)
    if not timedelta() < found <= MAX_DURATION:
        raise NotADuration("is not between 0 s and 10 years")
    return found


def format_duration(length: timedelta) -> str:
    """The inverse of `parse_duration`, exact to the microsecond."""
    minutes, seconds = divmod(length, timedelta(minutes=1))
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [f"{n}{unit}" for n, unit in ((days, "d"), (hours, "h"), (minutes, "m")) if n]
    if seconds or not parts:
        fraction = f".{seconds.microseconds:06d}".rstrip("0") if seconds.microseconds else ""
        parts.append(f"{seconds.seconds}{fraction}s")
    return "".join(parts)


def parse_seconds(text: str) -> list[float]:
    """`600,20m` -> [600, 1200]: seconds or durations, with commas; raises ValueError."""
    return [_seconds(part.strip()) for part in text.split(",")]


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parse_duration(text).total_seconds()
        except NotADuration:
            seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(
            f"{text!r} is no time above 0; write seconds or durations, such as 600,20m"
        )
    return seconds
