"""The calls to the clouds, and what is to be written of their answers.

Each is outside any session (I4), and what it returns is written later, under a lease
(`loops.effects`). Rules:

1. After an answer that is not clear the same launch is asked for again, with its token and the same
   bytes: the cloud makes one VM for a token, so that its answer tells what came of the first one.
   When that is not clear either, the cloud's listing tells. Only a refusal that looked at the
   launch itself makes it clear (`_CLEAR`): "slow down" says nothing about what came of the first.
2. Launches go no faster than their cloud takes them (`clouds.pacing`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from sqlalchemy.orm import Session

from spothop.chaos import Chaos
from spothop.wire import AgentConfig, VmReason
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
from spothop_master.store import refusals, transitions, vms
from spothop_master.store.db import Database
from spothop_master.store.launches import Taken
from spothop_master.store.schema import VmRow

log = logging.getLogger(__name__)

REPEAT_AFTER_S = (1.0, 4.0)
"""After an answer to a launch that is not clear it is repeated so many times, after so long."""

_CLEAR = (NoCapacity, QuotaExceeded)
"""Refusals of a repeated launch that mean that the first one made nothing."""


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
class Result:
    effect: Effect
    write: Write
    taken: Taken | None = None
    """Of a launch that the cloud took: the same for a transaction of many."""


@dataclass(kw_only=True)
class Calls:
    """Thread-safe. The clouds of a call are configured."""

    db: Database
    clouds: Mapping[str, Cloud]
    clock: Callable[[], datetime]
    chaos: Chaos
    growth: Callable[[], Growth]
    """Of the back-off after a refusal."""
    script: Callable[[AgentConfig], str]
    """The user data of a VM that boots an image; always the same. Raises what `loops.booting` says.
    """
    repeat_after_s: Sequence[float]
    sleep: Callable[[float], None]
    _consoles: set[str] = field(default_factory=set)
    """VMs whose console was told."""
    _paces: dict[str, Pacing] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wait_for_turn(self, cloud: str) -> None:
        limits = self.clouds[cloud].limits
        if limits.launches_per_s is None:
            return
        with self._lock:
            pace = self._paces.setdefault(
                cloud, Pacing(limits.launches_per_s, limits.launches_in_burst)
            )
        if (wait_s := pace.wait_s(self.clock())) > 0:
            self.sleep(wait_s)

    def ask_nobody(self, effect: Effect) -> Write:
        if isinstance(effect, Terminate):
            return lambda session: None
        missing = BadRequest(f"cloud {effect.cloud!r} is not configured any more")
        return self._refused(effect.vm, refused_by(missing), str(effect.spec.pool))

    def withdraw(self, effect: Launch) -> Write:
        def write(session: Session) -> None:
            row = session.get_one(VmRow, effect.vm)
            vms.withdrawn(session, row, now=self.clock())

        return write

    def not_asked(self, effect: Launch, closed: BackOff) -> Write:
        text = f"{effect.spec.pool} is not asked: {closed.told}"

        def write(session: Session) -> None:
            row = session.get_one(VmRow, effect.vm)
            vms.not_asked(session, row, closed.error, text=text, now=self.clock())

        return write

    def launch(self, effect: Launch) -> Write | Result:
        asked_at = self.clock()
        try:
            vm = self._ask_for_vm(effect)
        except ScriptChanged as error:
            return self.note(effect.vm, f"launch: {error}")
        except Ambiguous as error:
            text = f"launch: no clear answer ({error}); asking the listing"
            return self.note(effect.vm, text, error=error.__cause__, asked_at=asked_at)
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
        return Result(effect=effect, write=write, taken=taken)

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
                self.wait_for_turn(effect.cloud)
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

    def terminate(self, effect: Terminate) -> Write:
        told, asked_at = self._tell_console(effect), self.clock()
        try:
            self.clouds[effect.cloud].terminate(effect.cloud_id)
        except CloudError as error:
            return self.note(
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

    def note(
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
