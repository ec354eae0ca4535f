"""What the user hears of reports that make no sense: an event each, but few of one VM in an hour.

Whatever a VM sends, its number is acknowledged, so that the reports behind it count. Those that
were not told are counted, and the next event says how many they were. The counts are this master's
own: one that was started again tells a few more.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from spothop_master.agents.reading import Fault
from spothop_master.store import transitions
from spothop_master.store.schema import Place, VmRow

MOST = 5
"""Events about one VM in an hour."""
HOUR = timedelta(hours=1)

HINT = "the VM's spothop is of another version than the master, or something else speaks for it"


@dataclass
class _Told:
    since: datetime
    events: int = 0
    untold: int = 0


class Quarantine:
    """Thread-safe."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}
        self._lock = threading.Lock()

    def tell(
        self, session: Session, vm: VmRow, place: Place | None, fault: Fault, *, now: datetime
    ) -> None:
        """An event in this transaction, or one more in the count."""
        untold = self.may_tell(vm.id, now=now)
        if untold is None:
            return
        more = f" ({untold} more before it)" if untold else ""
        transitions.record(
            session,
            "message",
            f"{fault.text}{more}; {HINT}",
            now=now,
            row=place or vm,
            data={"level": "warning", "field": fault.field, "report": fault.said},
        )

    def may_tell(self, key: str, *, now: datetime, most: int = MOST) -> int | None:
        """How many of this key were not told before this one; None: nor is this one."""
        with self._lock:
            told = self._told.get(key)
            if told is None or not timedelta() <= now - told.since < HOUR:  # clocks may go back
                untold = told.untold if told else 0
                self._told = {k: v for k, v in self._told.items() if now - v.since < HOUR}
                told = self._told[key] = _Told(now, untold=untold)
            if told.events >= most:
                told.untold += 1
                return None
            told.events += 1
            untold, told.untold = told.untold, 0
            return untold
