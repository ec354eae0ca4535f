"""Which events of a job tell people something new, and which lines of its log are the agent's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spothop.wire import EventView

AGENT_LINE = "spothop agent: "
"""How a line that the agent writes into a job's log begins. Warnings of the training API, in the
process itself, begin otherwise: nothing but the log tells them."""


class EventFilter:
    """Drops repeated events: the master records one change for the job, for the attempt and for
    the VM, so that each has its own history."""

    def __init__(self) -> None:
        self._shown: list[EventView] = []
        """Events of the newest moment."""

    def is_news(self, event: EventView) -> bool:
        """Call it for each event once, in order."""
        if self._shown and self._shown[0].at != event.at:
            self._shown.clear()
        if event.text and any(_repeats(event, shown) for shown in self._shown):
            return False
        self._shown.append(event)
        return True


def _repeats(event: EventView, shown: EventView) -> bool:
    """An event of the job has neither attempt nor VM, one of the VM no attempt."""
    return (
        event.text == shown.text
        and event.attempt in (None, shown.attempt)
        and event.vm in (None, shown.vm)
    )
