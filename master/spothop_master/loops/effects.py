"""Calls to the clouds: side by side, one executor for each cloud account, results under a lease.

What it must guarantee: every effect that is started is written down once, by whoever still holds
the lease of its VM, or by nobody; and a cloud that hangs takes no thread of another one, nor does a
launch that hangs take one from those that end VMs. Rules:

1. The call is outside any session (I4). Its result, and the lease it was made under, go in one
   transaction (`store.leases`). Launches that were taken at the same time, as after the notices of
   a zone, share one (`loops.results`); where that fails, each is written by itself.
2. Effects wait for a thread of their cloud, so `renew` has to be called meanwhile. A launch whose
   VM nobody wants any more when its turn comes is not made, nor is one whose account, region or
   zone was closed meanwhile (`core.refusals`). The rows are asked for that only when something was
   written since: most launches go out at once.
3. A call that raises what nobody expected gives the lease back: the cloud's listing tells. What is
   asked for, and again after an answer that is not clear, and how fast: `loops.calls`. Whoever
   waits for its turn looks after it whether its VM is still wanted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from spothop.chaos import Chaos
from spothop.wire import VM_LEAVING, AgentConfig
from spothop_master.clouds.base import (
    Cloud,
)
from spothop_master.core.refusals import Growth
from spothop_master.loops.calls import (
    REPEAT_AFTER_S,
    Calls,
    Effect,
    Launch,
    Result,
    Terminate,
    Write,
)
from spothop_master.loops.results import Results
from spothop_master.store import launches, leases, refusals
from spothop_master.store.db import Database
from spothop_master.store.launches import Taken
from spothop_master.store.schema import VmRow

log = logging.getLogger(__name__)

RENEW = leases.TTL / 3

WRITTEN = 10
"""Results that are written in one transaction at most; so long decisions and reports wait."""

FRESH = timedelta(seconds=1)
"""So long after a launch was decided it goes out without a look at its row, if this process has
written nothing that speaks against it. Another master may have."""

_LEAVING = {state.value for state in VM_LEAVING}


def threads(cloud: str, at_once: int) -> Executor:
    return ThreadPoolExecutor(at_once, thread_name_prefix=f"effects-{cloud}")


@dataclass(kw_only=True)
class Effects:
    """Thread-safe. `executor_of` makes an executor for the launches of one cloud, and one for its
    terminations, when they are first needed."""

    db: Database
    clouds: Mapping[str, Cloud]
    clock: Callable[[], datetime]
    chaos: Chaos
    executor_of: Callable[[str], Executor]
    growth: Callable[[], Growth]
    """Of the back-off after a refusal."""
    done: Callable[[str], None]
    """Called with the job's id when a result is written, or dropped."""
    script: Callable[[AgentConfig], str] = field(default=lambda config: "")
    """The user data of a VM that boots an image; always the same. Raises what `loops.booting` says.
    """
    repeat_after_s: Sequence[float] = REPEAT_AFTER_S
    sleep: Callable[[float], None] = time.sleep
    _executors: dict[tuple[str, type[Effect]], Executor] = field(default_factory=dict)
    _held: dict[str, str] = field(default_factory=dict)
    """VM -> token of the lease under which it is called about."""
    _fresh: dict[str, datetime] = field(default_factory=dict)
    """Job with launches about which nothing was written since they were decided -> when that was.
    """
    _renewed_at: datetime | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _results: Results[Result] = field(init=False)
    _calls: Calls = field(init=False)

    def __post_init__(self) -> None:
        self._calls = Calls(
            db=self.db,
            clouds=self.clouds,
            clock=self.clock,
            chaos=self.chaos,
            growth=self.growth,
            script=self.script,
            repeat_after_s=self.repeat_after_s,
            sleep=self.sleep,
        )
        self._results = Results(self._write, most=WRITTEN)

    def start(self, effects: Sequence[Effect]) -> None:
        """Their intents are committed, their leases taken."""
        decided_at = self.clock()
        for effect in effects:
            with self._lock:
                self._held[effect.vm] = effect.lease
                if isinstance(effect, Launch):
                    self._fresh[effect.job] = decided_at
                kind = (effect.cloud, type(effect))
                if kind not in self._executors:
                    self._executors[kind] = self.executor_of(effect.cloud)
            try:
                self._executors[kind].submit(self._perform, effect)
            except RuntimeError:  # no new thread
                log.exception("VM %s: nobody calls its cloud; asking again", effect.vm)
                self._give_back(effect)
                self._over(effect)

    def changed(self, jobs: Iterable[str]) -> None:
        """Something was written about these jobs: their launches may be unwanted."""
        with self._lock:
            for job in jobs:
                self._fresh.pop(job, None)

    def closed(self) -> None:
        """Something was: no launch that waits goes out without a look at what."""
        with self._lock:
            self._fresh.clear()

    def renew(self) -> None:
        """Call it every second or so, whatever else goes on: no lease may run out meanwhile."""
        now = self.clock()
        with self._lock:
            held = dict(self._held)
            if self._renewed_at is None or not held:
                self._renewed_at = now
            if now - self._renewed_at < RENEW:
                return
            self._renewed_at = now
        with self.db.begin() as session:
            leases.renew(session, held, now=self.db.now(session))

    def close(self) -> None:
        """Wait for calls under way; their results are written."""
        for executor in [*self._executors.values()]:
            executor.shutdown(wait=True)

    # -- one effect, in a thread -----------------------------------------------------------------

    def _perform(self, effect: Effect) -> None:
        try:
            result = self._call(effect)
        except Exception:  # a driver may raise anything
            self._unknown(effect)
            self._over(effect)
        else:
            if not isinstance(result, Result):
                result = Result(effect=effect, write=result)
            self._results.bring(result)

    def _unknown(self, effect: Effect) -> None:
        log.exception("VM %s: the cloud's listing will tell what came of it", effect.vm)
        self._give_back(effect)

    def _over(self, effect: Effect) -> None:
        with self._lock:
            if self._held.get(effect.vm) == effect.lease:
                del self._held[effect.vm]
        self.done(effect.job)

    # -- what came of it -------------------------------------------------------------------------

    def _write(self, results: Sequence[Result]) -> None:
        taken = [result for result in results if result.taken is not None]
        if not taken or not self._write_together([each.taken for each in taken if each.taken]):
            taken = []
        for result in results:
            if result in taken:
                self.chaos.reach("after_apply")
            else:
                self._write_alone(result)
            self._over(result.effect)

    def _write_together(self, taken: Sequence[Taken]) -> bool:
        """False: one of them is not plain, and nothing is written of any."""
        try:
            with self.db.begin() as session:
                lease_now = self.db.now(session)
                launches.taken_all(session, taken, now=self.clock(), lease_now=lease_now)
        except Exception as error:  # whatever it is, each by itself may be written
            log.info("%d launches are written one by one: %s", len(taken), error)
            return False
        return True

    def _write_alone(self, result: Result) -> None:
        effect = result.effect
        try:
            with self.db.begin() as session:
                leases.lock_all(session, [effect.job])  # first, as whoever decides about it does
                leases.drop(session, effect.vm, token=effect.lease, now=self.db.now(session))
                result.write(session)
            self.chaos.reach("after_apply")
        except leases.StaleLease as error:
            log.warning("%s; what was found out is dropped", error)
        except Exception:  # a result that cannot be written: the others are, and the listing tells
            self._unknown(effect)

    def _give_back(self, effect: Effect) -> None:
        try:
            with self.db.begin() as session:
                leases.drop(session, effect.vm, token=effect.lease, now=self.db.now(session))
        except leases.StaleLease:
            pass
        except Exception:  # the database is away, too
            log.exception("VM %s: its lease ends by itself", effect.vm)

    def _call(self, effect: Effect) -> Write | Result:
        """Outside any session (I4); what to write comes back. Of a cloud that is not configured any
        more the row and its job tell since the start of this master (`vms.note_clouds`)."""
        if effect.cloud not in self.clouds:
            return self._calls.ask_nobody(effect)
        if isinstance(effect, Terminate):
            return self._calls.terminate(effect)
        self._calls.wait_for_turn(effect.cloud)
        if self._is_fresh(effect):
            return self._calls.launch(effect)
        with self.db.read() as session:
            row = session.get(VmRow, effect.vm)
            if row is None or row.state in _LEAVING:
                return self._calls.withdraw(effect)
            closed = refusals.closed_since(session, row, now=self.clock())
        if closed is None:
            return self._calls.launch(effect)
        if effect.repeated:
            text = f"{effect.spec.pool} is not asked again: {closed.told}; its listing tells"
            return self._calls.note(effect.vm, text)
        return self._calls.not_asked(effect, closed)

    def _is_fresh(self, effect: Launch) -> bool:
        """It was decided just now, and nothing was written about its job since."""
        with self._lock:
            decided_at = self._fresh.get(effect.job)
        return decided_at is not None and abs(self.clock() - decided_at) < FRESH
