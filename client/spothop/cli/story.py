"""The story of a followed job: which of its events are told by default, and in which words. Pure.

A job of some hours has thousands of events, and most matter only to whoever looks for a fault. Told
are: a VM is up, the job goes on from a step, trains, is preempted, is saved, has cost so much. Of
the saves only the first of each attempt and those after a notice, of the policy's reasons only the
first. Kinds of event that this client does not know are told: they may be warnings.
"""

from __future__ import annotations

from spothop.durations import duration
from spothop.figures import money, number, size
from spothop.wire import AttemptState, EventView, JobView, SaveKind

_DETAIL = frozenset(
    {
        "acknowledged",
        "cloud",
        "fenced_in",
        "injected",
        "job",
        "late",
        "may_fence",
        "phase",
        "place",
        "prepared",
        "save_requested",
        "started",
        "stop",
        "submitted",
        "vm",
    }
)
"""Kinds that `--verbose` shows. A change of a job's or a VM's state is told by what caused it."""


class Story:
    """Call `line` for each event once, in order."""

    def __init__(self) -> None:
        self._saves: dict[int | None, int] = {}
        """Of each attempt, so far."""
        self._policy_told = False
        self._waits_for = ""
        self._ended = ""
        """How the newest attempt ended, which the wait after it says again."""

    def line(self, event: EventView, job: JobView) -> str | None:
        """What to print, beside the number of the attempt; None for an event that is left out.

        `job` as it was seen last.
        """
        text = self._told(event, job)
        return text.removeprefix(f"attempt {event.attempt} ") if text else None

    def _told(self, event: EventView, job: JobView) -> str | None:
        match event.kind:
            case "allocated":
                return _vm_up(event)
            case "attempt":
                return self._attempt(event, job)
            case "committed":
                return self._saved(event)
            case "notice":
                return _notice(event)
            case "insurance":
                first, self._policy_told = not self._policy_told, True
                return event.text if first else None
            case "wait":
                return self._wait(event)
            case "message":
                return event.text if event.data.get("level") != "info" else None
            case kind:
                return None if kind in _DETAIL else event.text or kind

    def _attempt(self, event: EventView, job: JobView) -> str | None:
        if event.data.get("to") == AttemptState.RUNNING:
            return event.text
        if event.data.get("to") != AttemptState.ENDED:
            return None
        self._ended = event.text
        count = self._saves.get(event.attempt, 0)
        saves = "1 save" if count == 1 else f"{number(count)} saves"
        return f"{event.text}; {saves}, {money(job.cost)} so far"

    def _wait(self, event: EventView) -> str | None:
        again, self._waits_for = event.text == self._waits_for, event.text
        why, _, then = event.text.rpartition("; ")
        if why and self._ended.endswith(why):
            return then
        return None if again else event.text

    def _saved(self, event: EventView) -> str | None:
        count = self._saves.get(event.attempt, 0) + 1
        self._saves[event.attempt] = count
        kind, after_s = event.data.get("save"), event.data.get("since_notice_s")
        if kind != SaveKind.EMERGENCY and count > 1:
            return None
        step, bytes_ = event.data.get("step"), event.data.get("bytes")
        if not isinstance(step, int) or not isinstance(bytes_, int):
            return event.text
        late = f", {duration(after_s)} after the notice" if isinstance(after_s, float) else ""
        return f"saved step {number(step)} ({kind}, {size(bytes_)}){late}"


def _vm_up(event: EventView) -> str:
    pool, price = event.data.get("pool"), event.data.get("price")
    if isinstance(pool, str) and isinstance(price, float):
        return f"VM up: {pool}, ${price:.4g}/h"
    return f"VM up: {event.text}"


def _notice(event: EventView) -> str:
    """Without the sum behind it."""
    late = event.data.get("fits") is False
    return event.text.partition(";")[0] + ("; an emergency save may come too late" * late)
