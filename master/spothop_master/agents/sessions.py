"""Which VM a session token belongs to, remembered by its hash: heartbeats ask no database.

What is remembered only ever saves a question. It is right because a session belongs to one VM for
ever, acknowledged numbers only grow, and places of an attempt do not change; that a VM is over is
told by `forget`, and a master that was not told finds out with the next report, from the database.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import and_, bindparam, select

from spothop.wire import Pool, VmState
from spothop_master.problems import ApiError
from spothop_master.security import token_hash
from spothop_master.store.db import Database
from spothop_master.store.schema import Attempt, Job, Place, VmRow

_SESSIONS = (
    select(
        VmRow.id,
        VmRow.job_id,
        Job.owner_id,
        VmRow.state,
        VmRow.session_hash,
        VmRow.cloud,
        VmRow.region,
        VmRow.zone,
        VmRow.vm_type,
        VmRow.spot,
        Attempt.number,
        Place.node,
    )
    .outerjoin(Job, Job.id == VmRow.job_id)
    .outerjoin(Place, and_(Place.vm_id == VmRow.id, Place.living))
    .outerjoin(Attempt, Attempt.id == Place.attempt_id)
    .where(VmRow.session_hash.in_(bindparam("hashes", expanding=True)))
)


@dataclass(frozen=True, kw_only=True)
class VmSession:
    """One VM that joined."""

    vm: str
    job: str
    pool: Pool
    owner: int
    """Whose job it is; 0 without one."""


class Sessions:
    """Memory first, then the database (after a restart of the master). Thread-safe."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._known: dict[str, VmSession] = {}
        self._acked: dict[str, int] = {}
        self._nodes: dict[tuple[str, int], int] = {}
        self._forgotten = 0
        """How often a VM was forgotten: what was read before may be out of date."""
        self._lock = threading.Lock()

    def remembered(self, token: str) -> VmSession | None:
        """Without asking the database."""
        with self._lock:
            return self._known.get(token_hash(token))

    def look_up(self, token: str) -> VmSession:
        """Raises `ApiError`: 401 for an unknown session, 410 when its VM is over."""
        found = self.look_up_all([token])[token]
        if isinstance(found, ApiError):
            raise found
        return found

    def look_up_all(self, tokens: Sequence[str]) -> dict[str, VmSession | ApiError]:
        """What `look_up` returns or raises for each, in one query."""
        with self._lock:
            before = self._forgotten
        digests = {token: token_hash(token) for token in tokens}
        with self._db.read() as session:
            rows = session.execute(_SESSIONS, {"hashes": sorted(set(digests.values()))}).all()
        found = {row.session_hash: _session(row) for row in rows}
        with self._lock:
            if self._forgotten == before:  # else it may be over since we have read the row
                known = {k: v for k, v in found.items() if isinstance(v, VmSession)}
                self._known.update(known)
                living = [row for row in rows if row.number is not None]
                self._nodes.update({(row.id, row.number): row.node for row in living})
        for row in rows:
            if row.state == VmState.TERMINATED.value:
                self.forget(row.id)
        return {token: found.get(digest) or _no_session() for token, digest in digests.items()}

    def forget(self, vm_id: str) -> None:
        """The next call asks the database."""
        with self._lock:
            self._forgotten += 1
            self._known = {k: v for k, v in self._known.items() if v.vm != vm_id}
            self._acked.pop(vm_id, None)
            self._nodes = {k: v for k, v in self._nodes.items() if k[0] != vm_id}

    def keep(self, vm_ids: Collection[str]) -> None:
        """Forget all other VMs: another master may have seen their ends."""
        with self._lock:
            self._known = {k: v for k, v in self._known.items() if v.vm in vm_ids}
            self._acked = {k: v for k, v in self._acked.items() if k in vm_ids}
            self._nodes = {k: v for k, v in self._nodes.items() if k[0] in vm_ids}

    def acknowledge(self, vm_id: str, seq: int) -> None:
        """Every report of the VM up to `seq` is in the database."""
        with self._lock:
            self._acked[vm_id] = max(seq, self._acked.get(vm_id, 0))

    def acked(self, vm_id: str) -> int | None:
        """None: ask the database."""
        with self._lock:
            return self._acked.get(vm_id)

    def allow_log(self, vm_id: str, attempt: int, node: int) -> None:
        """The database said that the VM has this place."""
        with self._lock:
            self._nodes[vm_id, attempt] = node

    def node_of(self, vm_id: str, attempt: int) -> int | None:
        """Whose log the VM writes; None: ask the database."""
        with self._lock:
            return self._nodes.get((vm_id, attempt))


def _session(row: Any) -> VmSession | ApiError:
    if row.state == VmState.TERMINATED.value:
        return vm_is_over(row.id)
    where = (row.cloud, row.region, row.zone, row.vm_type, row.spot)
    return VmSession(vm=row.id, job=row.job_id or "", pool=_pool(*where), owner=row.owner_id or 0)


@lru_cache(maxsize=4096)
def _pool(cloud: str, region: str, zone: str, vm: str, spot: bool) -> Pool:
    return Pool(cloud=cloud, region=region, zone=zone, vm=vm, spot=spot)


def _no_session() -> ApiError:
    hint = "join again with a new one-time token"
    return ApiError(401, "no_session", "no VM has this session", hint)


def vm_is_over(vm_id: str) -> ApiError:
    return ApiError(410, "vm_is_over", f"VM {vm_id!r} is over", "stop the process and exit")
