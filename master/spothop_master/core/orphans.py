"""Which VMs of the cloud nobody owns. Pure.

What it must guarantee: no VM is terminated that some master is about to use, and a master that is
wrong about the world ends no fleet. Three rules:

1. Intents are committed before launches (I3), and rows are read after the listing was answered.
   So a listed VM without a row is nobody's, and so is one whose row is over.
2. Clouds list late and early: a VM that is over may be listed as alive for a while, and another
   master may know more than our listing. So one sighting proves nothing: it takes two listings,
   the second of which began at least the grace after the first. The same listing looked at twice
   is one sighting.
3. A VM of ours without a row is a rare accident. Many of them, or one that was launched when nobody
   wrote this database, say that the database is not the one that launched them: it was restored
   from a backup, or made anew. Then all of that cloud are held until an admin says that they go
   (`hold`). Nothing is adopted: what they train is known to no row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from spothop.wire import Pool, VmState


@dataclass(frozen=True, kw_only=True)
class Orphan:
    """A VM without a living row."""

    cloud_id: str
    token: str
    pool: Pool
    launched_at: datetime
    has_row: bool
    """A row has its token, and is over."""
    first_listed: datetime
    """When the first listing that had it began."""
    last_listed: datetime
    """When the newest one began."""
    sightings: int
    """In so many different listings."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A VM of ours that is not over."""

    token: str
    pool: Pool
    launched_at: datetime


@dataclass(frozen=True, kw_only=True)
class Written:
    """When this database was written, as far as a master that has just been started can tell."""

    born_at: datetime | None
    """When it was made; None: it is empty."""
    last_at: datetime | None
    """When something was last written into it before `started_at`."""
    started_at: datetime


@dataclass(frozen=True, kw_only=True)
class HoldLimits:
    share: float
    """Of the VMs that are listed as alive."""
    at_least: int
    """Fewer than this are never too many."""


def look(
    living: Mapping[str, Listed],
    rows: Mapping[str, VmState],
    before: Mapping[str, Orphan],
    *,
    listed_at: datetime,
) -> dict[str, Orphan]:
    """The orphans of the listing that began at `listed_at`. `living`: by cloud id, those that are
    not over; `rows`: token -> state of those that we know, read after the listing was answered;
    `before`: the answer for the listing before.
    """
    found: dict[str, Orphan] = {}
    for cloud_id, vm in living.items():
        state = rows.get(vm.token)
        if state is None or state is VmState.TERMINATED:
            old = before.get(cloud_id)
            is_new = old is None or listed_at > old.last_listed
            found[cloud_id] = Orphan(
                cloud_id=cloud_id,
                token=vm.token,
                pool=vm.pool,
                launched_at=vm.launched_at,
                has_row=state is not None,
                first_listed=old.first_listed if old else listed_at,
                last_listed=listed_at if old is None else max(listed_at, old.last_listed),
                sightings=(old.sightings if old else 0) + is_new,
            )
    return found


def hold(
    strays: Sequence[Orphan], *, listed: int, limits: HoldLimits, written: Written
) -> str | None:
    """Why these, all of one cloud that lists so many VMs as alive, are not to be ended without an
    admin; None: they may be."""
    unknown = [stray for stray in strays if not stray.has_row]
    if foreign := [stray for stray in unknown if _not_by(written, stray.launched_at)]:
        return (
            f"{len(foreign)} of {len(strays)} were launched when nobody wrote this database: was "
            "it restored from a backup, or made anew?"
        )
    if len(strays) >= limits.at_least and len(strays) >= limits.share * listed:
        return f"{len(strays)} of the {listed} VMs that are listed belong to no row"
    return None


def _not_by(written: Written, launched_at: datetime) -> bool:
    if written.born_at is not None and launched_at < written.born_at:
        return True
    return written.last_at is not None and written.last_at < launched_at < written.started_at


def to_terminate(orphans: Mapping[str, Orphan], *, grace: timedelta) -> list[Orphan]:
    """Seen in two listings at least, of which the newest began the grace after the first."""
    return [
        orphan
        for orphan in orphans.values()
        if orphan.sightings >= 2 and orphan.last_listed - orphan.first_listed >= grace
    ]
