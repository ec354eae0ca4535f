"""What goes wrong, and when: scripted answers by action and pool, in the order they were added."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from fnmatch import fnmatchcase

from fakes.aws.calls import Call

FOR_EVER = 1 << 30


@dataclass(kw_only=True)
class Fault:
    """One thing that goes wrong; the first that matches strikes, and counts down."""

    action: str = "*"
    """A pattern of fnmatch, such as Describe*."""
    zone: str | None = None
    vm_type: str | None = None
    spot: bool | None = None
    region: str | None = None
    """Only launches into such a pool; None is any."""
    key: str | None = None
    """Only calls with this access key."""
    skip: int = 0
    """So many matching calls go well before."""
    times: int = 1
    after: bool = False
    """The call is done, and then the answer is the one below."""
    code: str = ""
    """The error; none: the connection is cut in place of an answer."""
    message: str = ""
    stall: bool = False
    """No answer before `Script.release`."""

    def matches(self, call: Call) -> bool:
        return (
            fnmatchcase(call.action, self.action)
            and self.zone in (None, call.zone)
            and self.vm_type in (None, call.vm_type)
            and self.spot in (None, call.spot)
            and self.region in (None, call.region)
            and self.key in (None, call.key)
        )


class Script:
    """The faults of one emulator."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._released = threading.Event()

    def add(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def fail(
        self,
        action: str,
        code: str,
        *,
        zone: str | None = None,
        vm_type: str | None = None,
        spot: bool | None = None,
        times: int = 1,
        skip: int = 0,
        after: bool = False,
    ) -> Fault:
        """Answer with this error in place of the action; with `after` although it was done."""
        return self.add(
            Fault(
                action=action,
                code=code,
                zone=zone,
                vm_type=vm_type,
                spot=spot,
                times=times,
                skip=skip,
                after=after,
            )
        )

    def cut(self, action: str, *, after: bool = False, times: int = 1, skip: int = 0) -> Fault:
        """Cut the connection in place of an answer; with `after` once the action is done: what a
        time-out looks like to who called, without the waiting."""
        return self.add(Fault(action=action, after=after, times=times, skip=skip))

    def stall(self, action: str, *, after: bool = False, times: int = 1) -> Fault:
        """Answer only when `release` is called."""
        return self.add(Fault(action=action, after=after, times=times, stall=True))

    def heal(self) -> None:
        """Nothing goes wrong any more, and stalled calls go on."""
        with self._lock:
            self._faults.clear()
        self.release()

    def release(self) -> None:
        """Calls that are stalled now go on."""
        released, self._released = self._released, threading.Event()
        released.set()

    def wait_for_release(self) -> None:
        self._released.wait()

    def strike(self, call: Call) -> Fault | None:
        with self._lock:
            for fault in self._faults:
                if not fault.matches(call) or fault.times <= 0:
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                return fault
        return None
