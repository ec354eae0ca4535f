"""The body of a sync, read so that one bad report stops no other.

An agent sends what was not acknowledged again and again. A master that refused the whole body for
one value would hear nothing more of that VM: neither its commits nor its exit. So what makes sense
counts, and what does not is put aside under its number:

1. Nearly every body is read in one go. Only one that is refused, or is long, is read report by
   report.
2. Of a bad report the parts that may be missing (fields with a default, single metrics) are left
   out, and the rest counts: an exit with a senseless step is still an exit.
3. `Fault` says what was wrong, for the job's events; the number is acknowledged like any other.

Only an envelope without a number, and what is around the envelopes, is refused.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from spothop.wire import (
    MAX_METRICS,
    MAX_REPORTS,
    AnyReport,
    Envelope,
    Heartbeat,
    MessageReport,
    Seconds,
    SyncRequest,
    Whole,
    plain_text,
)

KEPT = 2_000
"""Characters of a bad report that are kept for a look."""
SHOWN = 80
"""Characters of a bad value that are shown."""
KEYS = MAX_METRICS + 20
"""Of one object of the JSON; the rest is not looked at."""
TRIES = 3
"""What was left out may have hidden another fault, of the report as a whole."""
_SPARED = frozenset(
    {"step", "code", "signal", "uncommitted", "since_notice_s", "deadline_in_s", "rejected"}
)
"""Fields that a report may lack where they have a default, without saying another thing."""

_report: TypeAdapter[AnyReport] = TypeAdapter(AnyReport)
_whole: TypeAdapter[int] = TypeAdapter(Whole)
_seconds: TypeAdapter[float] = TypeAdapter(Seconds)
_heartbeat: TypeAdapter[Heartbeat] = TypeAdapter(Heartbeat)


class NoNumber(Exception):
    """An envelope has no number: nothing of it could ever be acknowledged."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is wrong with a report, for people."""

    kind: str
    field: str
    value: str
    why: str
    said: str
    """The report as it came, shortened."""
    counts: bool
    """The rest of the report counts."""

    @property
    def text(self) -> str:
        what = "".join(f"{part}: " for part in (self.field, self.value) if part)
        rest = "the rest of it counts" if self.counts else "it is left out"
        return f"{self.kind or 'a'} report of the agent: {what}{self.why}; {rest}"

    @classmethod
    def of_report(cls, report: AnyReport, why: str) -> Fault:
        """Of one that is within all bounds, and cannot be applied."""
        return _fault(report.model_dump(mode="json"), "", None, why)


class FaultyEnvelope(Envelope):
    """`report` is what was left of a bad report; where nothing counts, it stands for nothing."""

    fault: Fault


def parsed(body: bytes) -> Any:
    """The JSON of a body. Raises ValueError or RecursionError for what is none."""
    return json.loads(body, parse_int=_integer, object_pairs_hook=_bounded)


def _bounded(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """One with more keys than any message has is refused in any case, which takes time for each."""
    return dict(pairs[:KEYS])


def _integer(digits: str) -> int | float:
    """Python reads no integer of more than 4,300 digits; with one a report is bad, not a body."""
    return int(digits) if len(digits) <= 100 else float("inf")


def one_by_one(body: Any) -> SyncRequest:
    """From the JSON of a body that was refused. Raises NoNumber, and ValidationError for what is
    not in a report."""
    raws = body.get("reports") if isinstance(body, dict) else None
    if not isinstance(raws, list):
        return SyncRequest.model_validate(body)
    around = {**body, "reports": []}
    if "heartbeat" in around and not _fits(_heartbeat, around["heartbeat"]):
        del around["heartbeat"]  # it changes nothing, and the next one is on its way
    message = SyncRequest.model_validate(around)
    envelopes = [_envelope(raw, index) for index, raw in enumerate(raws[:MAX_REPORTS])]
    return message.model_copy(update={"reports": envelopes})


def _envelope(raw: Any, index: int) -> Envelope:
    try:
        return Envelope.model_validate(raw)
    except ValidationError:
        pass
    if not isinstance(raw, Mapping) or not _fits(_whole, raw.get("seq")):
        raise NoNumber(f"reports.{index} has no number")
    said = raw.get("report")
    report, fault = _mended(said)
    attempt, age_s = raw.get("attempt"), raw.get("age_s")
    if not _fits(_whole, attempt):
        report, fault = None, _fault(said, "attempt", attempt, "no number of an attempt")
        attempt = 0
    if not _fits(_seconds, age_s):
        fault = fault or _fault(said, "age_s", age_s, "no age; taken as new", counts=True)
        age_s = 0.0
    return FaultyEnvelope(
        seq=raw["seq"],
        age_s=age_s,
        attempt=attempt,
        report=report or MessageReport(text=""),
        fault=fault or _fault(said, "envelope", None, "unknown keys around it", counts=True),
    )


def _mended(said: Any) -> tuple[AnyReport | None, Fault | None]:
    """What counts of a report, and what is wrong with it."""
    fault, rest = None, said
    for _ in range(TRIES):
        try:
            return _report.validate_python(rest), fault
        except ValidationError as error:
            errors = error.errors(include_url=False)
        left = _without(rest, errors)
        fault = fault or _of_error(said, errors[0], counts=True)
        if left is None:
            break
        rest = left
    return None, fault and replace(fault, counts=False)


def _without(said: Any, errors: Sequence[ErrorDetails]) -> dict[str, Any] | None:
    """The report without its bad parts, where it can do without them."""
    left: dict[str, Any] = dict(said) if isinstance(said, Mapping) else {}
    bad_values = set()
    for error in errors:
        match error["loc"]:
            case (_, "values") if error["type"] == "too_long":
                left["values"] = dict(islice(left["values"].items(), MAX_METRICS))
            case (_, "values", name, *_):
                bad_values.add(name)
            case (_, str(name), *_) if name in _SPARED or error["type"] == "extra_forbidden":
                left.pop(name, None)
            case _:
                return None
    if bad_values:
        left["values"] = {k: v for k, v in left["values"].items() if k not in bad_values}
    return left


def _of_error(said: Any, error: ErrorDetails, *, counts: bool) -> Fault:
    path = [str(part) for part in error["loc"][1:] if part != "[key]"]
    value = None if error["type"] == "missing" else error["input"]
    return _fault(said, ".".join(path) or "kind", value, error["msg"], counts=counts)


def _fault(said: Any, field: str, value: Any, why: str, *, counts: bool = False) -> Fault:
    kind = said.get("kind", "") if isinstance(said, Mapping) else ""
    return Fault(
        kind=plain_text(kind if isinstance(kind, str) else "", SHOWN),
        field=plain_text(field, SHOWN),
        value="" if value is None else plain_text(reprlib.repr(value), SHOWN),
        why=plain_text(why[:1].lower() + why[1:], SHOWN * 2),
        said=_written(said),
        counts=counts,
    )


def _written(said: Any) -> str:
    try:
        return plain_text(json.dumps(said, default=str), KEPT)
    except (ValueError, RecursionError):
        return "nested too deeply"


def _fits(adapter: TypeAdapter[Any], value: Any) -> bool:
    try:
        adapter.validate_python(value)
    except ValidationError:
        return False
    return True
