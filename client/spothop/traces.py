"""Reads traces: lives, node events, availability of zones. Standard library only.

Formats: CSV with `lifetime_s` and `end` (`preempted`; `stop` and `censored` are right-censored);
CSV lines `ms,add|remove,node`; JSON with `gap_seconds` and, for each zone, run-length pairs
[value, ticks] of `available` (1 = available) and `price` (USD an hour). In some public files of
the last kind 1 means unavailable: they name it `unavailable`, or give no name at all. They are
refused, because a wrong guess would invert the result.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from spothop.policy.estimators import Life

CENSORED = ("stop", "censored")
"""Ends of lives that were no preemptions: the VM was given up, or is still alive."""
_ENDS = f"`preempted`, or {' or '.join(f'`{end}`' for end in CENSORED)} where no preemption did it"

_LONGEST_S = 1e15
_TICKS_S = (1e-3, 1e9)
_MAX_TICKS = 10_000_000
_MAX_USD = 1e6  # an hour

Row = tuple[int, list[str]]
"""Cells of a CSV, and the line that they end in."""


class TraceError(ValueError):
    """The file cannot be used as a trace; the message says where, and what to do."""


@dataclass(frozen=True, kw_only=True)
class Zone:
    """One zone, tick by tick."""

    name: str
    available: tuple[bool, ...]
    price: tuple[float, ...] | None
    """USD an hour; None: the file has none, for any zone."""


@dataclass(frozen=True, kw_only=True)
class ZoneTrace:
    """Zones aligned in time."""

    tick_s: float
    zones: tuple[Zone, ...]


def read_lives(path: Path) -> list[Life]:
    """Lives above 0 s from either CSV format. Raises TraceError; fewer than two lives are none."""
    rows = _rows(path)
    header = [cell.lower() for cell in rows[0][1]] if rows else []
    if "lifetime_s" in header:
        lives = _lifetimes(path, header, rows)
    else:
        lives = _events(path, rows)
    lives = [life for life in lives if life.preempted or life.duration_s > 0]
    if len(lives) < 2 or not any(life.preempted for life in lives):
        raise TraceError(
            f"{path}: {len(lives)} lives, {sum(life.preempted for life in lives)} of them "
            "preempted; give at least two lives and one preemption"
        )
    return lives


def read_zones(path: Path, *, names: Iterable[str] | None = None) -> ZoneTrace:
    """Zones from the JSON format. Raises TraceError."""
    try:
        data = json.loads(_text(path))
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError
        raise TraceError(f"{path} is not JSON: {error}") from error
    if not (isinstance(data, dict) and isinstance(data.get("zones"), dict) and data["zones"]):
        raise TraceError(
            f"{path}: no `zones`. A bare list of 0 and 1 may mean 1 = unavailable: re-encode it as "
            "zones -> name -> available: [[value, ticks], ...] with 1 = available"
        )
    tick_s = data.get("gap_seconds")
    least, most = _TICKS_S
    if not _is_number(tick_s) or not least <= tick_s <= most:
        raise TraceError(
            f"{path}: gap_seconds is {tick_s!r}; it is the length of a tick, {least:g} to {most:g}"
        )
    wanted = list(names) if names is not None else list(data["zones"])
    missing = [name for name in wanted if name not in data["zones"]]
    if missing or not wanted:
        raise TraceError(f"{path}: no zone {missing}; there are {', '.join(data['zones'])}")
    zones = tuple(_zone(path, name, data["zones"][name]) for name in wanted)
    lengths = {zone.name: len(zone.available) for zone in zones}
    if len(set(lengths.values())) != 1:
        raise TraceError(f"{path}: the zones have gaps, their lengths differ: {lengths}")
    unpriced = [zone.name for zone in zones if zone.price is None]
    if 0 < len(unpriced) < len(zones):
        raise TraceError(
            f"{path}: some zones have prices others none ({', '.join(unpriced)}); "
            "give prices to all zones or to none, or choose zones"
        )
    if not any(any(zone.available) for zone in zones):
        raise TraceError(f"{path}: no zone is ever available; does 1 mean unavailable in it?")
    return ZoneTrace(tick_s=float(tick_s), zones=zones)


def zone_lives(zone: Zone, tick_s: float) -> list[Life]:
    """The runs of availability; the last one is censored where the window cuts it."""
    lives, run = [], 0
    for here in (*zone.available, False):
        if here:
            run += 1
        elif run:
            lives.append(Life(duration_s=run * tick_s, preempted=True))
            run = 0
    if lives and zone.available[-1]:
        lives[-1] = Life(duration_s=lives[-1].duration_s, preempted=False)
    return lives


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise TraceError(f"{path} is not text: {error}") from error


def _rows(path: Path) -> list[Row]:
    reader = csv.reader(io.StringIO(_text(path)), skipinitialspace=True)
    try:
        return [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if cells]
    except csv.Error as error:
        raise TraceError(f"{path}:{reader.line_num}: {error}") from error


def _lifetimes(path: Path, header: list[str], rows: list[Row]) -> list[Life]:
    if "end" not in header:
        raise TraceError(
            f"{path}:{rows[0][0]}: no column `end`, only {', '.join(header)}; add one that says "
            f"how each life ended: {_ENDS}"
        )
    lives = []
    for number, cells in rows[1:]:
        if len(cells) != len(header):
            raise TraceError(
                f"{path}:{number}: {len(cells)} cells where the header has {len(header)}"
            )
        row = dict(zip(header, cells, strict=True))
        end = row["end"].lower()
        if end not in ("preempted", *CENSORED):
            raise TraceError(f"{path}:{number}: end is {row['end']!r}; it is {_ENDS}")
        duration_s = _number(path, number, row["lifetime_s"])
        lives.append(_life(path, number, duration_s, end == "preempted"))
    return lives


def _life(path: Path, line: int, duration_s: float, preempted: bool) -> Life:
    if preempted and not duration_s > 0:
        raise TraceError(
            f"{path}:{line}: a life of 0 s that ended in a preemption; "
            "give its length, or leave it out"
        )
    return Life(duration_s=duration_s, preempted=preempted)


def _events(path: Path, rows: list[Row]) -> list[Life]:
    """Nodes still there at the last event are alive: censored."""
    added: dict[str, float] = {}
    lives, now_s = [], 0.0
    for number, cells in rows:
        what = cells[1].lower() if len(cells) == 3 else ""
        if what not in ("add", "remove"):
            raise TraceError(
                f"{path}:{number}: {','.join(cells)!r} is neither `ms,add|remove,node` nor below a "
                "header with lifetime_s and end"
            )
        at_s = _number(path, number, cells[0]) / 1_000
        if at_s < now_s:
            raise TraceError(f"{path}:{number}: time runs backwards; sort the events")
        now_s, node = at_s, cells[2]
        if (what == "add") == (node in added):
            raise TraceError(
                f"{path}:{number}: {what} of {node}, which does not fit the lines before"
            )
        if what == "add":
            added[node] = at_s
        else:
            lives.append(_life(path, number, at_s - added.pop(node), True))
    lives += [Life(duration_s=now_s - at_s, preempted=False) for at_s in added.values()]
    return lives


def _number(path: Path, line: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _LONGEST_S:
        raise TraceError(f"{path}:{line}: {text!r} is no time of 0 or more, {_LONGEST_S:g} at most")
    return value


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _zone(path: Path, name: str, data: Any) -> Zone:
    if not isinstance(data, Mapping) or "available" not in data:
        keys = sorted(data) if isinstance(data, Mapping) else type(data).__name__
        raise TraceError(
            f"{path}: zone {name} has {keys} and no `available` (1 = available); files that say "
            "1 = unavailable must be inverted first"
        )
    available = _runs(path, f"{name}.available", data["available"])
    if not set(available) <= {0, 1}:
        raise TraceError(f"{path}: {name}.available holds values other than 0 and 1")
    up = tuple(value == 1 for value in available)
    if "price" not in data:
        return Zone(name=name, available=up, price=None)
    price = _runs(path, f"{name}.price", data["price"])
    if len(price) != len(available):
        raise TraceError(
            f"{path}: zone {name} has {len(available)} ticks of availability and {len(price)} of "
            "price: there is a gap"
        )
    return Zone(name=name, available=up, price=tuple(price))


def _runs(path: Path, where: str, pairs: Any) -> list[float]:
    values: list[float] = []
    for pair in pairs if isinstance(pairs, list) else [None]:
        if not (
            isinstance(pair, list)
            and len(pair) == 2
            and all(map(_is_number, pair))
            and isinstance(pair[1], int)
            and 0 <= pair[0] <= _MAX_USD
            and 0 < pair[1] <= _MAX_TICKS - len(values)
        ):
            raise TraceError(
                f"{path}: {where}: {pair!r} is no [value, ticks] with ticks above 0 (values lie "
                f"between 0 and {_MAX_USD:g}, and {_MAX_TICKS:,} ticks are most)"
            )
        values += [pair[0]] * pair[1]
    return values
