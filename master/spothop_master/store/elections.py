"""Which master runs which loop: a row for each, held for `TTL` and renewed.

What it guarantees: of all masters, the rows of a loop's decisions are written by the one that holds
it, and by nobody who held it before. Rules:

1. Whoever takes a loop that is free, or whose time is over, gets a new generation. Time is that of
   the database (`Database.now`): no two clocks have to agree.
2. Whoever writes for a loop says which generation it has, in the same transaction (`guard`). The
   row is locked against a taker until the commit. So a master that was stopped for minutes, and
   goes on in the middle of a decision, writes nothing (`LostLoop`).
3. A master whose transaction hangs loses its connection before its lease is over
   (`dialects.CONNECT`), so that a taker never waits for it; it takes what nobody else has locked
   (SKIP LOCKED).

On SQLite there is one master, which holds every loop; nothing here is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from sqlalchemy import delete, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from spothop_master.store.master_rows import Loop, Master

TTL = timedelta(seconds=12)
FORGOTTEN = timedelta(hours=1)
"""A master that was not seen for so long is not listed any more."""


class LostLoop(Exception):
    """Another master runs this loop now; nothing was written."""


def announce(session: Session, master: Master, *, now: datetime) -> None:
    """That it is there; again every few seconds."""
    session.merge(
        Master(
            id=master.id,
            name=master.name,
            url=master.url,
            version=master.version,
            loops=master.loops,
            started_at=master.started_at,
            seen_at=now,
        )
    )
    session.execute(delete(Master).where(Master.seen_at < now - FORGOTTEN))


def leave(session: Session, master_id: str, *, now: datetime) -> None:
    """It ends: others need not wait for its leases."""
    mine = update(Loop).where(Loop.master_id == master_id)
    session.execute(mine.values(master_id=None, until=now))
    session.execute(delete(Master).where(Master.id == master_id))


def prepare(session: Session, name: str) -> None:
    """That there is a row for it."""
    if session.get(Loop, name) is None:
        try:
            with session.begin_nested():
                session.add(Loop(name=name, generation=0))
        except IntegrityError:  # another master was faster
            return


def take(session: Session, name: str, master_id: str, *, now: datetime) -> int | None:
    """The generation, if it was free; None where somebody holds it."""
    free = or_(Loop.master_id.is_(None), Loop.until <= now)
    query = select(Loop).where(Loop.name == name, free)
    row = session.scalar(query.with_for_update(skip_locked=True))
    if row is None:
        return None
    row.master_id, row.generation = master_id, row.generation + 1
    row.since, row.until = now, now + TTL
    return row.generation


def renew(session: Session, held: Mapping[str, int], master_id: str, *, now: datetime) -> list[str]:
    """Those of these loops, by their generations, that it still holds."""
    kept: list[str] = []
    for name, generation in sorted(held.items()):
        statement = (
            update(Loop)
            .where(Loop.name == name, Loop.master_id == master_id)
            .where(Loop.generation == generation, Loop.until > now)
            .values(until=now + TTL)
            .returning(Loop.name)
            .execution_options(synchronize_session=False)
        )
        kept += session.scalars(statement).all()
    return kept


def guard(session: Session, name: str, generation: int, *, now: datetime) -> None:
    """This transaction writes for the loop, of which we have this generation. Raises LostLoop."""
    mine = select(Loop.name).where(
        Loop.name == name, Loop.generation == generation, Loop.until > now
    )
    if session.scalar(mine.with_for_update(read=True)) is None:
        raise LostLoop(f"another master runs the loop {name!r} now")


def holders(session: Session, *, now: datetime) -> list[tuple[Loop, Master | None]]:
    """Each loop that somebody holds, and who."""
    query = select(Loop, Master).outerjoin(Master, Master.id == Loop.master_id)
    held = query.where(Loop.master_id.is_not(None), Loop.until > now).order_by(Loop.name)
    return [(row[0], row[1]) for row in session.execute(held)]


def masters(session: Session, *, now: datetime) -> list[Master]:
    """Those that are there."""
    query = select(Master).where(Master.seen_at > now - TTL).order_by(Master.started_at)
    return list(session.scalars(query))
