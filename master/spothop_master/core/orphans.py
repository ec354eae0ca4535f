"""Which VMs of the cloud nobody owns. Pure.

What it must guarantee: no VM is terminated that some master is about to use. Two rules:

1. Intents are committed before launches (I3), and rows are read after the listing was answered.
   So a listed VM without a row is nobody's, and so is one whose row is over.
2. Clouds list late and early: a VM that is over may be listed as alive for a while, and another
   master may know more than our listing. So one sighting proves nothing: it takes two listings,
   the second of which began at least the grace after the first. The same listing looked at twice
   is one sighting.
"""

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
    first_listed: datetime
    """When the first listing that had it began."""
    last_listed: datetime
    """When the newest one began."""
    sightings: int
    """In so many different listings."""


def look(
    living: Mapping[str, str],
    rows: Mapping[str, VmState],
    before: Mapping[str, Orphan],
    *,
    listed_at: datetime,
) -> dict[str, Orphan]:
    """The orphans of the listing that began at `listed_at`. `living`: cloud id -> token of VMs that
    are not over; `rows`: token -> state of those that we know, read after the listing was answered;
    `before`: the answer for the listing before.
    """
    found: dict[str, Orphan] = {}
    for cloud_id, token in living.items():
        state = rows.get(token)
        if state is None or state is VmState.TERMINATED:
            old = before.get(cloud_id)
            is_new = old is None or listed_at > old.last_listed
            found[cloud_id] = Orphan(
                cloud_id=cloud_id,
                token=token,
                first_listed=old.first_listed if old else listed_at,
                last_listed=listed_at if old is None else max(listed_at, old.last_listed),
                sightings=(old.sightings if old else 0) + is_new,
            )
    return found


def to_terminate(orphans: Mapping[str, Orphan], *, grace: timedelta) -> list[Orphan]:
    """Seen in two listings at least, of which the newest began the grace after the first."""
    return [
        orphan
        for orphan in orphans.values()
        if orphan.sightings >= 2 and orphan.last_listed - orphan.first_listed >= grace
    ]
