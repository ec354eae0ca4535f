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
3. After an answer that is not clear the same launch is asked for again, with its token and the same
   bytes: the cloud makes one VM for a token, so that its answer tells what came of the first one.
   When that is not clear either, the cloud's listing tells, as after an unexpected exception, which
   gives the lease back. Only a refusal that looked at the launch itself makes it clear (`_CLEAR`):
   "slow down" says nothing about what came of the first one.
4. Launches go no faster than their cloud takes them (`clouds.pacing`); whoever waits for that looks
   after it whether its VM is still wanted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from spothop.chaos import Chaos
from spothop.wire import VM_LEAVING, AgentConfig, VmReason
from spothop_master.boot.console import last_words
from spothop_master.boot.packages import PackageError
from spothop_master.boot.user_data import TooLong
from spothop_master.clouds.base import (
    Ambiguous,
    BadRequest,
    Cloud,
    CloudError,
    LaunchSpec,
    NoCapacity,
    QuotaExceeded,
    TellsConsole,
    Throttled,
    Unavailable,
    Vm,
    refused_by,
)
from spothop_master.clouds.pacing import Pacing
from spothop_master.core.refusals import BackOff, Growth, Refused, Scope
from spothop_master.loops.booting import ScriptChanged
from spothop_master.loops.results import Results
from spothop_master.store import launches, leases, refusals, transitions, vms
from spothop_master.store.db import Database
from spothop_master.store.launches import Taken
from spothop_master.store.schema import VmRow

log = logging.getLogger(__name__)

RENEW = leases.TTL / 3

REPEAT_AFTER_S = (1.0, 4.0)
"""After an answer to a launch that is not clear it is repeated so many times, after so long."""

WRITTEN = 10
"""Results that are written in one transaction at most; so long decisions and reports wait."""

FRESH = timedelta(seconds=1)
"""So long after a launch was decided it goes out without a look at its row, if this process has
written nothing that speaks against it. Another master may have."""

_CLEAR = (NoCapacity, QuotaExceeded)
"""Refusals of a repeated launch that mean that the first one made nothing."""

_LEAVING = {state.value for state in VM_LEAVING}


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Ask the cloud for the VM of this row, which is committed."""

    job: str
    vm: str
    cloud: str
    lease: str
    token: str
    spec: LaunchSpec
    repeated: bool = False
    """Somebody may have asked for it before."""


@dataclass(frozen=True, kw_only=True)
class Terminate:
    job: str
    vm: str
    cloud: str
    lease: str
    cloud_id: str


Effect = Launch | Terminate

Write = Callable[[Session], None]
"""What came of a call, for the transaction that gives its lease back."""


@dataclass(frozen=True, kw_only=True)
class _Result:
    effect: Effect
    write: Write
    taken: Taken | None = None
    """Of a launch that the cloud took: the same for a transaction of many."""


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
    _consoles: set[str] = field(default_factory=set)
    """VMs whose console was told."""
    _paces: dict[str, Pacing] = field(default_factory=dict)
    _executors: dict[tuple[str, type[Effect]], Executor] = field(default_factory=dict)
    _held: dict[str, str] = field(default_factory=dict)
    """VM -> token of the lease under which it is called about."""
    _fresh: dict[str, datetime] = field(default_factory=dict)
    """Job with launches about which nothing was written since they were decided -> when that was.
    """
    _renewed_at: datetime | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _results: Results[_Result] = field(init=False)

    def __post_init__(self) -> None:
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
            if not isinstance(result, _Result):
                result = _Result(effect=effect, write=result)
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

    def _write(self, results: Sequence[_Result]) -> None:
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

    def _write_alone(self, result: _Result) -> None:
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

    def _call(self, effect: Effect) -> Write | _Result:
        """Outside any session (I4); what to write comes back. Of a cloud that is not configured any
        more the row and its job tell since the start of this master (`vms.note_clouds`)."""
        if effect.cloud not in self.clouds:
            return self._ask_nobody(effect)
        if isinstance(effect, Terminate):
            return self._terminate(effect)
        self._wait_for_turn(effect.cloud)
        if self._is_fresh(effect):
            return self._launch(effect)
        with self.db.read() as session:
            row = session.get(VmRow, effect.vm)
            if row is None or row.state in _LEAVING:
                return self._withdraw(effect)
            closed = refusals.closed_since(session, row, now=self.clock())
        if closed is None:
            return self._launch(effect)
        if effect.repeated:
            text = f"{effect.spec.pool} is not asked again: {closed.told}; its listing tells"
            return self._note(effect.vm, text)
        return self._not_asked(effect, closed)

    def _is_fresh(self, effect: Launch) -> bool:
        """It was decided just now, and nothing was written about its job since."""
        with self._lock:
            decided_at = self._fresh.get(effect.job)
        return decided_at is not None and abs(self.clock() - decided_at) < FRESH

    def _wait_for_turn(self, cloud: str) -> None:
        limits = self.clouds[cloud].limits
        if limits.launches_per_s is None:
            return
        with self._lock:
            pace = self._paces.setdefault(
                cloud, Pacing(limits.launches_per_s, limits.launches_in_burst)
            )
        if (wait_s := pace.wait_s(self.clock())) > 0:
            self.sleep(wait_s)

    def _ask_nobody(self, effect: Effect) -> Write:
        if isinstance(effect, Terminate):
            return lambda session: None
        missing = BadRequest(f"cloud {effect.cloud!r} is not configured any more")
        return self._refused(effect.vm, refused_by(missing), str(effect.spec.pool))

    def _withdraw(self, effect: Launch) -> Write:
        def write(session: Session) -> None:
            row = session.get_one(VmRow, effect.vm)
            vms.withdrawn(session, row, now=self.clock())

        return write

    def _not_asked(self, effect: Launch, closed: BackOff) -> Write:
        text = f"{effect.spec.pool} is not asked: {closed.told}"

        def write(session: Session) -> None:
            row = session.get_one(VmRow, effect.vm)
            vms.not_asked(session, row, closed.error, text=text, now=self.clock())

        return write

    def _launch(self, effect: Launch) -> Write | _Result:
        asked_at = self.clock()
        try:
            vm = self._ask_for_vm(effect)
        except ScriptChanged as error:
            return self._note(effect.vm, f"launch: {error}")
        except Ambiguous as error:
            text = f"launch: no clear answer ({error}); asking the listing"
            return self._note(effect.vm, text, error=error.__cause__, asked_at=asked_at)
        except CloudError as error:
            return self._refused(effect.vm, refused_by(error), str(effect.spec.pool))
        self.chaos.reach("after_launch")
        cloud_id = vm.id

        def write(session: Session) -> None:
            row = session.get_one(VmRow, effect.vm)
            text = f"launched in {row.zone} as {cloud_id}"
            vms.launched(session, row, cloud_id=cloud_id, reason=text, now=self.clock())
            if vm.grace_s is not None:
                row.grace_s = vm.grace_s

        if vm.grace_s is not None:
            return write
        taken = Taken(
            job=effect.job,
            vm=effect.vm,
            lease=effect.lease,
            cloud_id=cloud_id,
            text=f"launched in {effect.spec.pool.zone} as {cloud_id}",
        )
        return _Result(effect=effect, write=write, taken=taken)

    def _ask_for_vm(self, effect: Launch) -> Vm:
        """Raises CloudError; Ambiguous when repeating it did not make it clear."""
        unclear = effect.repeated
        try:
            spec = self._complete(effect)
            for wait_s in self.repeat_after_s:
                try:
                    return self.clouds[effect.cloud].launch(spec, effect.token)
                except Ambiguous as error:
                    unclear = True
                    log.warning("VM %s: no clear answer (%s); asking it again", effect.vm, error)
                self.sleep(wait_s)
                self._wait_for_turn(effect.cloud)
            return self.clouds[effect.cloud].launch(spec, effect.token)
        except CloudError as error:
            if not unclear or isinstance(error, (Ambiguous, *_CLEAR)):
                raise
            raise Ambiguous(f"then {error}", code=error.code) from error

    def _complete(self, effect: Launch) -> LaunchSpec:
        """With the script that its VM boots with. Raises ScriptChanged, and CloudError where there
        can be none."""
        if not self.clouds[effect.cloud].limits.boots_images:
            return effect.spec
        try:
            return replace(effect.spec, script=self.script(effect.spec.user_data))
        except (PackageError, TooLong) as error:
            raise BadRequest(f"no user data for {effect.vm}: {error}") from error
        except OSError as error:
            raise Unavailable(
                f"the agent's zip cannot be kept in the master's home: {error}", scope=Scope.ACCOUNT
            ) from error

    def _refused(self, vm_id: str, refused: Refused, pool: str) -> Write:
        text = f"{pool} refused: {refused.detail}"
        growth = self.growth()

        def write(session: Session) -> None:
            row = session.get_one(VmRow, vm_id)
            if row.cloud_id is None and row.joined_at is None:
                vms.refused(session, row, refused, text=text, growth=growth, now=self.clock())
            else:  # it was seen meanwhile, which is the better evidence
                seen = f"{text}; but it is there, so its listing tells"
                transitions.record(session, "cloud", seen, now=self.clock(), row=row)

        return write

    def _terminate(self, effect: Terminate) -> Write:
        told, asked_at = self._tell_console(effect), self.clock()
        try:
            self.clouds[effect.cloud].terminate(effect.cloud_id)
        except CloudError as error:
            return self._note(
                effect.vm, f"terminate: {error}; asking again", error=error, asked_at=asked_at
            )
        self.chaos.reach("after_terminate")
        return told

    def _tell_console(self, effect: Terminate) -> Write:
        """Of a VM whose agent never joined nobody but its console can say why. Before the VM goes,
        with which the console goes, too."""
        cloud = self.clouds[effect.cloud]
        with self.db.read() as session:
            row = session.get(VmRow, effect.vm)
            asked = row is not None and row.reason == VmReason.NEVER_JOINED.value
        if not asked or not isinstance(cloud, TellsConsole) or effect.vm in self._consoles:
            return lambda session: None
        try:
            words = last_words(cloud.console(effect.cloud_id))
        except CloudError as error:
            words = f"(it cannot be read: {error})"
        self._consoles.add(effect.vm)
        text = f"{effect.vm} never joined; its console: {words or '(empty)'}"

        def write(session: Session) -> None:
            row, data = session.get_one(VmRow, effect.vm), {"level": "error"}
            transitions.record(session, "message", text, now=self.clock(), row=row, data=data)

        return write

    def _note(
        self,
        vm_id: str,
        text: str,
        *,
        error: BaseException | None = None,
        asked_at: datetime | None = None,
    ) -> Write:
        """`error` closes its scope for launches, too, if it is a throttle of what was asked for at
        `asked_at`."""
        growth = self.growth()

        def write(session: Session) -> None:
            row, now = session.get_one(VmRow, vm_id), self.clock()
            transitions.record(session, "cloud", text, now=now, row=row)
            if isinstance(error, Throttled):
                pool, refused = vms.pool_of(row), refused_by(error)
                refusals.throttled(
                    session, pool, refused, asked_at=asked_at or now, growth=growth, now=now
                )

        return write
