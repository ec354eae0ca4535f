"""What answers are made of: lists by zone, filters, errors, moments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from fakes.gcp import rules
from fakes.gcp.schema import Refused

PROJECT, NUMBER = "my-project", "1234567890"
ROOT = f"https://www.googleapis.com/compute/v1/projects/{PROJECT}"


def scoped(what: str, rows: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """An aggregated list; zones that have nothing say so."""
    items: dict[str, Any] = {}
    for zone, row in rows:
        items.setdefault(f"zones/{zone}", {}).setdefault(what, []).append(row)
    for zones in rules.ZONES.values():
        for zone in zones:
            items.setdefault(f"zones/{zone}", {"warning": {"code": "NO_RESULTS_ON_PAGE"}})
    return {"items": items, "kind": f"compute#{what}AggregatedList"}


def matching(text: str | None) -> Callable[[Mapping[str, Any]], bool]:
    """One comparison: `field="value"`, or `field eq "regular expression"` on the whole field."""
    if text is None:
        return lambda row: True
    same = re.fullmatch(r'([\w.-]+)\s*=\s*"([^"]*)"', text)
    like = re.fullmatch(r'([\w.-]+) eq "([^"]*)"', text)
    if same is not None:
        return lambda row: _field(row, same[1]) == same[2]
    if like is not None:
        pattern = re.compile(like[2])
        return lambda row: pattern.fullmatch(str(_field(row, like[1]))) is not None
    raise Refused(f"Invalid value for field 'filter': '{text}'. Invalid list filter expression.")


def _field(row: Mapping[str, Any], path: str) -> Any:
    first, _, rest = path.partition(".")
    value = row.get(first)
    return _field(value, rest) if rest and isinstance(value, Mapping) else value


def not_found(what: str) -> Refused:
    return Refused(f"The resource '{what}' was not found", status=404, reason="notFound")


def error(status: int, reason: str, message: str) -> dict[str, Any]:
    cause = {"message": message, "domain": "global", "reason": reason}
    return {"error": {"code": status, "message": message, "errors": [cause]}}


def time(at: float) -> str:
    """As Compute Engine writes it, in the time of its own place."""
    text = datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "-00:00")
