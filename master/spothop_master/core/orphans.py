"""Which VMs of the cloud nobody owns. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from spothop.wire import VmState


@dataclass(frozen=True, kw_only=True)
class Orphan:
    """A VM without a living row."""

    cloud_id: str
    token: str
    first_seen: datetime
    sightings: int


def look(
    living: Mapping[str, str],
    rows: Mapping[str, VmState],
    before: Mapping[str, Orphan],
    *,
    now: datetime,
) -> dict[str, Orphan]:
    """The strays of this listing. `living`: cloud id -> token of VMs that are not over; `rows`:
    token -> state of those that we know. Intents are committed before launches (I3), so a VM
    without a row is nobody's, and so is one whose row is over.
    """
    found: dict[str, Orphan] = {}
    for cloud_id, token in living.items():
        state = rows.get(token)
        if state is None or state is VmState.TERMINATED:
            old = before.get(cloud_id)
            found[cloud_id] = Orphan(
                cloud_id=cloud_id,
                token=token,
                first_seen=old.first_seen if old else now,
                sightings=old.sightings + 1 if old else 1,
            )
    return found


def to_terminate(strays: Mapping[str, Orphan], *, grace: timedelta, now: datetime) -> list[Orphan]:
    """Seen twice at least, over at least the grace."""
    return [
        stray
        for stray in strays.values()
        if stray.sightings >= 2 and now - stray.first_seen >= grace
    ]
