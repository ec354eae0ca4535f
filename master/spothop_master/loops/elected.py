"""Which loops this master runs: it tries to take those that nobody has, and renews what it has.

Each pass of a loop asks `holds`, from memory; a loop that decides about jobs also asks `guard`
inside its transaction (`store.elections` says why). With SQLite, which one master uses, it holds
all of them. A master that only answers (`loops = false`) never takes any.

`holds` says no from the moment at which the lease may be over, by this machine's monotonic clock,
which goes on while the process is stopped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from spothop_master.store import elections
from spothop_master.store.db import Database
from spothop_master.store.schema import Master

log = logging.getLogger(__name__)

LOOPS = ("supervise", "sweep", "prices", "inject", "retention", "alarms")

TRY_S = 1.0
"""How often it is looked whether a loop is free."""
RENEW_S = elections.TTL.total_seconds() / 4


@dataclass(frozen=True, kw_only=True)
class _Held:
    generation: int
    until: float
    """Monotonic, in seconds."""
    since: datetime


class Elected:
    """Thread-safe. `run` belongs in a thread of its own."""

    def __init__(
        self,
        db: Database,
        *,
        name: str,
        url: str,
        version: str,
        clock: Callable[[], datetime],
        loops: bool = True,
        told_time: Callable[[datetime], None] = lambda now: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`told_time` hears what time it is on the database's server, every few seconds."""
        self.id, self.name = db.master_id, name
        self._db = db
        self._loops = loops
        self._told_time = told_time
        self._monotonic = monotonic
        self._row = Master(
            id=self.id, name=name, url=url, version=version, loops=loops, started_at=clock()
        )
        self._alone = db.single_master
        self._held: dict[str, _Held] = {}
        if self._alone and loops:
            alone = _Held(generation=0, until=float("inf"), since=clock())
            self._held = dict.fromkeys(LOOPS, alone)
        self._renewed_at: float | None = None
        self._lock = threading.Lock()

    def holds(self, loop: str) -> bool:
        """Whether this master runs it now."""
        return self._generation(loop) is not None

    def guard(self, session: Session, loop: str) -> None:
        """Raises `elections.LostLoop` unless this transaction may write for the loop."""
        generation = self._generation(loop)
        if generation is None:
            raise elections.LostLoop(f"this master does not run the loop {loop!r}")
        if not self._alone:
            elections.guard(session, loop, generation, now=self._db.now(session))

    def only_here(self, loop: str, run: Callable[[], None]) -> Callable[[], None]:
        """`run`, which does nothing while another master has the loop."""

        def turn() -> None:
            if self.holds(loop):
                run()

        return turn

    def running(self) -> Mapping[str, datetime]:
        """The loops that run here, and since when."""
        with self._lock:
            held = dict(self._held)
        return {name: held[name].since for name in sorted(held) if self.holds(name)}

    def run(self, stop: threading.Event, taken: Callable[[], None] = lambda: None) -> None:
        """Until `stop` is set; `taken` is called after a loop was. Gives all back at the end."""
        if self._alone:
            return
        while not stop.is_set():
            try:
                if self.turn():
                    taken()
            except SQLAlchemyError as error:
                log.warning("no election, the database does not answer: %s", _first(error))
            except Exception:  # a bug in one turn must not end it
                log.exception("an election failed; the next one follows")
            stop.wait(TRY_S)
        try:
            with self._db.begin() as session:
                elections.leave(session, self.id, now=self._db.now(session))
        except SQLAlchemyError:
            log.warning("the leases of this master end by themselves")

    def turn(self) -> list[str]:
        """Renew what is held, when that is due, and take what is free; the loops that were taken.
        Raises SQLAlchemyError."""
        began = self._monotonic()
        due = self._renewed_at is None or began - self._renewed_at >= RENEW_S
        with self._lock:
            held = dict(self._held)
        wanted = [name for name in LOOPS if self._loops and name not in held]
        if not due and not wanted:
            return []
        until = began + elections.TTL.total_seconds()
        with self._db.begin() as session:
            now = self._db.now(session)
            if due:
                self._told_time(now)
                elections.announce(session, self._row, now=now)
                ours = {name: each.generation for name, each in held.items()}
                kept = elections.renew(session, ours, self.id, now=now)
                held = {
                    name: _Held(generation=ours[name], until=until, since=held[name].since)
                    for name in kept
                }
            taken = self._take(session, wanted, now)
        for name, generation in taken.items():
            held[name] = _Held(generation=generation, until=until, since=now)
        self._keep(held)
        self._renewed_at = began if due else self._renewed_at
        if taken:
            log.info("this master runs %s now", ", ".join(sorted(taken)))
        return [*taken]

    def _take(self, session: Session, wanted: list[str], now: datetime) -> dict[str, int]:
        taken = {}
        for name in wanted:
            if self._renewed_at is None:
                elections.prepare(session, name)
            generation = elections.take(session, name, self.id, now=now)
            if generation is not None:
                taken[name] = generation
        return taken

    def _keep(self, held: dict[str, _Held]) -> None:
        with self._lock:
            if lost := sorted(set(self._held) - set(held)):
                log.warning("another master may run %s now", ", ".join(lost))
            self._held = held

    def _generation(self, loop: str) -> int | None:
        with self._lock:
            held = self._held.get(loop)
        if held is None or self._monotonic() >= held.until:
            return None
        return held.generation


def _first(error: Exception) -> str:
    return str(error).splitlines()[0]
