"""Files of what really happened: lives, node events, zones' availability. Standard library only.

Formats: CSV with `lifetime_s` and `end` (anything but `preempted` is right-censored); CSV lines
`ms,add|remove,node`; JSON with `gap_seconds` and, for each zone, run-length pairs [value, ticks] of
`available` (1 = available) and `price` (USD an hour). Some public files of the last kind mean 1 =
unavailable: those say `unavailable`, or nothing, and are refused until that is made plain.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spothop.policy.estimators import Life


class TraceError(ValueError):
    """The file is no trace that can be used; the message says where, and what to do."""


@dataclass(frozen=True, kw_only=True)
class Zone:
    """One zone, tick by tick."""

    name: str
    available: tuple[bool, ...]
    price: tuple[float, ...]
    """USD an hour."""


@dataclass(frozen=True, kw_only=True)
class ZoneTrace:
    """Zones aligned in time."""

    tick_s: float
    zones: tuple[Zone, ...]


def read_lives(path: Path) -> list[Life]:
    """Lives from either CSV format. Raises TraceError; fewer than two lives are none."""
    lines = _text(path).splitlines()
    if lines and "lifetime_s" in lines[0].split(","):
        lives = _lifetimes(path, lines)
    else:
        lives = _events(path, lines)
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
    except json.JSONDecodeError as error:
        raise TraceError(f"{path} is not JSON: {error}") from error
    if not (isinstance(data, dict) and isinstance(data.get("zones"), dict) and data["zones"]):
        raise TraceError(
            f"{path}: no `zones`. A bare list of 0 and 1 may mean 1 = unavailable: re-encode it as "
            "zones -> name -> available: [[value, ticks], ...] with 1 = available"
        )
    tick_s = data.get("gap_seconds")
    if not isinstance(tick_s, (int, float)) or not 0 < tick_s < math.inf:
        raise TraceError(f"{path}: gap_seconds is {tick_s!r}; it is the length of a tick, above 0")
    wanted = list(names) if names is not None else list(data["zones"])
    missing = [name for name in wanted if name not in data["zones"]]
    if missing or not wanted:
        raise TraceError(f"{path}: no zone {missing}; there are {', '.join(data['zones'])}")
    zones = tuple(_zone(path, name, data["zones"][name]) for name in wanted)
    lengths = {zone.name: len(zone.available) for zone in zones}
    if len(set(lengths.values())) != 1:
        raise TraceError(f"{path}: the zones have gaps, their lengths differ: {lengths}")
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
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path} is not text: {error}") from error


def _lifetimes(path: Path, lines: list[str]) -> list[Life]:
    lives = []
    for number, row in enumerate(csv.DictReader(lines), start=2):
        duration_s = _number(path, number, row.get("lifetime_s"))
        lives.append(
            Life(duration_s=duration_s, preempted=row.get("end", "preempted") == "preempted")
        )
    return lives


def _events(path: Path, lines: list[str]) -> list[Life]:
    """Nodes still there at the last event are alive: censored."""
    added: dict[str, float] = {}
    lives, now_s = [], 0.0
    for number, line in enumerate(lines, start=1):
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 3 or parts[1] not in ("add", "remove"):
            raise TraceError(
                f"{path}:{number}: {line!r} is neither `ms,add|remove,node` nor below a header "
                "with lifetime_s"
            )
        at_s = _number(path, number, parts[0]) / 1_000
        if at_s < now_s:
            raise TraceError(f"{path}:{number}: time runs backwards; sort the events")
        now_s, node = at_s, parts[2]
        if (parts[1] == "add") == (node in added):
            raise TraceError(
                f"{path}:{number}: {parts[1]} of {node}, which does not fit the lines before"
            )
        if parts[1] == "add":
            added[node] = at_s
        else:
            lives.append(Life(duration_s=at_s - added.pop(node), preempted=True))
    lives += [Life(duration_s=now_s - at_s, preempted=False) for at_s in added.values()]
    return lives


def _number(path: Path, line: int, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise TraceError(f"{path}:{line}: {text!r} is no time of 0 or more")
    return value


def _zone(path: Path, name: str, data: Any) -> Zone:
    if not isinstance(data, Mapping) or "available" not in data:
        keys = sorted(data) if isinstance(data, Mapping) else type(data).__name__
        raise TraceError(
            f"{path}: zone {name} has {keys} and no `available` (1 = available); files that say "
            "1 = unavailable must be turned round first"
        )
    available = _runs(path, f"{name}.available", data["available"])
    if not set(available) <= {0, 1}:
        raise TraceError(f"{path}: {name}.available holds values other than 0 and 1")
    price = _runs(path, f"{name}.price", data.get("price", [[0, len(available)]]))
    if len(price) != len(available):
        raise TraceError(
            f"{path}: zone {name} has {len(available)} ticks of availability and {len(price)} of "
            "price: there is a gap"
        )
    return Zone(name=name, available=tuple(v == 1 for v in available), price=tuple(price))


def _runs(path: Path, where: str, pairs: Any) -> list[float]:
    values: list[float] = []
    for pair in pairs if isinstance(pairs, list) else [None]:
        if not (
            isinstance(pair, list)
            and len(pair) == 2
            and isinstance(pair[0], (int, float))
            and isinstance(pair[1], int)
            and 0 <= pair[0] < math.inf
            and 0 < pair[1] <= 10_000_000
        ):
            raise TraceError(f"{path}: {where}: {pair!r} is no [value, ticks] with ticks above 0")
        values += [pair[0]] * pair[1]
    return values
