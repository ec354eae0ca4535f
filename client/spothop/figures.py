"""Money, sizes, numbers and exits as people read them, in a terminal and on a page alike. Pure."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING

from spothop.durations import NOTHING

if TYPE_CHECKING:
    from spothop.wire import AttemptView, JobView, PlaceView


def money(usd: float) -> str:
    """`$12.34`; below ten cents two significant digits, so that small jobs show a cost."""
    if usd == 0 or abs(usd) >= 0.0995:  # which two digits would round up to $0.1
        return f"${usd:,.2f}"
    return f"${usd:.2g}" if abs(usd) >= 1e-4 else "<$0.0001"


ON_DEMAND = "the steps that count and one start, at the on-demand price"
"""What `on_demand_cost` is, for people; shown beside it."""


def saved(cost: float, on_demand: float | None, *, ended: bool = True) -> str:
    """`63% less` than on demand, or `5% more`, `so far` while the job has not ended; empty where
    there is nothing to compare."""
    if not on_demand or on_demand < 0:
        return ""
    share = 1 - cost / on_demand
    text = f"{share:.0%} less" if share >= 0 else f"{-share:.0%} more"
    return text if ended else f"{text} so far"


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
    if abs(value) >= 9999.5:  # which four digits would round up to 1e+04
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 1e-3 else f"{value:.3g}"


def shown_state(of: JobView | AttemptView) -> str:
    """The state for people: the life cycle's, where `preparing` ends and `starting` begins with the
    start of the process."""
    return "starting" if of.starting else of.state.value


def state_text(job: JobView) -> str:
    """The state, and beside it what becomes of it, and that nothing protects the work."""
    becomes = becoming(job)
    text = shown_state(job) + (f", {becomes}" if becomes else "")
    if job.unprotected:
        return text + ", unprotected"
    return text + (f", {alarm_words(job.alarms[0].kind)}" if job.alarms else "")


def alarm_words(kind: str) -> str:
    """`no capacity`"""
    return kind.replace("_", " ")


def becoming(job: JobView) -> str:
    """`pausing`, `cancelling` or `resuming`, until that is so; else empty."""
    if job.ended_at is not None:
        return ""
    paused = job.state.value == "paused"
    match job.wanted.value:
        case "cancelled":
            return "cancelling"
        case "paused":
            return "" if paused else "pausing"
        case _:
            return "resuming" if paused else ""


AT_LEAST = "a VM that ended without a word had made steps that nobody was told of"
"""Why `lost_is_least`, for people."""


def lost_is_least(attempts: Sequence[AttemptView]) -> bool:
    """An attempt was followed by another one, and how its process ended was never told: what it did
    after its last report, some seconds of steps, is lost and in no figure."""
    return any(
        attempt.ended_at is not None
        and attempt.last_step is not None
        and any(place.exit_code is None and place.exit_signal is None for place in attempt.places)
        for attempt in attempts[:-1]
    )


class _Repr(reprlib.Repr):
    """Dates as YAML has them, not as Python makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlist, self.maxdict, self.maxstring = 2, 3, 3, 40

    def repr_date(self, value: date, level: int) -> str:
        return value.isoformat()

    def repr_datetime(self, value: datetime, level: int) -> str:
        return value.isoformat(sep=" ")


_REPR = _Repr()


def as_written(value: object) -> str:
    """A value of somebody's file, for an error: at most about 80 characters, whatever its aliases
    expand to."""
    try:
        text = _REPR.repr(value)
    except ValueError:  # Python writes out no number of more than 4,300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= 80 else text[:77] + "..."


_SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGUSR1",
    11: "SIGSEGV",
    12: "SIGUSR2",
    13: "SIGPIPE",
    14: "SIGALRM",
    15: "SIGTERM",
    24: "SIGXCPU",
    25: "SIGXFSZ",
    31: "SIGSYS",
}
"""Linux's numbers, which are the VM's: those of the reader's machine may differ."""


def exit_text(code: int | None, signal: int | None) -> str:
    """`signal SIGKILL` or `exit code 3`; empty for a process that runs, that ended well, or whose
    end nobody saw."""
    if signal is not None:
        return f"signal {_SIGNALS.get(signal, signal)}"
    return f"exit code {code}" if code else ""


def exits_text(places: Sequence[PlaceView]) -> str:
    """Of an attempt's processes, each how once: `signal SIGKILL, exit code 1`."""
    texts = (exit_text(place.exit_code, place.exit_signal) for place in places)
    return ", ".join(dict.fromkeys(text for text in texts if text))
